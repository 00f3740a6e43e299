"""A run that is killed in any pass resumes and writes the same bytes.

Run as a program it finds duplicates, and kills itself with SIGKILL when the second part of a pass is to be committed:
its files are there, its record is not.

Run the soak tests after a change of a pass or its commits.
"""

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from tasks.core.artifact import Artifact
from tasks.core.engine import Engine
from tasks.core.errors import SupersededError
from tasks.core.stage import Output
from tasks.core.store import Store
from tasks.stages.dedup import DedupConfig
from tests.conftest import run_stage_in
from tests.kills import die_in
from tests.tasks.stages.dedup.made import corpus
from tests.tasks.stages.dedup.test_buckets import DEDUP, mixed
from tests.tasks.stages.dedup.test_stage import reopened

PASSES = ("sign", "equal", "banded", "shingled", "compared", "large-00", "small-01", "labeled", "pairs", "part-")
IN_MAKE_TEST = ("banded",)


def made(folder: Path, **options: Any) -> Artifact:
    return run_stage_in(
        folder, DEDUP, DedupConfig(pairs_per_part=25, records_per_bucket=40), reopened(folder), **options
    )


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    folder = tmp_path_factory.mktemp("whole")
    corpus(folder, mixed(7), 4)
    return made(folder)


@pytest.mark.parametrize(
    "name", [name if name in IN_MAKE_TEST else pytest.param(name, marks=pytest.mark.soak) for name in PASSES]
)
def test_a_run_killed_in_a_pass_resumes_and_ends_with_the_same_bytes(
    tmp_path: Path, undisturbed: Artifact, name: str
) -> None:
    corpus(tmp_path, mixed(7), 4)
    killed = subprocess.run([sys.executable, "-m", __spec__.name, str(tmp_path), name], check=False)
    assert killed.returncode == -signal.SIGKILL
    artifact = tmp_path / "test" / "tasks-stages-dedup-stage" / "dev"
    committed = {path.name for path in (artifact / ".parts").iterdir()}
    assert any(part.startswith(name) for part in committed), "a part of the pass is there, and another one is not"
    before = {
        path: path.stat().st_mtime_ns for path in artifact.glob("bands/*") if f"sign-{path.stem}.json" in committed
    }
    resumed = made(tmp_path)
    assert resumed.record.content == undisturbed.record.content
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert before


def test_parts_of_a_run_before_an_upgrade_are_neither_read_nor_kept(tmp_path: Path, undisturbed: Artifact) -> None:
    corpus(tmp_path, mixed(7), 4)
    killed = Output(Store(str(tmp_path)), undisturbed.address, undisturbed.record.fingerprint)
    with killed.part("candidates-00000-of-00001", conserved=False) as part:
        part.write("candidates/00000-of-00001.bin", b"pairs in another format")
    assert made(tmp_path).record.content == undisturbed.record.content
    assert not list(tmp_path.rglob("candidates/*"))


class _Overtaken(Engine):
    """Before the pairs are verified, another attempt does all the work and deletes the intermediate files."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def map(self, fn: Callable[[Any], Any], items: Sequence[Any]) -> Iterator[tuple[int, Any]]:
        if items and items[0][0].name.startswith("compared"):
            made(self._folder)
        return super().map(fn, items)


def test_an_overtaken_attempt_ends_as_superseded_without_damage(
    tmp_path: Path, undisturbed: Artifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    corpus(tmp_path, mixed(7), 4)
    engines = iter([_Overtaken(tmp_path), Engine()])
    monkeypatch.setattr("tests.conftest.open_engine", lambda **_: nullcontext(next(engines)))
    with pytest.raises(SupersededError, match="another attempt has already committed it"):
        made(tmp_path)
    artifact = made(tmp_path)
    assert artifact.record.content == undisturbed.record.content
    assert artifact.verify() == []


@pytest.mark.soak
@pytest.mark.parametrize("workers", [1, 2, 8])
def test_many_buckets_are_byte_identical_on_any_number_of_workers(
    tmp_path: Path, undisturbed: Artifact, workers: int
) -> None:
    corpus(tmp_path, mixed(7), 4)
    assert made(tmp_path, workers=workers).record.content == undisturbed.record.content


if __name__ == "__main__":
    die_in(sys.argv[2])
    made(Path(sys.argv[1]))
