"""Cache of sites' robots.txt and tdmrep.json in bounded memory: compressed, and parsed where recently used."""

import zlib
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime

from tasks.formats.robots.robotstxt import Robots
from tasks.formats.robots.tdmrep import Reservations

# Bytes of stored files (compressed) and of parsed files; parsed rules take some twenty times their text.
_MAX_KEPT, _MAX_READY = 128 << 20, 8 << 20


@dataclass
class Entry:
    """Entry of one origin: its files, compressed, or the reason why it is skipped.

    Attributes:
        status: of robots.txt.
        fetched_at: when it was, in UTC.
        robots: the robots.txt.
        reason: machine word for why the origin is skipped, or "".
        why: the same as text.
        crawl_delay_s: its Crawl-delay.
        tdm: the tdmrep.json; b"" where there is no readable one, None while unknown.
        tdm_asked: whether it was requested, with success or not.
        ready: the parsed rules, while cached.
    """

    status: str
    fetched_at: datetime
    robots: bytes = b""
    reason: str = ""
    why: str = ""
    crawl_delay_s: float = 0.0
    tdm: bytes | None = None
    tdm_asked: bool = False
    ready: "Rules | None" = field(default=None, repr=False)

    @property
    def size(self) -> int:
        """Bytes that the files take."""
        return len(self.robots) + len(self.tdm or b"")


@dataclass(frozen=True)
class Rules:
    """The files of one origin as rules; no `reservations` where there is no tdmrep.json."""

    robots: Robots
    reservations: Reservations | None


class Memory:
    """Entries by origin; when files exceed the limit the oldest are dropped.

    Args:
        agent: our product token, for which robots.txt is read.
    """

    def __init__(self, agent: str) -> None:
        self._agent = agent
        self._known: OrderedDict[str, Entry] = OrderedDict()
        self._ready: OrderedDict[str, int] = OrderedDict()
        self._kept_bytes = self._ready_bytes = 0

    def __getitem__(self, origin: str) -> Entry:
        return self._known[origin]

    def get(self, origin: str) -> Entry | None:
        """Returns the entry of an origin, or None."""
        return self._known.get(origin)

    def sorted(self) -> Iterator[tuple[str, Entry]]:
        """Yields origins and their entries, sorted by origin."""
        yield from sorted(self._known.items(), key=lambda item: item[0])

    def keep(self, origin: str, entry: Entry) -> None:
        """Stores the entry of an origin."""
        self._forget(origin)
        self._known[origin] = entry
        self._kept_bytes += entry.size
        while self._kept_bytes > _MAX_KEPT:
            self._forget(next(origin for origin, entry in self._known.items() if entry.size))

    def keep_tdm(self, origin: str, entry: Entry, body: bytes) -> None:
        """Adds the tdmrep.json to an entry, which may have been forgotten while it was fetched."""
        remembered = bool(body) and self._known.get(origin) is entry
        if remembered:
            self._forget(origin)
            entry.ready = None
        entry.tdm = packed(body)
        if remembered:
            self.keep(origin, entry)

    def rules(self, origin: str) -> Rules:
        """Returns the rules of an origin that is known; rules not used lately are parsed again."""
        entry = self._known[origin]
        if entry.ready is None:
            robots, tdm = unpacked(entry.robots), unpacked(entry.tdm or b"")
            entry.ready = Rules(Robots(robots, self._agent), Reservations(tdm) if tdm else None)
            self._ready[origin] = len(robots) + len(tdm)
            self._ready_bytes += len(robots) + len(tdm)
            while self._ready_bytes > _MAX_READY and len(self._ready) > 1:
                oldest, size = self._ready.popitem(last=False)
                self._ready_bytes -= size
                self._known[oldest].ready = None
        elif origin in self._ready:
            self._ready.move_to_end(origin)
        return entry.ready

    def _forget(self, origin: str) -> None:
        entry = self._known.pop(origin, None)
        self._kept_bytes -= entry.size if entry else 0
        self._ready_bytes -= self._ready.pop(origin, 0)


def packed(body: bytes) -> bytes:
    """Returns a file as it is kept; b"" stays b""."""
    return zlib.compress(body, 1) if body else b""


def unpacked(kept: bytes) -> bytes:
    """Returns the file that is kept."""
    return zlib.decompress(kept) if kept else b""
