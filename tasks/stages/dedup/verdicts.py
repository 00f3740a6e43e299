"""Choice of keepers, cluster by cluster.

Reads the runs `clusters/`, one bucket of clusters at a time, and `preference/` of their documents. Writes

    verdicts/<bucket>.bin      a run of VERDICT, by row id: one for each document of a cluster
    pairs/<bucket>.parquet     every verified pair of texts with its similarity (schema PAIRS)
    sizes/<bucket>.parquet     how many clusters there are of each size (schema SIZES)
    largest/<bucket>.parquet   the largest clusters (schema `audit.LARGEST`)

Memory: about 600 bytes per document of the bucket, for the rule in `tasks.formats.duplicate_resolution`.

Documents of the index that are taken down are compared with nothing: `forgotten_part` reads ids and URLs of one part of
the index, and writes `forgotten/<part>.bin`, a run of ROW_ID.
"""

from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from tasks.core.part import Part
from tasks.formats.dedup import sorted_runs
from tasks.formats.dedup.document_ids import row_ids_of, unpack
from tasks.formats.dedup.sorted_runs import Buckets
from tasks.formats.duplicate_resolution import choose
from tasks.stages.dedup import audit, preference
from tasks.stages.dedup.workspace import KINDS, LABELLED, ROW_ID, VERDICT, Workspace, forgotten_path, packed

PAIRS = pa.schema(
    [
        pa.field("better", pa.string(), nullable=False),  # values of `text` in duplicates
        pa.field("worse", pa.string(), nullable=False),
        pa.field("jaccard", pa.float32(), nullable=False),
    ]
)
SIZES = pa.schema([pa.field("size", pa.int64(), nullable=False), pa.field("clusters", pa.int64(), nullable=False)])
VERDICTS = "verdicts"
OF_CYCLE = "of_cycle/"
"""Metrics: duplicates of documents of the version with that number in the index."""


class Members(NamedTuple):
    """The documents of some clusters, most preferred first.

    `row_ids` uint64 (documents,); `ids` uint64 (documents, 2); `label` uint64 (documents,), of the cluster; `text`
    int64 (documents,), the index of the most preferred document with the same text; `again` bool (documents,), whether
    an earlier version has published this very document, too, which is there before it.
    """

    row_ids: NDArray[np.uint64]
    ids: NDArray[np.uint64]
    label: NDArray[np.uint64]
    text: NDArray[np.int64]
    again: NDArray[np.bool_]


def keepers_part(work: Workspace, clusters: Buckets, made: Buckets, part: Part, number: int) -> None:
    """Decides on the documents of one bucket of `made`; runs on a worker."""
    links = work.bucket(clusters, LABELLED, number, made.count)
    members = _members(work, links)
    near = links[links["equal"] == 0]
    pairs = _text_pairs(members, near)
    found, sizes, keepers = _verdicts(members, pairs, near["jaccard"], number)
    gone = (found["kind"] != KINDS.index("")) & (found["key"] >= work.first_row_id)
    earlier = keepers[gone & (keepers < work.first_row_id)]
    for cycle, count in zip(*np.unique(preference.cycles(work, earlier), return_counts=True), strict=True):
        part.metric(f"{OF_CYCLE}{cycle}", int(count))
    sorted_runs.write(part, made.beside(VERDICTS).path(number), [sorted_runs.by_key(found)])
    with part.file(made.path(number, "parquet"), rows=len(pairs)) as file:
        pq.write_table(_named(members, pairs, near["jaccard"]), file, compression="zstd", compression_level=3)
    largest = audit.largest_clusters(members.ids, members.label, members.text, members.again)
    audit.write_table(part, made.beside(audit.LARGEST_FOLDER).path(number, "parquet"), largest)
    size, count = np.unique(sizes, return_counts=True)
    with part.file(made.beside(audit.CLUSTER_SIZES).path(number, "parquet"), rows=len(size)) as file:
        pq.write_table(pa.table([size.astype(np.int64), count.astype(np.int64)], schema=SIZES), file)


def _members(work: Workspace, links: NDArray[np.void]) -> Members:
    row_ids, first = np.unique(np.concatenate([links["left"], links["right"]]), return_index=True)
    label = np.concatenate([links["label"], links["label"]])[first]
    text = row_ids.copy()
    equal = links[links["equal"] == 1]
    text[np.searchsorted(row_ids, equal["right"])] = equal["left"]
    records = preference.read(work, row_ids)
    order = preference.order(records, row_ids)
    _, best, inverse = np.unique(text[order], return_index=True, return_inverse=True)
    ids = records["id"][order]
    again = np.ones(len(ids), np.bool_)
    again[np.unique(ids, axis=0, return_index=True)[1]] = False
    return Members(row_ids[order], ids, label[order], best[inverse].astype(np.int64), again)


def _text_pairs(members: Members, near: NDArray[np.void]) -> NDArray[np.int64]:
    """Returns the indices of the two texts of each pair, the better one first, shape (pairs, 2)."""
    by_row_id = np.argsort(members.row_ids)
    sorted_row_ids = members.row_ids[by_row_id]
    sides = [members.text[by_row_id[np.searchsorted(sorted_row_ids, near[side])]] for side in ("left", "right")]
    return np.sort(np.stack(sides, axis=1), axis=1)


def _verdicts(
    members: Members, pairs: NDArray[np.int64], jaccard: NDArray[np.float32], bucket: int
) -> tuple[NDArray[np.void], NDArray[np.int64], NDArray[np.uint64]]:
    """Returns the verdicts (dtype VERDICT), the sizes of the clusters, and of each verdict the keeper's row id.

    A document counts once, so a cluster of nothing but one that an earlier version has published, too, is none.
    """
    choice = choose(members.text, pairs, jaccard)
    keeper = choice.keeper
    equal = members.text[keeper] == members.text
    # A document that an earlier version has published, too, is no duplicate of itself.
    goes = (members.ids[keeper] != members.ids).any(axis=1)
    _, first, inverse, sizes = np.unique(members.label, return_index=True, return_inverse=True, return_counts=True)
    order = np.argsort(inverse, kind="stable")  # by cluster, in each by preference
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    found = np.zeros(len(keeper), VERDICT)
    found["key"], found["rank"], found["bucket"] = members.row_ids, rank, bucket
    found["kind"] = np.where(goes, np.where(equal, KINDS.index("exact"), KINDS.index("near")), KINDS.index(""))
    found["jaccard"] = choice.jaccard
    for name, index in (("keeper", keeper), ("cluster", first[inverse]), ("text", members.text)):
        found[name] = members.ids[index]
    documents = np.bincount(inverse[~members.again], minlength=len(sizes))
    return found, documents[documents > 1], members.row_ids[keeper]


def _named(members: Members, pairs: NDArray[np.int64], jaccard: NDArray[np.float32]) -> pa.Table:
    columns = [unpack(members.ids[pairs[:, side]]) for side in (0, 1)]
    table = pa.table([*columns, pa.array(jaccard)], schema=PAIRS)
    return table.sort_by([("better", "ascending"), ("worse", "ascending")])


def forgotten_part(work: Workspace, part: Part, number: int) -> None:
    """Writes those of one part; runs on a worker."""
    rows = np.flatnonzero(work.takedowns.mask(work.index.names(number)))
    sorted_runs.write(part, forgotten_path(number), [packed(ROW_ID, key=row_ids_of(number, rows))])
