"""Writer of a segment: WARC files with their logs, stored one file at a time.

A part of the segment is one WARC file, its index, its log and its links. Open files are on the local disk; when the
WARC is full or old they are closed and passed to the spool, which stores them in the background: a kill loses at most
the open file, and the next attempt reads every closed one.
"""

import contextlib
import logging
import time
from datetime import UTC, datetime

import pyarrow.parquet as pq

from tasks.core.part import POISON
from tasks.core.stage import Part
from tasks.stages.crawl.config import CrawlConfig
from tasks.stages.crawl.http.client import Answer
from tasks.stages.crawl.storage.fetchlist import Candidate, Earlier
from tasks.stages.crawl.storage.fetchlog import CAPTURED, DUPLICATE, LinkRows, Outcome, to_table
from tasks.stages.crawl.storage.spool import DRAIN_S, Closed, Spool
from tasks.stages.crawl.storage.warc import Compression, WarcWriter, suffix

log = logging.getLogger("sluice.crawl")

_MAX_BYTES = 1 << 30
_MAX_AGE_S = 600.0
# Bytes of memory, roughly, that the log and the links of an open part may take, and of a row beside its links.
_MAX_MEMORY = 48 << 20
_ROW_BYTES = 1000
# Files this much smaller than the buffer keep it draining while the next one grows.
_BUFFER_SHARE = 4
WARC = "warc/"
INDEX = "index/"
LOG = "log/"
LINK = "links/"
# An outcome must not be logged before its capture is stored.
ORDER = (WARC, INDEX, LINK, "quarantine/", LOG)


class Segment:
    """The open WARC file of a task, and the log rows that belong to it.

    Args:
        spool: takes the closed parts.
        config: the crawl's settings.
        software: name and version, for warcinfo.
        agent: User-Agent, for warcinfo.
    """

    def __init__(self, spool: Spool, config: CrawlConfig, software: str, agent: str) -> None:
        self._spool = spool
        self._config = config
        self._software = software
        self._agent = agent
        self._max_bytes = min(_MAX_BYTES, config.buffer_bytes // _BUFFER_SHARE)
        self._open: _OpenPart | None = None

    def capture(
        self, candidate: Candidate, answer: Answer, outcome: Outcome, earlier: Earlier | None = None
    ) -> Outcome:
        """Writes a capture to the open file, or a revisit record of an `earlier` one.

        Returns:
            The outcome with the place and the identity of the record.
        """
        part = self._part()
        warc = part.warc or part.open_warc(self._config.warc_compression, self._software, self._agent)
        fetched_at, notes = outcome.fetched_at or datetime.now(UTC), _notes(candidate, answer, outcome)
        if earlier is None:
            written = warc.capture(outcome.url, fetched_at, answer, notes)
        else:
            written = warc.revisit(outcome.url, fetched_at, answer, earlier, notes)
        part.captures += 1
        return outcome._replace(
            payload_digest=written.payload_digest,
            record_id=written.record_id,
            warc_file=part.path,
            warc_offset=written.offset,
        )

    def note(self, outcome: Outcome) -> None:
        """Takes a row of the log; closes the file when it is full or old, or when its rows take too much memory.

        Raises:
            SluiceError: see `Spool.check`.
        """
        part = self._part()
        part.links.add(outcome)
        part.rows.append(outcome._replace(outlinks=(), lastmods=()))
        full = part.captures >= self._config.warc_pages_per_file or part.bytes >= self._max_bytes
        full = full or part.links.bytes + _ROW_BYTES * len(part.rows) >= _MAX_MEMORY
        if full or (part.captures and time.monotonic() - part.begin > _MAX_AGE_S):
            self.commit()

    @property
    def holds_captures(self) -> bool:
        """Whether the open file has any capture."""
        return self._open is not None and self._open.captures > 0

    @property
    def holds_rows(self) -> bool:
        """Whether any URL was tried since a file was closed."""
        return self._open is not None and bool(self._open.rows)

    @property
    def holds_parts(self) -> bool:
        """Whether any file was closed, in this attempt or in one before."""
        return self._spool.holds_parts

    @property
    def buffered(self) -> str:
        """Text on the parts that wait for the store; "" when none do."""
        waiting = self._spool.buffered_bytes
        return f", {waiting / 1e6:,.1f} MB not stored yet" if waiting else ""

    def metrics(self) -> dict[str, float]:
        """Returns figures for the report: maximum of bytes waiting for the store, and number of its outages."""
        return {"buffered_bytes": float(self._spool.peak_bytes), "store_outages": float(self._spool.outages)}

    async def room(self) -> None:
        """Waits while the buffer is full; await it before a request.

        Raises:
            SluiceError: see `Spool.check`.
        """
        await self._spool.room(lambda: self._open.bytes if self._open else 0)

    def commit(self) -> None:
        """Closes the open file with its log, to be stored; a log without captures has no file.

        Raises:
            SluiceError: see `Spool.check`.
        """
        part, self._open = self._part(), None
        self._spool.put(part.close())

    async def close(self, limit_s: float = DRAIN_S) -> None:
        """Waits until everything closed is stored.

        Raises:
            SluiceError: see `Spool.close`.
        """
        await self._spool.close(limit_s)

    def abandon(self, error: BaseException) -> None:
        """Drops the open file; closed files that are not stored are left for the next attempt."""
        if self._open is not None:
            self._open.abandon(error)
            self._open = None
        self._spool.end()

    def _part(self) -> "_OpenPart":
        if self._open is None:
            self._open = _OpenPart(self._spool, self._config.partitions)
        return self._open


class _OpenPart:
    """The files of a part that is being written."""

    def __init__(self, spool: Spool, partitions: int) -> None:
        self._spool = spool
        self._partitions = partitions
        # Two attempts of one task never write the same file: the part's record names the valid one.
        self._stem = spool.stem()
        self._part = Part(spool.buffer.staging, self._stem, self._stem, "")
        self._file = contextlib.ExitStack()
        self.rows: list[Outcome] = []
        self.links = LinkRows()
        self.captures = 0
        self.begin = time.monotonic()
        self.path = ""
        self.warc: WarcWriter | None = None

    @property
    def bytes(self) -> int:
        return self.warc.bytes if self.warc else 0

    def open_warc(self, compression: Compression, software: str, agent: str) -> WarcWriter:
        self.path = f"{WARC}{self._stem}{suffix(compression)}"
        file = self._file.enter_context(self._part.file(self.path))
        self.begin = time.monotonic()
        self.warc = WarcWriter(file, self.path, software, agent, compression)
        return self.warc

    def close(self) -> Closed:
        part = self._part
        if self.warc is not None:
            index = self.warc.finish()
            self._file.close()
            with part.file(f"{INDEX}{self._stem}.cdxj", rows=len(index)) as file:
                file.write("".join(f"{line}\n" for line in index).encode())
        with part.file(f"{LOG}{self._stem}.parquet", rows=len(self.rows)) as file:
            pq.write_table(to_table(self.rows), file, compression="zstd", compression_level=3)
        links = self.links.table(self.rows, self._partitions)
        with part.file(f"{LINK}{self._stem}.parquet", rows=links.num_rows) as file:
            pq.write_table(links, file, compression="zstd", compression_level=3, row_group_size=1 << 16)
        for outcome in self.rows:
            account(part, outcome)
        return self._spool.buffer.close_part(self._stem, part.record(conserved=True))

    def abandon(self, error: BaseException) -> None:
        with contextlib.suppress(type(error)):
            self._file.__exit__(type(error), error, error.__traceback__)


def _notes(candidate: Candidate, answer: Answer, outcome: Outcome) -> dict[str, str]:
    notes = {"fetchTimeMs": str(round(answer.seconds * 1000)), "hopsFromSeed": str(candidate.depth)}
    if candidate.via:
        notes["via"] = candidate.via
    if outcome.terms:
        notes["statedTerms"] = outcome.terms
    return notes


def account(part: Part, outcome: Outcome) -> None:
    """Enters an outcome in the account of its part: a capture, a URL set aside, or one rejected with its reason."""
    part.count_in()
    if outcome.unread:
        part.metric("links_unread", 1)
    if outcome.status in CAPTURED:
        part.count_out()
        part.metric("pages", 1)
        part.metric("bytes", outcome.bytes)
        if outcome.status == DUPLICATE:
            part.metric("duplicates", 1)
    elif outcome.reason == POISON:
        part.quarantine(outcome.url, RuntimeError(outcome.error))
    else:
        part.reject(outcome.reason)
        part.metric(f"errors.{outcome.reason}", 1)
