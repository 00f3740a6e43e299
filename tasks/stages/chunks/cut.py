"""Chunks of a part: texts are divided into units, and consecutive units become chunks within the budget of tokens.

Reads one part of `documents` (kept/) and, where `extracted` has a layout for it, that and the texts that it is of; and
the tokenizer of the store. Writes

    cut/<part>.parquet  every chunk (CUT), in the order of documents and texts
    runs/<number>.bin   every chunk that is not garbage (RUN), sorted by its text's hash

A block that fits the budget is one unit, a larger one is several: a text is divided at its lines, these at sentences,
these at white space or, where there is none, at any code point; code first at blank lines.

A chunk takes units as long as they fit. A heading begins a new one where the chunk has `min_tokens` already, and ends
none, unless what follows does not fit behind it. The tokens of a chunk are counted on the chunk as it is rendered:
those of its units do not add up exactly.

Garbage are chunks from which nothing is to be learned, by rules that look at one chunk alone. `few_letters`,
`few_distinct_words` and `contents` judge text only: code and tables have other shares of signs, figures and repeated
words.
"""

import os
import re
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import takewhile
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray
from tokenizers import Tokenizer

from tasks.core.artifact import ArtifactFolder
from tasks.core.stage import Part
from tasks.formats.dedup import document_ids, sorted_runs
from tasks.formats.dedup.document_ids import HALVES, row_ids_of
from tasks.formats.documents.chunks import CHUNK, CODE, HEADING, TEXT, chunk_id, rendered
from tasks.formats.documents.text import digest128, normalise
from tasks.formats.documents.tombstones import TAKEDOWN, Tombstones
from tasks.stages.chunks import ChunksConfig
from tasks.stages.chunks.structure import Block, Pages, blocks

Count = Callable[[Sequence[str]], list[int]]
"""Returns the number of tokens of each of some texts."""

Span = tuple[int, int]
_BLANK = re.compile(r"\n(?:[ \t]*\n)+")

LINE = re.compile(r"\n")
"""What is between two lines."""

SENTENCE = re.compile(r"(?<=[.!?…])[\"'”’»)\]]*\s+|(?<=[。！？])")
"""What is between two sentences: white space behind a full stop or the like, nothing behind an ideographic one."""

_BYTES = 4
"""Most bytes of a code point in UTF-8, and so most tokens of a byte-level tokenizer."""

CUT = pa.schema([*CHUNK, pa.field("reason", pa.string(), nullable=False)])  # "" where it is no garbage

RUN = np.dtype([("key", "<u8"), ("rest", "<u8"), ("rank", "u1"), ("id", HALVES), ("row", "<u8")])
"""A chunk: the halves of its text's digest, 0 for a gold document and 1 for others, its id, its row in `cut/` as a row
id (`tasks.formats.dedup.document_ids`)."""

KEPT = "kept/"
_GOLD = "gold"
_BATCH = 256

_NO_TEXT = {"text": "", "title": "", "headings": (), "sections": ()}
"""Of a chunk of a document that is taken down."""

_READ = ["id", "url", "source", "language", "tier", "title", "text"]
Row = dict[str, Any]

_TAILS = 16
"""Most places at which an overlap may begin that are tried."""

_TAIL_CHARACTERS = 8
"""Code points that are searched for such places, per token of the overlap."""

HEADING_ONLY, FEW_WORDS, FEW_LETTERS = "heading_only", "few_words", "few_letters"
FEW_DISTINCT_WORDS, CONTENTS = "few_distinct_words", "contents"

_LONG = 50
"""Words from which on they can be expected to differ."""

_LEADER = re.compile(r"(?:\.[ \t]?){4,}[ \t]*\d+[ \t]*$|…[ \t]*\d+[ \t]*$", re.MULTILINE)
"""The dots between a title and the number of its page."""

_DRAWN = re.compile(r"([^\w\s])\1{2,}")
"""Underlines, rules and borders of tables: drawn with signs, and no text."""

FILE = "tokenizer.json"


@dataclass(frozen=True)
class Job:
    """What all parts are cut with."""

    config: ChunksConfig
    documents: ArtifactFolder
    extracted: ArtifactFolder
    tokenizer: ArtifactFolder
    takedowns: tuple[ArtifactFolder, ...]


def cut_part(job: Job, part: Part, given: tuple[int, str, str, bool]) -> None:
    """Writes one part; runs on a worker.

    Args:
        job: see `Job`.
        part: receives the files.
        given: number and name of the part, the path of its run, and whether any of its documents have a layout.
    """
    number, name, path, paged = given
    documents = job.documents.table(f"{KEPT}{name}.parquet", columns=_READ)
    gone = Tombstones.read(job.takedowns).mask(documents)
    pages = _pages(job.extracted, name, documents) if paged else {}
    count = counter(job.tokenizer.read(FILE).decode())
    rows: list[Row] = []
    for batch in documents.append_column("gone", pa.array(gone)).to_batches(max_chunksize=_BATCH):
        for document in batch.to_pylist():
            rows += _chunks(job.config, document, pages.get(document["id"]), count)
    table = pa.Table.from_pylist(rows, schema=CUT)
    with part.file(f"cut/{name}.parquet", rows=table.num_rows) as file:
        pq.write_table(table, file, compression="zstd", compression_level=3, store_schema=True)
    sorted_runs.write(part, path, [_run(number, rows)])
    part.metric("documents", documents.num_rows)
    part.metric("cut", len(rows))


def _pages(extracted: ArtifactFolder, name: str, documents: pa.Table) -> dict[str, Pages]:
    """Returns the layouts of the documents of a part by their ids."""
    ids = documents.column("id")
    layouts = extracted.table(f"layout/{name}.parquet", filters=pc.field("id").isin(ids))
    wanted = pc.field("id").isin(layouts.column("id"))
    texts = extracted.table(f"documents/{name}.parquet", ["id", "text"], wanted)
    before = dict(zip(texts["id"].to_pylist(), texts["text"].to_pylist(), strict=True))
    rows = pc.index_in(layouts.column("id"), value_set=ids)
    kept = documents.column("text").take(rows).to_pylist()
    found = zip(layouts["id"].to_pylist(), kept, layouts["layout"].to_pylist(), strict=True)
    return {doc_id: Pages(before[doc_id], text, layout) for doc_id, text, layout in found}


def _chunks(config: ChunksConfig, document: Mapping[str, Any], pages: Pages | None, count: Count) -> Iterator[Row]:
    """Yields the rows of CUT of a document; those of one that is taken down have no text and no title."""
    text = document["text"]
    found = units(text, _structure(config, document, pages), config.max_tokens, count)
    for cut in Packer(text, found, config, count).chunks():
        reason = TAKEDOWN if document["gone"] else garbage(text[cut.start + cut.overlap : cut.end], cut.kind, config)
        boxes = pages.boxes(cut.start, cut.end) if pages else None
        stretch = text[cut.start : cut.end]
        yield {
            "id": chunk_id(document["id"], cut.start, stretch),
            "document": document["id"],
            **{name: document[name] for name in ("url", "source", "language", "tier", "title")},
            **cut._asdict(),
            **(_NO_TEXT if document["gone"] else {"text": stretch}),
            "pages": None if boxes is None else sorted({one["page"] for one in boxes}),
            "boxes": boxes,
            "reason": reason,
        }


def _structure(config: ChunksConfig, document: Mapping[str, Any], pages: Pages | None) -> list[Block]:
    if pages:
        return pages.blocks()
    if document["source"] in config.code_sources:
        return [Block(0, len(document["text"].rstrip()), CODE)]
    return blocks(document["text"])


def _run(part: int, rows: list[Row]) -> NDArray[np.void]:
    """Returns RUN of the chunks of a part that are no garbage, sorted by key."""
    good = [number for number, row in enumerate(rows) if not row["reason"]]
    digests = document_ids.pack(pa.array([digest128(_same(rows[number])) for number in good], pa.string()))
    found = np.empty(len(good), RUN)
    found["key"], found["rest"] = digests[:, 0], digests[:, 1]
    found["rank"] = [rows[number]["tier"] != _GOLD for number in good]
    found["id"] = document_ids.pack(pa.array([rows[number]["id"] for number in good], pa.string()))
    found["row"] = row_ids_of(part, np.array(good, np.int64))
    return sorted_runs.by_key(found)


def _same(row: Row) -> str:
    """Returns what two chunks have in common that count as equal.

    Of text the normalised words; of code and tables, where signs mean something, all characters.
    """
    own = row["text"][row["overlap"] :]
    return f"{TEXT}\n{normalise(own)}" if row["kind"] == TEXT else f"{row['kind']}\n{own}"


class Heading(NamedTuple):
    """A heading above a text: level, title, and the tokens of the title with a line end."""

    level: int
    title: str
    tokens: int


class Unit(NamedTuple):
    """A stretch of a text that is not divided: code points, kind, tokens of it alone, and the headings above it."""

    start: int
    end: int
    kind: str
    tokens: int
    above: tuple[Heading, ...]

    @property
    def context(self) -> int:
        """Tokens of the headings above, with the blank line behind them."""
        return sum(one.tokens for one in self.above) + 1 if self.above else 0


def units(text: str, blocks: Sequence[Block], max_tokens: int, count: Count) -> Iterator[Unit]:
    """Yields the units of a text in order, each with its context of at most `max_tokens` tokens.

    The headings above a unit are those of its sections; the outermost are left out where together they would take more
    than a quarter of the budget, or a block that fits alone would have to be divided.
    """
    sizes = count([text[one.start : one.end] for one in blocks])
    titles = iter(count([one.title for one in blocks if one.kind == HEADING]))
    path: list[Heading] = []
    above: tuple[Heading, ...] = ()
    for block, size in zip(blocks, sizes, strict=True):
        if block.kind == HEADING:
            while path and path[-1].level >= block.level:
                path.pop()
            above = _innermost(path, max_tokens // 4)
        unit = Unit(block.start, block.end, block.kind, size, above)
        room = max_tokens - unit.context
        if size <= max_tokens:  # rather without some of the headings above than divided
            yield unit if size <= room else unit._replace(above=_innermost(above, max_tokens - size - 1))
        else:
            for (start, end), tokens in _divided(text, (block.start, block.end), block.kind, room, count):
                yield Unit(start, end, block.kind, tokens, above)
        if block.kind == HEADING:
            path.append(Heading(block.level, block.title, next(titles) + 1))
            above = _innermost(path, max_tokens // 4)


def _innermost(path: Sequence[Heading], most: int) -> tuple[Heading, ...]:
    """Returns the last headings of a path that have at most `most` tokens together."""
    first, left = len(path), most
    while first and path[first - 1].tokens <= left:
        first -= 1
        left -= path[first].tokens
    return tuple(path[first:])


def _divided(text: str, whole: Span, kind: str, room: int, count: Count) -> list[tuple[Span, int]]:
    """Returns the pieces of a block that has more than `room` tokens, each with its tokens, of at most that many."""
    steps: list[Callable[[Span], Iterator[Span]]] = [
        *([lambda span: between(text, span, _BLANK)] if kind == CODE else []),
        lambda span: between(text, span, LINE),
        *([lambda span: between(text, span, SENTENCE)] if kind in (TEXT, HEADING) else []),
        lambda span: _runs(text, span, max(1, room // _BYTES - 1)),
    ]
    found: list[tuple[Span, int]] = [(whole, room + 1)]
    for step in steps:
        pieces = [
            (piece, tokens if piece == span else -1)
            for span, tokens in found
            for piece in (step(span) if tokens > room else (span,))
        ]
        sizes = iter(count([text[start:end] for (start, end), tokens in pieces if tokens < 0]))
        found = [(piece, next(sizes) if tokens < 0 else tokens) for piece, tokens in pieces]
    return found


def between(text: str, span: Span, divider: re.Pattern[str]) -> Iterator[Span]:
    """Yields the stretches of a span between the matches of a pattern, without white space at their ends.

    Indentation stays, since it means something in code.
    """
    start, end = span
    for match in divider.finditer(text, start, end):
        yield from _stripped(text, start, match.start() if match[0].isspace() else match.end())
        start = match.end()
    yield from _stripped(text, start, end)


def _stripped(text: str, start: int, end: int) -> Iterator[Span]:
    end = start + len(text[start:end].rstrip())
    if end > start:
        yield start, end


def _runs(text: str, span: Span, most: int) -> Iterator[Span]:
    """Yields stretches of at most `most` code points, which end at white space if there is any in their last half."""
    start, last = span
    while start < last:
        end = min(start + most, last)
        if end < last:
            at = max(text.rfind(sign, start + most // 2, end) for sign in " \t")
            end = at if at > start else end
        yield from _stripped(text, start, end)
        start = end


class Cut(NamedTuple):
    """A chunk of a text: see `tasks.formats.documents.chunks.CHUNK`. The kind is HEADING where it has nothing else."""

    start: int
    end: int
    overlap: int
    kind: str
    headings: tuple[str, ...]
    tokens: int
    body: int
    sections: tuple[str, ...]


class _Overlap(NamedTuple):
    """A stretch before the first unit of a chunk, and its tokens."""

    start: int
    end: int
    tokens: int


class Packer:
    """Packs the units of one text.

    Args:
        text: the text.
        units: its units, each with its context within the budget.
        config: the stage's settings.
        count: counts tokens.
    """

    def __init__(self, text: str, units: Iterable[Unit], config: ChunksConfig, count: Count) -> None:
        self._text = text
        self._waiting = deque(units)
        self._config = config
        self._count = count

    def chunks(self) -> Iterator[Cut]:
        """Yields the chunks in order; each unit is in one of them."""
        last: list[Unit] = []
        while self._waiting:
            overlap = self._overlap(last, self._waiting[0])
            held = [self._waiting.popleft()]
            size = self._size(overlap, held[0])
            while self._waiting and self._joins(size, held, self._waiting[0]):
                unit = self._waiting.popleft()
                size += _gap(held[-1], unit) + unit.tokens
                held.append(unit)
            if self._waiting:
                self._give_back(held, _body(held) or len(held))
            cut = self._cut(overlap, held)
            while cut.tokens > self._config.max_tokens and (overlap or len(held) > 1):
                if not overlap:
                    self._give_back(held, _body(held[:-1]) or len(held) - 1)
                overlap = None
                cut = self._cut(overlap, held)
            yield cut
            last = held

    def _give_back(self, held: list[Unit], keep: int) -> None:
        """Leaves the first `keep` units of a chunk; the others wait for the next one."""
        self._waiting.extendleft(reversed(held[keep:]))
        del held[keep:]

    def _joins(self, size: int, held: Sequence[Unit], unit: Unit) -> bool:
        """Returns whether a unit is to stand in the chunk that has `held` and about `size` tokens."""
        if unit.kind == HEADING and _body(held) and size - held[0].context >= self._config.min_tokens:
            return False
        return size + _gap(held[-1], unit) + unit.tokens <= self._config.max_tokens

    def _size(self, overlap: _Overlap | None, unit: Unit) -> int:
        """Returns about how many tokens a chunk of one unit has."""
        return unit.context + unit.tokens + (overlap.tokens + unit.start - overlap.end if overlap else 0)

    def _cut(self, overlap: _Overlap | None, held: Sequence[Unit]) -> Cut:
        """Returns the chunk with the tokens that it has; a single unit loses headings that turn out not to fit."""
        start = overlap.start if overlap else held[0].start
        own, end = held[0].start, held[-1].end
        headings = _titles(held[0])
        first = next((unit for unit in held if unit.kind != HEADING), held[0])
        while True:
            (tokens,) = self._count([rendered(headings, self._text[start:end])])
            if tokens <= self._config.max_tokens or not headings or overlap or len(held) > 1:
                sections = headings if first is held[0] else _titles(first)
                body = 0 if first is held[0] else first.start - start
                return Cut(start, end, own - start, _kind(held), headings, tokens, body, sections)
            headings = headings[1:]

    def _overlap(self, last: Sequence[Unit], unit: Unit) -> _Overlap | None:
        """Returns the end of the chunk before that a chunk which begins with a unit repeats, or None."""
        most = self._config.overlap_tokens
        section = list(takewhile(lambda one: one.kind != HEADING and one.above == unit.above, reversed(last)))
        if not most or not section or unit.kind == HEADING:
            return None
        first, end = section[-1].start, section[0].end
        starts = self._starts(max(first, end - _TAIL_CHARACTERS * most), end, first)
        for start, tokens in zip(starts, self._count([self._text[start:end] for start in starts]), strict=True):
            overlap = _Overlap(start, end, tokens)
            if tokens <= most and self._size(overlap, unit) <= self._config.max_tokens:
                return overlap
        return None

    def _starts(self, begin: int, end: int, first: int) -> list[int]:
        """Returns where lines and sentences begin in a stretch, the last ones; `first` is the beginning of a unit."""
        lines = between(self._text, (begin, end), LINE)
        starts = [start for line in lines for start, _ in between(self._text, line, SENTENCE)]
        return (starts if begin == first else starts[1:])[-_TAILS:]


def _body(held: Sequence[Unit]) -> int:
    """Returns how many units there are up to the last one that is no heading; 0 where all are headings."""
    count = len(held)
    while count and held[count - 1].kind == HEADING:
        count -= 1
    return count


def _titles(unit: Unit) -> tuple[str, ...]:
    return tuple(one.title for one in unit.above)


def _gap(unit: Unit, following: Unit) -> int:
    """Returns about how many tokens are between two units: the number of their white space."""
    return following.start - unit.end


def _kind(held: Sequence[Unit]) -> str:
    sizes = Counter[str]()
    for one in held:
        sizes[one.kind] += one.end - one.start
    if set(sizes) == {HEADING}:
        return HEADING
    del sizes[HEADING]
    return max(sizes, key=lambda kind: (sizes[kind], kind == TEXT))


def garbage(text: str, kind: str, config: ChunksConfig) -> str:
    """Returns the reason why a chunk is garbage, the first of the rules; "" where it is none.

    Args:
        text: the chunk, without what it repeats of the one before.
        kind: see `tasks.formats.documents.chunks`.
        config: the limits.
    """
    if kind == HEADING:
        return HEADING_ONLY
    words = normalise(text).split()
    if len(words) < config.min_words:
        return FEW_WORDS
    if kind != TEXT:
        return ""
    letters = sum(len(word) for word in words if not word.isdigit())
    if letters < config.min_letters * len("".join(_DRAWN.sub("", text).split())):
        return FEW_LETTERS
    if len(words) >= _LONG and len(set(words)) < config.min_distinct * len(words):
        return FEW_DISTINCT_WORDS
    lines = sum(1 for line in text.split("\n") if line.strip())
    return CONTENTS if lines > 2 and 2 * len(_LEADER.findall(text)) >= lines else ""


@lru_cache(maxsize=2)
def counter(tokenizer_json: str) -> Count:
    """Returns a function that counts the tokens of texts; cached per process, as loading takes a while.

    Special tokens are counted as the characters that they are in a text.
    """
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # parts use all cores already
    tokenizer = Tokenizer.from_str(tokenizer_json)
    tokenizer.encode_special_tokens = True

    def count(texts: Sequence[str]) -> list[int]:
        return [len(one) for one in tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)]

    return count
