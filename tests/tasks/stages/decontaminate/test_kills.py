"""A run that is killed in any pass resumes where it was and ends with the same bytes."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tasks.core.artifact import Artifact
from tests.kills import die_in, times_of
from tests.tasks.stages.decontaminate.test_stage import QUESTION, SHORT, looked_at, sets


def made(folder: Path) -> Artifact:
    config = sets(folder.parent, [{"query": QUESTION}, {"query": SHORT}])
    texts = {f"page-{number}": f"Page {number}: {(QUESTION, SHORT)[number % 2]} And so on." for number in range(6)}
    return looked_at(folder, config, texts, parts=3)


@pytest.mark.soak
@pytest.mark.parametrize(("name", "count"), [("index", 1), ("scan", 2), ("common", 1), ("part-", 2), ("report", 1)])
def test_a_run_killed_in_a_pass_resumes_and_ends_with_the_same_bytes(tmp_path: Path, name: str, count: int) -> None:
    undisturbed = made(tmp_path / "whole")
    program = [sys.executable, "-m", __spec__.name, str(tmp_path / "killed"), name, str(count)]
    assert subprocess.run(program, check=False).returncode == -signal.SIGKILL
    artifact = tmp_path / "killed" / "test" / "tasks-stages-decontaminate-stage" / "dev"
    before = times_of(artifact, undisturbed.files())
    resumed = made(tmp_path / "killed")
    assert resumed.record.content == undisturbed.record.content
    assert before.items() <= times_of(artifact, undisturbed.files()).items(), "what was committed is not made again"
    assert len(before) >= (name != "index")


if __name__ == "__main__":
    die_in(sys.argv[2], int(sys.argv[3]), folder="decontaminate")
    made(Path(sys.argv[1]))
