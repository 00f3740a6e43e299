"""Writer of a segment: WARC files with their logs, stored one part at a time.

A part of the segment is one WARC file with its index, log and links. Open files are on the local disk. When the WARC
file is full or old, its part is closed and passed to the spool, which stores it in the background: a kill loses at most
the open part, and the next attempt reads all closed parts.
"""

import contextlib
import logging
import time
from datetime import UTC, datetime

from tasks.core.part import POISON
from tasks.core.stage import Part
from tasks.stages.crawl.config import CrawlConfig
from tasks.stages.crawl.http.client import SOFTWARE, Response
from tasks.stages.crawl.storage.fetchlist import Candidate, EarlierCapture
from tasks.stages.crawl.storage.fetchlog import CAPTURED, DUPLICATE, NO_SITEMAP, LinkRows, Outcome, to_table
from tasks.stages.crawl.storage.spool import DRAIN_S, Spool
from tasks.stages.crawl.storage.warc import WarcWriter, WrittenRecord, suffix

log = logging.getLogger("sluice.crawl")

WARC = "warc/"
INDEX = "index/"
LOG = "log/"
LINK = "links/"
ORDER = (WARC, INDEX, LINK, "quarantine/", LOG)
"""Folders in the order in which their files are stored: the log comes last, after the captures that it refers to."""

_MAX_BYTES = 1 << 30
_MAX_AGE_S = 600.0
# Approximate limit of memory for log and links of an open part, and memory of a row of the log without its links.
_MAX_MEMORY = 48 << 20
_ROW_BYTES = 1000
# Files are smaller than the buffer by this factor, so that it drains while the next file grows.
_BUFFER_SHARE = 4


class PartFiles:
    """The files of a part while it is written: one WARC file with its index, the log, and the links.

    A part without captures has no WARC file and no index.

    Args:
        part: the part.
        stem: prefix of the names of its files.
        config: settings of the crawl.
        agent: the User-Agent, for the warcinfo record.

    Attributes:
        part: the part.
        stem: prefix of the names of its files.
        captures: number of captures written.
        begin: time of the first capture, or before that the start of the part (monotonic clock, in seconds).
        rows: outcomes, without their links.
        links: links of the outcomes.
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
        """Size of the WARC file so far."""
        return self._writer.bytes if self._writer else 0

    @property
    def warc(self) -> WarcWriter:
        """Writer of the WARC file, which is created on first use."""
        if self._writer is None:
            file = self._stack.enter_context(self.part.file(self._path))
            self.begin = time.monotonic()
            self._writer = WarcWriter(file, self._path, SOFTWARE, self._agent, self._config.warc_compression)
        return self._writer

    def with_record(self, outcome: Outcome, written: WrittenRecord) -> Outcome:
        """Counts a capture; returns its outcome with location and identity of the record."""
        self.captures += 1
        return outcome._replace(
            payload_digest=written.payload_digest,
            record_id=written.record_id,
            warc_file=self._path,
            warc_offset=written.offset,
        )

    def note(self, outcome: Outcome) -> None:
        """Adds an outcome: a row of the log, and its links."""
        self.links.add(outcome)
        self.rows.append(outcome._replace(outlinks=(), lastmods=()))

    def finish(self) -> None:
        """Closes the WARC file, and writes its index, the log and the links."""
        if self._writer is not None:
            index = self._writer.finish()
            self._stack.close()
            with self.part.file(f"{INDEX}{self.stem}.cdxj", rows=len(index)) as file:
                file.write("".join(f"{line}\n" for line in index).encode())
        self.part.write_table(f"{LOG}{self.stem}.parquet", to_table(self.rows))
        self.part.write_table(f"{LINK}{self.stem}.parquet", self.links.table(self.rows, self._config.partitions))
        for outcome in self.rows:
            _count(self.part, outcome)

    def abandon(self, error: BaseException) -> None:
        """Closes the open files without finishing them."""
        with contextlib.suppress(type(error)):
            self._stack.__exit__(type(error), error, error.__traceback__)


class SegmentWriter:
    """Writes captures and outcomes of a task to parts, one of which is open.

    Args:
        spool: stores the closed parts.
        config: settings of the crawl.
        agent: the User-Agent, for the warcinfo record.
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
        """Writes a capture to the open WARC file, or a revisit record if there is an `earlier` capture to refer to.

        Returns:
            the outcome with location and identity of the record.
        """
        files = self._files()
        fetched_at, notes = outcome.fetched_at or datetime.now(UTC), _notes(candidate, response, outcome)
        if earlier is None:
            written = files.warc.capture(outcome.url, fetched_at, response, notes)
        else:
            written = files.warc.revisit(outcome.url, fetched_at, response, earlier, notes)
        return files.with_record(outcome, written)

    def note(self, outcome: Outcome) -> None:
        """Adds an outcome to the log; closes the part if it is full or old, or if its rows take too much memory.

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
        """Whether the open part has captures."""
        return self._open is not None and self._open.captures > 0

    @property
    def holds_rows(self) -> bool:
        """Whether the open part has outcomes."""
        return self._open is not None and bool(self._open.rows)

    @property
    def holds_parts(self) -> bool:
        """Whether any part was closed, in this attempt or an earlier one."""
        return self._spool.holds_parts

    @property
    def buffered(self) -> str:
        """Text with the size of the parts that are not stored yet, or ""."""
        size = self._spool.buffered_bytes
        return f", {size / 1e6:,.1f} MB not stored yet" if size else ""

    def metrics(self) -> dict[str, float]:
        """Returns metrics for the report: maximum of buffered bytes, and number of outages of the store."""
        return {"buffered_bytes": float(self._spool.peak_bytes), "store_outages": float(self._spool.outages)}

    async def wait_for_space(self) -> None:
        """Waits while the buffer is full; to be awaited before each request.

        Raises:
            SluiceError: see `Spool.check`.
        """
        await self._spool.wait_for_space(lambda: self._open.bytes if self._open else 0)

    def commit(self) -> None:
        """Closes the open part and passes it to the spool; a part without captures has no WARC file.

        Raises:
            SluiceError: see `Spool.check`.
        """
        files, self._open = self._files(), None
        files.finish()
        self._spool.put(self._spool.buffer.close_part(files.stem, files.part.record(conserved=True)))

    async def close(self, limit_s: float = DRAIN_S) -> None:
        """Waits until all closed parts are stored.

        Raises:
            SluiceError: see `Spool.close`.
        """
        await self._spool.close(limit_s)

    def abandon(self, error: BaseException) -> None:
        """Discards the open part; closed parts that are not stored are left for the next attempt."""
        if self._open is not None:
            self._open.abandon(error)
            self._open = None
        self._spool.end()

    def _files(self) -> PartFiles:
        if self._open is None:
            # Two attempts of one task never write the same file; the record of the part refers to the valid one.
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
    """Counts an outcome in its part: as a capture, a quarantined URL, or a URL rejected with its reason."""
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
        if outcome.reason != NO_SITEMAP:
            part.metric(f"errors.{outcome.reason}", 1)
