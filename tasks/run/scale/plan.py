"""The plan of a corpus of any size: needs of each stage, the size of a part, and the first stage that does not fit.

`sluice plan --pages 10e9` prints it. It needs no recipe and no store.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tasks.core.errors import InputError
from tasks.core.terminal import table_lines
from tasks.run.result import Json
from tasks.run.scale.stages import KNOWN_PER_PAGE, RECORDS, STAGES, Corpus, Need
from tasks.run.scale.units import UNITS, unit
from tasks.stages.extract.config import ExtractConfig

PUT_RATE, GET_RATE = 3500, 5500
"""Requests per second and prefix that S3 allows: PUT, COPY, POST and DELETE; GET and HEAD."""
NOT_MEASURED = "not measured"
_DEFAULT_PART = int(ExtractConfig.model_fields["part_bytes"].default)
_DOUBLINGS = 10
_WORKERS, _MEMORY_GB = 100, 64


@dataclass(frozen=True)
class Row:
    """A stage of the plan.

    Attributes:
        need: what it needs.
        corpus: for this corpus.
    """

    need: Need
    corpus: Corpus

    @property
    def hours(self) -> float | None:
        """CPU-hours of the workers; None if not measured."""
        return None if self.need.cpu_s is None else self.need.cpu_s / 3600

    @property
    def prefixes(self) -> int | None:
        """Prefixes on S3 for its requests in the time that its workers compute; None if not measured."""
        work = self.need.work
        if self.need.cpu_s is None or work.put is None or work.get is None or work.head is None:
            return None
        seconds = self.need.cpu_s / self.corpus.workers
        return max(1, math.ceil(max(work.put / PUT_RATE, (work.get + work.head) / GET_RATE) / seconds))

    @property
    def own(self) -> float:
        """Bytes of memory of the stage's process, as far as they grow with pages or parts."""
        return sum(self.need.own.values())

    @property
    def memory(self) -> float | None:
        """Bytes of memory of the largest process; None if nothing of it is measured."""
        return max(self.own, self.need.worker or 0) or None

    @property
    def memory_at_least(self) -> bool:
        """Whether `memory` leaves out workers whose memory is not measured."""
        return self.need.worker is None or self.need.worker_at_least

    @property
    def fits(self) -> bool:
        """Whether every process fits, as far as it is measured."""
        return (self.memory or 0) <= self.corpus.memory

    def why(self) -> str:
        """Returns why the stage does not fit, and how many pages would."""
        limit, pages = self.corpus.memory, self.corpus.pages
        if self.own <= limit:
            worker = _size(self.need.worker or 0)
            return f"{self.need.stage} does not fit: a worker needs {worker}, and the limit is {_size(limit)}"
        cause, most = max(self.need.own.items(), key=lambda item: item[1])
        return (
            f"{self.need.stage} does not fit: its process needs {_size(self.own)}, and the limit is {_size(limit)}; "
            f"{_size(most)} are {cause}; {_count(pages * limit / self.own)} pages would fit"
        )

    def cells(self) -> tuple[str, ...]:
        """Returns the row of the table."""
        work, memory = self.need.work, f"{'>' * self.memory_at_least}{_size_or_not(self.memory)}"
        return (
            self.need.stage,
            _count(work.parts),
            *(NOT_MEASURED if one is None else _count(one) for one in (work.put, work.get, work.head, work.listed)),
            *map(_size_or_not, (work.read, work.written)),
            NOT_MEASURED if self.prefixes is None else f"{'<' * self.need.at_least}{self.prefixes:,}",
            NOT_MEASURED if self.hours is None else f"{'>' * self.need.at_least}{_count(self.hours)}",
            memory if self.fits else f"{memory} (!)",
            _size(self.need.record) if self.need.record else "",
            _count(self.need.alone),
        )

    def to_json(self) -> Json:
        """Returns the row as JSON; bytes, requests and hours, null where not measured."""
        work = self.need.work
        return {
            "stage": self.need.stage,
            "parts": work.parts,
            "put": work.put,
            "get": work.get,
            "head": work.head,
            "list": work.listed,
            "read_bytes": work.read,
            "written_bytes": work.written,
            "prefixes": self.prefixes,
            "worker_hours": self.hours,
            "worker_hours_are_a_lower_bound": self.need.at_least,
            "memory_bytes": self.memory,
            "memory_of_own_process": self.need.own,
            "memory_of_worker": self.need.worker,
            "memory_is_a_lower_bound": self.memory_at_least,
            "record_bytes": self.need.record,
            "requests_to_resume": work.parts * unit("requests_resume"),
            "requests_one_by_one": self.need.alone,
            "bytes_through_own_process": self.need.through,
            "fits": self.fits,
        }


_HEAD = (
    *("stage", "parts", "PUT", "GET", "HEAD", "LIST", "read", "written", "prefixes", "worker-hours"),
    *("largest process", "record", "one by one"),
)


@dataclass(frozen=True)
class ScalePlan:
    """The plan of a corpus.

    Attributes:
        corpus: the corpus, with the size of a part that the rows are for.
        chosen: the size of a part at which every stage fits, in bytes; None if there is none.
        rows: the stages in order.
    """

    corpus: Corpus
    chosen: int | None
    rows: tuple[Row, ...]

    @property
    def first(self) -> Row | None:
        """The first stage that does not fit."""
        return next((row for row in self.rows if not row.fits), None)

    def text(self) -> str:
        """Returns the plan for people."""
        corpus, first = self.corpus, self.first
        return "\n".join(
            [
                f"{_count(corpus.pages)} pages of {_size(corpus.html_bytes)} of HTML and {_size(corpus.text_bytes)} of "
                f"text: {_size(corpus.warc_bytes)} of WARC, {_count(corpus.kept)} documents kept, "
                f"{_count(corpus.tokens)} tokens",
                f"parts of {_size(corpus.part_bytes)}, {_count(corpus.pages / corpus.parts)} pages each; "
                f"{corpus.workers:,.0f} workers; at most {_size(corpus.memory)} a process",
                "",
                *table_lines([_HEAD, *(row.cells() for row in self.rows)]),
                "",
                first.why() if first else f"every stage fits into {_size(corpus.memory)} a process",
                self._advice(),
                f"Assumed: {KNOWN_PER_PAGE} URLs known per page, one cycle of the crawl, every page gives a document, "
                "texts and tokens without compression.",
                f"{NOT_MEASURED}: no benchmark has the figure. > and <: nor has one the memory of all workers, "
                "or the time to merge the runs of all parts.",
            ]
        )

    def _advice(self) -> str:
        if self.chosen is None:
            return f"no part size up to {_size(_DEFAULT_PART << _DOUBLINGS)} is enough for the records of parts"
        return f"part size: [extract] part_bytes = {self.chosen:_} keeps the records of parts within that memory"

    def to_json(self) -> Json:
        """Returns the plan as JSON, with the units and their sources."""
        return {
            "pages": self.corpus.pages,
            "html_bytes": self.corpus.html_bytes,
            "text_bytes": self.corpus.text_bytes,
            "part_bytes": self.corpus.part_bytes,
            "chosen_part_bytes": self.chosen,
            "workers": self.corpus.workers,
            "memory_bytes": self.corpus.memory,
            "stages": [row.to_json() for row in self.rows],
            "first_that_does_not_fit": self.first.why() if self.first else None,
            "units": {
                name: {"value": one.value, "what": one.what, "source": one.source} for name, one in UNITS.items()
            },
        }


def plan_corpus(
    pages: float,
    html_bytes: float | None = None,
    text_bytes: float | None = None,
    part_mb: float | None = None,
    workers: float | None = None,
    memory_gb: float | None = None,
) -> ScalePlan:
    """Plans a corpus.

    Args:
        pages: number of captured pages.
        html_bytes: of a page; None for the measured one.
        text_bytes: of the text of a page; None for the measured one.
        part_mb: size of a part in MB; None for the smallest one that fits.
        workers: processes that make parts; None for 100.
        memory_gb: GB of memory that a process may have; None for 64.

    Raises:
        InputError: a number is not positive.
    """
    given = {"pages": pages, "html-bytes": html_bytes, "text-bytes": text_bytes, "part-mb": part_mb}
    for name, value in {**given, "workers": workers, "memory-gb": memory_gb}.items():
        if value is not None and not 0 < value < math.inf:
            raise InputError(f"--{name} is {value:g}", "give a positive number")
    corpus = Corpus(
        pages,
        html_bytes or unit("html_bytes"),
        text_bytes or unit("text_bytes"),
        _DEFAULT_PART,
        workers or _WORKERS,
        (memory_gb or _MEMORY_GB) * 1e9,
    )
    chosen = choose_part(corpus)
    corpus = replace(corpus, part_bytes=part_mb * 1e6 if part_mb else chosen or _DEFAULT_PART)
    return ScalePlan(corpus, chosen, _rows(corpus))


def _rows(corpus: Corpus) -> tuple[Row, ...]:
    return tuple(Row(stage(corpus), corpus) for stage in STAGES)


def choose_part(corpus: Corpus) -> int | None:
    """Returns the smallest part size, the default doubled some times, at which no stage fails for its parts.

    What grows with pages alone is left out: no size of a part helps against it.
    """
    for doubling in range(_DOUBLINGS + 1):
        size = _DEFAULT_PART << doubling
        if _parts_fit(_rows(replace(corpus, part_bytes=size))):
            return size
    return None


def _parts_fit(rows: Sequence[Row]) -> bool:
    return all(max(row.need.own.get(RECORDS, 0), row.need.worker or 0) <= row.corpus.memory for row in rows)


def _size_or_not(value: float | None) -> str:
    return NOT_MEASURED if value is None else _size(value)


def _count(value: float) -> str:
    """Formats a number.

    >>> _count(0), _count(950), _count(1_234_567), _count(5e14)
    ('0', '950', '1.23 M', '500 T')
    """
    return _scaled(value, "")


def _size(value: float) -> str:
    """Formats bytes.

    >>> _size(64e9), _size(3_726)
    ('64 GB', '3.73 kB')
    """
    return f"{_scaled(value, ' ')}B"


def _scaled(value: float, blank: str) -> str:
    for prefix, size in (("E", 1e18), ("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= 0.9995 * size:
            return f"{_digits(value / size)} {prefix}"
    return f"{_digits(value)}{blank}"


def _digits(value: float) -> str:
    if value >= 99.95 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:.3g}" if value >= 0.1 else f"{value:.1g}"
