"""Explain: from a text to the training pages in which parts of it stand verbatim, and to the steps that read them.

Reads committed artifacts only: spans, shards, tokenizer, plan and checkpoint, as a `Chain` finds them.

    text -> longest runs of tokens -> places in shards -> documents -> URLs
                                                       -> sequences with these tokens -> steps -> first checkpoint

The rules are those of OLMoTrace (Liu et al. 2025, arXiv 2504.07096, section 3): from each token the longest run that
stands in the training text; runs within another are dropped; of the others, those are kept whose tokens are the least
probable together (product of unigram probabilities), 0.05 per token of the text. Different here: runs may begin and end
within words and contain full stops and line breaks, because a run that is as long as possible leads to fewer pages; and
a minimum length takes the place of whole words (OLMoTrace's service: minimumSpanLength 1, with whole words only).

Everything is found by binary search. From a remote store, files are fetched into the local cache when first read.
"""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from math import ceil, log2
from typing import NamedTuple

from tokenizers import Tokenizer

from tasks.core.artifact import Artifact, ArtifactId
from tasks.core.errors import InputError
from tasks.core.store import Store
from tasks.formats.tokens.readings import Reading
from tasks.formats.tokens.shard import parse_shard_name
from tasks.formats.tokens.spans import SpanIndex
from tasks.run.trace.graph import Chain
from tasks.run.trace.trace import Json, Run
from tasks.stages.tokens.bpe import load

_DENSITY = 0.05
_LEAST_KEPT = 10
_READ = ("spans", "shards", "tokenizer", "plan", "checkpoint")

MOST_CHARACTERS = 20_000
"""Longest text that is explained."""
MIN_TOKENS = 8
"""Shortest run that is shown; shorter ones stand in many pages by chance."""
_MOST_PLACES = 10
"""Occurrences of a run that are followed to their pages; as many as OLMoTrace shows (maximumDocumentsPerSpan)."""


@dataclass(frozen=True)
class SpanDocument:
    """A page in which a span stands.

    Attributes:
        id: of the document.
        url: of the document.
        source: of its shard.
        shard: name of its shard.
        row: its row in the shard.
        starts: tokens of the document at which the span begins, ascending.
        length: tokens of the span there.
        reading: who read these tokens.
        before: who read the page among the runs from whose weights the model comes, nearest first, by checkpoint.
    """

    id: str
    url: str
    source: str
    shard: str
    row: int
    starts: list[int]
    length: int
    reading: Reading
    before: dict[str, Reading]

    def to_json(self) -> Json:
        """Returns the fields as JSON has them."""
        head = {name: getattr(self, name) for name in ("id", "url", "source", "shard", "row", "starts", "length")}
        before = [{"checkpoint": checkpoint, **_steps_json(reading)} for checkpoint, reading in self.before.items()]
        return {**head, "sequences": self.reading.sequences, **_steps_json(self.reading), "before": before}


@dataclass(frozen=True)
class Span:
    """A part of the text that stands in the training tokens.

    Attributes:
        text: the part.
        start: its first character.
        end: behind its last character.
        tokens: its length.
        count: occurrences in the training tokens.
        bits: how improbable its tokens are together.
        documents: pages with it; of more than ten occurrences ten are followed, evenly chosen in the order of the text
            that comes after.
    """

    text: str
    start: int
    end: int
    tokens: int
    count: int
    bits: float
    documents: list[SpanDocument]

    def to_json(self) -> Json:
        """Returns the fields as JSON has them."""
        return {**vars(self), "documents": [one.to_json() for one in self.documents]}


@dataclass(frozen=True)
class Explanation:
    """The parts of a text that stand in the training tokens, the rarest of `spans_found`.

    Attributes:
        characters: length of the text.
        recipe: its name.
        artifacts: ids of the artifacts that were read, by kind.
        run: None where nothing was trained.
        training_tokens: that are indexed.
        min_tokens: shortest part that counts.
        spans_found: number of parts.
        spans: those that are shown, the least probable first.
    """

    characters: int
    recipe: str
    artifacts: dict[str, str]
    run: Run | None
    training_tokens: int
    min_tokens: int
    spans_found: int
    spans: list[Span]

    def to_json(self) -> Json:
        """Returns the fields as JSON has them."""
        return {**vars(self), "run": self.run and self.run.settings, "spans": [one.to_json() for one in self.spans]}


class _Encoded(NamedTuple):
    """Tokens of a text in one spelling, and the range of characters of each in the text as it was given."""

    ids: list[int]
    ranges: list[tuple[int, int]]
    searched: int
    """Tokens from which a run may begin; the others are those of another spelling."""


@dataclass(frozen=True)
class Match:
    """A range of characters that stands in the training text."""

    start: int
    end: int
    runs: tuple[tuple[int, ...], ...]
    """Its tokens; two runs where the text's first word stands there with and without a space before it."""
    count: int
    """Occurrences in the training text."""
    bits: float
    """How improbable its tokens are together: the sum of -log2 of each token's share of the training tokens."""


def matches(index: SpanIndex, tokenizer: Tokenizer, text: str, min_tokens: int) -> tuple[int, list[Match]]:
    """Finds the runs of a text in the training tokens.

    Args:
        index: the suffix arrays of the training tokens.
        tokenizer: the tokenizer of the training tokens.
        text: any text.
        min_tokens: shortest run, in tokens.

    Returns:
        the number of runs, none within another, and those that are kept, the least probable first.
    """
    runs: dict[tuple[int, int], list[tuple[int, ...]]] = defaultdict(list)
    for encoded in _spellings(tokenizer, text):
        for first, end in _runs(index, encoded, min_tokens):
            where = encoded.ranges[first][0], encoded.ranges[end - 1][1]
            runs[where].append(tuple(encoded.ids[first:end]))

    @cache
    def bits_of(token: int) -> float:
        return log2(index.tokens / index.count([token]))

    found = [
        Match(start, end, tuple(runs[start, end]), sum(map(index.count, runs[start, end])),
              sum(map(bits_of, runs[start, end][0])))
        for start, end in _outermost(runs)
    ]  # fmt: skip
    found.sort(key=lambda match: (-match.bits, match.start))
    tokens = len(tokenizer.encode(text, add_special_tokens=False).ids)
    return len(found), found[: max(_LEAST_KEPT, ceil(_DENSITY * tokens))]


def _spellings(tokenizer: Tokenizer, text: str) -> Iterator[_Encoded]:
    """Yields the tokens of a text, and those that differ where a space before it is added or taken away.

    A page has a space before a word that a text begins with, and tokens contain the space before their word.
    """
    given = tokenizer.encode(text, add_special_tokens=False)
    yield _Encoded(given.ids, given.offsets, len(given.ids))
    shift = -1 if text.startswith(" ") else 1
    other = tokenizer.encode(text[1:] if shift < 0 else f" {text}", add_special_tokens=False)
    same = 0
    while same < min(len(given.ids), len(other.ids)) and given.ids[-1 - same] == other.ids[-1 - same]:
        same += 1
    ranges = [(max(first - shift, 0), end - shift) for first, end in other.offsets]
    yield _Encoded(other.ids, ranges, len(other.ids) - same)


def _runs(index: SpanIndex, encoded: _Encoded, min_tokens: int) -> Iterator[tuple[int, int]]:
    """Yields (first, end) of the longest runs of tokens, each ending after the one before it."""
    furthest = 0
    for first in range(min(encoded.searched, len(encoded.ids) - min_tokens + 1)):
        if furthest == len(encoded.ids):
            return
        end = first + index.longest(encoded.ids[first:])
        if end > furthest:
            furthest = end
            if end - first >= min_tokens:
                yield first, end


def _outermost(ranges: dict[tuple[int, int], list[tuple[int, ...]]]) -> Iterator[tuple[int, int]]:
    """Yields the ranges that lie within no other, in order."""
    furthest = -1
    for start, end in sorted(ranges, key=lambda where: (where[0], -where[1])):
        if end > furthest:
            furthest = end
            yield start, end


def explain(store: Store, recipe: str, version: str, text: str, min_tokens: int = MIN_TOKENS) -> Explanation:
    """Finds the pages and the training steps of the longest parts of a text that stand in the training tokens.

    Args:
        store: store of the artifacts.
        recipe: name of the recipe.
        version: version of the model, or of the tokens.
        text: what the model wrote, or any text.
        min_tokens: shortest part that counts, in tokens.

    Raises:
        InputError: the text is too long, the minimum is below 1, nothing was encoded, or its tokens are not indexed.
    """
    if len(text) > MOST_CHARACTERS:
        raise InputError(f"the text has {len(text):,} characters", f"give at most {MOST_CHARACTERS:,}")
    if min_tokens < 1:
        raise InputError(f"a span has at least 1 token, not {min_tokens}", "give a larger minimum")
    text = text.encode("utf-8", "replace").decode()  # half a surrogate pair has no UTF-8
    chain = Chain.follow(store, recipe, version)
    spans = _spans_of(store, chain, version)
    index = SpanIndex(spans, chain.shards)
    earlier = {one.checkpoint: one.chain for one in chain.before() if one.chain}
    number, kept = matches(index, load(chain.artifacts["tokenizer"]), text, min_tokens)
    addresses = {**chain.addresses, "spans": str(spans.address)}
    return Explanation(
        characters=len(text),
        recipe=recipe,
        artifacts={kind: addresses[kind] for kind in _READ if kind in addresses},
        run=Run.of(chain),
        training_tokens=index.tokens,
        min_tokens=min_tokens,
        spans_found=number,
        spans=[_span(chain, earlier, index, text, match) for match in kept],
    )


def _spans_of(store: Store, chain: Chain, version: str) -> Artifact:
    """Returns the suffix arrays of the shards of a lineage: those of the version, or of the shards' own version."""
    shards = chain.artifacts.get("shards")
    if shards is None:
        raise InputError(f"nothing of {chain.recipe}@{version} was encoded", "run the stage encode first")
    own = Artifact.find(store, ArtifactId(f"{chain.recipe}/spans", shards.address.version))
    for spans in (chain.artifacts.get("spans"), own):
        if spans and any(ref.role == "shards" and ref.content == shards.record.content for ref in spans.record.inputs):
            return spans
    raise InputError(
        f"the tokens of {shards.address} are not indexed", "set [spans] enabled = true and run the stage spans"
    )


def _span(chain: Chain, earlier: dict[str, Chain], index: SpanIndex, text: str, match: Match) -> Span:
    starts: dict[tuple[str, int], list[tuple[int, int]]] = defaultdict(list)
    for run in match.runs:
        for place in index.places(run, _MOST_PLACES // len(match.runs)):
            starts[place.shard, place.row].append((place.start, len(run)))
    return Span(
        text=text[match.start : match.end],
        start=match.start,
        end=match.end,
        tokens=len(match.runs[0]),
        count=match.count,
        bits=round(match.bits, 1),
        documents=[_document(chain, earlier, shard, row, ranges) for (shard, row), ranges in starts.items()],
    )


def _document(
    chain: Chain, earlier: dict[str, Chain], shard: str, row: int, ranges: list[tuple[int, int]]
) -> SpanDocument:
    """Returns a page with the sequences that have tokens of the ranges (start, length), and their steps."""
    uid = chain.shards.shard(shard).uid(row)
    read = ((name, _read_before(one, uid)) for name, one in earlier.items())
    return SpanDocument(
        id=uid.hex(),
        url=chain.url(shard, row),
        source=parse_shard_name(shard)[0],
        shard=shard,
        row=row,
        starts=sorted(start for start, _ in ranges),
        length=max(length for _, length in ranges),
        reading=chain.readings.of(shard, row, ranges),
        before={name: reading for name, reading in read if reading},
    )


def _read_before(chain: Chain, uid: bytes) -> Reading | None:
    """Returns who read a page in an earlier run, or None where no step did."""
    entry = chain.index.by_uid(uid) if chain.index else None
    reading = chain.readings.of(entry.shard, entry.row) if entry else None
    return reading if reading and reading.steps else None


def _steps_json(reading: Reading) -> Json:
    first = min(reading.checkpoints, default=None)
    return {"steps": reading.steps, "skipped_steps": reading.skipped_steps, "first_checkpoint": first}
