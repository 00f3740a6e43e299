"""A run that is killed in any pass resumes where it was and ends with the same bytes."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tasks.core.artifact import Artifact
from tests.kills import die_in, times_of
from tests.tasks.stages.paragraphs.test_stage import looked_at, made_up


def made(folder: Path) -> Artifact:
    return looked_at(folder, made_up(3, 60), parts=3, bucket_paragraphs=40)


@pytest.mark.soak
@pytest.mark.parametrize(("name", "count"), [("scan", 2), ("counts", 2), ("top", 1), ("part-", 2), ("report", 1)])
def test_a_run_killed_in_a_pass_resumes_and_ends_with_the_same_bytes(tmp_path: Path, name: str, count: int) -> None:
    undisturbed = made(tmp_path / "whole")
    program = [sys.executable, "-m", __spec__.name, str(tmp_path / "killed"), name, str(count)]
    assert subprocess.run(program, check=False).returncode == -signal.SIGKILL
    artifact = tmp_path / "killed" / "test" / "tasks-stages-paragraphs-stage" / "dev"
    before = times_of(artifact, undisturbed.files())
    resumed = made(tmp_path / "killed")
    assert resumed.record.content == undisturbed.record.content
    assert before.items() <= times_of(artifact, undisturbed.files()).items(), "what was committed is not made again"
    assert len(before) >= (name in ("top", "part-", "report"))


if __name__ == "__main__":
    die_in(sys.argv[2], int(sys.argv[3]), folder="paragraphs")
    made(Path(sys.argv[1]))
