"""The contract of every store: a folder, memory, S3, ADLS, GCS, a fake HDFS and WebHDFS; and its error messages."""

import errno
import os
import pickle
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tasks.core import remote
from tasks.core.artifact import RECORD, Artifact, ArtifactId
from tasks.core.commit import adopt, commit
from tasks.core.config import Config
from tasks.core.errors import SluiceError, StoreError, TransientError
from tasks.core.stage import Output, Report
from tasks.core.store import PROBE_FOLDER, AlreadyPublished, Store, probe
from tests.s3_server import Rule, S3Server
from tests.stores.conftest import needs_adlfs
from tests.stores.servers import KEY, Hadoop


def test_written_files_can_be_read_listed_and_removed(store: Store) -> None:
    with store.write("a/b/c.bin") as file:
        file.write(b"0123456789" * 1000)
    store.publish("a/d.json", b"{}")
    assert store.list("") == ["a/b/c.bin", "a/d.json"]
    assert store.list("a/b") == ["a/b/c.bin"]
    assert store.list("nothing") == []
    assert [list(store.folders(path)) for path in ("", "a", "a/b", "nothing")] == [["a"], ["b"], [], []]
    assert store.size("a/b/c.bin") == 10_000
    assert store.read("a/d.json") == b"{}"
    with store.open("a/b/c.bin") as file:
        file.seek(5)
        assert file.read(7) == b"5678901"
    assert [store.exists(path) for path in ("a/b/c.bin", "a/b", "a/x")] == [True, True, False]
    store.remove("a/b")
    store.remove("a/b")
    assert store.list("") == ["a/d.json"]


def test_concurrent_adoptions_commit_once_and_read_the_source_files(store: Store) -> None:
    def begun(version: str) -> Output:
        output = Output(store, ArtifactId("demo/tokens", version), "1" * 64)
        with output.part("one", conserved=False) as part, part.file("x.bin") as file:
            file.write(b"x" * 1000)
        return output

    made = commit(begun("a"), "encode", 1, Config(), (), Report())
    begun("b")  # killed before its record
    with ThreadPoolExecutor(8) as pool:
        adopted = list(pool.map(lambda _: adopt(made, ArtifactId("demo/tokens", "b"), ()), range(8)))
    assert {one.record.adopted_from for one in adopted} == {"demo/tokens@a"}
    assert store.list("demo/tokens/b", unfinished=True) == [f"demo/tokens/b/{RECORD}"]
    found = Artifact.open_at(store, ArtifactId("demo/tokens", "b"))
    assert found.read("x.bin") == Path(found.local("x.bin")).read_bytes() == b"x" * 1000
    assert found.verify() == []


def test_a_missing_file_is_reported_as_missing(store: Store) -> None:
    for read in (store.read, store.size, lambda path: store.open(path).read()):
        with pytest.raises(FileNotFoundError):
            read("not/there")  # type: ignore[operator]


def test_a_store_can_be_pickled(store: Store) -> None:
    store.publish("a", b"1")
    assert pickle.loads(pickle.dumps(store)).read("a") == b"1"


def test_a_failed_write_keeps_the_previous_file(store: Store) -> None:
    with store.write("a/x") as file:
        file.write(b"first")

    def fail_halfway(path: str) -> None:
        with store.write(path) as file:
            file.write(b"half")
            raise RuntimeError("stop")

    for path in ("a/x", "a/y"):
        with pytest.raises(RuntimeError):
            fail_halfway(path)
    assert store.list("", unfinished=True) == ["a/x"]
    assert store.read("a/x") == b"first"


def test_an_error_inside_a_write_is_not_a_store_error(store: Store) -> None:
    def fail() -> None:
        with store.write("a/x") as file:
            file.write(b"half")
            raise TimeoutError("the page did not answer")

    with pytest.raises(TimeoutError, match="the page"):
        fail()


def test_of_many_writers_of_one_path_exactly_one_wins(store: Store) -> None:
    def won(writer: int) -> bool:
        try:
            store.publish("a/b.json", f"writer {writer}".encode())
        except AlreadyPublished:
            return False
        return True

    with ThreadPoolExecutor(16) as pool:
        results = list(pool.map(won, range(16)))
    assert sum(results) == 1
    assert store.read("a/b.json") == f"writer {results.index(True)}".encode()
    assert store.list("", unfinished=True) == ["a/b.json"]


def test_a_local_copy_is_refreshed_when_the_file_is_rewritten(store: Store) -> None:
    for content in (b"one", b"two"):  # of one length
        with store.write("a/x") as file:
            file.write(content)
        assert Path(store.local("a/x")).read_bytes() == content
        store.remove("a/x")
        time.sleep(0.01)


def test_a_range_ends_with_the_file(store: Store) -> None:
    with store.write("a/x") as file:
        file.write(b"0123456789")
    ranges = [(0, 4), (4, 10), (8, 20), (10, 20), (30, 40)]
    assert [store.read_range("a/x", *one) for one in ranges] == [b"0123", b"456789", b"89", b"", b""]
    with pytest.raises(FileNotFoundError):
        store.read_range("a/y", 0, 4)


def test_what_another_client_writes_or_removes_is_seen_at_once(store: Store) -> None:
    other = Store(store.root, brief=True)  # has a client of its own
    for number in range(3):
        other.publish(f"a/{number}", b"1")
        assert (store.list("a"), store.names("a")) == (other.list("a"), [str(one) for one in range(number + 1)])
    other.remove("a/1")
    assert store.list("") == ["a/0", "a/2"]
    assert not store.exists("a/1")


def test_a_path_cannot_leave_the_store(store: Store) -> None:
    with pytest.raises(ValueError, match="stays inside the store"):
        store.read("../secrets")


def test_every_store_passes_the_probe_which_leaves_no_file(store: Store) -> None:
    probe.cache_clear()
    probe(store.root)
    assert store.list(PROBE_FOLDER) == []


@needs_adlfs
def test_the_account_of_a_store_on_azure_is_that_of_its_url_or_of_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", KEY)
    there, root = remote.connect("abfss://box@lake.dfs.core.windows.net/x")
    assert (there.account_name, root) == ("lake", "box/x")
    with pytest.raises(StoreError, match=r"abfs://box/x cannot be used .*AZURE_STORAGE_ACCOUNT_NAME"):
        remote.connect("abfs://box/x")


def test_the_user_of_webhdfs_is_that_of_the_url_or_of_the_environment(
    hadoop: Hadoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HADOOP_USER_NAME", "ann")
    host = hadoop.url.partition("//")[2]
    for root in (f"webhdfs://{host}/user", f"webhdfs://bob@{host}/user"):
        hadoop.users.clear()
        assert Store(root).list("") == []
        assert hadoop.users == {"bob" if "@" in root else "ann"}


def test_a_full_quota_of_webhdfs_is_a_full_store(hadoop: Hadoop, monkeypatch: pytest.MonkeyPatch) -> None:
    said = "The DiskSpace quota of /user is exceeded: quota = 1 B = 1 B"
    error = {"RemoteException": {"exception": "DSQuotaExceededException", "message": said}}
    monkeypatch.setattr(hadoop, "_webhdfs_create", lambda *_: ("403 Forbidden", error))
    with pytest.raises(StoreError, match=r"the store is full while writing /user/\S+ \(The DiskSpace quota of /user"):
        Store(hadoop.url.replace("http", "webhdfs") + "/user").publish("a", b"12")


def test_a_protocol_without_exclusive_creation_is_refused() -> None:
    with pytest.raises(StoreError, match="cannot create a file exclusively"):
        Store("ftp://host/store")


def test_a_bucket_in_another_region_is_reported_with_the_region(s3: S3Server) -> None:
    s3.faults.rules = [Rule("region", times=100)]
    probe.cache_clear()
    with pytest.raises(StoreError, match=r"another region, eu-west-1,.*AWS_DEFAULT_REGION"):
        probe("s3://sluice/x")


@pytest.mark.parametrize(
    ("below", "said"),
    [("", r"/file is a file\. Set"), ("/sub", r"/file/sub .*\(Not a directory\)\. Correct that, or set")],
)
def test_a_store_that_is_a_file_or_below_one_is_reported(tmp_path: Path, below: str, said: str) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match=rf"{said} \[place\] store to"):
        Store(f"{tmp_path}/file{below}").check_root()


def test_a_folder_that_cannot_be_created_is_reported(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "missing")
    with pytest.raises(StoreError, match=r"link cannot be created \(.+\)\. Create the folder"):
        probe(str(tmp_path / "link"))


def test_a_folder_that_this_user_may_not_read_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: str) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)

    monkeypatch.setattr(os, "scandir", refuse)  # root, who may run the tests, may read any folder
    with pytest.raises(StoreError, match=r"cannot be read \(Permission denied\)\. Correct that, or set"):
        Store(str(tmp_path)).check_root()


def test_missing_credentials_are_reported(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    probe.cache_clear()
    with pytest.raises(StoreError, match=r"(?i)no credentials.*set the AWS environment"):
        probe("s3://sluice/x")


def test_an_unreachable_server_is_a_retryable_error(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:9")
    monkeypatch.setattr("tasks.core.store.PROBE_LIMIT_S", 2.0)
    probe.cache_clear()
    with pytest.raises(TransientError, match=r"did not answer.*127\.0\.0\.1:9"):
        probe("s3://sluice/x")


def test_error_messages_of_the_store_never_contain_the_secret(s3: S3Server, caplog: pytest.LogCaptureFixture) -> None:
    secret = s3.environment["AWS_SECRET_ACCESS_KEY"]
    caplog.set_level("DEBUG", logger="sluice")
    said = [repr(Store("s3://sluice/x")), str(pickle.dumps(Store("s3://sluice/x")))]
    for kind in ("403", "expired", "region"):
        s3.faults.rules = [Rule(kind, times=100)]
        with pytest.raises(SluiceError) as told:
            Store("s3://sluice/x").publish("a", b"1")
        said.append(str(told.value))
    assert secret not in " ".join(said) + caplog.text
