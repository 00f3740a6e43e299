"""Signatures of documents: the pass over all texts, part by part.

Reads one part of `extracted` (id, url, warc_file, fetched_at, text) and of the group `prose_score`. Writes

    preference/<part>.bin   preference records, one per document in row order (`preference`)
    texts/<part>.bin        a sorted run of TEXT: the hash of each text that is not empty
    bands/<part>.bin        a sorted run of BAND: the key of each band of its signature
    captures/<part>.bin     a sorted run of CAPTURE: the page of each document from a crawl

That is 72 bytes per document and 24 per band. The runs of a part depend on its documents and its number.

Shingles are 64-bit hashes of the word n-grams of a text. Words are those of `tasks.formats.documents.text.normalise`.
The hash values differ from those of `ngrams` in that module, but two n-grams are equal here exactly if they are equal
there: words are hashed by a polynomial over their bytes, computed for a batch of texts from one cumulative sum, without
a Python object per word. One core processes 120 to 170 MB of text per second, against 10 to 20 MB with lists of words.

MinHash signatures and band keys follow Broder 1997, and Mining of Massive Datasets, chapter 3. The permutations are
those of datasketch 2 ("affine32": murmur3 finalizer, then h -> a*h + b mod 2^32 with odd a). They are vectorized over
texts: one multiply-add over a block of shingles per permutation, then one minimum per text. From computed shingles, one
core processes about 150 MB of text per second; splitting into words is the bottleneck.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tasks.core.stage import Part, group_by_size
from tasks.formats.dedup import sorted_runs
from tasks.formats.dedup.dedup_index import BAND, BANDS, CAPTURES, TEXT, TEXTS, is_returned
from tasks.formats.dedup.document_ids import row_ids_of
from tasks.formats.documents import groups
from tasks.formats.documents.document import check_ids_digest, ids_digest
from tasks.formats.documents.text import digest128, is_prose, mix, normalise
from tasks.stages.dedup import DedupConfig, preference
from tasks.stages.dedup.preference import capture_records
from tasks.stages.dedup.workspace import Workspace, packed

# Shingles per block. 64 k values of 4 bytes fit into the cache of one core; smaller blocks cost more calls.
_BLOCK = 65_536

_BASE = 0x9E3779B97F4A7C15  # odd, so that it has an inverse modulo 2^64
_CHUNK = 1 << 18  # bytes per cumulative sum: four arrays of 2 MB


class Signatures(NamedTuple):
    """Hashes and band keys of texts.

    `texts` uint64 (texts, 2): halves of the hash of each text; zeros for an empty one. `filled` and `words` bool
    (texts,): whether it is not empty, and has words. `bands` uint64 (texts, bands): keys; without columns unless
    `config.near`.
    """

    texts: NDArray[np.uint64]
    filled: NDArray[np.bool_]
    words: NDArray[np.bool_]
    bands: NDArray[np.uint64]


def sign_part(work: Workspace, part: Part, item: tuple[int, str]) -> None:
    """Computes the signatures of one part of the corpus, given by number and name; runs on a worker."""
    number, name = item
    source, group_path = f"documents/{name}.parquet", groups.path_of(name)
    documents = work.extracted.table(source, columns=["id", "url", "warc_file", "fetched_at", "text"])
    scored = work.scores.table(group_path, columns=["prose_score"])
    check_ids_digest(
        ids_digest(documents.column("id")),
        scored,
        f"{work.extracted.address} {source} and {work.scores.address} {group_path}",
    )
    # Null if the annotator failed; such documents are the least preferred.
    score = pc.fill_null(pc.struct_field(scored.column("prose_score"), "score"), 0.0)
    # Documents that return are preferred to new ones.
    cycle = work.index.cycle - is_returned(name)
    preferences = preference.preferences(score, documents.column("fetched_at"), documents.column("id"), cycle)
    part.write(f"{preference.FOLDER}/{name}.bin", preferences.tobytes(), rows=len(preferences))
    signatures = sign(documents.column("text"), work.config)
    texts, bands = records(signatures, number)
    sorted_runs.write(part, f"{TEXTS}/{name}.bin", [sorted_runs.by_key(texts)])
    sorted_runs.write(part, f"{BANDS}/{name}.bin", [sorted_runs.by_key(bands)])
    captures = capture_records(documents.column("url"), documents.column("warc_file"), number)
    sorted_runs.write(part, f"{CAPTURES}/{name}.bin", [sorted_runs.by_key(captures)])
    part.metric("captures", len(captures))
    part.metric("texts", len(texts))


def records(signatures: Signatures, part: int) -> tuple[NDArray[np.void], NDArray[np.void]]:
    """Returns the records of part number `part`: TEXT of its texts, and BAND of those with words."""
    rows = np.flatnonzero(signatures.filled)
    high, low = signatures.texts[rows].T
    texts = packed(TEXT, key=high, low=low, row_id=row_ids_of(part, rows))
    # The signatures of all texts without words are equal.
    rows = np.flatnonzero(signatures.words)
    keys = signatures.bands[rows]
    count = keys.shape[1]
    text, row_id = (np.repeat(values, count) for values in (signatures.texts[rows, 0], row_ids_of(part, rows)))
    return texts, packed(BAND, key=salted(keys).ravel(), text=text, row_id=row_id)


def salted(keys: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Salts band keys of shape (texts, bands), so that keys of different bands are equal by chance only (2^-64)."""
    return keys ^ mix(np.arange(1, keys.shape[1] + 1, dtype=np.uint64))


def sign(texts: pa.ChunkedArray, config: DedupConfig) -> Signatures:
    """Returns the hashes and the band keys of texts."""
    settings = config.minhash
    hasher = MinHasher(settings.permutations, settings.seed)
    keys: list[bytes | None] = []
    words: list[bool] = []
    bands = [np.empty((0, settings.bands), dtype=np.uint64)]
    for batch in batches(texts.to_pylist()):
        normalised = [normalise(text) for text in batch]
        keys += [text_key(text, words_of_text) for text, words_of_text in zip(batch, normalised, strict=True)]
        words += map(bool, normalised)
        if config.near:
            signatures = hasher.signatures(*shingle(normalised, settings.shingle))
            bands.append(band_keys(signatures, settings.bands, settings.rows))
    filled = np.array([key is not None for key in keys], np.bool_)
    halves = np.frombuffer(b"".join(key or bytes(16) for key in keys), ">u8").astype(np.uint64).reshape(-1, 2)
    all_bands = np.concatenate(bands) if config.near else np.empty((len(keys), 0), np.uint64)
    return Signatures(halves, filled, np.array(words, np.bool_), all_bands)


def text_key(text: str, normalised: str) -> bytes | None:
    """Returns the 16-byte hash that exact duplicates have in common, or None for an empty text.

    It is that of the words, except for code, data and texts without words, whose characters matter: there it is that of
    the text with white space as single spaces.

    Args:
        text: a text.
        normalised: its result of `tasks.formats.documents.text.normalise`.
    """
    if normalised and is_prose(text):
        return bytes.fromhex(digest128(normalised))
    whole = " ".join(text.split())
    return bytes.fromhex(digest128(f"\n{whole}")) if whole else None  # a normalised text has no line break


class MinHasher:
    """Computes signatures with one family of permutations.

    Args:
        permutations: values per signature.
        seed: seed of the family; equal seeds give equal signatures on every machine.
    """

    def __init__(self, permutations: int, seed: int) -> None:
        draw = np.random.RandomState(seed)  # its stream is frozen by NumPy's compatibility policy
        self._a = draw.randint(0, 1 << 31, permutations, dtype=np.uint32) * np.uint32(2) + np.uint32(1)
        self._b = draw.randint(0, 1 << 32, permutations, dtype=np.uint32)

    def signatures(self, shingles: NDArray[np.uint64], counts: NDArray[np.int64]) -> NDArray[np.uint32]:
        """Returns the signatures of many texts.

        Args:
            shingles: the hashes of all texts, concatenated (repeats allowed), uniform over 64 bits.
            counts: shape (texts,), number of shingles of each text.

        Returns:
            uint32 array of shape (texts, permutations); the maximum throughout for a text without shingles.
        """
        signatures = np.full((len(counts), len(self._a)), np.iinfo(np.uint32).max, dtype=np.uint32)
        starts = np.cumsum(counts) - counts
        for rows in _blocks(counts):
            begin = starts[rows[0]]
            hashes = _finalize(shingles[begin : starts[rows[-1]] + counts[rows[-1]]])
            self._minima(hashes, starts[rows] - begin, rows, signatures)
        return signatures

    def _minima(
        self,
        hashes: NDArray[np.uint32],
        starts: NDArray[np.int64],
        rows: NDArray[np.int64],
        signatures: NDArray[np.uint32],
    ) -> None:
        permuted = np.empty_like(hashes)
        for index, (a, b) in enumerate(zip(self._a, self._b, strict=True)):
            np.multiply(hashes, a, out=permuted)
            np.add(permuted, b, out=permuted)
            signatures[rows, index] = np.minimum.reduceat(permuted, starts)


def band_keys(signatures: NDArray[np.uint32], bands: int, rows: int) -> NDArray[np.uint64]:
    """Folds each band of a signature into one 64-bit key.

    Two different bands collide with probability 2^-64; a collision costs one verification and changes no verdict.

    Returns:
        uint64 array of shape (texts, bands).
    """
    split = signatures[:, : bands * rows].reshape(len(signatures), bands, rows)
    keys = np.full((len(signatures), bands), rows, dtype=np.uint64)
    for row in range(rows):
        keys = (keys ^ split[:, :, row]) * np.uint64(0x9E3779B97F4A7C15)
        keys ^= keys >> np.uint64(29)
    return keys


def _blocks(counts: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """Splits the texts with shingles into blocks of about `_BLOCK` shingles; the last text may exceed a block."""
    filled = np.flatnonzero(counts)
    if len(filled) == 0:
        return []
    before = np.cumsum(counts[filled]) - counts[filled]
    return np.split(filled, np.flatnonzero(np.diff(before // _BLOCK)) + 1)


def _finalize(shingles: NDArray[np.uint64]) -> NDArray[np.uint32]:
    """Applies murmur3's 32-bit finalizer to the high half of each hash, like datasketch.

    An affine map preserves structure of its input; the finalizer removes it.
    """
    value = (shingles >> np.uint64(32)).astype(np.uint32)
    value ^= value >> np.uint32(16)
    value *= np.uint32(0x85EBCA6B)
    value ^= value >> np.uint32(13)
    value *= np.uint32(0xC2B2AE35)
    value ^= value >> np.uint32(16)
    return value


def _powers(base: int, count: int) -> NDArray[np.uint64]:
    powers = np.full(count, base, dtype=np.uint64)
    powers[:1] = 1
    return np.multiply.accumulate(powers)


_UP, _DOWN = _powers(_BASE, _CHUNK), _powers(pow(_BASE, -1, 1 << 64), _CHUNK)


def batches(texts: Sequence[str], characters: int = 4_000_000) -> Iterator[Sequence[str]]:
    """Splits texts into batches of about `characters` characters; a longer text is a batch of its own."""
    yield from (texts[first:end] for first, end in group_by_size(map(len, texts), characters))


def shingle(normalised: Sequence[str], size: int) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """Hashes every n-gram of `size` words of every text; a shorter text is a single n-gram of all its words.

    Args:
        normalised: results of `tasks.formats.documents.text.normalise`: words separated by one space.
        size: words per n-gram, at least 1.

    Returns:
        uint64 array of the hashes of all texts, concatenated, in order and with repeats, uniform over 64 bits; and an
        int64 array of shape (texts,), the number of hashes of each text.
    """
    words = np.fromiter((text.count(" ") + 1 if text else 0 for text in normalised), np.int64, len(normalised))
    hashes = _word_hashes(np.frombuffer("\n".join(normalised).encode(), dtype=np.uint8))
    if len(hashes) == 0:
        return hashes, words
    first = np.cumsum(words) - words
    ngrams = _ngrams(hashes, size)
    for width in range(1, size):
        places = first[words == width]
        ngrams[places] = _ngrams(hashes, width)[places]
    counts = np.where(words > 0, np.maximum(words - size + 1, 1), 0)
    before = np.cumsum(counts) - counts
    places = np.repeat(first - before, counts) + np.arange(counts.sum())
    return mix(ngrams[places]), counts


def _word_hashes(data: NDArray[np.uint8]) -> NDArray[np.uint64]:
    """Hashes the words separated by spaces and newlines."""
    breaks = np.flatnonzero(data <= ord(" "))
    starts, ends = np.concatenate(([0], breaks + 1)), np.append(breaks, len(data))
    filled = ends > starts  # a text without words is an empty line
    starts, ends = starts[filled], ends[filled]
    cuts = np.searchsorted(starts, np.arange(0, len(data) + _CHUNK, _CHUNK))
    parts = [_chunk(data, starts[a:b], ends[a:b]) for a, b in pairwise(cuts) if b > a]
    return np.concatenate(parts) if parts else np.empty(0, dtype=np.uint64)


def _chunk(data: NDArray[np.uint8], starts: NDArray[np.int64], ends: NDArray[np.int64]) -> NDArray[np.uint64]:
    begin, end = starts[0], ends[-1]
    span = int(end - begin)
    # The last word of a chunk may extend beyond it; a word of megabytes (packed data) needs its own powers.
    up, down = (_UP, _DOWN) if span <= _CHUNK else (_powers(_BASE, span), _powers(pow(_BASE, -1, 1 << 64), span))
    sums = np.zeros(span + 1, dtype=np.uint64)
    np.cumsum(data[begin:end] * up[:span], out=sums[1:])
    # The sum over a word, independent of its offset in the chunk.
    return mix((sums[ends - begin] - sums[starts - begin]) * down[starts - begin])


def _ngrams(hashes: NDArray[np.uint64], width: int) -> NDArray[np.uint64]:
    """Combines each hash with the `width - 1` following ones, in order; zeros after the end."""
    padded = np.concatenate([hashes, np.zeros(width, dtype=np.uint64)])
    total = np.full(len(hashes), width, dtype=np.uint64)
    for offset in range(width):
        total *= np.uint64(_BASE)
        total += padded[offset : offset + len(hashes)]
    return total
