"""An annotate run killed at any moment loses no document, and ends with the bytes of an undisturbed one.

Run as a program it annotates: the tests kill it with SIGKILL once a given number of files is in the store.
One round always runs; the others are soak: run them after a change of annotate, parts or commits.
"""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tasks.core.artifact import Artifact, ArtifactId
from tasks.core.store import Store
from tasks.formats.documents.groups import groups_of
from tasks.stages.annotate import AnnotateConfig
from tasks.stages.extract.config import ExtractConfig, FileSource
from tests.conftest import run_stage_in
from tests.soak import soak_but

ROOT = Path(__file__).parents[4]
KIND = "test/tasks-stages-annotate-stage"
PARTS = 12
RULES = AnnotateConfig(use=("gopher_quality", "gopher_repetition", "c4", "fineweb", "prose_score"))
FILES = PARTS * len(RULES.use)
WORDS = "the river of stone ran down and people that have lived with it for long years know where its water turns"


def annotate(folder: Path | str, version: str, workers: int) -> Artifact:
    """Annotates the extracted documents in the store `folder`, unless it is done."""
    extracted = Artifact.open_at(Store(str(folder)), ArtifactId("test/tasks-stages-extract-stage", "dev"))
    inputs: dict[str, Artifact | list[Artifact]] = {"extracted": extracted}
    return run_stage_in(folder, "tasks.stages.annotate.stage", RULES, inputs, workers=workers, version=version)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with extracted documents."""
    folder, texts = tmp_path_factory.mktemp("store"), tmp_path_factory.mktemp("texts")
    draw = random.Random(8)
    for number in range(10 * PARTS):
        lines = (" ".join(draw.choices([*WORDS.split(), f"w{number}", "x-y,"], k=9)) + "." for _ in range(400))
        (texts / f"{number}.txt").write_text("\n".join(lines))
    files = (FileSource(name="made", kind="text", path=f"{texts}/*.txt"),)
    run_stage_in(folder, "tasks.stages.extract.stage", ExtractConfig(files=files, parts=PARTS))
    return folder


@pytest.fixture(scope="module")
def left_alone(folder: Path) -> Artifact:
    return annotate(folder, "left-alone", 0)


def files_of(folder: Path, version: str) -> int:
    listed = Store(str(folder)).list("test/measured", unfinished=True)
    return len(
        [path for path in listed if f"/{version}/" in path and path.endswith(".parquet") and "/.manifests/" not in path]
    )


def kill(folder: Path, version: str, workers: int, files: int, later: float) -> bool:
    """Starts a run and kills it with its workers; returns whether it was still running."""
    command = [sys.executable, "-m", "tests.tasks.stages.annotate.test_kills", str(folder), version, str(workers)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(command, cwd=ROOT, env=environment, start_new_session=True)
    deadline = time.monotonic() + 60
    while process.poll() is None and files_of(folder, version) < files:
        assert time.monotonic() < deadline
        time.sleep(0.002)
    time.sleep(later)
    os.killpg(process.pid, signal.SIGKILL)
    return process.wait() == -signal.SIGKILL


def moments() -> list[tuple[int, list[int], float]]:
    """Returns for every round: workers, number of files in the store for each kill, seconds from then to the kill."""
    chance = random.Random(20261121)
    once = [(0, [chance.randint(0, FILES // 2)], chance.uniform(0.0, 0.05)) for _ in range(3)]
    return [*once, (0, [3, 4 * len(RULES.use)], 0.0), (2, [2 * len(RULES.use)], 0.0)]


@pytest.mark.parametrize(("workers", "kills", "later"), soak_but([0], moments()))
def test_a_run_killed_at_any_moment_ends_like_an_undisturbed_one(
    folder: Path, left_alone: Artifact, workers: int, kills: list[int], later: float
) -> None:
    version = f"killed-{workers}-{'-'.join(map(str, kills))}-{later:.4f}"
    for files in kills:
        assert kill(folder, version, workers, files, later), "it had ended before"
        assert Artifact.find(Store(str(folder)), ArtifactId(KIND, version)) is None
    made = annotate(folder, version, workers)
    assert made.record.content == left_alone.record.content
    assert [one.record.content for one in groups_of(made).values()] == [
        one.record.content for one in groups_of(left_alone).values()
    ]
    assert made.record.rows_in == made.record.rows_out == 10 * PARTS
    assert all(one.verify() == [] for one in (made, *groups_of(made).values()))
    # The killed attempts leave no files.
    assert files_of(folder, version) == FILES


if __name__ == "__main__":
    annotate(sys.argv[1], sys.argv[2], int(sys.argv[3]))
