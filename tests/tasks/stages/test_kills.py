"""A run that is killed in any of its passes resumes where it was, and ends with the same bytes."""

import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tasks.core.artifact import Artifact, ArtifactId
from tasks.core.store import Store
from tests.corpora import corpus
from tests.kills import die_in, times_of
from tests.tasks.stages.chunks.made import chunked
from tests.tasks.stages.chunks.test_stage import pages
from tests.tasks.stages.decontaminate.test_stage import QUESTION, SHORT, sets
from tests.tasks.stages.decontaminate.test_stage import looked_at as decontaminated
from tests.tasks.stages.paragraphs.test_stage import looked_at as with_paragraphs
from tests.tasks.stages.paragraphs.test_stage import made_up as made_up_documents
from tests.tasks.stages.repeats.made import inputs_in, repeats_in, shards_in
from tests.tasks.stages.repeats.test_stage import made_up as made_up_tokens


def chunks(folder: Path) -> Artifact:
    return chunked(folder, [*corpus(12), *pages()], parts=3, bucket_chunks=8)


def decontaminate(folder: Path) -> Artifact:
    config = sets(folder.parent, [{"query": QUESTION}, {"query": SHORT}])
    texts = {f"page-{number}": f"Page {number}: {(QUESTION, SHORT)[number % 2]} And so on." for number in range(6)}
    return decontaminated(folder, config, texts, parts=3)


def paragraphs(folder: Path) -> Artifact:
    return with_paragraphs(folder, made_up_documents(3, 60), parts=3, bucket_paragraphs=40)


def repeats(folder: Path) -> Artifact:
    shards = Artifact.find(Store(str(folder)), ArtifactId("test/shards", "dev"))
    inputs = inputs_in(folder, shards or shards_in(folder, made_up_tokens(2)), 2_000)
    return repeats_in(folder, inputs, 50, 900)


MADE: dict[str, tuple[Callable[[Path], Artifact], str]] = {
    "chunks": (chunks, "test/chunks"),
    "decontaminate": (decontaminate, "test/tasks-stages-decontaminate-stage"),
    "paragraphs": (paragraphs, "test/tasks-stages-paragraphs-stage"),
    "repeats": (repeats, "test/repeats"),
}
"""The stages, each with a run of it and the artifact that it writes."""

PASSES = [
    ("chunks", "cut", 2, False),
    ("chunks", "copies", 2, False),
    ("chunks", "part-", 2, True),
    ("decontaminate", "index", 1, False),
    ("decontaminate", "scan", 2, True),
    ("decontaminate", "common", 1, True),
    ("decontaminate", "part-", 2, True),
    ("decontaminate", "report", 1, True),
    ("paragraphs", "scan", 2, False),
    ("paragraphs", "counts", 2, False),
    ("paragraphs", "top", 1, True),
    ("paragraphs", "part-", 2, True),
    ("paragraphs", "report", 1, True),
    ("repeats", "occurrences", 2, False),
    ("repeats", "web-train", 2, True),
    ("repeats", "report", 1, True),
]
"""Stage, how the names of the parts of a pass begin, the part that it dies in, and whether files of the artifact are
there already."""


@pytest.mark.soak
@pytest.mark.parametrize(("stage", "name", "count", "kept"), PASSES)
def test_a_run_killed_in_a_pass_resumes_and_ends_with_the_same_bytes(
    tmp_path: Path, stage: str, name: str, count: int, kept: bool
) -> None:
    make, output = MADE[stage]
    undisturbed = make(tmp_path / "whole")
    program = [sys.executable, "-m", __spec__.name, stage, name, str(count), str(tmp_path / "killed")]
    assert subprocess.run(program, check=False).returncode == -signal.SIGKILL
    artifact = tmp_path / "killed" / output / "dev"
    committed = {path.stem for path in (artifact / ".parts").glob("*.json")}
    assert count == 1 or any(one.startswith(name) for one in committed), "it died behind the first part of the pass"
    before = times_of(artifact, undisturbed.files())
    resumed = make(tmp_path / "killed")
    assert resumed.record.content == undisturbed.record.content
    assert before.items() <= times_of(artifact, undisturbed.files()).items(), "what was committed is not made again"
    assert len(before) >= kept


if __name__ == "__main__":
    _stage, _name, _count, _folder = sys.argv[1:]
    _make, _output = MADE[_stage]
    die_in(_name, int(_count), folder=_output)
    _make(Path(_folder))
