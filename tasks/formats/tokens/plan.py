"""Pack plans: the document slices of each training sequence; writer and reader.

`plan/<source>.parquet` has one row per slice of a document, sorted by sequence and position:

    seq_id u64 (0 .. sequences - 1 within the source), shard string, row u32, start u32, len u32, pos u32

A sequence has exactly `seq_len` tokens. Its slices are the boundaries that attention does not cross.
`plan/summary.json` has seq_len, vocab_size, eos_id, tokens_dtype, tokenizer_sha256, and per source: sequences,
tokens, documents, dropped_tokens, heldout_documents, heldout_tokens.
"""

import json
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from tasks.core import parquet
from tasks.core.artifact import Artifact
from tasks.core.config import nearest
from tasks.core.errors import InputError
from tasks.formats.tokens.shard import ShardSet

FOLDER = "plan"
SUMMARY = "plan/summary.json"
SCHEMA = pa.schema(
    [
        pa.field("seq_id", pa.uint64(), nullable=False),
        pa.field("shard", pa.string(), nullable=False),
        pa.field("row", pa.uint32(), nullable=False),
        pa.field("start", pa.uint32(), nullable=False),
        pa.field("len", pa.uint32(), nullable=False),
        pa.field("pos", pa.uint32(), nullable=False),
    ]
)


_GROUP_ROWS = 4096
"""Rows per row group: a few sequences out of millions are read from a few row groups, found by their statistics."""


class Slice(NamedTuple):
    """A run of tokens of one document inside a sequence."""

    shard: str
    row: int
    start: int
    """First token, counted in the document."""
    length: int
    pos: int
    """First token, counted in the sequence."""


@dataclass(frozen=True)
class _Source:
    """The slices of one source as columns, and the first slice of each sequence: 16 bytes per slice."""

    names: list[str]
    shard: NDArray[np.int32]
    row: NDArray[np.int64]
    start: NDArray[np.int64]
    length: NDArray[np.int64]
    pos: NDArray[np.int64]
    seq_id: NDArray[np.int64]
    first: NDArray[np.int64]


def write_plan(file: BinaryIO, table: pa.Table) -> None:
    """Writes the slices of one source, sorted by sequence and position."""
    pq.write_table(table, file, compression="zstd", compression_level=3, row_group_size=_GROUP_ROWS)


def rows_of(artifact: Artifact, source: str, sequences: Collection[int]) -> list[dict[str, Any]]:
    """Returns the rows of some sequences, sorted by sequence and position, without reading the rest of the plan."""
    ids = np.array(sorted(sequences), dtype=np.int64)
    with parquet.opened(artifact.local(f"{FOLDER}/{source}.parquet")) as plan:
        column = SCHEMA.get_field_index("seq_id")
        spans = [plan.metadata.row_group(group).column(column).statistics for group in range(plan.num_row_groups)]
        low, high = np.array([span.min for span in spans]), np.array([span.max for span in spans])
        overlaps = np.searchsorted(ids, low) < np.searchsorted(ids, high, side="right")
        table = plan.read_row_groups(np.flatnonzero(overlaps).tolist())
    rows: list[dict[str, Any]] = table.filter(pc.field("seq_id").isin(ids)).to_pylist()
    return rows


class Plan:
    """Reads a pack plan. Sources are loaded on first access; picklable.

    Args:
        summary: content of `summary.json`.
        load: returns the Parquet table of a source.
    """

    def __init__(self, summary: dict[str, Any], load: Callable[[str], pa.Table]) -> None:
        self.summary = summary
        self._load = load
        self._sources: dict[str, _Source] = {}

    @classmethod
    def open(cls, artifact: Artifact) -> "Plan":
        """Opens the plan in an artifact of the stage pack."""
        return cls(json.loads(artifact.read(SUMMARY)), _FromArtifact(artifact))

    @classmethod
    def read(cls, folder: str) -> "Plan":
        """Opens a plan in a local folder with `summary.json` and one `<source>.parquet` each.

        Raises:
            InputError: there is no summary.
        """
        try:
            summary = json.loads((Path(folder) / Path(SUMMARY).name).read_text())
        except FileNotFoundError:
            raise InputError(
                f"no pack plan in {folder}: {Path(SUMMARY).name} is missing", "run the stage pack"
            ) from None
        return cls(summary, _FromFolder(folder))

    def __getstate__(self) -> dict[str, Any]:
        return {"summary": self.summary, "_load": self._load, "_sources": {}}

    @property
    def seq_len(self) -> int:
        """Tokens per sequence."""
        return int(self.summary["seq_len"])

    @property
    def sources(self) -> tuple[str, ...]:
        """The sources that have at least one sequence, sorted."""
        return tuple(source for source, count in sorted(self.sequences.items()) if count)

    @property
    def sequences(self) -> dict[str, int]:
        """Source -> number of its sequences."""
        return {source: int(count) for source, count in self.summary["sequences"].items()}

    def slices(self, source: str, seq_id: int) -> list[Slice]:
        """Returns the slices of a sequence in the order of their positions; they cover the sequence without a gap.

        Raises:
            InputError: no such source.
            IndexError: no such sequence.
        """
        data = self._source(source)
        if not 0 <= seq_id < len(data.first) - 1:
            raise IndexError(f'"{source}" has the sequences 0 .. {len(data.first) - 2}, not {seq_id}')
        rows = slice(int(data.first[seq_id]), int(data.first[seq_id + 1]))
        columns = (data.shard[rows], data.row[rows], data.start[rows], data.length[rows], data.pos[rows])
        return [
            Slice(data.names[shard], row, start, length, pos)
            for shard, row, start, length, pos in zip(*(column.tolist() for column in columns), strict=True)
        ]

    def tokens(self, source: str, seq_id: int, shards: ShardSet) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """Returns a sequence: tokens of shape (seq_len,), and the lengths of its slices, which sum to seq_len."""
        slices = self.slices(source, seq_id)
        parts = [shards.slice(piece.shard, piece.row, piece.start, piece.length) for piece in slices]
        return np.concatenate(parts), np.array([piece.length for piece in slices], dtype=np.int64)

    def sequences_of(self, source: str, shard: str, row: int) -> list[int]:
        """Returns the sequences with tokens of one document, ascending: the inverse of `slices`.

        Slices are sorted by (shard, row) as well as by sequence, so this is a binary search.
        """
        table = self._source(source)
        if shard not in table.names:
            return []
        index = table.names.index(shard)
        left, right = np.searchsorted(table.shard, [index, index + 1])
        rows = table.row[left:right]
        first, end = left + np.searchsorted(rows, [row, row + 1])
        ids: list[int] = np.unique(table.seq_id[first:end]).tolist()
        return ids

    def _source(self, source: str) -> _Source:
        if source not in self._sources:
            if source not in self.sequences:
                raise InputError(f'the plan has no source "{source}"', nearest(source, self.sequences))
            self._sources[source] = _columns(self._load(source), self.sequences[source])
        return self._sources[source]


def _columns(table: pa.Table, sequences: int) -> _Source:
    shard = table.column("shard").combine_chunks()
    coded = shard.dictionary_encode() if not pa.types.is_dictionary(shard.type) else shard
    if isinstance(coded, pa.ChunkedArray):
        coded = coded.unify_dictionaries().combine_chunks()
    seq_id, row, start, length, pos = (
        table.column(name).to_numpy().astype(np.int64) for name in ("seq_id", "row", "start", "len", "pos")
    )
    first = np.searchsorted(seq_id, np.arange(sequences + 1))
    # Codes follow first appearance, which is the sorted order in which the shards were packed.
    return _Source(coded.dictionary.to_pylist(), coded.indices.to_numpy(), row, start, length, pos, seq_id, first)


@dataclass(frozen=True)
class _FromArtifact:
    artifact: Artifact

    def __call__(self, source: str) -> pa.Table:
        return self.artifact.table(f"{FOLDER}/{source}.parquet")


@dataclass(frozen=True)
class _FromFolder:
    folder: str

    def __call__(self, source: str) -> pa.Table:
        return parquet.read(str(Path(self.folder) / f"{source}.parquet"))
