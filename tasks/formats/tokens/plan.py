"""Pack plans: the document slices of each training sequence.

Reads and writes three NumPy files per part of a source, `plan/<source>-<part>-<array>.npy`, which are memory-mapped, or
read by ranges from a remote store:

    slices     SLICE (16 bytes), sorted by sequence and by position in it
    first      u32, the first slice of each sequence, followed by the number of slices
    documents  u32, the indices of the slices sorted by (shard, row, offset), to look up the sequences of a document

A slice is a run of tokens of one document, given by its offset in the bytes of a shard's file, so that it is read
without parsing Arrow. Attention does not cross the boundaries of slices. A sequence has at most `seq_len` tokens.

The shards and the parts are rows of two more files (`plan_tables`), which are read where they are needed.

`plan/summary.json` has seq_len, method, by, vocab_size, eos_id, tokens_dtype, tokenizer_sha256, what is needed to read
the tables, and per source: sequences, tokens, documents, split_documents, dropped_tokens, padding_tokens. Here a
"source" is a value of the column `by`; heldout_documents and heldout_tokens are always by source.
"""

import json
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, BinaryIO, cast

import numpy as np
from numpy.typing import NDArray

from tasks.core.artifact import Artifact, ArtifactFolder
from tasks.core.config import nearest
from tasks.core.errors import InputError
from tasks.core.open_files import MOST_MAPS, exhausted, load_array
from tasks.core.ranges import RangeArray, RangeEntry, RangeReader, read_together
from tasks.formats.tokens.plan_tables import ARRAYS, ShardNames, Tables
from tasks.formats.tokens.shard import TokenFormat

FOLDER = "plan"
SUMMARY = "plan/summary.json"
SLICE = np.dtype([("shard", "<u4"), ("row", "<u4"), ("offset", "<u4"), ("length", "<u4")])
"""One slice: index of the shard, row of the document in it, offset of the first token from the beginning of the shard's
file in units of tokens, and number of tokens."""
_DTYPES = {"slices": SLICE, "first": np.dtype("<u4"), "documents": np.dtype("<u4")}

PlanArray = NDArray[Any] | RangeArray
"""An array of a part: mapped into memory, or read by ranges."""
Slices = NDArray[np.void]
"""An array of SLICE, shape (slices,)."""


def array_name(source: str, part: int, array: str) -> str:
    """Returns the file name of one array of a part.

    >>> array_name("web", 2, "slices")
    'web-00002-slices.npy'
    """
    return f"{source}-{part:05d}-{array}.npy"


def arrays_of(slices: Slices, lengths: NDArray[np.integer]) -> Iterator[tuple[str, NDArray[Any]]]:
    """Yields the arrays of a part by name.

    Args:
        slices: slices of all sequences, sorted by sequence and position.
        lengths: number of slices of each sequence, shape (sequences,).
    """
    yield "slices", slices
    yield "first", np.concatenate([[0], np.cumsum(lengths)]).astype(_DTYPES["first"])
    yield "documents", np.lexsort((slices["offset"], slices["row"], slices["shard"])).astype(_DTYPES["documents"])


def write_array(file: BinaryIO, array: NDArray[Any]) -> None:
    """Writes one array of a part as a NumPy file; equal arrays give equal bytes."""
    np.lib.format.write_array(file, array, allow_pickle=False)


@dataclass(frozen=True)
class PlanPart:
    """One part of a source: consecutive sequences."""

    slices: PlanArray
    first: PlanArray
    documents: PlanArray

    def sequences_of(self, shard: int, row: int, begin: int, end: int) -> list[int]:
        """Returns the sequences with tokens of a document at the offsets `begin` .. `end` - 1, ascending."""
        sequences = set()
        for position in range(self._first_slice_of(shard, row), len(self.documents)):
            number = int(self.documents[position])
            slice_shard, slice_row, offset, length = self.slices[number].item()
            if (slice_shard, slice_row) != (shard, row) or offset >= end:
                break
            if offset + length > begin:
                sequences.add(bisect_right(self.first, number) - 1)
        return sorted(sequences)

    def _first_slice_of(self, shard: int, row: int) -> int:
        """Returns the index in `documents` of the first slice of a document, by bisection."""
        return bisect_right(
            range(len(self.documents)),
            (shard, row - 1),
            key=lambda position: self.slices[self.documents[position]].item()[:2],
        )


class Plan:
    """Reads a pack plan. Safe for use by several threads; picklable.

    Files are mapped when they are read, so ranks of one node share them. Of files of a remote store, the blocks that
    are read are fetched, into the cache that the ranks of a machine share.

    Args:
        summary: content of `summary.json`.
        folder: the files of the plan.

    Raises:
        InputError: the summary has another format.
    """

    def __init__(self, summary: dict[str, Any], folder: ArtifactFolder) -> None:
        if "tables" not in summary:
            raise InputError("the plan was packed by an earlier version of Sluice", "run the stage pack again")
        self.summary = summary
        self._folder = folder
        self.tables = Tables(folder, summary)
        self._reader = RangeReader(self._entry)
        self._part = lru_cache(MOST_MAPS // len(ARRAYS))(self._read_part)

    @classmethod
    def open(cls, artifact: Artifact) -> "Plan":
        """Opens the plan in an artifact of the stage pack; reads only the summary."""
        return cls(json.loads(artifact.read(SUMMARY)), artifact.folder)

    def close(self) -> None:
        """Ends the threads that fetch blocks."""
        self._reader.close()
        self.tables.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return Plan, (self.summary, self._folder)

    @property
    def seq_len(self) -> int:
        """Maximum number of tokens per sequence; sequences of `concat` have exactly this many."""
        return int(self.summary["seq_len"])

    @property
    def format(self) -> TokenFormat:
        """Format of the shards that were packed."""
        return TokenFormat(**{name: self.summary[name] for name in ("vocab_size", "eos_id", "tokenizer_sha256")})

    @property
    def shards(self) -> ShardNames:
        """Names of the shards; `SLICE.shard` is an index into them."""
        return ShardNames(self.tables)

    @property
    def sources(self) -> tuple[str, ...]:
        """The sources that have at least one sequence, sorted."""
        return tuple(source for source, count in sorted(self.sequences.items()) if count)

    @cached_property
    def sequences(self) -> dict[str, int]:
        """Source -> number of its sequences."""
        return {source: int(count) for source, count in self.summary["sequences"].items()}

    def slices(self, source: str, seq_id: int) -> Slices:
        """Returns the slices of a sequence in order of position, read-only, of shape (slices,).

        Raises:
            InputError: no such source, or a file of the plan is not readable.
            IndexError: no such sequence.
        """
        return self.slices_of([(source, seq_id)])[0]

    def slices_of(self, sequences: Sequence[tuple[str, int]]) -> list[Slices]:
        """Returns the slices of each of some sequences, as `slices` does; missing blocks are fetched together."""
        places = [self._place(source, seq_id) for source, seq_id in sequences]
        bounds = _items([(part.first, number, number + 2) for part, number in places])
        return _items([(part.slices, *ends.tolist()) for (part, _), ends in zip(places, bounds, strict=True)])

    def _place(self, source: str, seq_id: int) -> tuple[PlanPart, int]:
        """Returns the part with a sequence, and its number in the part."""
        rows = self._rows(source)
        if not 0 <= seq_id < self.sequences[source]:
            raise IndexError(f'"{source}" has the sequences 0 .. {self.sequences[source] - 1}, not {seq_id}')
        begins = self.tables.parts
        row = bisect_right(begins, seq_id, rows.start, rows.stop, key=lambda part: int(part["begin"])) - 1
        return self._part(source, row), seq_id - int(begins[row]["begin"])

    def sequences_of(self, source: str, shard: str, row: int, begin: int = 0, end: int = 2**32) -> list[int]:
        """Returns the sequences with tokens of a document, ascending: the inverse of `slices`.

        Args:
            source: source of the document.
            shard: name of its shard.
            row: its row in the shard.
            begin: first offset to consider, as in SLICE; by default that of the whole document.
            end: end of the offsets to consider, exclusive.
        """
        places, number, sequences = self._rows(source), self.shards.number(shard), list[int]()
        if number is None:
            return []
        parts = self.tables.parts  # of a source, in the order of their shards; neighbors may share one
        first = bisect_left(parts, number, places.start, places.stop, key=lambda part: int(part["last_shard"]))
        for place in range(first, places.stop):
            if number < parts[place]["first_shard"]:
                break
            if parts[place]["sequences"]:
                inside = self._part(source, place).sequences_of(number, row, begin, end)
                sequences += [int(parts[place]["begin"]) + sequence for sequence in inside]
        return sequences

    def _rows(self, source: str) -> range:
        """Returns the rows of a source in the table of parts."""
        if source not in self.sequences:
            raise InputError(f'the plan has no source "{source}"', nearest(source, self.sequences))
        return range(*self.summary["parts"][source])

    def _read_part(self, source: str, row: int) -> PlanPart:
        part = PlanPart(**{array: self._array(source, row, array) for array in ARRAYS})
        if len(part.first) != self.tables.parts[row]["sequences"] + 1 or len(part.slices) != len(part.documents):
            raise InputError(f'the plan of "{source}" does not fit its tables', "run the stage pack again")
        return part

    def _path(self, source: str, row: int, array: str) -> str:
        return f"{FOLDER}/{array_name(source, row - self._rows(source).start, array)}"

    def _entry(self, number: int) -> RangeEntry:
        """Returns a file of the plan: arrays are numbered by row of their part and place in ARRAYS."""
        row, place = divmod(number, len(ARRAYS))
        source = next(source for source, (first, end) in self.summary["parts"].items() if first <= row < end)
        return self.tables.array(row, ARRAYS[place], self._path(source, row, ARRAYS[place]))

    def _array(self, source: str, row: int, array: str) -> PlanArray:
        path = self._path(source, row, array)
        try:
            values: PlanArray
            if self._folder.store.is_local:
                values = load_array(self._folder.local(path), mapped=True)
            else:
                values = RangeArray(self._reader, row * len(ARRAYS) + ARRAYS.index(array), _DTYPES[array])
        except (OSError, ValueError, EOFError) as error:
            raise exhausted(error) or InputError(
                f"{path} is not readable ({error})", "run the stage pack again"
            ) from None
        if values.dtype != _DTYPES[array] or values.ndim != 1:
            raise InputError(f"{path} is no array of {_DTYPES[array]}", "run the stage pack again")
        return values


def _items(wanted: Sequence[tuple[PlanArray, int, int]]) -> list[NDArray[Any]]:
    """Returns the items (array, first, end) of arrays of one plan."""
    if wanted and isinstance(wanted[0][0], RangeArray):
        return read_together(cast("Sequence[tuple[RangeArray, int, int]]", wanted))
    return [array[first:end] for array, first, end in wanted]
