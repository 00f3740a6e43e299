"""Explain: from a text to the training pages in which parts of it stand verbatim, and to the steps that read them.

Reads committed artifacts only: spans, shards, tokenizer, plan and checkpoint, as `tasks.run.trace` finds them.

    text -> longest runs of tokens -> places in shards -> documents -> URLs
                                                       -> sequences with these tokens -> steps -> first checkpoint

Everything is found by binary search. From a remote store, files are fetched into the local cache when first read.
"""

from collections import defaultdict
from typing import Any

from tasks.core.artifact import Artifact, ArtifactId
from tasks.core.errors import InputError
from tasks.core.store import Store
from tasks.formats.tokens.shard import parse_shard_name
from tasks.formats.tokens.spans import SpanIndex
from tasks.run.chain import Chain
from tasks.run.explain_text import render
from tasks.run.matching import Match, matches
from tasks.stages.tokens.bpe import load

__all__ = ["MIN_TOKENS", "MOST_CHARACTERS", "explain", "render"]

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
