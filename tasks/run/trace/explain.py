"""From a text to the pages of a version: spans that occur verbatim in the training tokens, and near copies of the text.

    explain   text -> longest runs of tokens -> positions in shards -> documents -> URLs
                                                                  -> sequences with these tokens -> steps -> checkpoint
    similar   text -> band keys of its signature -> documents that share a band -> their true similarity -> copies

`explain` reads spans, shards, tokenizer, plan and checkpoint through a `LineageReader`. It follows OLMoTrace (Liu et
al. 2025, arXiv 2504.07096, section 3): from each token, find the longest run of tokens that occurs in the training
text; drop runs contained in another; keep those with the least probable tokens (product of unigram probabilities), 0.05
per token of the text. There are two differences. Runs may begin and end within words and contain periods and line
breaks, because the longest possible run leads to the fewest pages. And runs have a minimum length instead of consisting
of whole words (OLMoTrace's service has minimumSpanLength 1, but only whole words). All look-ups are binary searches.
From a remote store, files are fetched into the local cache when they are first read.

`similar` reads, from the version's `duplicates`, the band keys of every signature (`bands/`) and the verdicts
(`duplicates/`); from `extracted`, the texts that share a band with the text; from `documents`, which of them were kept.
Texts without a common band are not compared: a pair of Jaccard similarity s shares a band with probability 1 - (1 -
s^rows)^bands. The others are verified by their true similarity, as in `dedup`. The text's signature is computed with
datasketch, and signatures of `dedup` have the same values, so tools with datasketch signatures can look up texts here
in the same way.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from functools import cache
from math import ceil, log2
from typing import NamedTuple

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
from tasks.run.result import Json
from tasks.run.trace.answer import TrainingRun
from tasks.run.trace.graph import LineageReader
from tasks.stages.dedup import DedupConfig
from tasks.stages.dedup.pairs import shingle_sets, similarity
from tasks.stages.dedup.signatures import band_keys, salted, shingle
from tasks.stages.tokens.bpe import load

_SPANS_PER_TOKEN = 0.05
_MIN_SPANS = 10
_KINDS = ("spans", "shards", "tokenizer", "plan", "checkpoint")

MOST_CHARACTERS = 20_000
"""Longest text that is explained."""
MIN_TOKENS = 8
"""Default minimum length of a run; shorter ones occur on many pages by chance."""
_MOST_OCCURRENCES = 10
"""Occurrences of a run that are followed to their pages, as in OLMoTrace (maximumDocumentsPerSpan)."""

MOST_COPIES = 20
"""Default number of copies that are returned."""
_MOST_VERIFIED = 2_000
"""Candidates that are verified, those with the most common bands first."""


class _EncodedText(NamedTuple):
    """Tokens of a text in one spelling, and the range of characters of each token in the original text."""

    ids: list[int]
    ranges: list[tuple[int, int]]
    searched: int
    """Number of tokens at which runs may begin; the others are the same as in the other spelling."""


@dataclass(frozen=True)
class TextMatch:
    """A range of characters that occurs in the training text."""

    start: int
    end: int
    runs: tuple[tuple[int, ...], ...]
    """Its tokens; two runs if the first word of the text occurs both with and without a space before it."""
    count: int
    """Occurrences in the training text."""
    bits: float
    """Improbability of its tokens: the sum of -log2 of each token's share of the training tokens."""


@dataclass(frozen=True)
class SpanDocument:
    """A page that contains a span.

    Attributes:
        id: id of the document.
        url: URL of the document.
        source: source of its shard.
        shard: name of its shard.
        row: its row in the shard.
        starts: tokens of the document at which the span begins, ascending.
        length: length of the span in tokens.
        reading: the steps that read these tokens.
        before: the steps that read the page in the runs that the model comes from, by checkpoint, nearest first.
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
        """Returns the fields as JSON values."""
        head = {name: getattr(self, name) for name in ("id", "url", "source", "shard", "row", "starts", "length")}
        before = [{"checkpoint": checkpoint, **_steps_json(reading)} for checkpoint, reading in self.before.items()]
        return {**head, "sequences": self.reading.sequences, **_steps_json(self.reading), "before": before}


@dataclass(frozen=True)
class ExplainedSpan:
    """A part of the text that occurs in the training tokens.

    Attributes:
        text: the part.
        start: index of its first character.
        end: index after its last character.
        tokens: its length in tokens.
        count: occurrences in the training tokens.
        bits: improbability of its tokens, see `TextMatch`.
        documents: pages that contain it. Of more than ten occurrences, ten are followed, evenly spaced in the order of
            the text after the span.
    """

    text: str
    start: int
    end: int
    tokens: int
    count: int
    bits: float
    documents: list[SpanDocument]

    def to_json(self) -> Json:
        """Returns the fields as JSON values."""
        return {**vars(self), "documents": [document.to_json() for document in self.documents]}


@dataclass(frozen=True)
class Explanation:
    """The rarest parts of a text that occur in the training tokens.

    Attributes:
        characters: length of the text.
        recipe: name of the recipe.
        artifacts: ids of the artifacts that were read, by kind.
        run: the training run; None if nothing was trained.
        training_tokens: number of indexed tokens.
        min_tokens: minimum length of a span in tokens.
        spans_found: number of all spans.
        spans: the least probable spans, the least probable first.
    """

    characters: int
    recipe: str
    artifacts: dict[str, str]
    run: TrainingRun | None
    training_tokens: int
    min_tokens: int
    spans_found: int
    spans: list[ExplainedSpan]

    def to_json(self) -> Json:
        """Returns the fields as JSON values."""
        return {**vars(self), "run": self.run and self.run.settings, "spans": [span.to_json() for span in self.spans]}


def explain(store: Store, recipe: str, version: str, text: str, min_tokens: int = MIN_TOKENS) -> Explanation:
    """Finds the pages and the training steps of the longest parts of a text that occur in the training tokens.

    Args:
        store: store of the artifacts.
        recipe: name of the recipe.
        version: version of the model, or of the tokens.
        text: text written by the model, or any text.
        min_tokens: minimum length of a part in tokens.

    Raises:
        InputError: the text is too long, the minimum is below 1, nothing was encoded, or the tokens are not indexed.
    """
    if len(text) > MOST_CHARACTERS:
        raise InputError(f"the text has {len(text):,} characters", f"give at most {MOST_CHARACTERS:,}")
    if min_tokens < 1:
        raise InputError(f"a span has at least 1 token, not {min_tokens}", "give a larger minimum")
    text = text.encode("utf-8", "replace").decode()  # lone surrogates have no encoding in UTF-8
    reader = LineageReader.follow(store, recipe, version)
    spans = _spans_of(store, reader, version)
    index = SpanIndex(spans, reader.shards)
    origins = {run.checkpoint: run.reader for run in reader.origins() if run.reader}
    number, rarest = matches(index, load(reader.artifacts["tokenizer"]), text, min_tokens)
    addresses = {**reader.addresses, "spans": str(spans.address)}
    return Explanation(
        characters=len(text),
        recipe=recipe,
        artifacts={kind: addresses[kind] for kind in _KINDS if kind in addresses},
        run=TrainingRun.of(reader),
        training_tokens=index.tokens,
        min_tokens=min_tokens,
        spans_found=number,
        spans=[_span(reader, origins, index, text, match) for match in rarest],
    )


def matches(index: SpanIndex, tokenizer: Tokenizer, text: str, min_tokens: int) -> tuple[int, list[TextMatch]]:
    """Finds the longest runs of a text in the training tokens.

    Args:
        index: the suffix arrays of the training tokens.
        tokenizer: the tokenizer of the training tokens.
        text: any text.
        min_tokens: minimum length of a run in tokens.

    Returns:
        the number of matches, none within another, and the least probable of them, the least probable first.
    """
    runs: dict[tuple[int, int], list[tuple[int, ...]]] = defaultdict(list)
    for encoded in _spellings(tokenizer, text):
        for first, end in _runs(index, encoded, min_tokens):
            characters = encoded.ranges[first][0], encoded.ranges[end - 1][1]
            runs[characters].append(tuple(encoded.ids[first:end]))

    @cache
    def bits_of(token: int) -> float:
        return log2(index.tokens / index.count([token]))

    all_matches = [
        TextMatch(start, end, tuple(runs[start, end]), sum(map(index.count, runs[start, end])),
              sum(map(bits_of, runs[start, end][0])))
        for start, end in _outermost(runs)
    ]  # fmt: skip
    all_matches.sort(key=lambda match: (-match.bits, match.start))
    tokens = len(tokenizer.encode(text, add_special_tokens=False).ids)
    return len(all_matches), all_matches[: max(_MIN_SPANS, ceil(_SPANS_PER_TOKEN * tokens))]


def _spellings(tokenizer: Tokenizer, text: str) -> Iterator[_EncodedText]:
    """Yields the tokens of a text, and its tokens with a space added at, or removed from, its beginning.

    Tokens include the space before their word. On a page, the first word of the text usually has a space before it.
    """
    original = tokenizer.encode(text, add_special_tokens=False)
    yield _EncodedText(original.ids, original.offsets, len(original.ids))
    shift = -1 if text.startswith(" ") else 1
    other = tokenizer.encode(text[1:] if shift < 0 else f" {text}", add_special_tokens=False)
    same = 0
    while same < min(len(original.ids), len(other.ids)) and original.ids[-1 - same] == other.ids[-1 - same]:
        same += 1
    ranges = [(max(first - shift, 0), end - shift) for first, end in other.offsets]
    yield _EncodedText(other.ids, ranges, len(other.ids) - same)


def _runs(index: SpanIndex, encoded: _EncodedText, min_tokens: int) -> Iterator[tuple[int, int]]:
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
    """Yields the ranges that are not contained in another one, in order."""
    furthest = -1
    for start, end in sorted(ranges, key=lambda characters: (characters[0], -characters[1])):
        if end > furthest:
            furthest = end
            yield start, end


def _spans_of(store: Store, reader: LineageReader, version: str) -> Artifact:
    """Returns the suffix arrays for the shards of a lineage, from the version or from the shards' own version."""
    shards = reader.artifacts.get("shards")
    if shards is None:
        raise InputError(f"nothing of {reader.recipe}@{version} was encoded", "run the stage encode first")
    own = Artifact.find(store, ArtifactId(f"{reader.recipe}/spans", shards.address.version))
    for spans in (reader.artifacts.get("spans"), own):
        if spans and any(ref.role == "shards" and ref.content == shards.record.content for ref in spans.record.inputs):
            return spans
    raise InputError(
        f"the tokens of {shards.address} are not indexed", "set [spans] enabled = true and run the stage spans"
    )


def _span(
    reader: LineageReader, origins: dict[str, LineageReader], index: SpanIndex, text: str, match: TextMatch
) -> ExplainedSpan:
    starts: dict[tuple[str, int], list[tuple[int, int]]] = defaultdict(list)
    for run in match.runs:
        for place in index.places(run, _MOST_OCCURRENCES // len(match.runs)):
            starts[place.shard, place.row].append((place.start, len(run)))
    return ExplainedSpan(
        text=text[match.start : match.end],
        start=match.start,
        end=match.end,
        tokens=len(match.runs[0]),
        count=match.count,
        bits=round(match.bits, 1),
        documents=[_document(reader, origins, shard, row, ranges) for (shard, row), ranges in starts.items()],
    )


def _document(
    reader: LineageReader, origins: dict[str, LineageReader], shard: str, row: int, ranges: list[tuple[int, int]]
) -> SpanDocument:
    """Returns a page with the sequences and steps that contain tokens of the ranges (start, length)."""
    uid = reader.shards.shard(shard).uid(row)
    readings = ((checkpoint, _page_reading(origin, uid)) for checkpoint, origin in origins.items())
    return SpanDocument(
        id=uid.hex(),
        url=reader.url(shard, row),
        source=parse_shard_name(shard)[0],
        shard=shard,
        row=row,
        starts=sorted(start for start, _ in ranges),
        length=max(length for _, length in ranges),
        reading=reader.readings.of(shard, row, ranges),
        before={checkpoint: reading for checkpoint, reading in readings if reading},
    )


def _page_reading(reader: LineageReader, uid: bytes) -> Reading | None:
    """Returns the reading of a page in a run; None if no step read it."""
    entry = reader.index.by_uid(uid) if reader.index else None
    reading = reader.readings.of(entry.shard, entry.row) if entry else None
    return reading if reading and reading.steps else None


def _steps_json(reading: Reading) -> Json:
    first = min(reading.checkpoints, default=None)
    return {"steps": reading.steps, "skipped_steps": reading.skipped_steps, "first_checkpoint": first}


@dataclass(frozen=True)
class NearCopy:
    """A document whose text is a near copy of the text.

    Attributes:
        id: id of the document.
        url: URL of the document.
        jaccard: true Jaccard similarity of the shingle sets of the two texts, 0 to 1.
        bands: number of bands in common.
        outcome: "kept", the reason of its rejection, or "" if the version has no documents yet.
        duplicate_of: id of the document that was kept in its place, or "".
    """

    id: str
    url: str
    jaccard: float
    bands: int
    outcome: str
    duplicate_of: str


@dataclass(frozen=True)
class SimilarityResult:
    """Result of a search for near copies.

    Attributes:
        compared: number of documents in the version.
        candidates: number of documents that share a band with the text.
        verified: number of candidates whose similarity was computed.
        threshold: minimum similarity.
        recall: probability that a document exactly at the threshold shares a band with the text.
        copies: documents at or above the threshold, the most similar first.
    """

    compared: int
    candidates: int
    verified: int
    threshold: float
    recall: float
    copies: list[NearCopy]

    def to_json(self) -> Json:
        """Returns the fields as JSON values."""
        return asdict(self)

    def text(self) -> str:
        """Returns the result as text."""
        lines = [
            f"{len(self.copies)} of {self.compared:,} documents have a Jaccard similarity of {self.threshold:g} or "
            f"more ({self.candidates:,} share a band, {self.verified:,} verified)"
        ]
        for copy in self.copies:
            keeper = f", copy of {copy.duplicate_of}" if copy.duplicate_of else ""
            lines.append(f"  {copy.jaccard:.3f}  {copy.id}  {copy.url}  {copy.outcome}{keeper}")
        if self.recall < 0.9:
            lines.append(f"a copy at the threshold is found with probability {self.recall:.2f}; closer ones more often")
        return "\n".join(lines)


def similar(
    store: Store, recipe: str, version: str, text: str, threshold: float | None = None, most: int = MOST_COPIES
) -> SimilarityResult:
    """Returns the documents of a version that are near copies of a text.

    Args:
        store: store of the artifacts.
        recipe: name of the recipe.
        version: version of the duplicates, or of anything made from them.
        text: any text; case, punctuation and layout are ignored.
        threshold: minimum Jaccard similarity, greater than 0 and at most 1; None for that of the version's dedup.
        most: maximum number of copies to return.

    Raises:
        InputError: the text has no words, the threshold is out of range, the version has no duplicates, or its dedup
            did not search for near duplicates.
    """
    reader = LineageReader.follow(store, recipe, version)
    duplicates, extracted = (_require(reader, kind) for kind in ("duplicates", "extracted"))
    config = DedupConfig.model_validate(duplicates.record.config)
    minimum = config.jaccard if threshold is None else threshold
    if not 0 < minimum <= 1:
        raise InputError(f"a Jaccard similarity of {minimum} is out of range", "give one over 0 and at most 1")
    if not config.near:
        raise InputError(f"{duplicates.address} has no signatures", "set [dedup] near = true and make a new version")
    normalised = normalise(text)
    if not normalised:
        raise InputError("the text has no words", "give the text of a document")
    shared = _common_bands(duplicates, _keys_of(normalised, config))
    copies = list(_verify(extracted, text, config, shared.most_common(_MOST_VERIFIED), minimum))
    copies.sort(key=lambda copy: (-copy.jaccard, copy.id))
    settings = config.minhash
    return SimilarityResult(
        compared=duplicates.record.rows_out,
        candidates=len(shared),
        verified=min(len(shared), _MOST_VERIFIED),
        threshold=minimum,
        recall=1 - (1 - minimum**settings.rows) ** settings.bands,
        copies=list(_with_outcomes(reader, copies[:most])),
    )


def _require(reader: LineageReader, kind: str) -> Artifact:
    if kind not in reader.artifacts:
        raise InputError(f"this version of {reader.recipe} has no {kind}", "run the stage dedup first")
    return reader.artifacts[kind]


def _keys_of(normalised: str, config: DedupConfig) -> NDArray[np.uint64]:
    """Returns the band keys of a text as in `bands/`, shape (bands,)."""
    from datasketch import MinHash  # imports SciPy, which takes 0.7 s

    settings = config.minhash
    # datasketch's default hash function takes 32 bits of a digest; here the shingles are already hashes.
    signature = MinHash(settings.permutations, seed=settings.seed, hashfunc=lambda value: int(value) >> 32)
    signature.update_batch(shingle([normalised], settings.shingle)[0])
    values: NDArray[np.uint32] = signature.hashvalues.astype(np.uint32)[np.newaxis]
    keys: NDArray[np.uint64] = salted(band_keys(values, settings.bands, settings.rows))[0]
    return keys


def _common_bands(duplicates: Artifact, keys: NDArray[np.uint64]) -> Counter[tuple[str, int]]:
    """Returns the number of bands that each document (part, row) has in common with a text."""
    shared: Counter[tuple[str, int]] = Counter()
    for path in duplicates.files(f"{BANDS}/"):
        part = path.removeprefix(f"{BANDS}/").removesuffix(".bin")
        for key in keys.tolist():
            same = sorted_runs.read_range(duplicates.folder, [path], BAND, key, key + 1)
            shared.update((part, row) for row in row_of(same["row_id"]).tolist())
    return shared


def _verify(
    extracted: Artifact, text: str, config: DedupConfig, candidates: list[tuple[tuple[str, int], int]], minimum: float
) -> Iterator[NearCopy]:
    """Yields the candidates, ((part, row), common bands), whose similarity is at least `minimum`, without outcomes."""
    (own,) = shingle_sets([text], config.minhash.shingle)
    by_part: dict[str, list[tuple[int, int]]] = {}
    for (part, row), bands in sorted(candidates):
        by_part.setdefault(part, []).append((row, bands))
    for part, rows in by_part.items():
        table = extracted.table(f"documents/{part}.parquet", columns=["id", "url", "text"])
        documents = table.take(pa.array([row for row, _ in rows]))
        sets = shingle_sets(documents.column("text").to_pylist(), config.minhash.shingle)
        ids, urls = (documents.column(name).to_pylist() for name in ("id", "url"))
        for doc_id, url, (_, bands), shingles in zip(ids, urls, rows, sets, strict=True):
            if (share := similarity(own, shingles)) >= minimum:
                yield NearCopy(doc_id, url, share, bands, "", "")


def _with_outcomes(reader: LineageReader, copies: list[NearCopy]) -> Iterator[NearCopy]:
    """Yields copies with their outcomes in `consolidate`."""
    ids = [copy.id for copy in copies]
    kept_ids = {doc_id for _, (doc_id,) in reader.rows("documents", "kept/", "id", ids, ["id"])}
    columns = ["id", "reason", "duplicate_of"]
    rejected = {doc_id: rest for _, (doc_id, *rest) in reader.rows("documents", "rejected/", "id", ids, columns)}
    for copy in copies:
        reason, duplicate_of = rejected.get(copy.id, ("", None))
        yield replace(copy, outcome="kept" if copy.id in kept_ids else reason, duplicate_of=duplicate_of or "")
