import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tasks.core.artifact import RECORD, Artifact, ArtifactId
from tasks.core.commit import commit
from tasks.core.engine import Engine
from tasks.core.errors import ConservationError, DriftError, InputError, StoreError
from tasks.core.manifest import MANIFESTS
from tasks.core.part import Part, PartSpec
from tasks.core.stage import Output, Report
from tasks.core.store import Store
from tests.conftest import run_stage_in
from tests.s3_server import S3Server
from tests.tasks.run.toy_stage import ToyConfig

TOY = "tests.tasks.run.toy_stage"


def files_of(artifact: Artifact) -> dict[str, str]:
    return {path: hashlib.sha256(artifact.read(path)).hexdigest() for path in artifact.files()}


def test_a_stage_writes_the_same_bytes_in_process_and_in_a_process_pool(tmp_path: Path) -> None:
    alone = run_stage_in(tmp_path / "a", TOY, ToyConfig())
    spread = run_stage_in(tmp_path / "b", TOY, ToyConfig(), workers=2)
    assert files_of(alone) == files_of(spread)
    assert alone.record.content == spread.record.content
    assert alone.record.fingerprint == spread.record.fingerprint


def test_rows_in_are_rows_out_plus_rejected(tmp_path: Path) -> None:
    record = run_stage_in(tmp_path, TOY, ToyConfig()).record
    assert (record.rows_in, record.rows_out, record.rejected) == (40, 36, {"toy_round": 4})


def test_a_lost_row_stops_the_part(tmp_path: Path) -> None:
    with pytest.raises(ConservationError, match="10 rows came in, 9 went out"):
        run_stage_in(tmp_path, TOY, ToyConfig(lose=1))
    assert not list(tmp_path.rglob(RECORD))


def test_an_error_names_the_part_in_which_it_was_raised(tmp_path: Path) -> None:
    output = Output(Store(str(tmp_path)), ArtifactId("toy/halves", "dev"), "f" * 64)
    with pytest.raises(ZeroDivisionError) as caught:
        output.map_parts(Engine(), lambda part, number: part.count_in(1 // number), [PartSpec("first", 0)])
    assert caught.value.__notes__ == ["while toy/halves/dev first was made"]


def test_a_poison_row_is_quarantined_and_the_part_continues(tmp_path: Path) -> None:
    artifact = run_stage_in(tmp_path, TOY, ToyConfig(poison=1), max_bad_share=0.05)
    assert artifact.record.rejected == {"poison": 1}
    assert artifact.record.rows_out == 39
    (held,) = artifact.files("quarantine/")
    assert json.loads(artifact.read(held))["id"] == "13"


def test_too_many_poison_rows_stop_the_stage_and_the_error_names_their_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"1 of 40 rows could not be processed.*quarantine"):
        run_stage_in(tmp_path, TOY, ToyConfig(poison=1), max_bad_share=0.001)


def test_an_invalid_metric_is_named_and_nothing_is_committed(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="the metric parts is nan"):
        run_stage_in(tmp_path, TOY, ToyConfig(unmeasured=True))
    assert not list(tmp_path.rglob(RECORD))
    part = Part(Store(str(tmp_path)), "test/toy/dev", "part-0", "a")
    part.metric("loss", float("inf"))
    with pytest.raises(InputError, match="part-0: the metric loss is inf"):
        part.record(conserved=True)


def test_the_error_names_the_quarantine_folder_if_there_is_one(tmp_path: Path) -> None:
    output = Output(Store(str(tmp_path)), ArtifactId("x/y", "dev"), "one", max_bad_share=0.1)
    with output.part("part-a", conserved=False) as part:
        part.count_in(2)
        part.reject("poison")
    with pytest.raises(InputError, match=r"1 of 2 rows could not be processed") as caught:
        output.check_poison()
    assert "quarantine" not in str(caught.value)
    with output.part("part-b", conserved=False) as part:
        part.count_in(2)
        part.quarantine("b", ValueError("no"))
    with pytest.raises(InputError, match=r"2 of 4 rows .*causes in .*x/y/dev/quarantine"):
        output.check_poison()
    with pytest.raises(InputError, match=r"causes in the log"):
        output.check_poison("the log")


def test_an_artifact_without_its_record_does_not_exist(tmp_path: Path) -> None:
    artifact = run_stage_in(tmp_path, TOY, ToyConfig())
    artifact.store.remove(f"{artifact.address.path}/{RECORD}")
    assert Artifact.find(artifact.store, artifact.address) is None


def test_a_killed_stage_resumes_at_the_first_missing_part(tmp_path: Path) -> None:
    whole = run_stage_in(tmp_path / "whole", TOY, ToyConfig())
    slow = (
        "import time, tests.tasks.run.toy_stage as toy\n"
        "from pathlib import Path\n"
        "from tests.conftest import run_stage_in\n"
        "real = toy.square\n"
        "def square(part, numbers):\n"
        "    real(part, numbers)\n"
        "    if part.name.startswith('part-00002'):\n"
        "        time.sleep(60)\n"
        "toy.square = square\n"
        f"run_stage_in(Path({str(tmp_path / 'killed')!r}), {TOY!r}, toy.ToyConfig())\n"
    )
    root = Path(__file__).parents[3]
    child = subprocess.Popen([sys.executable, "-c", slow], cwd=root, env={**os.environ, "PYTHONPATH": str(root)})
    parts = tmp_path / "killed" / "test" / "tests-tasks-run-toy_stage" / "dev" / ".parts"
    deadline = time.monotonic() + 60
    while len(list(parts.glob("*.json"))) < 2 and time.monotonic() < deadline:
        time.sleep(0.05)
    time.sleep(0.3)
    child.send_signal(signal.SIGKILL)
    child.wait()
    # A kill during a write leaves the temporary file.
    (parts.parent / "squares" / "part-00002-of-00004.parquet.0123456789ab.tmp").write_bytes(b"half")
    before = {path.name: path.stat().st_mtime_ns for path in parts.glob("*.json")}
    assert len(before) == 2
    resumed = run_stage_in(tmp_path / "killed", TOY, ToyConfig())
    assert files_of(resumed) == files_of(whole)
    assert resumed.record.rows_in == whole.record.rows_in
    assert not list((tmp_path / "killed").rglob("*.tmp"))


def test_an_excluded_part_is_resumable_until_the_commit_removes_its_files(tmp_path: Path) -> None:
    def opened() -> Output:
        return Output(Store(str(tmp_path)), ArtifactId("test/toy", "dev"), "f" * 64)

    output = opened()
    for name in ("between", "result"):
        with output.part(name) as part, part.file(f"{name}/a.txt") as file:
            file.write(name.encode())
    output.leave_out(["between"])
    assert set(opened().committed) == {"between", "result"}
    artifact = commit(output, "toy", 1, ToyConfig(), [], Report())
    assert artifact.files() == ["result/a.txt"]
    assert not list(tmp_path.rglob("between/*"))


def test_unfinished_parts_of_other_settings_are_not_reused(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    with (
        Output(store, ArtifactId("x/y", "dev"), "one").part("part-a", conserved=False) as part,
        part.file("a.txt") as file,
    ):
        file.write(b"one")
    assert Output(store, ArtifactId("x/y", "dev"), "one").committed.keys() == {"part-a"}
    assert not Output(store, ArtifactId("x/y", "dev"), "two").committed


def test_a_full_disk_is_one_line_with_a_remedy(tmp_path: Path) -> None:
    # A limit on file sizes simulates a full disk: the write fails in the kernel in the same way.
    program = (
        "import resource, signal, sys\n"
        "from tasks.core.store import Store\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))\n"
        f"store = Store({str(tmp_path)!r})\n"
        "try:\n"
        "    with store.write('x/data.bin') as file:\n"
        "        file.write(b'0' * 100_000)\n"
        "except Exception as error:\n"
        "    print(type(error).__name__, error)\n"
        "print(store.list(''))\n"
    )
    out = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert out.startswith(StoreError.__name__)
    assert "is full while writing" in out
    assert "free space" in out.lower()
    assert out.endswith("[]\n")


def finished(store: Store, fingerprint: str, text: bytes) -> Output:
    output = Output(store, ArtifactId("x/y", "dev"), fingerprint)
    with output.part(f"part-{text.decode()}", conserved=False) as part, part.file("a.txt") as file:
        file.write(text)
    return output


def ended(output: Output) -> Artifact:
    return commit(output, "toy", 1, ToyConfig(), [], Report())


def test_of_two_finishing_attempts_one_wins_and_the_other_reports_it(
    s3: S3Server, caplog: pytest.LogCaptureFixture
) -> None:
    store = Store("s3://sluice/two-attempts")
    first, second = finished(store, "same", b"one"), finished(store, "same", b"one")
    won = ended(first)
    assert "committed first" not in caplog.text
    assert ended(second).record == won.record
    assert "[x/y@dev] another attempt committed first; its result is used" in caplog.text


def test_an_attempt_whose_manifest_the_winner_removes_reports_the_winner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, link = Store(str(tmp_path)), os.link
    won: list[Artifact] = []
    first, late = finished(store, "same", b"one"), finished(store, "same", b"two")

    def slow(source: str, target: str) -> None:
        monkeypatch.setattr(os, "link", link)
        won.append(ended(first))
        link(source, target)

    monkeypatch.setattr(os, "link", slow)
    assert ended(late).record == won[0].record
    assert {f"{MANIFESTS}/{name}" for name in store.names(f"x/y/dev/{MANIFESTS}")} == won[0].record_paths - {RECORD}


def test_a_second_attempt_with_other_settings_is_refused(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    first = finished(store, "one", b"one")
    second = Output(store, ArtifactId("x/y", "dev"), "two")
    second.committed = first.committed
    ended(first)
    with pytest.raises(DriftError, match="committed in the meantime by a run with other settings"):
        ended(second)


def test_a_stage_writes_the_same_bytes_on_s3_while_a_third_of_requests_fail(s3: S3Server, tmp_path: Path) -> None:
    here = run_stage_in(tmp_path, TOY, ToyConfig())
    s3.faults.share = 0.3
    there = run_stage_in("s3://sluice/faulty", TOY, ToyConfig(), workers=2)
    assert s3.faults.told.total() > 3
    s3.faults.calm()
    assert there.record.content == here.record.content
    assert not there.verify()
    folders = [one.store.list("test", unfinished=True) for one in (there, here)]
    assert folders[0] == folders[1] != []


@pytest.mark.parametrize("remote", [False, True])
def test_work_in_progress_survives_a_restart_and_is_removed_by_the_commit(
    s3: S3Server, tmp_path: Path, remote: bool
) -> None:
    store = Store("s3://sluice/scratch" if remote else str(tmp_path))
    first = finished(store, "same", b"one")
    (Path(first.scratch) / "half").write_bytes(b"0")
    again = Output(store, ArtifactId("x/y", "dev"), "same")
    assert (Path(again.scratch) / "half").exists()
    ended(first)
    assert not os.path.exists(f"{tmp_path}/x/y/dev/.scratch")
    assert not list(Path(again.scratch).iterdir())
