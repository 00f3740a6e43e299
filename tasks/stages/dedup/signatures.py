"""Signatures of documents: the first pass, one row per document with the columns of the comparison.

Reads one part of `extracted` (id, source, fetched_at, text) and of the group `prose_score`. Writes
`signatures/<part>.parquet` in the same row order: id, source, fetched_at, prose_score, text_key (16 bytes, null for a
text without words) and one column `band_<n>` per band. That is about 200 bytes per document with 16 bands.
"""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tasks.core import groups
from tasks.core.artifact import ArtifactFolder
from tasks.core.part import Part
from tasks.formats.documents import mark_of, same_mark
from tasks.formats.text import normalise
from tasks.stages.dedup.config import DedupConfig
from tasks.stages.dedup.exact import KEY_BYTES, text_key
from tasks.stages.dedup.minhash import MinHasher, band_keys
from tasks.stages.dedup.shingle import batches, shingle

FOLDER = "signatures"


def path_of(part_name: str) -> str:
    """Returns the signature file of a part, relative to the artifact."""
    return f"{FOLDER}/{part_name}.parquet"


def band_column(band: int) -> str:
    """Returns the name of a band's column."""
    return f"band_{band:02d}"


def sign_part(config: DedupConfig, extracted: ArtifactFolder, scores: ArtifactFolder, part: Part, name: str) -> None:
    """Computes the signatures of one part; runs on a worker.

    Args:
        config: the stage's settings.
        extracted: the documents.
        scores: the group `prose_score`.
        part: the part to write.
        name: the part's name in both inputs.
    """
    source, group_path = f"documents/{name}.parquet", groups.path_of(name)
    documents = extracted.table(source, columns=["id", "source", "fetched_at", "text"])
    scored = scores.table(group_path, columns=["prose_score"])
    same_mark(
        mark_of(documents.column("id")), scored, f"{extracted.address} {source} and {scores.address} {group_path}"
    )
    # Null where the annotator failed: such a document is the least preferred.
    score = pc.fill_null(pc.struct_field(scored.column("prose_score"), "score"), 0.0)
    table = documents.drop_columns("text").append_column("prose_score", score)
    signed = sign(documents.column("text"), config)
    for column in signed.column_names:
        table = table.append_column(column, signed.column(column))
    with part.file(path_of(name), rows=table.num_rows) as file:
        pq.write_table(table, file, compression="zstd", compression_level=3)


def sign(texts: pa.ChunkedArray, config: DedupConfig) -> pa.Table:
    """Returns the columns `text_key` and, if `config.near`, `band_<n>` of the texts."""
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
    columns = {"text_key": pa.array(keys, pa.binary(KEY_BYTES))}
    if config.near:
        united = np.concatenate(bands)
        columns |= {band_column(band): pa.array(united[:, band]) for band in range(settings.bands)}
    return pa.table(columns)
