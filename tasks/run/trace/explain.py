"""From a text to the pages of a version: parts of it that stand verbatim in the training tokens, and its near copies.

    explain   text -> longest runs of tokens -> places in shards -> documents -> URLs
                                                               -> sequences with these tokens -> steps -> checkpoint
    similar   text -> band keys of its signature -> documents that share one -> their true similarity -> copies

`explain` reads spans, shards, tokenizer, plan and checkpoint, as a `Chain` finds them. Its rules are those of OLMoTrace
(Liu et al. 2025, arXiv 2504.07096, section 3): from each token the longest run that stands in the training text; runs
within another are dropped; of the others, those are kept whose tokens are the least probable together (product of
unigram probabilities), 0.05 per token of the text. Different here: runs may begin and end within words and contain full
stops and line breaks, because a run that is as long as possible leads to fewer pages; and a minimum length takes the
place of whole words (OLMoTrace's service: minimumSpanLength 1, with whole words only). Everything is found by binary
search. From a remote store, files are fetched into the local cache when first read.

`similar` reads, of the version's `duplicates`, the band keys of every signature (`bands/`) and the verdicts
(`duplicates/`); of `extracted` the texts that share a band with the text; of `documents` who was kept. Nothing is
compared that shares no band: a pair of Jaccard similarity s shares one with probability 1 - (1 - s^rows)^bands. What
does share one is verified by the true similarity, as `dedup` does. The text's signature is computed by datasketch,
whose values those of the version equal one for one, so any other tool that holds datasketch signatures can look up its
texts here in the same way.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from functools import cache
from math import ceil, log2
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from tokenizers import Tokenizer

from tasks.core.artifact import Artifact, ArtifactId
from tasks.core.errors import InputError
from tasks.core.store import Store
from tasks.formats.dedup import sorted_runs
from tasks.formats.dedup.dedup_index import BAND, BANDS
from tasks.formats.dedup.document_ids import row_of
from tasks.formats.documents.text import normalise
from tasks.formats.tokens.readings import Reading
from tasks.formats.tokens.shard import parse_shard_name
from tasks.formats.tokens.spans import SpanIndex
from tasks.run.trace.graph import Chain
from tasks.run.trace.trace import Json, Run
from tasks.stages.dedup import DedupConfig
from tasks.stages.dedup.pairs import jaccard, shingle_sets
from tasks.stages.dedup.signatures import band_keys, salted, shingle
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

MOST_COPIES = 20
"""Copies that are shown."""
_VERIFIED = 2_000
"""Documents that are verified, those with most bands in common first."""


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


@dataclass(frozen=True)
class Copy:
    """A document that is near the text.

    Attributes:
        id: of the document.
        url: of the document.
        jaccard: true similarity of the shingle sets of the two texts, 0 to 1.
        bands: number of bands in common.
        outcome: "kept", the reason it was rejected, or "" where the documents of the version have not been made.
        duplicate_of: id of the document that was kept in its place, or "".
    """

    id: str
    url: str
    jaccard: float
    bands: int
    outcome: str
    duplicate_of: str


@dataclass(frozen=True)
class Similar:
    """Answer to a search.

    Attributes:
        compared: documents of the version.
        candidates: documents that share a band with the text.
        verified: candidates whose similarity was computed.
        threshold: least similarity.
        recall: probability that a document exactly at the threshold shares a band.
        copies: documents at the threshold or above, the most similar first.
    """

    compared: int
    candidates: int
    verified: int
    threshold: float
    recall: float
    copies: list[Copy]

    def to_json(self) -> dict[str, Any]:
        """Returns the fields as JSON has them."""
        return asdict(self)

    def text(self) -> str:
        """Returns it as text."""
        lines = [
            f"{len(self.copies)} of {self.compared:,} documents have a Jaccard similarity of {self.threshold:g} or "
            f"more ({self.candidates:,} share a band, {self.verified:,} verified)"
        ]
        for one in self.copies:
            copy = f", copy of {one.duplicate_of}" if one.duplicate_of else ""
            lines.append(f"  {one.jaccard:.3f}  {one.id}  {one.url}  {one.outcome}{copy}")
        if self.recall < 0.9:
            lines.append(f"a copy at the threshold is found with probability {self.recall:.2f}; closer ones more often")
        return "\n".join(lines)


def similar(
    store: Store, recipe: str, version: str, text: str, threshold: float | None = None, most: int = MOST_COPIES
) -> Similar:
    """Returns the documents of a version that are near copies of a text.

    Args:
        store: store of the artifacts.
        recipe: name of the recipe.
        version: version of the duplicates, or of anything made from them.
        text: any text; case, punctuation and layout do not count.
        threshold: least Jaccard similarity, over 0 and at most 1; None: that of the version's dedup.
        most: copies that are returned.

    Raises:
        InputError: the text has no words, the threshold is out of range, the version has no duplicates, or its dedup
            did not look for near ones.
    """
    chain = Chain.follow(store, recipe, version)
    duplicates, extracted = (_needed(chain, kind) for kind in ("duplicates", "extracted"))
    config = DedupConfig.model_validate(duplicates.record.config)
    least = config.jaccard if threshold is None else threshold
    if not 0 < least <= 1:
        raise InputError(f"a Jaccard similarity of {least} is out of range", "give one over 0 and at most 1")
    if not config.near:
        raise InputError(f"{duplicates.address} has no signatures", "set [dedup] near = true and make a new version")
    normalised = normalise(text)
    if not normalised:
        raise InputError("the text has no words", "give the text of a document")
    shared = _sharing_a_band(duplicates, _keys_of(normalised, config))
    found = list(_verified(extracted, text, config, shared.most_common(_VERIFIED), least))
    found.sort(key=lambda one: (-one.jaccard, one.id))
    settings = config.minhash
    return Similar(
        compared=duplicates.record.rows_out,
        candidates=len(shared),
        verified=min(len(shared), _VERIFIED),
        threshold=least,
        recall=1 - (1 - least**settings.rows) ** settings.bands,
        copies=list(_with_outcomes(chain, found[:most])),
    )


def _needed(chain: Chain, kind: str) -> Artifact:
    if kind not in chain.artifacts:
        raise InputError(f"this version of {chain.recipe} has no {kind}", "run the stage dedup first")
    return chain.artifacts[kind]


def _keys_of(normalised: str, config: DedupConfig) -> NDArray[np.uint64]:
    """Returns the band keys of a text, shape (bands,), as `bands/` has them."""
    from datasketch import MinHash  # imports SciPy: 0.7 s

    settings = config.minhash
    # datasketch's default hash keeps 32 bits of a digest; here the shingles are hashed already.
    signature = MinHash(settings.permutations, seed=settings.seed, hashfunc=lambda value: int(value) >> 32)
    signature.update_batch(shingle([normalised], settings.shingle)[0])
    values: NDArray[np.uint32] = signature.hashvalues.astype(np.uint32)[np.newaxis]
    keys: NDArray[np.uint64] = salted(band_keys(values, settings.bands, settings.rows))[0]
    return keys


def _sharing_a_band(duplicates: Artifact, keys: NDArray[np.uint64]) -> Counter[tuple[str, int]]:
    """Returns how many bands each document (part, row) has in common with a text."""
    shared: Counter[tuple[str, int]] = Counter()
    for path in duplicates.files(f"{BANDS}/"):
        part = path.removeprefix(f"{BANDS}/").removesuffix(".bin")
        for key in keys.tolist():
            same = sorted_runs.read_range(duplicates.folder, [path], BAND, key, key + 1)
            shared.update((part, row) for row in row_of(same["row_id"]).tolist())
    return shared


def _verified(
    extracted: Artifact, text: str, config: DedupConfig, candidates: list[tuple[tuple[str, int], int]], least: float
) -> Iterator[Copy]:
    (own,) = shingle_sets([text], config.minhash.shingle)
    by_part: dict[str, list[tuple[int, int]]] = {}
    for (part, row), bands in sorted(candidates):
        by_part.setdefault(part, []).append((row, bands))
    for part, rows in by_part.items():
        table = extracted.table(f"documents/{part}.parquet", columns=["id", "url", "text"])
        taken = table.take(pa.array([row for row, _ in rows]))
        sets = shingle_sets(taken.column("text").to_pylist(), config.minhash.shingle)
        ids, urls = (taken.column(name).to_pylist() for name in ("id", "url"))
        for doc_id, url, (_, bands), shingles in zip(ids, urls, rows, sets, strict=True):
            if (share := jaccard(own, shingles)) >= least:
                yield Copy(doc_id, url, share, bands, "", "")


def _with_outcomes(chain: Chain, copies: list[Copy]) -> Iterator[Copy]:
    """Yields copies with what `consolidate` has made of them."""
    ids = [one.id for one in copies]
    kept = {doc_id for _, (doc_id,) in chain.rows("documents", "kept/", "id", ids, ["id"])}
    columns = ["id", "reason", "duplicate_of"]
    rejected = {doc_id: why for _, (doc_id, *why) in chain.rows("documents", "rejected/", "id", ids, columns)}
    for one in copies:
        reason, duplicate_of = rejected.get(one.id, ("", None))
        yield replace(one, outcome="kept" if one.id in kept else reason, duplicate_of=duplicate_of or "")
