"""Signatures of documents: the pass over all texts, part by part.

Reads one part of `extracted` (id, url, warc_file, fetched_at, text) and of the group `prose_score`. Writes

    preference/<part>.bin   the order of preference, one record per document in row order (`preference`)
    texts/<part>.bin        a sorted run of TEXT: the hash of each text that has words
    bands/<part>.bin        a sorted run of BAND: the key of each band of its signature
    captures/<part>.bin     a sorted run of CAPTURE: the page of each document from a crawl

That is 72 bytes per document and 24 per band. The runs of a part depend on its documents and its number.
"""

from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tasks.core import groups
from tasks.core.part import Part
from tasks.formats import sorted_runs
from tasks.formats.dedup_index import BAND, BANDS, CAPTURES, TEXT, TEXTS
from tasks.formats.documents import mark_of, same_mark
from tasks.formats.mix import mix
from tasks.formats.returned import is_returned
from tasks.formats.row_ids import row_ids_of
from tasks.formats.text import normalise
from tasks.stages.dedup import preference
from tasks.stages.dedup.captures import capture_records
from tasks.stages.dedup.config import DedupConfig
from tasks.stages.dedup.exact import text_key
from tasks.stages.dedup.minhash import MinHasher, band_keys
from tasks.stages.dedup.records import packed
from tasks.stages.dedup.shingle import batches, shingle
from tasks.stages.dedup.workspace import Workspace


class Signed(NamedTuple):
    """What is compared of texts.

    `texts` uint64 (texts, 2): halves of the hash of each text; zeros for a text without words. `words` bool (texts,):
    whether it has any. `bands` uint64 (texts, bands): keys; without columns unless `config.near`.
    """

    texts: NDArray[np.uint64]
    words: NDArray[np.bool_]
    bands: NDArray[np.uint64]


def sign_part(work: Workspace, part: Part, item: tuple[int, str]) -> None:
    """Computes the signatures of one part of the corpus, given by number and name; runs on a worker."""
    number, name = item
    source, group_path = f"documents/{name}.parquet", groups.path_of(name)
    documents = work.extracted.table(source, columns=["id", "url", "warc_file", "fetched_at", "text"])
    scored = work.scores.table(group_path, columns=["prose_score"])
    same_mark(
        mark_of(documents.column("id")),
        scored,
        f"{work.extracted.address} {source} and {work.scores.address} {group_path}",
    )
    # Null where the annotator failed: such a document is the least preferred.
    score = pc.fill_null(pc.struct_field(scored.column("prose_score"), "score"), 0.0)
    # What comes back was there before what is new.
    cycle = work.index.cycle - is_returned(name)
    own = preference.preferences(score, documents.column("fetched_at"), documents.column("id"), cycle)
    with part.file(f"{preference.FOLDER}/{name}.bin", rows=len(own)) as file:
        file.write(own.tobytes())
    signed = sign(documents.column("text"), work.config)
    texts, bands = records(signed, number)
    sorted_runs.write(part, f"{TEXTS}/{name}.bin", [sorted_runs.by_key(texts)])
    sorted_runs.write(part, f"{BANDS}/{name}.bin", [sorted_runs.by_key(bands)])
    captures = capture_records(documents.column("url"), documents.column("warc_file"), number)
    sorted_runs.write(part, f"{CAPTURES}/{name}.bin", [sorted_runs.by_key(captures)])
    part.metric("captures", len(captures))
    part.metric("texts", len(texts))


def records(signed: Signed, part: int) -> tuple[NDArray[np.void], NDArray[np.void]]:
    """Returns the records (dtypes TEXT and BAND) of the texts with words of the part with a number."""
    rows = np.flatnonzero(signed.words)
    row_ids, keys = row_ids_of(part, rows), signed.bands[rows]
    high, low = signed.texts[rows, 0], signed.texts[rows, 1]
    count = keys.shape[1]
    bands = packed(BAND, key=salted(keys).ravel(), text=np.repeat(high, count), row_id=np.repeat(row_ids, count))
    return packed(TEXT, key=high, low=low, row_id=row_ids), bands


def salted(keys: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Returns band keys of shape (texts, bands) so that keys of different bands are equal by chance only (2^-64)."""
    return keys ^ mix(np.arange(1, keys.shape[1] + 1, dtype=np.uint64))


def sign(texts: pa.ChunkedArray, config: DedupConfig) -> Signed:
    """Returns the hashes and the band keys of texts."""
    settings = config.minhash
    hasher = MinHasher(settings.permutations, settings.seed)
    keys: list[bytes | None] = []
    bands = [np.empty((0, settings.bands), dtype=np.uint64)]
    for batch in batches(texts.to_pylist()):
        normalised = [normalise(text) for text in batch]
        keys += [text_key(text) for text in normalised]
        if config.near:
            signatures = hasher.signatures(*shingle(normalised, settings.shingle))
            bands.append(band_keys(signatures, settings.bands, settings.rows))
    words = np.array([key is not None for key in keys], np.bool_)
    halves = np.frombuffer(b"".join(key or bytes(16) for key in keys), ">u8").astype(np.uint64).reshape(-1, 2)
    return Signed(halves, words, np.concatenate(bands) if config.near else np.empty((len(keys), 0), np.uint64))
