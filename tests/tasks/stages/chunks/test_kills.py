"""A run that is killed in any pass resumes where it was and ends with the same bytes."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tasks.core.artifact import Artifact
from tests.corpora import corpus
from tests.kills import die_in, times_of
from tests.tasks.stages.chunks.made import chunked
from tests.tasks.stages.chunks.test_stage import pages


def made(folder: Path) -> Artifact:
    return chunked(folder, [*corpus(12), *pages()], parts=3, bucket_chunks=8)


@pytest.mark.soak
@pytest.mark.parametrize("name", ["cut", "copies", "part-"])
def test_a_run_killed_in_a_pass_resumes_and_ends_with_the_same_bytes(tmp_path: Path, name: str) -> None:
    undisturbed = made(tmp_path / "whole")
    program = [sys.executable, "-m", __spec__.name, str(tmp_path / "killed"), name]
    assert subprocess.run(program, check=False).returncode == -signal.SIGKILL
    artifact = tmp_path / "killed" / "test" / "chunks" / "dev"
    committed = {path.stem for path in (artifact / ".parts").glob("*.json")}
    assert any(one.startswith(name) for one in committed), "it died behind the first part of the pass"
    before = times_of(artifact, undisturbed.files())
    resumed = made(tmp_path / "killed")
    assert resumed.record.content == undisturbed.record.content
    assert before.items() <= times_of(artifact, undisturbed.files()).items(), "what was committed is not made again"
    assert len(before) >= (name == "part-")


if __name__ == "__main__":
    die_in(sys.argv[2], 2, folder="test/chunks")
    made(Path(sys.argv[1]))
