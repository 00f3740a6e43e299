"""Stage dedup: documents -> for each document the one that it is a duplicate of, if any.

Reads `extracted` (text, source, fetched_at) and the group `prose_score` (tasks.core.groups). Writes

    duplicates/<part>.parquet  one row per document, in the order of `extracted` (schema DUPLICATES)
    pairs.parquet              every verified pair of texts with its similarity (schema PAIRS)
    signatures/ candidates/ verified/   intermediate results, for resumption and audits

Documents are not dropped here. The steps:

    signatures   per part, on the workers     text -> text key, band keys
    candidates   in this process              pairs of texts that share a band
    verified     per batch of pairs, workers  true Jaccard of the two texts
    duplicates   in this process              order of preference, `tasks.formats.duplicate_resolution`

Only the first and the third step read texts, and they take most of the time. The steps in this process need about 120
bytes of memory per document and 24 per candidate pair.
"""

from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from tasks.core import parquet
from tasks.core.artifact import Artifact
from tasks.core.engine import Engine
from tasks.core.errors import InputError
from tasks.core.groups import KIND
from tasks.core.stage import Inputs, Output, PartSpec, Report, part_names
from tasks.formats.duplicate_resolution import choose
from tasks.stages.dedup.candidates import all_pairs
from tasks.stages.dedup.clusters import components
from tasks.stages.dedup.config import DedupConfig
from tasks.stages.dedup.corpus import Corpus
from tasks.stages.dedup.exact import group_equal
from tasks.stages.dedup.metrics import alarm, loss_shares
from tasks.stages.dedup.signatures import sign_part
from tasks.stages.dedup.verify import VERIFIED, Texts, batches, verify_part

VERSION = 2

DUPLICATES = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),
        pa.field("duplicate_of", pa.string()),  # the keeper; null for a document that is kept
        pa.field("kind", pa.string()),  # "exact" | "near"
        pa.field("jaccard", pa.float32()),  # similarity to duplicate_of
        pa.field("cluster", pa.string()),  # id of the cluster's most preferred document; null without copies
        pa.field("text", pa.string()),  # id of the most preferred document with the same text; null without copies
        pa.field("rank", pa.int64()),  # order of preference in the whole corpus, 0 first; null without copies
    ]
)
PAIRS = pa.schema(
    [
        pa.field("better", pa.string(), nullable=False),  # values of `text` above
        pa.field("worse", pa.string(), nullable=False),
        pa.field("jaccard", pa.float32(), nullable=False),
    ]
)


def run(config: DedupConfig, inputs: Inputs, output: Output, engine: Engine) -> Report:
    """Writes duplicates, pairs and intermediate results.

    Raises:
        InputError: the inputs are empty or do not have the same parts.
    """
    extracted, scores = inputs["extracted"], inputs["prose_score"]
    names = _common_parts(extracted, scores)
    specs = [PartSpec(f"sign-{name}", name) for name in names]
    output.map_parts(engine, partial(sign_part, config, extracted.folder, scores.folder), specs, conserved=False)

    corpus = Corpus.read(output.store, output.address.path, names)
    texts = np.arange(len(corpus), dtype=np.int64)
    if config.exact:
        texts = group_equal(corpus.text_keys(), corpus.has_words, corpus.ranks)
    _find_candidates(config, corpus, texts, extracted, output)
    verified = _verify(config, corpus, extracted, output, engine)
    _write_pairs(corpus, verified, output)
    duplicates = _judge(corpus, texts, verified)
    for name, start, end in zip(names, corpus.starts, corpus.starts[1:], strict=False):
        _write_part(output, name, duplicates.slice(start, end - start))
    return Report(metrics=_metrics(config, corpus, duplicates))


def _common_parts(extracted: Artifact, scores: Artifact) -> list[str]:
    names = _names(extracted, "documents/")
    if not names:
        raise InputError(f"{extracted.address} holds no documents", "look at its rejected/ for the reasons")
    if names != _names(scores, f"{KIND}/"):
        raise InputError(
            f"{scores.address} has other parts than {extracted.address}", "run annotate on these documents again"
        )
    return names


def _names(artifact: Artifact, folder: str) -> list[str]:
    return [path.removeprefix(folder).removesuffix(".parquet") for path in artifact.files(folder)]


def _find_candidates(
    config: DedupConfig, corpus: Corpus, texts: NDArray[np.int64], extracted: Artifact, output: Output
) -> None:
    """Writes the candidate pairs, one file per batch; of equal texts only the most preferred is compared."""
    if "candidates" in output.committed:
        return
    rows = np.flatnonzero((texts == np.arange(len(texts))) & corpus.has_words)
    bands = corpus.bands(config.minhash.bands if config.near else 0, rows)
    found, large = all_pairs(bands, corpus.ranks[rows], config.minhash.max_bucket)
    parts = batches(rows[found], _texts(corpus, extracted), config.pairs_per_part)
    with output.part("candidates", conserved=False) as part:
        part.metric("candidate_pairs", len(found))
        part.metric("large_buckets", large)
        for name, pairs in zip(part_names(len(parts)), parts, strict=True):
            with part.file(f"candidates/{name}.parquet", rows=len(pairs)) as file:
                pq.write_table(pa.table({"better": pairs[:, 0], "worse": pairs[:, 1]}), file, compression="zstd")


def _verify(config: DedupConfig, corpus: Corpus, extracted: Artifact, output: Output, engine: Engine) -> pa.Table:
    """Verifies the candidates on the workers; returns the verified pairs."""
    paths = [entry.path for entry in output.committed["candidates"].files]
    specs = [PartSpec(f"verify-{path[len('candidates/') : -len('.parquet')]}", path) for path in paths]
    work = partial(verify_part, config, _texts(corpus, extracted), output.store, output.address.path)
    records = output.map_parts(engine, work, specs, conserved=False)
    tables = [VERIFIED.empty_table()]
    for record in records:
        tables.append(parquet.read(output.store.local(f"{output.address.path}/{record.files[0].path}")))
    return pa.concat_tables(tables)


def _texts(corpus: Corpus, extracted: Artifact) -> Texts:
    return Texts(extracted.folder, tuple(f"documents/{name}.parquet" for name in corpus.names), corpus.starts)


def _write_pairs(corpus: Corpus, verified: pa.Table, output: Output) -> None:
    if "pairs" in output.committed:
        return
    columns = [corpus.ids.take(verified.column(side)) for side in ("better", "worse")]
    table = pa.table([*columns, verified.column("jaccard")], schema=PAIRS).sort_by(
        [("better", "ascending"), ("worse", "ascending")]
    )
    with output.part("pairs", conserved=False) as part, part.file("pairs.parquet", rows=table.num_rows) as file:
        pq.write_table(table, file, compression="zstd", compression_level=3)


def _judge(corpus: Corpus, texts: NDArray[np.int64], verified: pa.Table) -> pa.Table:
    """Returns the verdicts on all documents (schema DUPLICATES), in row order."""
    pairs = np.stack([verified.column(side).to_numpy() for side in ("better", "worse")], axis=1)
    equal = np.flatnonzero(texts != np.arange(len(corpus)))
    label = components(len(corpus), np.concatenate([pairs, np.stack([texts[equal], equal], axis=1)]))
    members = np.flatnonzero(np.bincount(label, minlength=len(corpus))[label] > 1)
    members = members[np.argsort(corpus.ranks[members])]
    choice = choose(texts[members], pairs, verified.column("jaccard").to_numpy())

    keeper = members[choice.keeper]
    goes = keeper != members
    exact = texts[keeper] == texts[members]
    _, first, inverse = np.unique(label[members], return_index=True, return_inverse=True)
    columns = {
        "duplicate_of": _spread(len(corpus), members[goes], corpus.ids.take(pa.array(keeper[goes]))),
        "kind": _spread(len(corpus), members[goes], pa.array(np.where(exact[goes], "exact", "near"), pa.string())),
        "jaccard": _spread(len(corpus), members[goes], pa.array(choice.jaccard[goes])),
        "cluster": _spread(len(corpus), members, corpus.ids.take(pa.array(members[first[inverse]]))),
        "text": _spread(len(corpus), members, corpus.ids.take(pa.array(texts[members]))),
        "rank": _spread(len(corpus), members, pa.array(corpus.ranks[members])),
    }
    return pa.table({"id": corpus.ids, **columns}, schema=DUPLICATES)


def _spread(count: int, rows: NDArray[np.int64], values: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """Returns a column of `count` rows with `values` at `rows` and null elsewhere."""
    place = np.zeros(count, dtype=np.int64)
    place[rows] = np.arange(len(rows))
    missing = np.ones(count, dtype=np.bool_)
    missing[rows] = False
    return values.take(pa.array(place, mask=missing))


def _write_part(output: Output, name: str, duplicates: pa.Table) -> None:
    if name in output.committed:
        return
    with output.part(name) as part:
        part.count_in(duplicates.num_rows)
        for kind in ("exact", "near"):
            part.metric(f"{kind}_duplicates", duplicates.column("kind").to_pylist().count(kind))
        part.table("duplicates", duplicates.combine_chunks())


def _metrics(config: DedupConfig, corpus: Corpus, duplicates: pa.Table) -> dict[str, float]:
    shares = loss_shares(corpus.table.column("source"), duplicates.column("duplicate_of").is_valid())
    clusters = duplicates.column("cluster").drop_null().value_counts().field("counts").to_numpy(zero_copy_only=False)
    return {
        "documents": float(len(corpus)),
        "clusters": float(len(clusters)),
        "largest_cluster": float(max(clusters, default=0)),
        "sources_over_alarm_share": float(len(alarm(shares, config.alarm_share))),
        **{f"loss_share/{source}": share for source, share in shares.items()},
    }
