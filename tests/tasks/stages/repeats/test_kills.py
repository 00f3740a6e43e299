"""A run that is killed in any pass resumes where it was and ends with the same bytes."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tasks.core.artifact import Artifact, ArtifactId
from tasks.core.store import Store
from tests.kills import die_in, times_of
from tests.tasks.stages.repeats.made import inputs_in, repeats_in, shards_in
from tests.tasks.stages.repeats.test_stage import made_up


def made(folder: Path) -> Artifact:
    shards = Artifact.find(Store(str(folder)), ArtifactId("test/shards", "dev"))
    inputs = inputs_in(folder, shards or shards_in(folder, made_up(2)), 2_000)
    return repeats_in(folder, inputs, 50, 900)


@pytest.mark.soak
@pytest.mark.parametrize("name", ["occurrences", "web-train", "report"])
def test_a_run_killed_in_a_pass_resumes_and_ends_with_the_same_bytes(tmp_path: Path, name: str) -> None:
    undisturbed = made(tmp_path / "whole")
    killed = subprocess.run([sys.executable, "-m", __spec__.name, str(tmp_path / "killed"), name], check=False)
    assert killed.returncode == -signal.SIGKILL
    artifact = tmp_path / "killed" / "test" / "repeats" / "dev"
    before = times_of(artifact, undisturbed.files())
    resumed = made(tmp_path / "killed")
    assert resumed.record.content == undisturbed.record.content
    assert before.items() <= times_of(artifact, undisturbed.files()).items(), "what was committed is not made again"
    assert len(before) >= (name != "occurrences")


if __name__ == "__main__":
    die_in(sys.argv[2], 1 if sys.argv[2] == "report" else 2, folder="test/repeats")
    made(Path(sys.argv[1]))
