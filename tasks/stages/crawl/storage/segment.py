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
from tasks.stages.crawl.http.client import SOFTWARE, Response
from tasks.stages.crawl.storage.fetchlist import Candidate, EarlierCapture
from tasks.stages.crawl.storage.fetchlog import CAPTURED, DUPLICATE, LinkRows, Outcome, to_table
from tasks.stages.crawl.storage.spool import DRAIN_S, Spool
from tasks.stages.crawl.storage.warc import WarcWriter, WrittenRecord, suffix

log = logging.getLogger("sluice.crawl")

WARC = "warc/"
INDEX = "index/"
LOG = "log/"
LINK = "links/"
ORDER = (WARC, INDEX, LINK, "quarantine/", LOG)
"""Folders in the order in which their files go to the store: no outcome is logged before its capture is stored."""

_MAX_BYTES = 1 << 30
_MAX_AGE_S = 600.0
# Bytes of memory, roughly, that the log and the links of an open part may take, and of a row beside its links.
_MAX_MEMORY = 48 << 20
_ROW_BYTES = 1000
# Files this much smaller than the buffer keep it draining while the next one grows.
_BUFFER_SHARE = 4


class PartFiles:
    """The files of a part while it is written: one WARC file with its index, the log, and the links.

    The WARC file and its index are left out where no record was written.

    Args:
        part: the part.
        stem: how the names of its files begin.
        config: the crawl's settings.
        agent: User-Agent, for warcinfo.

    Attributes:
        part: the part.
        stem: how the names of its files begin.
        captures: records written.
        begin: when the first was written, or before that the part was begun (monotonic clock).
        rows: outcomes, without their links.
        links: their links.
    """

    def __init__(self, part: Part, stem: str, config: CrawlConfig, agent: str) -> None:
        self.part = part
        self.stem = stem
        self.captures = 0
        self.begin = time.monotonic()
        self.rows: list[Outcome] = []
        self.links = LinkRows()
        self._config = config
        self._agent = agent
        self._path = f"{WARC}{stem}{suffix(config.warc_compression)}"
        self._stack = contextlib.ExitStack()
        self._writer: WarcWriter | None = None

    @property
    def bytes(self) -> int:
        """Bytes of the WARC file."""
        return self._writer.bytes if self._writer else 0

    @property
    def warc(self) -> WarcWriter:
        """The WARC file, open."""
        if self._writer is None:
            file = self._stack.enter_context(self.part.file(self._path))
            self.begin = time.monotonic()
            self._writer = WarcWriter(file, self._path, SOFTWARE, self._agent, self._config.warc_compression)
        return self._writer

    def placed(self, outcome: Outcome, written: WrittenRecord) -> Outcome:
        """Returns an outcome with the place and the identity of its record."""
        self.captures += 1
        return outcome._replace(
            payload_digest=written.payload_digest,
            record_id=written.record_id,
            warc_file=self._path,
            warc_offset=written.offset,
        )

    def note(self, outcome: Outcome) -> None:
        """Takes a row of the log, and its links."""
        self.links.add(outcome)
        self.rows.append(outcome._replace(outlinks=(), lastmods=()))

    def finish(self, links_per_group: int | None = 1 << 16) -> None:
        """Closes the WARC file, and writes its index, the log and the links.

        Args:
            links_per_group: rows of a row group of the links; None for one group.
        """
        if self._writer is not None:
            index = self._writer.finish()
            self._stack.close()
            with self.part.file(f"{INDEX}{self.stem}.cdxj", rows=len(index)) as file:
                file.write("".join(f"{line}\n" for line in index).encode())
        with self.part.file(f"{LOG}{self.stem}.parquet", rows=len(self.rows)) as file:
            pq.write_table(to_table(self.rows), file, compression="zstd", compression_level=3)
        links = self.links.table(self.rows, self._config.partitions)
        with self.part.file(f"{LINK}{self.stem}.parquet", rows=links.num_rows) as file:
            pq.write_table(links, file, compression="zstd", compression_level=3, row_group_size=links_per_group)
        for outcome in self.rows:
            _count(self.part, outcome)

    def abandon(self, error: BaseException) -> None:
        """Drops the open file."""
        with contextlib.suppress(type(error)):
            self._stack.__exit__(type(error), error, error.__traceback__)


class SegmentWriter:
    """The open WARC file of a task, and the log rows that belong to it.

    Args:
        spool: takes the closed parts.
        config: the crawl's settings.
        agent: User-Agent, for warcinfo.
    """

    def __init__(self, spool: Spool, config: CrawlConfig, agent: str) -> None:
        self._spool = spool
        self._config = config
        self._agent = agent
        self._max_bytes = min(_MAX_BYTES, config.buffer_bytes // _BUFFER_SHARE)
        self._open: PartFiles | None = None

    def capture(
        self, candidate: Candidate, response: Response, outcome: Outcome, earlier: EarlierCapture | None = None
    ) -> Outcome:
        """Writes a capture to the open file, or a revisit record of an `earlier` one.

        Returns:
            The outcome with the place and the identity of the record.
        """
        files = self._files()
        fetched_at, notes = outcome.fetched_at or datetime.now(UTC), _notes(candidate, response, outcome)
        if earlier is None:
            written = files.warc.capture(outcome.url, fetched_at, response, notes)
        else:
            written = files.warc.revisit(outcome.url, fetched_at, response, earlier, notes)
        return files.placed(outcome, written)

    def note(self, outcome: Outcome) -> None:
        """Takes a row of the log; closes the file when it is full or old, or when its rows take too much memory.

        Raises:
            SluiceError: see `Spool.check`.
        """
        files = self._files()
        files.note(outcome)
        full = files.captures >= self._config.warc_pages_per_file or files.bytes >= self._max_bytes
        full = full or files.links.bytes + _ROW_BYTES * len(files.rows) >= _MAX_MEMORY
        if full or (files.captures and time.monotonic() - files.begin > _MAX_AGE_S):
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
        files, self._open = self._files(), None
        files.finish()
        self._spool.put(self._spool.buffer.close_part(files.stem, files.part.record(conserved=True)))

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

    def _files(self) -> PartFiles:
        if self._open is None:
            # Two attempts of one task never write the same file: the part's record names the valid one.
            stem = self._spool.stem()
            part = Part(self._spool.buffer.staging, stem, stem, "")
            self._open = PartFiles(part, stem, self._config, self._agent)
        return self._open


def _notes(candidate: Candidate, response: Response, outcome: Outcome) -> dict[str, str]:
    notes = {"fetchTimeMs": str(round(response.seconds * 1000)), "hopsFromSeed": str(candidate.depth)}
    if candidate.via:
        notes["via"] = candidate.via
    if outcome.terms:
        notes["statedTerms"] = outcome.terms
    return notes


def _count(part: Part, outcome: Outcome) -> None:
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
