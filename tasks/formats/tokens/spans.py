"""Suffix arrays over token shards: where any run of tokens stands in the training text.

Writes and reads, for a group of shards whose tokens are read as one text, shard after shard, document after document:

    spans/<group>.arrow       a memory-mapped Arrow IPC file of one batch, with the column `position` u32: where a
                              suffix of the text begins, in tokens; the suffixes in lexicographic order
    spans/<group>-sample.npy  the first 8 tokens of every 512th suffix as bytes, the highest byte of each token first,
                              shape (suffixes / 512,)

The schema metadata has the names of the shards and the number of tokens. Tokens are not copied: a look-up is a binary
search and touches a few pages of this file and of the shards (Manber and Myers, "Suffix arrays", SIAM J. Comput. 22,
1993). It begins in the sample, in memory, which saves half of the steps, each of which reads two pages that no other
look-up needs. Every document ends with the end-of-text token, so a run of tokens without it lies within one document.
"""

import json
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from tasks.core import npy
from tasks.core.artifact import Artifact, ArtifactFolder
from tasks.core.errors import InputError
from tasks.formats.tokens.shard import ShardSet

FOLDER = "spans"
MOST_TOKENS = 2**32
SCHEMA = pa.schema([pa.field("position", pa.uint32(), nullable=False)])
_META = b"sluice.spans"
SAMPLED_EVERY = 512
_SAMPLED_TOKENS = 8
_FIRST, _NEXT = 16, 512  # tokens compared at once: most suffixes differ early, and equal ones are long


class Place(NamedTuple):
    """Position of a token in the shards."""

    shard: str
    row: int
    start: int
    """The token, counted in the document."""


@dataclass(frozen=True)
class _Run:
    """The documents of one batch of a shard; `row` is the first of them."""

    shard: str
    row: int
    tokens: NDArray[Any]
    offsets: NDArray[np.int32]

    def windows(self, first: NDArray[np.int64], count: int) -> NDArray[Any]:
        """See `Text.windows`; positions are counted in this batch."""
        if len(self.tokens) >= count:
            found: NDArray[Any] = sliding_window_view(self.tokens, count)[np.minimum(first, len(self.tokens) - count)]
        else:
            found = np.empty((len(first), count), self.tokens.dtype)
        late = np.flatnonzero(first > len(self.tokens) - count)
        found[late] = self.tokens[np.minimum(first[late, None] + np.arange(count), len(self.tokens) - 1)]
        return found


class Text:
    """The tokens of some shards as one text; nothing is copied."""

    def __init__(self, runs: Sequence[_Run]) -> None:
        self._runs = list(runs)
        self._starts = np.cumsum([0, *(len(run.tokens) for run in self._runs)]).tolist()

    @classmethod
    def of(cls, shards: ShardSet, names: Sequence[str]) -> "Text":
        """Returns the text of the shards `names`, in this order."""
        runs = []
        for name in names:
            row = 0
            for tokens, offsets in shards.shard(name).batches():
                runs.append(_Run(name, row, tokens, offsets))
                row += len(offsets) - 1
        return cls(runs)

    @classmethod
    def joined(cls, texts: Iterable["Text"]) -> "Text":
        """Returns several texts as one, in their order."""
        return cls([run for text in texts for run in text._runs])

    def __len__(self) -> int:
        """Number of tokens, with the end-of-text tokens."""
        return int(self._starts[-1])

    def begins(self) -> dict[str, int]:
        """Returns where each shard begins in the text, in order."""
        found: dict[str, int] = {}
        for run, start in zip(self._runs, self._starts, strict=False):
            found.setdefault(run.shard, start)
        return found

    def runs(self) -> Iterator[NDArray[Any]]:
        """Yields the tokens, in views one after the other."""
        return (run.tokens for run in self._runs)

    def read(self, position: int, count: int) -> list[int]:
        """Returns `count` tokens from a position, fewer at the end of the text."""
        found: list[int] = []
        while len(found) < count and position < len(self):
            index = bisect_right(self._starts, position) - 1
            first = position - self._starts[index]
            more = self._runs[index].tokens[first : first + count - len(found)].tolist()
            found += more
            position += len(more)
        return found

    def windows(self, positions: NDArray[np.int64], count: int) -> NDArray[Any]:
        """Returns `count` tokens from each position, shape (positions, count), in the type of the shards.

        Behind the last document of a batch its end-of-text token is repeated: what follows an end-of-text token within
        a window is of no meaning.
        """
        found = np.empty((len(positions), count), self._runs[0].tokens.dtype)
        which = np.searchsorted(self._starts, positions, side="right") - 1
        order = np.argsort(which, kind="stable")
        numbers, begins = np.unique(which[order], return_index=True)
        for number, rows in zip(numbers.tolist(), np.split(order, begins[1:]), strict=False):
            found[rows] = self._runs[number].windows(positions[rows] - self._starts[number], count)
        return found

    def place(self, position: int) -> Place:
        """Returns the document and its token at a position."""
        index = bisect_right(self._starts, position) - 1
        run, first = self._runs[index], position - self._starts[index]
        row = int(np.searchsorted(run.offsets, first, side="right")) - 1
        return Place(run.shard, run.row + row, first - int(run.offsets[row]))


def group_name(index: int, count: int) -> str:
    """Returns the name of one of `count` groups of shards, that of the part and its file.

    >>> group_name(0, 2)
    'group-00000-of-00002'
    """
    return f"group-{index:05d}-of-{count:05d}"


def sample_of(path: str) -> str:
    """Returns the file with the sample of a suffix array.

    >>> sample_of("spans/group-00000-of-00001.arrow")
    'spans/group-00000-of-00001-sample.npy'
    """
    return f"{path.removesuffix('.arrow')}-sample.npy"


def write_suffixes(file: BinaryIO, suffixes: NDArray[np.uint32], shards: Sequence[str], tokens: int) -> None:
    """Writes the suffix array of a group of shards."""
    meta = json.dumps({"shards": list(shards), "tokens": tokens}, sort_keys=True).encode()
    schema = SCHEMA.with_metadata({_META: meta})
    with pa.ipc.new_file(file, schema) as writer:
        writer.write_batch(pa.record_batch([pa.array(suffixes)], schema=schema))


def write_sample(file: BinaryIO, suffixes: NDArray[np.uint32], text: Text, itemsize: int) -> None:
    """Writes the sample of a suffix array; tokens have `itemsize` bytes."""
    keys = (_key(text.read(int(position), _SAMPLED_TOKENS), itemsize) for position in suffixes[::SAMPLED_EVERY])
    np.lib.format.write_array(file, np.array(list(keys), dtype=f"S{_SAMPLED_TOKENS * itemsize}"), allow_pickle=False)


def _key(tokens: Sequence[int], itemsize: int) -> bytes:
    return np.array(tokens, dtype=f">u{itemsize}").tobytes()


class Sample:
    """The sample of one suffix array, in memory.

    Args:
        path: local path of the file.
        suffixes: number of suffixes of the whole array.
        itemsize: bytes per token.

    Raises:
        InputError: the file is not readable, or is of another array.
    """

    def __init__(self, path: str, suffixes: int, itemsize: int) -> None:
        try:
            self._keys: NDArray[np.bytes_] = npy.load(path)
        except (OSError, ValueError, EOFError) as error:
            raise InputError(f"{path} is not readable ({error})", "run the stage spans again") from None
        if self._keys.dtype != f"S{_SAMPLED_TOKENS * itemsize}" or len(self._keys) != -(-suffixes // SAMPLED_EVERY):
            raise InputError(f"{path} is of another suffix array", "run the stage spans again")
        self._suffixes = suffixes
        self._itemsize = itemsize

    def between(self, tokens: Sequence[int]) -> tuple[int, int]:
        """Returns the range (first, end) of suffixes with the place of some tokens among them.

        It has the last suffix before that place and the first one behind it, and all that begin with the tokens.
        """
        # A key may end in zeros, which NumPy does not tell from padding: equal keys are left within the range.
        least, most = self._edges(tokens)
        before = int(np.searchsorted(self._keys, least, "left")) - 1
        behind = int(np.searchsorted(self._keys, most, "right"))
        return max(before, 0) * SAMPLED_EVERY, min(behind * SAMPLED_EVERY + 1, self._suffixes)

    def _edges(self, tokens: Sequence[int]) -> Iterator[bytes]:
        key = _key(tokens[:_SAMPLED_TOKENS], self._itemsize)
        yield key
        yield key.ljust(_SAMPLED_TOKENS * self._itemsize, b"\xff")


class SuffixArray:
    """The suffix array of one group of shards, mapped into memory.

    Args:
        path: local path of the file.
        sample: local path of its sample.
        shards: the shards that it was made from.

    Raises:
        InputError: the file is no suffix array, or one of other shards.
    """

    def __init__(self, path: str, sample: str, shards: ShardSet) -> None:
        try:
            reader = pa.ipc.open_file(pa.memory_map(path))
            meta = json.loads(reader.schema.metadata[_META])
            self._suffixes = reader.get_batch(0).column("position").to_numpy()
        except (pa.ArrowInvalid, OSError, KeyError, TypeError) as error:
            raise InputError(f"{path} is not a readable suffix array ({error})", "run the stage spans again") from None
        self.text = Text.of(shards, meta["shards"])
        if not len(self.text) == len(self._suffixes) == meta["tokens"]:
            raise InputError(f"{path} was made from other shards", "run the stage spans again")
        self._sample = Sample(sample, len(self._suffixes), shards.format.itemsize)

    @classmethod
    def of(cls, spans: ArtifactFolder, name: str, shards: ShardSet) -> "SuffixArray":
        """Opens the suffix array of a group by its name; remote files are fetched into a local cache."""
        path = f"{FOLDER}/{name}.arrow"
        return cls(spans.local(path), spans.local(sample_of(path)), shards)

    def __len__(self) -> int:
        """Number of tokens of the text."""
        return len(self._suffixes)

    def longest(self, tokens: Sequence[int]) -> int:
        """Returns how many of the first tokens stand in the text in a row."""
        (low, high), in_low, in_high = self._sample.between(tokens), 0, 0
        while low < high:
            middle = (low + high) // 2
            # All suffixes between two have in common what these two have in common with the tokens.
            common, above = self._compare(tokens, middle, min(in_low, in_high))
            if common == len(tokens):
                return common
            if above:
                low, in_low = middle + 1, common
            else:
                high, in_high = middle, common
        return max(in_low, in_high)

    def find(self, tokens: Sequence[int]) -> tuple[int, int]:
        """Returns the range of suffixes that begin with the tokens: first and end, equal where there is none."""
        return self._edge(tokens, after=False), self._edge(tokens, after=True)

    def position(self, suffix: int) -> int:
        """Returns where a suffix begins in the text."""
        return int(self._suffixes[suffix])

    def positions(self, first: int, end: int) -> NDArray[np.int64]:
        """Returns where the suffixes `first` .. `end` - 1 begin in the text, in lexicographic order."""
        found: NDArray[np.int64] = self._suffixes[first:end].astype(np.int64)
        return found

    def _edge(self, tokens: Sequence[int], *, after: bool) -> int:
        (low, high), in_low, in_high = self._sample.between(tokens), 0, 0
        while low < high:
            middle = (low + high) // 2
            common, above = self._compare(tokens, middle, min(in_low, in_high))
            if above or (after and common == len(tokens)):
                low, in_low = middle + 1, common
            else:
                high, in_high = middle, common
        return low

    def _compare(self, tokens: Sequence[int], suffix: int, common: int) -> tuple[int, bool]:
        """Returns how many first tokens a suffix has in common, and whether the tokens come after it.

        `common` of them are known to be equal. A suffix that begins with all the tokens does not come before them.
        """
        position, most = self.position(suffix), _FIRST
        while common < len(tokens):
            wanted = list(tokens[common : common + most])
            found = self.text.read(position + common, len(wanted))
            if found != wanted:
                differs = (index for index, (a, b) in enumerate(zip(wanted, found, strict=False)) if a != b)
                return common + next(differs, len(found)), wanted > found
            common, most = common + len(wanted), _NEXT
        return common, False


def groups_of(artifact: Artifact) -> list[str]:
    """Returns the names of the groups of an artifact of the stage spans, in order."""
    paths = (path for path in artifact.files(f"{FOLDER}/") if path.endswith(".arrow"))
    return [path.removeprefix(f"{FOLDER}/").removesuffix(".arrow") for path in paths]


class SpanIndex:
    """All suffix arrays of an artifact of the stage spans; remote files are fetched into a local cache.

    Args:
        artifact: an artifact of the stage spans.
        shards: the shards that it was made from.

    Raises:
        InputError: a file cannot be read, or was made from other shards.
    """

    def __init__(self, artifact: Artifact, shards: ShardSet) -> None:
        self._groups = [SuffixArray.of(artifact, name, shards) for name in groups_of(artifact)]
        self.tokens = sum(map(len, self._groups))
        """Training tokens, with the end-of-text tokens."""

    def longest(self, tokens: Sequence[int]) -> int:
        """Returns how many of the first tokens stand in the training text in a row."""
        return max((group.longest(tokens) for group in self._groups), default=0)

    def count(self, tokens: Sequence[int]) -> int:
        """Returns how often a run of tokens stands in the training text."""
        return sum(end - first for first, end in (group.find(tokens) for group in self._groups))

    def places(self, tokens: Sequence[int], most: int) -> list[Place]:
        """Returns where a run of tokens stands; where there are more than `most` places, as many, evenly chosen."""
        ranges = [(group, *group.find(tokens)) for group in self._groups]
        total = sum(end - first for _, first, end in ranges)
        wanted = np.unique(np.linspace(0, total - 1, min(most, total)).astype(np.int64)).tolist() if total else []
        found, before = [], 0
        for group, first, end in ranges:
            mine = (index - before + first for index in wanted if before <= index < before + end - first)
            found += [group.text.place(group.position(suffix)) for suffix in mine]
            before += end - first
        return found
