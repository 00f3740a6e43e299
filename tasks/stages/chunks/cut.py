"""Chunks of a part: texts are divided into units, and consecutive units are packed into chunks within a token budget.

Reads one part of `documents` (kept/), the tokenizer, and, if `extracted` has a layout for the part, the layout and the
extracted texts. Writes

    cut/<part>.parquet  every chunk (CUT), in the order of documents and texts
    runs/<number>.bin   every chunk that is not garbage (RUN), sorted by its text's hash

A block that fits the budget is one unit; a larger one is divided: text at its lines, then at sentences, then at white
space or, without any, at any code point; code first at blank lines.

A chunk takes consecutive units while they fit. A heading begins a new chunk if the current one has `min_tokens`
already, and does not end a chunk, unless the next unit does not fit after it. The tokens of a chunk are counted on its
rendered text, because the counts of its units do not add up exactly.

Garbage is a chunk without useful content, by rules that read one chunk alone. `few_letters`, `few_distinct_words` and
`contents` apply to text only: code and tables have other shares of symbols, digits and repeated words.
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
from numpy.typing import NDArray
from tokenizers import Tokenizer

from tasks.core.artifact import ArtifactFolder
from tasks.core.stage import Part
from tasks.formats.dedup import document_ids, sorted_runs
from tasks.formats.dedup.document_ids import HALVES, row_ids_of
from tasks.formats.documents.chunks import CHUNK, CODE, HEADING, TEXT, chunk_id, rendered
from tasks.formats.documents.text import digest128, normal_words, normalise
from tasks.formats.documents.tombstones import TAKEDOWN, Tombstones
from tasks.stages.chunks import ChunksConfig
from tasks.stages.chunks.structure import PageLayout, TextBlock, blocks

Count = Callable[[Sequence[str]], list[int]]
"""Function that returns the number of tokens of each text."""

Span = tuple[int, int]
_BLANK = re.compile(r"\n(?:[ \t]*\n)+")

LINE = re.compile(r"\n")
"""Separator of lines."""

SENTENCE = re.compile(r"(?<=[.!?…])[\"'”’»)\]]*\s+|(?<=[。！？])")
"""Separator of sentences: white space after a full stop or similar, nothing after an ideographic full stop."""

_BYTES = 4
"""Maximum bytes of a code point in UTF-8, and so the maximum tokens of a byte-level tokenizer."""

CUT = pa.schema([*CHUNK, pa.field("reason", pa.string(), nullable=False)])  # "" if it is not garbage

RUN = np.dtype([("key", "<u8"), ("rest", "<u8"), ("rank", "u1"), ("id", HALVES), ("row", "<u8")])
"""Record of a chunk: the halves of its text's digest, 0 for a gold document and 1 for others, its id, and its row in
`cut/` as a row id (`tasks.formats.dedup.document_ids`)."""

KEPT = "kept/"
_GOLD = "gold"
_BATCH = 256

_NO_TEXT = {"text": "", "title": "", "headings": (), "sections": ()}
"""Fields of a chunk of a document that is taken down."""

_COLUMNS = ["id", "url", "source", "language", "tier", "title", "text"]
Row = dict[str, Any]

_OVERLAP_STARTS = 16
"""Maximum number of candidate starts of an overlap."""

_OVERLAP_CHARACTERS = 8
"""Code points that are searched for starts, per token of the overlap."""

HEADING_ONLY, FEW_WORDS, FEW_LETTERS = "heading_only", "few_words", "few_letters"
FEW_DISTINCT_WORDS, CONTENTS = "few_distinct_words", "contents"

_DISTINCT_MIN_WORDS = 50
"""Minimum number of words for the rule on distinct words."""

_LEADER = re.compile(r"(?:\.[ \t]?){4,}[ \t]*\d+[ \t]*$|…[ \t]*\d+[ \t]*$", re.MULTILINE)
"""Dot leaders: the dots between a title and its page number."""

_RULES = re.compile(r"([^\w\s])\1{2,}")
"""Underlines, rules and table borders drawn with symbols."""

FILE = "tokenizer.json"


@dataclass(frozen=True)
class CutJob:
    """Settings and inputs that all parts share."""

    config: ChunksConfig
    documents: ArtifactFolder
    extracted: ArtifactFolder
    tokenizer: ArtifactFolder
    takedowns: tuple[ArtifactFolder, ...]


def cut_part(job: CutJob, part: Part, item: tuple[int, str, str, bool]) -> None:
    """Writes one part; runs on a worker.

    Args:
        job: see `CutJob`.
        part: receives the files.
        item: number and name of the part, path of its run, and whether some of its documents have a layout.
    """
    number, name, path, has_layouts = item
    documents = job.documents.table(f"{KEPT}{name}.parquet", columns=_COLUMNS)
    taken_down = Tombstones.read(job.takedowns).mask(documents)
    layouts = _layouts(job.extracted, name, documents) if has_layouts else {}
    count = token_counter(job.tokenizer.read(FILE).decode())
    rows: list[Row] = []
    for batch in documents.append_column("taken_down", pa.array(taken_down)).to_batches(max_chunksize=_BATCH):
        for document in batch.to_pylist():
            rows += _chunks(job.config, document, layouts.get(document["id"]), count)
    table = pa.Table.from_pylist(rows, schema=CUT)
    part.write_table(f"cut/{name}.parquet", table)
    sorted_runs.write(part, path, [_run(number, rows)])
    part.metric("documents", documents.num_rows)
    part.metric("cut", len(rows))


def _layouts(extracted: ArtifactFolder, name: str, documents: pa.Table) -> dict[str, PageLayout]:
    """Returns the layouts of the documents of a part by document id."""
    ids = documents.column("id")
    layouts = extracted.table(f"layout/{name}.parquet", filters=pc.field("id").isin(ids))
    has_layout = pc.field("id").isin(layouts.column("id"))
    texts = extracted.table(f"documents/{name}.parquet", ["id", "text"], has_layout)
    extracted_texts = dict(zip(texts["id"].to_pylist(), texts["text"].to_pylist(), strict=True))
    rows = pc.index_in(layouts.column("id"), value_set=ids)
    kept_texts = documents.column("text").take(rows).to_pylist()
    columns = zip(layouts["id"].to_pylist(), kept_texts, layouts["layout"].to_pylist(), strict=True)
    return {doc_id: PageLayout(extracted_texts[doc_id], text, layout) for doc_id, text, layout in columns}


def _chunks(
    config: ChunksConfig, document: Mapping[str, Any], layout: PageLayout | None, count: Count
) -> Iterator[Row]:
    """Yields the rows of CUT of a document; those of a document that is taken down have no text and no title."""
    text, taken_down = document["text"], document["taken_down"]
    text_units = units(text, _structure(config, document, layout), config.max_tokens, count)
    for cut in Packer(text, text_units, config, count).chunks():
        own_text = text[cut.start + cut.overlap : cut.end]
        reason = TAKEDOWN if taken_down else garbage_reason(own_text, cut.kind, config)
        boxes = layout.boxes(cut.start, cut.end) if layout else None
        chunk_text = text[cut.start : cut.end]
        yield {
            "id": chunk_id(document["id"], cut.start, chunk_text),
            "document": document["id"],
            **{name: document[name] for name in ("url", "source", "language", "tier", "title")},
            **cut._asdict(),
            **(_NO_TEXT if taken_down else {"text": chunk_text}),
            "pages": None if boxes is None else sorted({box["page"] for box in boxes}),
            "boxes": boxes,
            "reason": reason,
        }


def _structure(config: ChunksConfig, document: Mapping[str, Any], layout: PageLayout | None) -> list[TextBlock]:
    if layout:
        return layout.blocks()
    if document["source"] in config.code_sources:
        return [TextBlock(0, len(document["text"].rstrip()), CODE)]
    return blocks(document["text"])


def _run(part: int, rows: list[Row]) -> NDArray[np.void]:
    """Returns the RUN records of the chunks of a part that are not garbage, sorted by key."""
    good = [number for number, row in enumerate(rows) if not row["reason"]]
    digests = document_ids.pack(pa.array([digest128(_identity(rows[number])) for number in good], pa.string()))
    records = np.empty(len(good), RUN)
    records["key"], records["rest"] = digests[:, 0], digests[:, 1]
    records["rank"] = [rows[number]["tier"] != _GOLD for number in good]
    records["id"] = document_ids.pack(pa.array([rows[number]["id"] for number in good], pa.string()))
    records["row"] = row_ids_of(part, np.array(good, np.int64))
    return sorted_runs.by_key(records)


def _identity(row: Row) -> str:
    """Returns the string by which chunks are compared.

    For text it has the normalized words; for code and tables, where symbols matter, all characters.
    """
    own = row["text"][row["overlap"] :]
    return f"{TEXT}\n{normalise(own)}" if row["kind"] == TEXT else f"{row['kind']}\n{own}"


class Heading(NamedTuple):
    """A heading above a text: level, title, and the number of tokens of the title with its line end."""

    level: int
    title: str
    tokens: int


class TextUnit(NamedTuple):
    """An indivisible range of a text: code points, kind, number of tokens, and the headings above it."""

    start: int
    end: int
    kind: str
    tokens: int
    above: tuple[Heading, ...]

    @property
    def context(self) -> int:
        """Number of tokens of the headings above, including the blank line after them."""
        return sum(heading.tokens for heading in self.above) + 1 if self.above else 0


def units(text: str, blocks: Sequence[TextBlock], max_tokens: int, count: Count) -> Iterator[TextUnit]:
    """Yields the units of a text in order, each of at most `max_tokens` tokens including its context.

    The headings above a unit are those of its sections. The outermost ones are omitted if all would take more than a
    quarter of the budget, or if a block that fits alone would have to be divided.
    """
    sizes = count([text[block.start : block.end] for block in blocks])
    titles = iter(count([block.title for block in blocks if block.kind == HEADING]))
    path: list[Heading] = []
    above: tuple[Heading, ...] = ()
    for block, size in zip(blocks, sizes, strict=True):
        if block.kind == HEADING:
            while path and path[-1].level >= block.level:
                path.pop()
            above = _innermost(path, max_tokens // 4)
        unit = TextUnit(block.start, block.end, block.kind, size, above)
        budget = max_tokens - unit.context
        if size <= max_tokens:  # omit outer headings rather than divide the block
            yield unit if size <= budget else unit._replace(above=_innermost(above, max_tokens - size - 1))
        else:
            for (start, end), tokens in _divide(text, (block.start, block.end), block.kind, budget, count):
                yield TextUnit(start, end, block.kind, tokens, above)
        if block.kind == HEADING:
            path.append(Heading(block.level, block.title, next(titles) + 1))
            above = _innermost(path, max_tokens // 4)


def _innermost(path: Sequence[Heading], budget: int) -> tuple[Heading, ...]:
    """Returns the last headings of a path that have at most `budget` tokens together."""
    first = len(path)
    while first and path[first - 1].tokens <= budget:
        first -= 1
        budget -= path[first].tokens
    return tuple(path[first:])


def _divide(text: str, whole: Span, kind: str, budget: int, count: Count) -> list[tuple[Span, int]]:
    """Divides a block of more than `budget` tokens into pieces of at most that many; returns (piece, tokens)."""
    steps: list[Callable[[Span], Iterator[Span]]] = [
        *([lambda span: between(text, span, _BLANK)] if kind == CODE else []),
        lambda span: between(text, span, LINE),
        *([lambda span: between(text, span, SENTENCE)] if kind in (TEXT, HEADING) else []),
        lambda span: _runs(text, span, max(1, budget // _BYTES - 1)),
    ]
    divided: list[tuple[Span, int]] = [(whole, budget + 1)]
    for step in steps:
        pieces = [
            (piece, tokens if piece == span else -1)
            for span, tokens in divided
            for piece in (step(span) if tokens > budget else (span,))
        ]
        sizes = iter(count([text[start:end] for (start, end), tokens in pieces if tokens < 0]))
        divided = [(piece, next(sizes) if tokens < 0 else tokens) for piece, tokens in pieces]
    return divided


def between(text: str, span: Span, divider: re.Pattern[str]) -> Iterator[Span]:
    """Yields the ranges of a span between the matches of a pattern, without trailing white space.

    Indentation is kept, because it is significant in code.
    """
    start, end = span
    for match in divider.finditer(text, start, end):
        yield from _trim(text, start, match.start() if match[0].isspace() else match.end())
        start = match.end()
    yield from _trim(text, start, end)


def _trim(text: str, start: int, end: int) -> Iterator[Span]:
    end = start + len(text[start:end].rstrip())
    if end > start:
        yield start, end


def _runs(text: str, span: Span, length: int) -> Iterator[Span]:
    """Yields ranges of at length `length` code points, which end at white space if their second half has any."""
    start, last = span
    while start < last:
        end = min(start + length, last)
        if end < last:
            at = max(text.rfind(sign, start + length // 2, end) for sign in " \t")
            end = at if at > start else end
        yield from _trim(text, start, end)
        start = end


class Cut(NamedTuple):
    """A chunk of a text, with fields of `formats.documents.chunks.CHUNK`; its kind is HEADING if it has no other."""

    start: int
    end: int
    overlap: int
    kind: str
    headings: tuple[str, ...]
    tokens: int
    body: int
    sections: tuple[str, ...]


class _Overlap(NamedTuple):
    """A range before the first unit of a chunk, and its number of tokens."""

    start: int
    end: int
    tokens: int


class Packer:
    """Packs the units of one text into chunks.

    Args:
        text: the text.
        units: its units, each within the budget including its context.
        config: settings of the stage.
        count: counts tokens.
    """

    def __init__(self, text: str, units: Iterable[TextUnit], config: ChunksConfig, count: Count) -> None:
        self._text = text
        self._queue = deque(units)
        self._config = config
        self._count = count

    def chunks(self) -> Iterator[Cut]:
        """Yields the chunks in order; each unit is in exactly one of them."""
        last: list[TextUnit] = []
        while self._queue:
            overlap = self._overlap(last, self._queue[0])
            members = [self._queue.popleft()]
            size = self._size(overlap, members[0])
            while self._queue and self._fits(size, members, self._queue[0]):
                unit = self._queue.popleft()
                size += _gap(members[-1], unit) + unit.tokens
                members.append(unit)
            if self._queue:
                self._requeue(members, _body(members) or len(members))
            cut = self._cut(overlap, members)
            while cut.tokens > self._config.max_tokens and (overlap or len(members) > 1):
                if not overlap:
                    self._requeue(members, _body(members[:-1]) or len(members) - 1)
                overlap = None
                cut = self._cut(overlap, members)
            yield cut
            last = members

    def _requeue(self, members: list[TextUnit], keep: int) -> None:
        """Keeps the first `keep` units of a chunk, and puts the others back into the queue."""
        self._queue.extendleft(reversed(members[keep:]))
        del members[keep:]

    def _fits(self, size: int, members: Sequence[TextUnit], unit: TextUnit) -> bool:
        """Returns whether a unit is added to the chunk that has `members` and about `size` tokens."""
        if unit.kind == HEADING and _body(members) and size - members[0].context >= self._config.min_tokens:
            return False
        return size + _gap(members[-1], unit) + unit.tokens <= self._config.max_tokens

    def _size(self, overlap: _Overlap | None, unit: TextUnit) -> int:
        """Returns the approximate number of tokens of a chunk of one unit."""
        return unit.context + unit.tokens + (overlap.tokens + unit.start - overlap.end if overlap else 0)

    def _cut(self, overlap: _Overlap | None, members: Sequence[TextUnit]) -> Cut:
        """Returns the chunk with its exact number of tokens; drops headings that do not fit above a single unit."""
        start = overlap.start if overlap else members[0].start
        own, end = members[0].start, members[-1].end
        headings = _titles(members[0])
        first = next((unit for unit in members if unit.kind != HEADING), members[0])
        while True:
            (tokens,) = self._count([rendered(headings, self._text[start:end])])
            if tokens <= self._config.max_tokens or not headings or overlap or len(members) > 1:
                sections = headings if first is members[0] else _titles(first)
                body = 0 if first is members[0] else first.start - start
                return Cut(start, end, own - start, _kind(members), headings, tokens, body, sections)
            headings = headings[1:]

    def _overlap(self, last: Sequence[TextUnit], unit: TextUnit) -> _Overlap | None:
        """Returns the end of the previous chunk that a chunk beginning with `unit` repeats, or None."""
        limit = self._config.overlap_tokens
        section = list(takewhile(lambda prior: prior.kind != HEADING and prior.above == unit.above, reversed(last)))
        if not limit or not section or unit.kind == HEADING:
            return None
        first, end = section[-1].start, section[0].end
        starts = self._starts(max(first, end - _OVERLAP_CHARACTERS * limit), end, first)
        for start, tokens in zip(starts, self._count([self._text[start:end] for start in starts]), strict=True):
            overlap = _Overlap(start, end, tokens)
            if tokens <= limit and self._size(overlap, unit) <= self._config.max_tokens:
                return overlap
        return None

    def _starts(self, begin: int, end: int, first: int) -> list[int]:
        """Returns the last starts of lines and sentences in a range; `first` is the start of a unit."""
        lines = between(self._text, (begin, end), LINE)
        starts = [start for line in lines for start, _ in between(self._text, line, SENTENCE)]
        return (starts if begin == first else starts[1:])[-_OVERLAP_STARTS:]


def _body(members: Sequence[TextUnit]) -> int:
    """Returns the number of units up to the last one that is not a heading; 0 if all are headings."""
    count = len(members)
    while count and members[count - 1].kind == HEADING:
        count -= 1
    return count


def _titles(unit: TextUnit) -> tuple[str, ...]:
    return tuple(heading.title for heading in unit.above)


def _gap(unit: TextUnit, following: TextUnit) -> int:
    """Returns the approximate number of tokens between two units: that of the white space characters."""
    return following.start - unit.end


def _kind(members: Sequence[TextUnit]) -> str:
    sizes = Counter[str]()
    for unit in members:
        sizes[unit.kind] += unit.end - unit.start
    if set(sizes) == {HEADING}:
        return HEADING
    del sizes[HEADING]
    return max(sizes, key=lambda kind: (sizes[kind], kind == TEXT))


def garbage_reason(text: str, kind: str, config: ChunksConfig) -> str:
    """Returns the first rule by which a chunk is garbage, or "".

    Args:
        text: the chunk without its overlap.
        kind: see `tasks.formats.documents.chunks`.
        config: the limits.
    """
    if kind == HEADING:
        return HEADING_ONLY
    words = normal_words(text)
    if len(words) < config.min_words:
        return FEW_WORDS
    if kind != TEXT:
        return ""
    letters = sum(len(word) for word in words if not word.isdigit())
    if letters < config.min_letters * len("".join(_RULES.sub("", text).split())):
        return FEW_LETTERS
    if len(words) >= _DISTINCT_MIN_WORDS and len(set(words)) < config.min_distinct * len(words):
        return FEW_DISTINCT_WORDS
    lines = sum(1 for line in text.split("\n") if line.strip())
    return CONTENTS if lines > 2 and 2 * len(_LEADER.findall(text)) >= lines else ""


@lru_cache(maxsize=2)
def token_counter(tokenizer_json: str) -> Count:
    """Returns a function that counts the tokens of texts; cached per process, because loading is slow.

    The text of a special token is counted as ordinary characters.
    """
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # parts use all cores already
    tokenizer = Tokenizer.from_str(tokenizer_json)
    tokenizer.encode_special_tokens = True

    def count(texts: Sequence[str]) -> list[int]:
        return [len(encoding) for encoding in tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)]

    return count
