"""Every store whose server refuses, delays, loses or cuts responses, or whose writers race or are killed."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from importlib.util import find_spec
from multiprocessing import get_context
from pathlib import Path
from types import SimpleNamespace

import pytest

from tasks.core.artifact import RECORD, Artifact, ArtifactId
from tasks.core.commit import commit
from tasks.core.config import Config
from tasks.core.errors import SluiceError, StoreError, TransientError
from tasks.core.stage import Output, Report
from tasks.core.store import AlreadyPublished, Store, probe
from tests.s3_server import KINDS, Rule, S3Server
from tests.stores.conftest import ON_EMULATORS, ON_SERVERS, Place, needs_adlfs, place_on

ROOT = Path(__file__).parents[2]
ADDRESS = ArtifactId("demo/tokens", "a")
PARTS = {f"part-{number}": bytes([number]) * 5_000 for number in range(2)}


def made(store: Store) -> Artifact:
    """Makes an artifact of two parts, or what is missing of it."""
    if store.exists(f"{ADDRESS.path}/{RECORD}"):
        return Artifact.open_at(store, ADDRESS)
    output = Output(store, ADDRESS, "1" * 64)
    for name in PARTS.keys() - output.committed.keys():
        with output.part(name, conserved=False) as part, part.file(f"{name}.bin") as file:
            file.write(PARTS[name])
    return commit(output, "encode", 1, Config(), (), Report())


def check_complete(store: Store) -> None:
    """Checks that the store has the artifact with the bytes of an undisturbed run, and no other data."""
    artifact = Artifact.open_at(store, ADDRESS)
    assert {path: artifact.read(path) for path in artifact.files()} == {f"{n}.bin": data for n, data in PARTS.items()}
    assert artifact.verify() == []
    # A writer killed between the record and its last step leaves records of parts, which no reader looks at.
    seen = {path.removeprefix(f"{ADDRESS.path}/") for path in store.list(ADDRESS.path)}
    assert {path for path in seen if not path.startswith(".parts/")} == artifact.record_paths.union(artifact.files())


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shortens the pauses of the clients between tries, without changing the number of tries."""
    monkeypatch.setattr("tasks.core.clients.webhdfs._LONGEST_PAUSE_S", 0.01)
    monkeypatch.setattr("tasks.core.clients.webhdfs._FIRST_PAUSE_S", 0.01)
    monkeypatch.setattr("botocore.retries.standard.ExponentialBackoff.delay_amount", lambda *_: 0.01)
    if find_spec("gcsfs"):
        quick = SimpleNamespace(**{**vars(asyncio), "sleep": lambda _: asyncio.sleep(0.01)})
        monkeypatch.setattr("gcsfs.retry.asyncio", quick)
    if find_spec("adlfs"):
        policy = "azure.storage.blob._shared.policies_async.ExponentialRetry.get_backoff_time"
        monkeypatch.setattr(policy, lambda *_: 0.01)


@pytest.mark.parametrize("place", ON_EMULATORS, indirect=True)  # Ceph checks that the condition is signed
def test_a_server_that_ignores_conditions_is_refused(place: Place) -> None:
    place.faults.rules = [Rule("ignore condition", method="PUT|POST", times=100)]
    probe.cache_clear()
    with pytest.raises(StoreError, match=r"ignores conditional writes .If-None-Match."):
        probe(place.root)


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("403", r"no permission to use {}/\S+ \("),
        ("unknown key", r"(no permission to use|the store of) {}/\S+ (\(|does not accept the credentials)"),
        ("full", r"the store is full while writing {}/.*free space"),
    ],
)
@pytest.mark.usefixtures("impatient")
def test_a_store_that_refuses_is_reported_at_the_start_in_one_line(place: Place, kind: str, said: str) -> None:
    place.faults.rules = [Rule(kind, times=100)]
    probe.cache_clear()
    with pytest.raises(StoreError, match=f"(?i){said.format(place.root)}") as caught:
        probe(place.root)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("place", [one for one in ON_SERVERS if one != "webhdfs"], indirect=True)
def test_a_bucket_that_does_not_exist_is_named(place: Place) -> None:
    root = place.root.replace("//sluice/", "//no-such-bucket/")
    with pytest.raises(StoreError, match=r"(?i)there is no bucket for \w+://no-such-bucket/.*create it"):
        probe(root)


@pytest.mark.usefixtures("impatient")
def test_a_run_whose_credentials_expire_ends_and_resumes_at_the_first_missing_part(place: Place) -> None:
    place.faults.rules = [Rule("expired", method="PUT|POST", after=1, times=100)]
    with pytest.raises(TransientError, match="have expired"):
        made(place.store())
    place.faults.rules = []
    made(place.store())
    check_complete(place.store())


@pytest.mark.usefixtures("impatient")
def test_a_lost_response_does_not_make_the_winner_a_loser(place: Place) -> None:
    store, lost = place.store(), 0
    for number in range(5):  # HDFS takes four requests
        place.faults.rules = [Rule("lost reply", method="PUT|POST", after=number)]
        store.publish(f"{number}.json", b"mine")
        if place.faults.told["lost reply"] == lost:
            break
        lost += 1
        with pytest.raises(AlreadyPublished):
            store.publish(f"{number}.json", b"mine")
    assert lost == (4 if place.root.startswith("webhdfs") else 1)


@pytest.mark.parametrize("kind", [*KINDS, "500"])
@pytest.mark.usefixtures("impatient")
def test_three_faults_in_a_row_are_retried(place: Place, kind: str) -> None:
    store = place.store()
    content = os.urandom(300_000)
    place.faults.rules = [Rule(kind, times=3, delay_s=0.1)]
    with store.write("x") as file:
        file.write(content)
    reads = 2 if kind == "cut" and place.root.startswith("abfs") else 3  # Azure's client asks three times in all
    place.faults.rules = [Rule(kind, times=reads, delay_s=0.1)]
    assert store.read("x") == content
    place.faults.rules = [Rule(kind, times=reads, delay_s=0.1)]
    assert Path(store.local("x")).read_bytes() == content
    place.faults.rules = [Rule(kind, times=3, delay_s=0.1)]
    assert store.list("") == ["x"]
    assert place.faults.told[kind] >= 5


@pytest.mark.usefixtures("impatient")
def test_eight_refusals_in_a_row_are_retried_on_s3(s3: S3Server) -> None:
    s3.faults.rules = [Rule("503", method="PUT", times=8)]
    Store("s3://sluice/eight").publish("a", b"1")
    assert s3.faults.told["503"] == 8


def test_nothing_is_lost_or_duplicated_if_a_third_of_all_requests_fail(s3: S3Server, tmp_path: Path) -> None:
    store = Store(f"s3://sluice/{tmp_path.name}")
    s3.faults.share = 0.3
    contents = {f"f/{n:02}": os.urandom(2_000 * n) for n in range(16)}

    def put(path: str) -> bool:
        with store.write(path) as file:
            file.write(contents[path])
        try:
            store.publish(f"once/{path}", contents[path])
        except AlreadyPublished:
            return False
        return True

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(put, contents))
        assert dict(zip(contents, pool.map(store.read, contents), strict=True)) == contents
    assert store.list("f") == sorted(contents)
    assert sum(s3.faults.told.values()) > 10


def test_a_writer_killed_during_an_upload_leaves_no_file(s3: S3Server, tmp_path: Path) -> None:
    # 120 MB are uploaded in parts; the second is delayed until the kill.
    s3.faults.rules = [Rule("slow", method="PUT", path="big.bin", times=1, delay_s=0.0)]
    s3.faults.rules += [Rule("slow", method="PUT", path="big.bin", times=9, delay_s=5.0)]
    program = (
        "from tasks.core.store import Store\n"
        f"with Store('s3://sluice/{tmp_path.name}').write('big.bin') as file:\n"
        "    file.write(bytes(120 << 20))\n"
    )
    child = subprocess.Popen([sys.executable, "-c", program], cwd=ROOT)
    deadline = time.monotonic() + 60
    while s3.faults.told["slow"] < 2:
        assert time.monotonic() < deadline
        assert child.poll() is None
        time.sleep(0.02)
    child.send_signal(signal.SIGKILL)
    child.wait()
    assert Store(f"s3://sluice/{tmp_path.name}").list("", unfinished=True) == []


@pytest.mark.soak
@pytest.mark.usefixtures("impatient")
def test_twenty_of_twenty_runs_with_a_third_of_requests_failing_end_with_the_same_bytes(place: Place) -> None:
    ended, lines = 0, []
    for number in range(20):
        store = Store(f"{place.root}/{number}")
        place.faults.share = 0.3
        while True:  # a task's retries
            try:
                made(store)
                break
            except SluiceError as error:
                lines.append(str(error))
        place.faults.share = 0.0
        check_complete(store)
        ended += 1
    print(f"{place.root}: {ended} of 20, {dict(place.faults.told)}, {len(lines)} retries of the task", *lines, sep="\n")
    assert not [line for line in lines if "\n" in line]


@pytest.fixture(params=["folder", *ON_SERVERS])
def shared_root(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A root that other processes can use, too."""
    if request.param == "folder":
        yield str(tmp_path / "folder")
        return
    for place in place_on(request.param, request):
        yield place.root


def winners(root: str, process: int, rounds: int) -> list[list[str]]:
    """Publishes with ten threads in each round; returns the contents that won."""
    store = Store(root)

    def won(number: int, thread: int) -> str:
        name = f"{process}.{thread}"
        try:
            store.publish(f"race/{number}", name.encode())
        except AlreadyPublished:
            return ""
        return name

    with ThreadPoolExecutor(10) as pool:
        return [[name for name in pool.map(partial(won, number), range(10)) if name] for number in range(rounds)]


@pytest.mark.soak
def test_of_fifty_writers_in_five_processes_exactly_one_wins(shared_root: str) -> None:
    with ProcessPoolExecutor(5, mp_context=get_context("spawn")) as pool:
        found = list(pool.map(partial(winners, shared_root, rounds=20), range(5)))
    store = Store(shared_root)
    for number in range(20):
        assert [name for one in found for name in one[number]] == [store.read(f"race/{number}").decode()]


@pytest.mark.soak
def test_a_file_written_in_blocks_is_read_as_it_was_written(place: Place) -> None:
    content = os.urandom(1 << 20) * 80
    store = place.store()
    with store.write("big.bin") as file:
        file.write(content)
    assert store.read("big.bin") == content
    assert store.read_range("big.bin", 64 << 20, (64 << 20) + 9) == content[64 << 20 :][:9]
    assert store.size("big.bin") == len(content)


@pytest.mark.soak
@pytest.mark.parametrize("place", ["s3", "ceph", pytest.param("abfs", marks=needs_adlfs)], indirect=True)
def test_of_writers_of_one_large_record_exactly_one_wins(place: Place) -> None:
    store, contents = place.store(), [bytes([number]) * (80 << 20) for number in range(3)]

    def won(content: bytes) -> bool:
        with suppress(AlreadyPublished):
            store.publish("once.bin", content)
            return True
        return False

    with ThreadPoolExecutor(3) as pool:
        (winner,) = [content for content, one in zip(contents, pool.map(won, contents), strict=True) if one]
    assert store.read("once.bin") == winner


STEP = """
import sys
from tasks.core.store import Store
from tests.stores.test_faults import die_at, made
root, step = sys.argv[1], int(sys.argv[2])
if step >= 0:
    die_at(root, step)
made(Store(root))
"""


def run_until(root: str, held: "partial[bool]") -> bool:
    """Starts a process that makes the artifact and kills it once `held()`; returns False if it ended before."""
    child = subprocess.Popen([sys.executable, "-c", STEP, root, "-1"], cwd=ROOT, env={**os.environ, "PYTHONPATH": "."})
    deadline = time.monotonic() + 120
    while child.poll() is None and not held():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    ended = child.poll()
    child.send_signal(signal.SIGKILL)
    child.wait()
    assert ended in {None, 0}
    return ended is None


@pytest.mark.soak
@pytest.mark.parametrize("kind", ["slow", "slow reply"])
def test_a_run_killed_before_or_after_any_request_is_completed_by_the_next(place: Place, kind: str) -> None:
    step = 0
    while True:
        root = f"{place.root}/{step}"
        place.faults.calm()
        place.faults.rules = [Rule(kind, after=step, delay_s=30.0)]
        killed = run_until(root, partial(lambda: place.faults.told[kind] > 0))
        place.faults.rules = []
        made(Store(root))
        check_complete(Store(root))
        if not killed:
            break
        step += 1
    print(f"{place.root}: killed at each of {step} requests ({kind})")
    assert step > 10


CHANGES = {"open", "os.link", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.scandir", "os.listdir"}


def die_at(root: str, step: int) -> None:
    """Makes this process kill itself before its `step`-th access to a file below `root`."""
    seen = 0

    def audit(event: str, arguments: tuple[object, ...]) -> None:
        nonlocal seen
        if event in CHANGES and str(arguments[0]).startswith(root):
            if seen == step:
                os.kill(os.getpid(), signal.SIGKILL)
            seen += 1

    sys.addaudithook(audit)


@pytest.mark.soak
def test_a_run_in_a_folder_killed_before_any_access_is_completed_by_the_next(tmp_path: Path) -> None:
    step = 0
    while True:
        root = str(tmp_path / str(step))
        environment = {**os.environ, "PYTHONPATH": "."}
        ended = subprocess.run([sys.executable, "-c", STEP, root, str(step)], cwd=ROOT, env=environment, check=False)
        assert ended.returncode in {0, -signal.SIGKILL}
        made(Store(root))
        check_complete(Store(root))
        if ended.returncode == 0:
            break
        step += 1
    print(f"killed at each of {step} accesses")
    assert step > 10
