"""Hostile pages: each is read, rejected or set aside with a reason, and the page next to it is kept.

Run the soak tests after a change of a parser, a limit or the guard of a worker.
"""

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tasks.core.artifact import Artifact
from tasks.stages.extract.config import ExtractConfig
from tests.tasks.stages.extract.conftest import PROSE

MODULE = "tasks.stages.extract.stage"
Make = Callable[..., bytes]
Run = Callable[..., Artifact]

LAUGHS = b'<?xml version="1.0"?><!DOCTYPE x [<!ENTITY a0 "lol">' + b"".join(
    b'<!ENTITY a%d "%s">' % (n, b"&a%d;" % (n - 1) * 10) for n in range(1, 10)
)
READ = {
    "a_text_node_of_4_megabytes": b"<p>" + b"lorem ipsum " * 330_000,
    "invalid_utf8": b"<p>" + b"\xff\xfe\x80 " * 5_000 + PROSE.encode() * 4,
    "a_lone_surrogate_by_reference": b"<p>&#xD800;&#xDFFF; " + PROSE.encode() * 4,
    "a_lone_surrogate_in_bytes": b"<meta charset=utf-8><p>\xed\xa0\x80 " + PROSE.encode() * 4,
    "a_surrogate_in_json_ld": b'<script type="application/ld+json">{"datePublished": 1, "license": "\\ud800"}</script>'
    + PROSE.encode() * 4,
    "a_flood_of_zero_width_characters": b"<p>" + "\u200b\u200d\ufeff".encode() * 100_000 + PROSE.encode() * 4,
    # Normalization uses insertion sort for the marks of a letter.
    "a_flood_of_combining_marks": b"<p>a" + "\u0301\u0316".encode() * 100_000 + PROSE.encode() * 4,
    "nuls": b"<p>" + b"\0" * 1_000_000 + PROSE.encode() * 4,
    "a_billion_laughs": LAUGHS + b"]><html><body><p>&a9;</p>" + PROSE.encode() * 4,
    "an_attribute_of_2_megabytes": b'<p title="' + b"x" * 2_000_000 + b'">' + PROSE.encode() * 4,
    "json_ld_that_nests_for_ever": b'<script type="application/ld+json">'
    + b'["datePublished",' * 50_000
    + b"</script>"
    + PROSE.encode() * 4,
}
REFUSED = {
    "too_large": lambda: b"<p>" + b"lorem ipsum " * 1_400_000,
    "nesting": lambda: b"<div>" * 1_000_000 + PROSE.encode() * 4,
    "attributes": lambda: b"<p " + b"a=b " * 500_000 + b">" + PROSE.encode() * 4,
}


@pytest.fixture
def outcome(run_stage: Run, warc_artifact: Callable[..., Artifact], warc: Make) -> Callable[[bytes], Artifact]:
    """Extracts one page next to a good one."""

    def run(body: bytes, **settings: object) -> Artifact:
        captured = warc_artifact([warc("http://a.example/hostile", body), warc("http://b.example/good")])
        config = ExtractConfig.model_validate(settings)
        return run_stage(MODULE, config, {"warc": captured}, max_bad_share=0.5)

    return run


def texts(artifact: Artifact) -> dict[str, str]:
    rows = [row for path in artifact.files("documents/") for row in artifact.table(path).to_pylist()]
    return {row["host"]: row["text"] for row in rows}


@pytest.mark.parametrize("body", READ.values(), ids=READ)
def test_a_page_that_only_looks_dangerous_is_read(outcome: Callable[..., Artifact], body: bytes) -> None:
    found = texts(outcome(body))
    assert set(found) == {"a.example", "b.example"}
    text = found["a.example"]
    assert not re.search("[\0\ud800-\udfff\ufeff]", text)
    assert "lol" not in text


@pytest.mark.parametrize(("reason", "body"), REFUSED.items(), ids=REFUSED)
def test_a_malicious_page_is_rejected_with_its_reason(
    outcome: Callable[..., Artifact], reason: str, body: Callable[[], bytes]
) -> None:
    made = outcome(body())
    assert made.record.rejected == {reason: 1}
    assert set(texts(made)) == {"b.example"}


@pytest.mark.parametrize(
    ("body", "cpu_s", "expected"),
    [
        (b"<table>" + b"<td>x" * 3_000_000, 60.0, "memory|crash|error"),
        # The cost of each paragraph is proportional to its number of ancestors.
        (b"<div>" * 3_900 + b"<p>y</p>" * 30_000 + PROSE.encode() * 4, 1.0, "timeout"),
    ],
    ids=["all_memory", "all_time"],
)
def test_a_page_that_exceeds_its_limits_is_quarantined(
    outcome: Callable[..., Artifact], body: bytes, cpu_s: float, expected: str
) -> None:
    made = outcome(body, max_page_cpu_s=cpu_s)
    assert made.record.rejected == {"poison": 1}
    assert set(texts(made)) == {"b.example"}
    (line,) = made.read(made.files("quarantine/")[0]).splitlines()
    assert re.match(rf"Poison: ({expected}): ", json.loads(line)["error"])


@pytest.mark.soak
def test_a_worker_stays_below_1500_megabytes_for_any_input(
    warc_artifact: Callable[..., Artifact], warc: Make, tmp_path: Path
) -> None:
    big = [b"<p>" + b"lorem ipsum %d " % n * 850_000 for n in range(4)]
    hard = [
        b"<p>x" * 3_900_000,
        b"<p>" + ("\U0001f600" + "a" * 7_000_000).encode(),
        b"<p>" + b"lorem ipsum " * 8_500_000,
    ]
    warc_artifact([*(warc(f"http://{n}.example/", body) for n, body in enumerate([*big, *hard])), warc()])
    program = (
        "import resource, sys; from pathlib import Path; from tests.conftest import run_stage_in;"
        "from tasks.core.artifact import ArtifactId, Artifact; from tasks.core.store import Store;"
        "from tasks.stages.extract.config import ExtractConfig;"
        "warc = Artifact.open_at(Store(sys.argv[1]), ArtifactId('test/warc', 'dev'));"
        "made = run_stage_in(sys.argv[1], 'tasks.stages.extract.stage', ExtractConfig(), {'warc': warc},"
        "max_bad_share=0.5);"
        "from tasks.stages.extract import guard; guard.end_idle_children();"
        # Not its own ru_maxrss, which includes the process it was forked from.
        "(own,) = [line.split()[1] for line in open('/proc/self/status') if line.startswith('VmHWM')];"
        "print(made.record.rows_in, own, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)"
    )
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE, check=True, text=True)
    rows, own, child = map(int, done.stdout.split()[-3:])
    assert rows == 8
    assert (own + child) * 1024 < 1_500_000_000
