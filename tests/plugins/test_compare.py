"""Two versions side by side: settings, funnel, documents that changed sides, figures, and paired scores."""

import json
import re
from html import unescape

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tasks.core.artifact import Artifact, ArtifactId
from tasks.core.commit import commit
from tasks.core.config import Config
from tasks.core.stage import Output, Report
from tasks.core.store import Store
from tests.corpora import corpus

PAGE = "/sluice/compare?recipe=test&version=v2"
ROWS = corpus(60)


class Settings(Config):
    steps: int = 10
    model: dict = {"dim": 8}


def section(text, title):
    """Returns a section of a page without markup."""
    return re.sub(r"<[^>]+>", "|", unescape(text.partition(f"<h2>{title}</h2>")[2].partition("<h2>")[0]))


def write(folder, kind, version, files, config=None, metrics=None):
    output = Output(Store(str(folder)), ArtifactId(f"test/{kind}", version), "0" * 64)
    with output.part("part", conserved=False) as part:
        for name, content in files.items():
            with part.file(name) as file:
                pq.write_table(content, file) if isinstance(content, pa.Table) else file.write(content)
    return commit(output, "train", 1, config or Config(), [], Report(metrics=metrics or {}))


def kinds(folder, version):
    names = ("documents", "shards")
    return {kind: Artifact.open_at(Store(str(folder)), ArtifactId(f"test/{kind}", version)) for kind in names}


def test_documents_that_changed_sides_are_counted_by_reason_with_examples(get, versions):
    text = section(get(f"{PAGE}&other=v1").text, "Documents that changed sides")
    assert "50 of 50 kept documents of v2 were looked up in v1, and 50 of 50 of v1 in v2." in text
    assert re.search(r"kept now\|\s*\|short in v1\|\s*\|10\|\s*\|20.00%", text), text
    assert re.search(r"kept before\|\s*\|not in v2\|\s*\|6\|", text)
    assert "<script" not in text
    for row in (*ROWS[50:], *ROWS[:10]):
        assert row["url"] in text
    assert f"{ROWS[30]['url']}|" not in text


def test_a_sample_of_a_large_version_gives_the_same_fates_by_the_indexes(client, versions, monkeypatch):
    from sluice_ui import compare

    old, new = kinds(versions, "v1"), kinds(versions, "v2")
    exact = compare.moves(old, new)
    monkeypatch.setattr(compare, "WHOLE", -1)
    sampled = compare.moves(old, new)
    assert (sampled.gained.reasons, sampled.lost.reasons) == (exact.gained.reasons, exact.lost.reasons)
    assert (sampled.gained.sampled, sampled.lost.sampled) == (50, 50)
    del new["shards"]  # what is not rejected there is not known now
    assert compare.moves(old, new).lost.sampled == 4
    monkeypatch.setattr(compare, "SAMPLE", 10)
    assert 6 <= compare.moves(old, kinds(versions, "v2")).lost.sampled <= 20


def test_only_changed_settings_are_listed(get, versions):
    write(versions, "checkpoint", "v1", {"a": b"1"}, Settings(), {"loss": 3.0})
    write(versions, "checkpoint", "v2", {"a": b"2"}, Settings(steps=20, model={"dim": 8, "heads": 2}), {"loss": 2.0})
    text = get(f"{PAGE}&other=v1").text
    settings = section(text, "Settings that differ")
    assert re.search(r"train.steps\|\s*\|10\|\s*\|20\|", settings)
    assert re.search(r"train.model.heads\|\s*\|\|\s*\|2\|", settings)
    assert "dim" not in settings
    assert re.search(
        r"loss, mean of the last twentieth of the steps, nats per token\|\s*\|3\|\s*\|2\|\s*\|-1\|\s*\|-33.3%",
        section(text, "Figures"),
    )


def test_scores_are_paired_on_the_documents_that_both_versions_hold_out(get, versions):
    for version, gain in (("v1", 0.0), ("v2", 0.1)):
        ids = [f"{n:032x}" for n in range(40)] + [version * 16, "f" * 32]
        bits = [1000.0 * (1 - gain) + n % 2 * gain * 10 for n in range(40)] + [9e9, 9e9]
        table = pa.table({"id": ids, "bytes": [1000] * 41 + [int(version[1])], "bits": bits})
        content = json.dumps({"sources": {"web": {"bpb": 1.0, "unigram_bpb": 2.0}}}).encode()
        write(versions, "scores", version, {"documents/web.parquet": table, "scores.json": content})
    text = section(get(f"{PAGE}&other=v1").text, "Scores")
    assert "the new model needs 0.0995 bits per byte less, 95 % interval 0.0993 .. 0.0997." in text
    assert re.search(r"web\|\|40\|\|1\|\|0.9005\|\|0.0995\|\|0.0993 .. 0.0997", text), text


def test_the_verdict_of_the_stage_compare_is_shown_only_for_these_two_models(get, versions):
    write(versions, "model", "v1", {"a": b"1"})
    row = {"name": "web", "metric": "bpb", "items": 40, "first": 1.0, "second": 0.9, "difference": 0.1,
           "interval": [0.05, None]}  # fmt: skip
    verdict = {"champion": {"artifact": "test/model@v1"}, "reason": "it is better", "rows": [row]}
    write(versions, "comparison", "v2", {"comparison.json": json.dumps(verdict).encode()})
    assert "it is better" in section(get(f"{PAGE}&other=v1").text, "Scores")
    write(versions, "model", "v0", {"a": b"1"})
    assert "it is better" not in get(f"{PAGE}&other=v0").text


def test_a_version_is_chosen_from_the_others_without_takedowns(get, versions):
    text = get(PAGE).text
    options = re.findall(r"<option( selected)?>([^<]+)</option>", text)
    assert options == [(" selected", "v1")]
    assert get(f"{PAGE}&other=v9").status_code == 404
    assert get(f"{PAGE}&other=../x").status_code == 422


@pytest.mark.parametrize("funnels", [True, False])
def test_the_funnels_stand_side_by_side(get, versions, funnels):
    if funnels:
        for version, count in (("v3", 5), ("v4", 8)):
            table = pa.table({"source": ["web"] * 2, "step": ["kept", "quality"], "reason": ["", f"short in {version}"],
                              "documents": [count, 1], "bytes": [9, 9]})  # fmt: skip
            write(versions, "documents", version, {"funnel.parquet": table, "other": version.encode()})
    text = section(
        get("/sluice/compare?recipe=test&version=v4&other=v3" if funnels else f"{PAGE}&other=v1").text, "Funnel"
    )
    if funnels:
        assert re.search(r"web\|\s*\|kept\|\s*\|kept\|\s*\|5\|\s*\|8\|\s*\|3\|", text)
        assert re.search(r"short in v3\|\s*\|1\|\s*\|0\|\s*\|-1\|", text)
    else:
        assert "none" in text
