"""What one fetch task has captured: WARC files with their logs, committed one file at a time.

Used by fetch. A part of the segment is one WARC file, its index and its log. The WARC is closed and stored first, then
the log, then the record of the part: a kill loses at most the open file, and a resumed task finds every committed log.
"""

import contextlib
import io
import logging
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from typing import cast

import pyarrow.parquet as pq

from tasks.artifact import PartRecord
from tasks.crawl.client import Answer
from tasks.crawl.fetchlog import CAPTURED, Outcome, from_tables, to_links, to_table
from tasks.crawl.warc import WarcWriter, Written
from tasks.crawl.waves import Candidate
from tasks.errors import TransientError
from tasks.stage import Output, Part

log = logging.getLogger("sluice.crawl")

_MAX_BYTES = 1 << 30
_MAX_AGE_S = 600.0
WARC = "warc/"
INDEX = "index/"
LOG = "log/"
LINK = "links/"


class Segment:
    """The open WARC file of a fetch task, and the log rows that belong to it.

    Args:
        output: the artifact being written.
        pages_per_file: captures after which a file is closed.
        partitions: of the crawl; links are sorted by the partition that owns them.
        software: name and version, for warcinfo.
        agent: User-Agent, for warcinfo.
    """

    def __init__(self, output: Output, pages_per_file: int, partitions: int, software: str, agent: str) -> None:
        self._output = output
        self._pages_per_file = pages_per_file
        self._partitions = partitions
        self._software = software
        self._agent = agent
        self._stack = contextlib.ExitStack()
        self._part: Part | None = None
        self._writer: WarcWriter | None = None
        self._path = ""
        self._pages = 0
        self._opened = 0.0
        self._rows: list[Outcome] = []
        self.errors: Counter[str] = Counter()

    def capture(self, candidate: Candidate, answer: Answer, outcome: Outcome) -> Outcome:
        """Writes a capture to the open file; returns the outcome with its place."""
        writer, fetched_at = self._open(), outcome.fetched_at or datetime.now(UTC)
        written = writer.capture(outcome.url, fetched_at, answer, _notes(candidate, answer, outcome))
        return self._placed(outcome, written)

    def revisit(self, candidate: Candidate, answer: Answer, outcome: Outcome) -> Outcome:
        """Writes a revisit record to the open file; returns the outcome with its place."""
        if candidate.earlier is None:
            raise ValueError(f"{candidate.url} was never captured before")
        writer, fetched_at = self._open(), outcome.fetched_at or datetime.now(UTC)
        notes = _notes(candidate, answer, outcome)
        written = writer.revisit(outcome.url, fetched_at, answer, candidate.earlier, notes)
        return self._placed(outcome, written)

    def note(self, outcome: Outcome) -> None:
        """Takes a row of the log; closes and commits the file when it is full or old."""
        self._rows.append(outcome)
        if outcome.reason:
            self.errors[outcome.reason] += 1
        full = self._pages >= self._pages_per_file or (self._writer is not None and self._writer.bytes > _MAX_BYTES)
        if full or (self._pages and time.monotonic() - self._opened > _MAX_AGE_S):
            self.commit()

    @property
    def holds_captures(self) -> bool:
        """Whether the open file holds any capture."""
        return self._pages > 0

    @property
    def holds_rows(self) -> bool:
        """Whether any URL was tried since the last commit."""
        return bool(self._rows)

    def commit(self) -> None:
        """Closes the open file and commits it with its log; a log without captures is committed without a file.

        Raises:
            TransientError: another attempt of this very task has committed the same part.
        """
        if self._part is None:
            self._begin()
        part = cast(Part, self._part)
        if self._writer is not None:
            self._close_warc(part)
        with part.file(f"{LOG}{part.name}-{part.attempt}.parquet", rows=len(self._rows)) as file:
            pq.write_table(to_table(self._rows), file, compression="zstd", compression_level=3)
        links = to_links(self._rows, self._partitions)
        with part.file(f"{LINK}{part.name}-{part.attempt}.parquet", rows=links.num_rows) as file:
            pq.write_table(links, file, compression="zstd", compression_level=3, row_group_size=1 << 16)
        _count(part, self._rows)
        self._stack.close()
        self._check_mine(self._output.committed[part.name], part)
        log.info("committed %s: %d captures of %d URLs", part.name, self._pages, len(self._rows))
        self._part = self._writer = None
        self._pages, self._rows = 0, []

    def abandon(self, error: BaseException) -> None:
        """Drops the open file: nothing of it is committed."""
        with contextlib.suppress(type(error)):
            self._stack.__exit__(type(error), error, error.__traceback__)

    def _begin(self) -> Part:
        self._part = self._stack.enter_context(self._output.part(f"warc-{len(self._output.committed):05d}"))
        return self._part

    def _open(self) -> WarcWriter:
        if self._writer is None:
            part = self._part or self._begin()
            # Two attempts of one task never write the same file: which one counts, the part's record says.
            self._path = f"{WARC}{part.name}-{part.attempt}.warc.gz"
            self._warc = contextlib.ExitStack()
            file = self._warc.enter_context(part.file(self._path))
            self._stack.push(self._warc.__exit__)
            self._writer = WarcWriter(file, self._path, self._software, self._agent)
            self._opened = time.monotonic()
        return self._writer

    def _close_warc(self, part: Part) -> None:
        index = cast(WarcWriter, self._writer).finish()
        self._warc.close()
        with part.file(f"{INDEX}{part.name}-{part.attempt}.cdxj", rows=len(index)) as file:
            file.write("".join(f"{line}\n" for line in index).encode())

    def _placed(self, outcome: Outcome, written: Written) -> Outcome:
        self._pages += 1
        return replace(
            outcome,
            payload_digest=written.payload_digest,
            record_id=written.record_id,
            warc_file=self._path,
            warc_offset=written.offset,
        )

    def _check_mine(self, record: PartRecord, part: Part) -> None:
        mine = f"{LOG}{part.name}-{part.attempt}.parquet"
        if mine not in (entry.path for entry in record.files):
            raise TransientError(
                f"another attempt of {self._output.address} is committing the same pages",
                "let it finish, or end it and run this one again",
            )


def committed(output: Output) -> Iterator[Outcome]:
    """Yields the outcomes in the parts that an earlier, killed attempt of the task has committed."""
    for record in output.committed.values():
        tables = {
            folder: pq.read_table(io.BytesIO(output.store.read(f"{output.address.path}/{entry.path}")))
            for folder in (LOG, LINK)
            for entry in record.files
            if entry.path.startswith(folder)
        }
        if LOG in tables:
            yield from from_tables(tables[LOG], tables[LINK])


def _notes(candidate: Candidate, answer: Answer, outcome: Outcome) -> dict[str, str]:
    notes = {"fetchTimeMs": str(round(answer.seconds * 1000)), "hopsFromSeed": str(candidate.depth)}
    if candidate.via:
        notes["via"] = candidate.via
    return notes


def _count(part: Part, rows: list[Outcome]) -> None:
    for outcome in rows:
        part.count_in()
        if outcome.status in CAPTURED:
            part.count_out()
            part.metric("pages", 1)
            part.metric("bytes", outcome.bytes)
        elif outcome.reason == "poison":
            part.quarantine(outcome.url, RuntimeError(outcome.error))
        else:
            part.reject(outcome.reason)
            part.metric(f"errors.{outcome.reason}", 1)
