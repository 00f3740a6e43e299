"""Uploads of captures: order, store outages, a full buffer, kills, and concurrent attempts."""

import asyncio
import contextlib
import errno
import os
import shutil
import subprocess
import sys
import threading
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tasks.core.artifact import ArtifactId
from tasks.core.errors import StoreError, TransientError
from tasks.core.stage import Output
from tasks.core.store import Store
from tasks.formats.warc import archive
from tasks.formats.web.domain import link
from tasks.formats.web.url import key
from tasks.stages.crawl.config import CrawlConfig
from tasks.stages.crawl.fetch import logged_outcomes
from tasks.stages.crawl.http.client import Response
from tasks.stages.crawl.storage.fetchlist import Candidate
from tasks.stages.crawl.storage.fetchlog import GONE, SUCCESS, Outcome
from tasks.stages.crawl.storage.segment import ORDER, SegmentWriter
from tasks.stages.crawl.storage.spool import MANIFEST, Buffer, Spool

pytestmark = pytest.mark.real_time

ADDRESS = ArtifactId("test/segment", "dev")
CONFIG = CrawlConfig(warc_pages_per_file=2, partitions=1, buffer_bytes=1 << 20)


class Moody(Store):
    """A store with scripted failures that records writes.

    Attributes:
        error: raised by every write while it is set.
        given: written paths in order.
    """

    def __init__(self, root):
        super().__init__(root)
        self.error = None
        self.given = []

    @contextlib.contextmanager
    def write(self, path):
        self._fail()
        with super().write(path) as file:
            yield file
        self.given.append(path)

    def publish(self, path, data):
        self._fail()
        super().publish(path, data)
        self.given.append(path)

    def _fail(self):
        if self.error:
            raise self.error


@pytest.fixture
def store(tmp_path, monkeypatch):
    monkeypatch.setattr("tasks.stages.crawl.storage.spool._FIRST_PAUSE_S", 0.01)
    monkeypatch.setattr("tasks.stages.crawl.storage.spool._LONGEST_PAUSE_S", 0.05)
    return Moody(str(tmp_path))


class Attempt:
    """One attempt of a task, without a crawl: `url` after `url` is captured."""

    def __init__(self, store, config=CONFIG):
        self.output = Output(store, ADDRESS, "f" * 64)
        self.spool = Spool(self.output, config.buffer_bytes, ORDER)
        self.held = [outcome.url for part in logged_outcomes(self.output, self.spool) for outcome in part]
        self.segment = SegmentWriter(self.spool, config, "sluice")

    def capture(self, *numbers, size=100):
        for number in numbers:
            url = f"http://127.0.0.1/{number}"
            answer = Response(200, "OK", (("Content-Type", "text/html"),), os.urandom(size), "", "", b"GET /", 0.01)
            outcome = Outcome(key(url), url, "127.0.0.1", 0, SUCCESS, requested=True, fetched_at=datetime.now(UTC))
            self.segment.note(self.segment.capture(Candidate(link(url), 0), answer, outcome))

    def close(self, limit_s=20.0):
        asyncio.run(self.segment.close(limit_s))

    def die(self):
        """Simulates a kill: nothing is closed or logged."""
        self.spool.end()

    def stored(self):
        rows = [record.rows_in for _, record in sorted(Output(self.output.store, ADDRESS, "f" * 64).committed.items())]
        parts = logged_outcomes(Output(self.output.store, ADDRESS, "f" * 64), _Nothing())
        urls = [outcome.url for part in parts for outcome in part]
        assert len(urls) == len(set(urls)) == sum(rows)
        return sorted(int(url.rpartition("/")[2]) for url in urls)


class _Nothing:
    """A spool on a machine without files of earlier attempts."""

    class buffer:
        take_over_parts = staticmethod(list)


def wait_for(condition):
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def files_in(output, name=""):
    return [path for path in Path(output.scratch).rglob("*") if path.is_file() and path.name.startswith(name)]


def test_files_are_stored_before_the_log_and_the_log_before_the_record(store):
    attempt = Attempt(store)
    attempt.capture(1, 2, 3, 4)
    attempt.close()
    kinds = [path.removeprefix(f"{ADDRESS.path}/").partition("/")[0] for path in store.given]
    assert kinds == ["warc", "index", "links", "log", ".parts"] * 2
    names = [path.rpartition("/")[2].removesuffix(".json") for path in store.given if "/.parts/" in path]
    assert names == ["warc-00000", "warc-00001"]
    assert attempt.stored() == [1, 2, 3, 4]


def test_uploaded_files_are_removed_from_the_local_disk(store):
    attempt = Attempt(store)
    attempt.capture(1, 2)
    attempt.close()
    assert files_in(attempt.output) == []


def test_during_a_store_outage_captures_wait_and_the_log_states_where_and_how_many(store, caplog):
    caplog.set_level("INFO", logger="sluice.crawl")
    attempt = Attempt(store)
    store.error = TransientError("the store did not answer for file:///x (connection refused)")
    attempt.capture(1, 2, 3, 4, 5, 6)
    wait_for(lambda: attempt.spool.outages)
    alert = next(record for record in caplog.records if record.levelname == "WARNING")
    for said in (
        "does not accept captures",
        "connection refused",
        store.root,
        str(attempt.output.scratch),
        "space for",
    ):
        assert said in alert.message
    assert "MB not stored yet" in attempt.segment.buffered
    store.error = None
    attempt.close()
    assert [
        record.levelname for record in caplog.records if "has accepted all buffered captures" in record.message
    ] == ["WARNING"]
    assert attempt.stored() == [1, 2, 3, 4, 5, 6]
    figures = attempt.segment.metrics()
    assert figures["store_outages"] == 1
    assert figures["buffered_bytes"] > 0
    assert attempt.segment.buffered == ""


def test_a_connection_error_is_handled_like_an_outage(store):
    attempt = Attempt(store)
    store.error = ConnectionResetError("reset")
    attempt.capture(1, 2)
    wait_for(lambda: attempt.spool.outages)
    store.error = None
    attempt.close()
    assert attempt.stored() == [1, 2]


def test_a_silent_store_is_reported_before_its_client_times_out(store, monkeypatch, caplog):
    monkeypatch.setattr("tasks.stages.crawl.storage.spool._SLOW_S", 0.05)
    answer = threading.Event()
    monkeypatch.setattr(store, "_fail", lambda: answer.wait(20))
    attempt = Attempt(store)
    attempt.capture(1, 2)
    time.sleep(0.1)
    for _ in range(3):
        asyncio.run(attempt.segment.wait_for_space())
    assert caplog.text.count("does not accept captures (no answer for 0 s)") == 1
    answer.set()
    attempt.close()
    assert "has accepted all buffered captures" in caplog.text
    assert attempt.spool.outages == 1
    assert attempt.stored() == [1, 2]


def test_an_outage_within_a_part_uploads_no_file_twice(store):
    attempt = Attempt(store)
    plain = Store.publish
    failed = []

    def publish(path, data):
        if not failed:
            failed.append(path)
            raise TransientError("gone for a moment")
        plain(store, path, data)

    store.publish = publish
    attempt.capture(1, 2)
    attempt.close()
    assert failed
    assert len(store.given) == len(set(store.given)) == 4
    assert attempt.stored() == [1, 2]


def test_a_full_buffer_blocks_until_it_has_drained(store, caplog):
    attempt = Attempt(store)
    store.error = TransientError("away")

    async def crawl():
        number = 0
        while True:
            try:
                async with asyncio.timeout(0.3):
                    await attempt.segment.wait_for_space()
            except TimeoutError:
                break
            attempt.capture(number, size=100_000)
            number += 1
        assert 8 <= number <= 14
        # The last admitted response, and the logs, may exceed it.
        assert attempt.spool.buffered_bytes <= CONFIG.buffer_bytes + 150_000
        waiting = [asyncio.ensure_future(attempt.segment.wait_for_space()) for _ in range(3)]
        await asyncio.sleep(0.05)
        assert not any(one.done() for one in waiting)
        store.error = None
        async with asyncio.timeout(10):
            await asyncio.gather(*waiting)
        return number

    number = asyncio.run(crawl())
    assert "fetching pauses, the buffer is full" in caplog.text
    if attempt.segment.holds_rows:
        attempt.segment.commit()
    attempt.close()
    assert attempt.stored() == list(range(number))


def test_a_file_is_closed_before_it_fills_the_buffer(store):
    attempt = Attempt(store, CONFIG.model_copy(update={"warc_pages_per_file": 1000}))
    attempt.capture(*range(10), size=100_000)
    attempt.segment.commit()
    attempt.close()
    assert len(attempt.output.committed) == 4


@pytest.mark.parametrize("while_waiting", [False, True])
def test_a_refusing_store_ends_the_task_with_the_location_of_the_captures(store, while_waiting):
    attempt = Attempt(store)
    store.error = TransientError("away") if while_waiting else StoreError("no right to write x", "grant it")
    with contextlib.suppress(StoreError):  # raised at once if the thread is fast
        attempt.capture(1, 2)
    store.error = StoreError("no right to write x", "grant it")
    with pytest.raises(StoreError, match=r"no right to write x; captures not stored yet: .*space for.* Grant it"):
        attempt.close()
    with pytest.raises(StoreError):
        asyncio.run(attempt.segment.wait_for_space())
    assert len(files_in(attempt.output, MANIFEST)) == 1
    store.error = None
    again = Attempt(store)
    assert len(again.held) == 2
    again.close()
    assert again.stored() == [1, 2]


def test_a_long_outage_ends_the_task_and_the_next_attempt_resumes_from_local_disk(store):
    first = Attempt(store)
    first.capture(1, 2)
    wait_for(lambda: not first.spool.buffered_bytes)
    store.error = TransientError("away")
    first.capture(3, 4, 5, 6)
    with pytest.raises(TransientError, match=r"has not accepted the last captures: .* MB in /"):
        first.close(0.2)
    second = Attempt(store)
    assert len(second.held) == 6
    second.capture(7, 8)
    with pytest.raises(TransientError):
        second.close(0.2)
    store.error = None
    third = Attempt(store)
    assert len(third.held) == 8
    third.close()
    assert third.stored() == [1, 2, 3, 4, 5, 6, 7, 8]
    assert sorted(third.output.committed) == [f"warc-{number:05d}" for number in range(4)]
    assert files_in(third.output) == []


def test_a_part_stored_but_not_removed_before_a_kill_is_not_stored_twice(store, monkeypatch):
    first = Attempt(store)
    monkeypatch.setattr("tasks.stages.crawl.storage.spool.ClosedPart.remove", lambda self: None)
    first.capture(1, 2)
    wait_for(lambda: not first.spool.buffered_bytes)
    monkeypatch.undo()
    assert len(files_in(first.output, MANIFEST)) == 1
    second = Attempt(store)
    assert len(second.held) == 2
    second.close()
    assert len(second.output.committed) == 1
    assert second.stored() == [1, 2]


def test_captures_repeated_on_another_machine_count_once(store, tmp_path, monkeypatch):
    here = Attempt(store)
    store.error = TransientError("away")
    here.capture(1, 2, 3, 4)
    here.die()
    store.error = None
    elsewhere = tmp_path / "elsewhere"
    monkeypatch.setattr(Output, "scratch", property(lambda self: str(elsewhere)))
    there = Attempt(store)
    assert there.held == []
    there.capture(1, 2)
    there.close()
    monkeypatch.undo()
    back = Attempt(store)
    assert sorted(back.held) == [f"http://127.0.0.1/{number}" for number in (1, 2, 3, 4)]
    back.close()
    assert back.stored() == [1, 2, 3, 4]


def test_a_damaged_part_is_skipped_and_its_pages_are_fetched_again(store, caplog):
    first = Attempt(store)
    store.error = TransientError("away")
    first.capture(1, 2, 3, 4)
    first.die()
    damaged = min(path for path in Path(first.output.scratch).rglob("*.warc.gz"))
    damaged.write_bytes(damaged.read_bytes()[:-1])
    store.error = None
    second = Attempt(store)
    assert [url[-1] for url in second.held] == ["3", "4"]
    assert "is damaged" in caplog.text
    second.close()


def test_a_file_that_was_open_at_the_kill_is_removed_by_the_next_attempt(store):
    first = Attempt(store)
    first.capture(1)
    assert files_in(first.output, "warc-")
    first.spool.buffer.release(empty=False)
    second = Attempt(store)
    assert second.held == []
    assert not files_in(second.output, "warc-")
    second.capture(1, 2)
    second.close()
    assert second.stored() == [1, 2]


def test_the_buffer_of_a_live_attempt_is_not_touched(store, tmp_path):
    first = Attempt(store)
    folder = Path(first.output.scratch) / "buffer"
    first.die()
    program = (
        "import sys\nfrom pathlib import Path\nfrom tasks.stages.crawl.storage.spool import Buffer\n"
        f"buffer = Buffer({str(folder.parent)!r}, 'other')\n"
        "(buffer.folder / 'open').touch()\nprint('ready', flush=True)\nsys.stdin.read()\n"
    )
    root = Path(__file__).parents[4]
    other = subprocess.Popen([sys.executable, "-c", program], cwd=root, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert other.stdout.readline() == b"ready\n"
    Attempt(store).close()
    assert (folder / "other" / "open").exists()
    other.kill()
    other.wait()
    Attempt(store).close()
    assert not (folder / "other").exists()


def test_of_two_attempts_that_store_a_part_one_ends_as_superseded(store):
    first, second = Attempt(store), Attempt(store)
    first.capture(1, 2)
    wait_for(lambda: not first.spool.buffered_bytes)
    with contextlib.suppress(TransientError):  # raised at once if the thread is fast
        second.capture(1, 2)
    with pytest.raises(TransientError, match="another attempt"):
        second.close()
    first.close()
    assert first.stored() == [1, 2]


def test_an_attempt_stores_nothing_into_a_committed_artifact(store):
    late = Attempt(store)
    store.publish(f"{ADDRESS.path}/.artifact.json", b"{}")
    with contextlib.suppress(TransientError):
        late.capture(1, 2)
    with pytest.raises(TransientError, match="another attempt has finished"):
        late.close()
    assert store.list(ADDRESS.path) == [f"{ADDRESS.path}/.artifact.json"]


def test_files_are_compressed_and_named_as_configured(store):
    attempt = Attempt(store, CONFIG.model_copy(update={"warc_compression": "zstd"}))
    attempt.capture(1, 2)
    attempt.close()
    (path,) = [path for path in store.given if "/warc/" in path]
    assert path.endswith(f"{attempt.output.attempt}.warc.zst")
    with store.open(path) as file:
        assert [capture.url[-1] for capture in archive.captures(file)] == ["1", "2"]


def test_rows_without_a_capture_are_stored_without_a_file(store):
    attempt = Attempt(store)
    attempt.segment.note(
        Outcome(key("http://127.0.0.1/1"), "http://127.0.0.1/1", "127.0.0.1", 0, GONE, "http_404", requested=True)
    )
    assert attempt.segment.holds_rows
    assert not attempt.segment.holds_captures
    attempt.segment.commit()
    attempt.close()
    (record,) = attempt.output.committed.values()
    assert (record.rows_in, record.rows_out, record.rejected) == (1, 0, {"http_404": 1})
    assert not [entry for entry in record.files if entry.path.startswith("warc/")]


def test_a_full_local_disk_is_reported(store, monkeypatch):
    attempt = Attempt(store)

    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("tasks.stages.crawl.storage.spool.os.makedirs", full)
    with pytest.raises(StoreError, match=r"captures cannot be kept on this machine: .*full.*Free space"):
        attempt.capture(1)
    monkeypatch.undo()
    attempt.die()


def test_the_upload_thread_ends_with_the_attempt(store):
    before = threading.active_count()
    attempt = Attempt(store)
    attempt.capture(1, 2)
    attempt.close()
    assert threading.active_count() == before


def test_an_attempt_whose_scratch_folder_was_removed_is_retryable(tmp_path):
    late = Buffer(str(tmp_path / "scratch"), "late")
    shutil.rmtree(tmp_path / "scratch")
    with pytest.raises(TransientError, match="another attempt of this task has finished"):
        late.take_over_parts()
