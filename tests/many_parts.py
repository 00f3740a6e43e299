"""A corpus of many tiny parts through the stages from `extract` to `spans`, each of which can be killed and resumed.

`write_inputs` makes one file of JSON lines for each part, and `run` runs one of `STAGES` on a store. `killed` runs a
stage as a process, kills it, and runs it again:

    python -m tests.many_parts KIND STORE INPUTS PARTS
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from tasks.core.artifact import Artifact, ArtifactId
from tasks.core.config import Config
from tasks.core.store import Store
from tasks.formats.documents.groups import groups_of
from tasks.stages.annotate import AnnotateConfig
from tasks.stages.consolidate.config import ConsolidateConfig
from tasks.stages.dedup import DedupConfig, MinhashConfig
from tasks.stages.extract.config import ExtractConfig, FileSource
from tasks.stages.spans import SpansConfig
from tasks.stages.tokens import EncodeConfig, PackConfig, TokenizerConfig
from tests.conftest import run_stage_in
from tests.s3_objects import CREATE, Counting

SCORE = "prose_score"
_BANDS = MinhashConfig(permutations=32, bands=4)


def write_inputs(folder: Path, parts: int, documents: int = 2) -> None:
    """Writes a file for each part, with so many documents; every fourth document is a copy of one in another part."""
    folder.mkdir(parents=True, exist_ok=True)
    for part in range(parts):
        rows = []
        for row in range(documents):
            number = part * documents + row
            said = number - 3 if number % 4 == 3 else number
            words = " ".join(f"word{(said * 7919 + place * place * 31) % 9973}" for place in range(40))
            rows.append({"url": f"https://example.org/{number}", "text": f"Page {said}: {words}."})
        (folder / f"{part:06d}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


class Made(NamedTuple):
    """A run: the URL of its store, the folder of its inputs, and the number of parts.

    `per_bucket` is the number of records of a bucket of dedup; 0 if dedup looks for equal texts only, in few buckets.
    """

    store: str
    inputs: Path
    parts: int
    per_bucket: int = 0

    def artifact(self, kind: str) -> Artifact:
        """Opens the artifact of a stage."""
        return Artifact.open_at(Store(self.store), ArtifactId(f"test/{kind}", "dev"))


@dataclass(frozen=True)
class Stage:
    """A stage: its module, its settings for a run, and the kinds of its inputs by role."""

    module: str
    config: Callable[[Made], Config]
    inputs: dict[str, str]


def _extract_config(made: Made) -> ExtractConfig:
    source = FileSource(name="made", kind="jsonl", path=f"{made.inputs.absolute()}/*.jsonl")
    return ExtractConfig(files=(source,), parts=made.parts, min_chars=1)


def _dedup_config(made: Made) -> DedupConfig:
    if not (records := made.per_bucket):
        return DedupConfig(near=False)
    return DedupConfig(minhash=_BANDS, records_per_bucket=records, pairs_per_part=records)


STAGES = {
    "extracted": Stage("tasks.stages.extract.stage", _extract_config, {}),
    "attributes": Stage(
        "tasks.stages.annotate.stage", lambda _: AnnotateConfig(use=(SCORE,)), {"extracted": "extracted"}
    ),
    "duplicates": Stage(
        "tasks.stages.dedup.stage",
        _dedup_config,
        {"extracted": "extracted", SCORE: "attributes"},
    ),
    "documents": Stage(
        "tasks.stages.consolidate.stage",
        lambda _: ConsolidateConfig(filters=(), mask_pii=False),
        {kind: kind for kind in ("extracted", "attributes", "duplicates")},
    ),
    "tokenizer": Stage(
        "tasks.stages.tokens.bpe",
        lambda _: TokenizerConfig(vocab_size=300, sample_bytes=10_000),
        {"documents": "documents"},
    ),
    "shards": Stage(
        "tasks.stages.tokens.encode",
        lambda _: EncodeConfig(),
        {"documents": "documents", "tokenizer": "tokenizer"},
    ),
    "plan": Stage("tasks.stages.tokens.pack", lambda _: PackConfig(seq_len=16), {"shards": "shards"}),
    "spans": Stage("tasks.stages.spans.stage", lambda _: SpansConfig(enabled=True), {"shards": "shards"}),
}
"""Stages by the kind of their artifact, in their order."""


def run(kind: str, made: Made) -> Artifact:
    """Runs a stage in this process on the artifacts that it reads; resumes one that was killed."""
    stage = STAGES[kind]
    inputs: dict[str, Artifact | list[Artifact]] = {role: made.artifact(of) for role, of in stage.inputs.items()}
    if SCORE in inputs:
        inputs[SCORE] = groups_of(made.artifact("attributes"))[SCORE]
    return run_stage_in(made.store, stage.module, stage.config(made), inputs, kind=kind)


class Resumed(NamedTuple):
    """A stage that was killed.

    Attributes:
        found: records of parts that it had published when it was killed.
        looking: requests of the process that resumed it, before it wrote anything.
        making: requests of that process from then on.
    """

    found: int
    looking: int
    making: int

    def check(self) -> None:
        """Raises AssertionError if it took more than 1.1 requests for each part to find what exists."""
        assert self.looking <= 1.1 * self.found + OPENING, self


OPENING = 12
"""Requests of a stage that is resumed, whatever its parts: records of its inputs, and pages of listings."""


def killed(kind: str, made: Made, server: Counting, records: int) -> Resumed:
    """Runs a stage as a process, kills it with SIGKILL when it has published so many records, and runs it again."""
    command = [sys.executable, "-m", __spec__.name, kind, made.store, str(made.inputs), str(made.parts)]
    environment = os.environ | server.environment
    server.counts(reset=True, most=records)
    with subprocess.Popen(command, env=environment, start_new_session=True) as process:
        while process.poll() is None and server.counts()[CREATE] < records:
            time.sleep(0.05)
        os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL, f"{kind} ended before it was killed"
    server.counts(reset=True)
    subprocess.run(command, env=environment, check=True)
    counts = server.counts()
    return Resumed(records, counts["before a write"], server.total(counts) - counts["before a write"])


if __name__ == "__main__":
    _kind, _store, _inputs, _parts = sys.argv[1:]
    run(_kind, Made(_store, Path(_inputs), int(_parts)))
