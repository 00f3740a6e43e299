"""Explain: from a text to the training pages in which parts of it stand verbatim, and to the steps that read them.

Reads committed artifacts only: spans, shards, tokenizer, plan and checkpoint, as `tasks.run.trace` finds them.

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
from typing import Any, NamedTuple

from tokenizers import Tokenizer

from tasks.core.artifact import Artifact, ArtifactId
from tasks.core.errors import InputError
from tasks.core.store import Store
from tasks.formats.tokens.shard import parse_shard_name
from tasks.formats.tokens.spans import SpanIndex
from tasks.run.trace.graph import Chain
from tasks.stages.tokens.bpe import load

_DENSITY = 0.05
_LEAST_KEPT = 10


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


Found = dict[str, Any]

MOST_CHARACTERS = 20_000
"""Longest text that is explained."""
MIN_TOKENS = 8
"""Shortest run that is shown; shorter ones stand in many pages by chance."""
_MOST_PLACES = 10
"""Occurrences of a run that are followed to their pages; as many as OLMoTrace shows (maximumDocumentsPerSpan)."""


def explain(store: Store, recipe: str, version: str, text: str, min_tokens: int = MIN_TOKENS) -> Found:
    """Finds the pages and the training steps of the longest parts of a text that stand in the training tokens.

    Args:
        store: store of the artifacts.
        recipe: name of the recipe.
        version: version of the model, or of the tokens.
        text: what the model wrote, or any text.
        min_tokens: shortest part that counts, in tokens.

    Returns:
        {characters, recipe, artifacts, run, training_tokens, min_tokens, spans_found, spans: [{text, start, end,
        tokens, count, bits, documents: [{id, url, source, shard, row, starts, length, sequences, steps, skipped_steps,
        first_checkpoint, before: [{checkpoint, steps, skipped_steps, first_checkpoint}]}]}]}; `start` and `end` count
        characters, `starts` the tokens of the document at which the span begins, and `before` is who read the page
        among the runs from whose weights the model comes, nearest first. Of a span that stands in more than ten places,
        ten are followed, evenly chosen in the order of the text that comes after it.

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
    artifacts = {kind: str(artifact.address) for kind, artifact in {**chain.artifacts, "spans": spans}.items()}
    return {
        "characters": len(text),
        "recipe": recipe,
        "artifacts": {kind: artifacts[kind] for kind in _READ if kind in artifacts},
        "run": chain.readings.settings,
        "training_tokens": index.tokens,
        "min_tokens": min_tokens,
        "spans_found": number,
        "spans": [_span(chain, earlier, index, text, match) for match in kept],
    }


_READ = ("spans", "shards", "tokenizer", "plan", "checkpoint")


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


def _span(chain: Chain, earlier: dict[str, Chain], index: SpanIndex, text: str, match: Match) -> Found:
    starts: dict[tuple[str, int], list[tuple[int, int]]] = defaultdict(list)
    for run in match.runs:
        for place in index.places(run, _MOST_PLACES // len(match.runs)):
            starts[place.shard, place.row].append((place.start, len(run)))
    return {
        "text": text[match.start : match.end],
        "start": match.start,
        "end": match.end,
        "tokens": len(match.runs[0]),
        "count": match.count,
        "bits": round(match.bits, 1),
        "documents": [_document(chain, earlier, shard, row, ranges) for (shard, row), ranges in starts.items()],
    }


def _document(chain: Chain, earlier: dict[str, Chain], shard: str, row: int, ranges: list[tuple[int, int]]) -> Found:
    """Returns a page with the sequences that have tokens of the ranges (start, length), and their steps."""
    uid = chain.shards.shard(shard).uid(row)
    reading = chain.readings.of(shard, row, ranges)
    return {
        "id": uid.hex(),
        "url": chain.url(shard, row),
        "source": parse_shard_name(shard)[0],
        "shard": shard,
        "row": row,
        "starts": sorted(start for start, _ in ranges),
        "length": max(length for _, length in ranges),
        "sequences": reading.sequences,
        "steps": reading.steps,
        "skipped_steps": reading.skipped_steps,
        "first_checkpoint": min(reading.checkpoints, default=None),
        "before": [found for name, one in earlier.items() if (found := _read_before(name, one, uid))],
    }


def _read_before(checkpoint: str, chain: Chain, uid: bytes) -> Found | None:
    """Returns the steps of an earlier run that read a page, or None where none did."""
    entry = chain.index.by_uid(uid) if chain.index else None
    reading = chain.readings.of(entry.shard, entry.row) if entry else None
    if reading is None or not reading.steps:
        return None
    return {
        "checkpoint": checkpoint,
        "steps": reading.steps,
        "skipped_steps": reading.skipped_steps,
        "first_checkpoint": min(reading.checkpoints, default=None),
    }
