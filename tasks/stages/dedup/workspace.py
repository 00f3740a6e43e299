"""Shared inputs of all passes of the stage: the settings, the input artifacts, and the files of earlier passes.

Reads `parts.json`, the names of the parts of this version's documents in order. Parts are numbered after those of the
index, so that the row ids (`tasks.formats.dedup.document_ids`) of both do not collide.

The passes exchange packed records in sorted runs (`tasks.formats.dedup.exchange`); records that outlive the stage are
defined in `tasks.formats.dedup.dedup_index`. A document is identified by its row id, and a text by the smallest row
id of the documents with this text.
"""

import json
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from tasks.core.artifact import ArtifactFolder
from tasks.core.merges.range_merge import Source
from tasks.formats.dedup import sorted_runs
from tasks.formats.dedup.dedup_index import PREFERENCE, RUNS, DedupIndex
from tasks.formats.dedup.document_ids import HALVES, range_of
from tasks.formats.dedup.exchange import Exchange, read_run
from tasks.formats.documents.text import mix
from tasks.formats.documents.tombstones import NO_TOMBSTONES, Tombstones
from tasks.stages.dedup import DedupConfig

PARTS_FILE = "parts.json"


@dataclass(frozen=True)
class Workspace:
    """Settings, inputs and this stage's folder. Picklable; its size does not depend on the number of parts."""

    config: DedupConfig
    extracted: ArtifactFolder
    scores: ArtifactFolder
    own: ArtifactFolder
    index: DedupIndex = field(default_factory=DedupIndex)
    takedowns: Tombstones = NO_TOMBSTONES

    def names(self) -> list[str]:
        """Returns the names of the parts of this version's documents."""
        names: list[str] = json.loads(self.own.read(PARTS_FILE))
        return names

    def part_names(self) -> list[str]:
        """Returns the names of all parts by number; those of the index are from `earlier_name`."""
        return [*map(earlier_name, range(self.index.count)), *self.names()]

    @property
    def first_row_id(self) -> int:
        """The smallest row id of this version's documents; the index has smaller ones."""
        return range_of(self.index.count)[0]

    def documents(self, keys: Exchange, number: int) -> NDArray[np.void]:
        """Returns the records of a bucket: this version's, and those of the index with equal keys."""
        records = keys.records(self.own, number)
        if not self.index.count:
            return records
        new = records["row_id"] >= self.first_row_id
        selected: NDArray[np.void] = records[new | np.isin(records["key"], records["key"][new])]
        return selected

    def read_keys(
        self, folder: str, own: ArtifactFolder, run: Source, first: int = 0, end: int = 1 << 64
    ) -> NDArray[np.void]:
        """Reads a run of keys of this version or of the index (`exchange.ReadRun`), with row ids of this version.

        Documents of the index that are taken down are excluded.
        """
        if run.number >= self.index.count:
            return read_run(RUNS[folder], own, run, first, end)
        records = read_run(RUNS[folder], self.index.folders[run.number], run, first, end).copy()
        records["row_id"] += np.uint64(range_of(run.number)[0])
        if self.takedowns:
            forgotten = sorted_runs.decode(own.read(forgotten_path(run.number)), ROW_ID)
            records = records[~np.isin(records["row_id"], forgotten["key"])]
        return records


def forgotten_path(number: int) -> str:
    """Returns the path of the run (dtype ROW_ID) of the documents of a part of the index that are taken down."""
    return f"forgotten/{earlier_name(number)}.bin"


def earlier_name(number: int) -> str:
    """Returns the name of a part of the index in this stage."""
    return f"earlier-{number:05d}"


PAIR = np.dtype([("key", "<u8"), ("left", "<u8"), ("right", "<u8"), ("group", "<u8")])
"""Two texts that share a band, left < right, sorted by a hash of both. `group` is a hash that many pairs of the same
texts have in common."""

GROUPED = np.dtype([("key", "<u8"), ("left", "<u8"), ("right", "<u8")])
"""A distinct pair, sorted by its group."""

WANTED = np.dtype([("key", "<u8"), ("group", "<u8")])
"""A text of a pair, sorted by its row id, and the group of the pair."""

SHINGLES = np.dtype([("key", "<u8"), ("row_id", "<u8"), ("shingles", "<u8", (14,))])
"""A piece of the sorted shingles of a text for a group, sorted by the group. The last one repeats its last shingle."""

ROW_ID = np.dtype([("key", "<u8")])
"""A row id."""

LINK = np.dtype([("key", "<u8"), ("left", "<u8"), ("right", "<u8"), ("jaccard", "<f4"), ("equal", "u1")])
"""A verified pair of texts, or (`equal`) a text and another document with it; sorted by a hash of `left`."""

EDGE = np.dtype([("key", "<u8"), ("node", "<u8"), ("other", "<u8")])
"""An edge of the graph of verified pairs, sorted by a hash of `node`."""

LABELED = np.dtype(
    [("key", "<u8"), ("label", "<u8"), ("left", "<u8"), ("right", "<u8"), ("jaccard", "<f4"), ("equal", "u1")]
)
"""A link with the label of its cluster, sorted by a hash of the label."""

_PREFERENCE = [(name, PREFERENCE[name]) for name in PREFERENCE.names or ()]

IN_CROWD = np.dtype([("key", "<u8"), ("band", "<u8"), ("text", "<u8")])
"""A document with a band that is shared by more than `max_bucket` texts, sorted by its row id."""

CROWDED = np.dtype([("key", "<u8"), ("text", "<u8"), ("row_id", "<u8"), *_PREFERENCE])
"""The same document with its order of preference, sorted by the band."""

MEMBER = np.dtype([("key", "<u8"), ("label", "<u8")])
"""A document of a cluster and the label of the cluster, sorted by its row id."""

RANKED = np.dtype([("key", "<u8"), ("row_id", "<u8"), *_PREFERENCE])
"""A document of a cluster with its order of preference, sorted by a hash of the label."""

VERDICT = np.dtype(
    [
        ("key", "<u8"),
        ("keeper", HALVES),
        ("jaccard", "<f4"),
        ("kind", "u1"),
        ("cluster", HALVES),
        ("text", HALVES),
        ("rank", "<u4"),
        ("bucket", "<u4"),
    ]
)
"""The verdict on a document of a cluster, sorted by its row id. `kind` is an index into `KINDS`."""

RECAPTURED = np.dtype([("key", "<u8"), ("page", "<u8")])
"""A document whose page has another capture, sorted by its row id."""

KINDS = ("", "exact", "near")
"""Kinds of verdicts; "" for a kept document."""


def pair_key(left: NDArray[np.uint64], right: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Returns a hash of each pair, uniform over 64 bits."""
    return mix(mix(left) + right)


def packed(dtype: np.dtype[np.void], **columns: NDArray[np.generic]) -> NDArray[np.void]:
    """Returns records with the given columns; the other fields are 0."""
    records = np.zeros(len(next(iter(columns.values()))), dtype)
    for name, column in columns.items():
        records[name] = column
    return records
