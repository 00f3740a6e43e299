"""Suffix arrays over token shards: find the occurrences of any run of tokens in the training text.

Writes and reads, for a group of shards whose tokens are concatenated to one text in the order of shards and documents:

    spans/<group>.arrow       a memory-mapped Arrow IPC file of one batch, with the column `position` u32: start of a
                              suffix of the text, in tokens; the suffixes in lexicographic order
    spans/<group>-sample.npy  the first 8 tokens of every 512th suffix as bytes, the highest byte of each token first,
                              shape (suffixes / 512,)

The schema metadata has the names of the shards and the number of tokens. Tokens are not copied: a lookup is a binary
search that touches a few pages of this file and of the shards (Manber and Myers, "Suffix arrays", SIAM J. Comput. 22,
1993). It starts in the sample, whose pages all lookups share, and so saves half of the steps, each of which reads two
pages that other lookups do not share. Every document ends with the end-of-text token, so a run of tokens without it is
within one document.
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

from tasks.core.artifact import Artifact, ArtifactFolder
from tasks.core.errors import InputError
from tasks.core.open_files import MOST_MAPS, exhausted, load_array, map_file
from tasks.formats.tokens.shard import ShardSet

FOLDER = "spans"
MOST_TOKENS = 2**32
SCHEMA = pa.schema([pa.field("position", pa.uint32(), nullable=False)])
_META = b"sluice.spans"
SAMPLED_EVERY = 512
_SAMPLED_TOKENS = 8
_FIRST, _NEXT = 16, 512  # tokens to compare at once: most suffixes differ early, and matches are long


class TokenPosition(NamedTuple):
    """Position of a token in the shards."""

    shard: str
    row: int
    start: int
    """Index of the token in the document."""


@dataclass(frozen=True)
class _BatchRun:
    """The documents of one batch of a shard; `row` is the row of the first."""

    shard: str
    row: int
    tokens: NDArray[Any]
    offsets: NDArray[np.int32]

    def windows(self, first: NDArray[np.int64], count: int) -> NDArray[Any]:
        """Like `TokenText.windows`, with positions relative to this batch."""
        if len(self.tokens) >= count:
            windows: NDArray[Any] = sliding_window_view(self.tokens, count)[np.minimum(first, len(self.tokens) - count)]
        else:
            windows = np.empty((len(first), count), self.tokens.dtype)
        late = np.flatnonzero(first > len(self.tokens) - count)
        windows[late] = self.tokens[np.minimum(first[late, None] + np.arange(count), len(self.tokens) - 1)]
        return windows


class TokenText:
    """The tokens of some shards as one text, without copying them."""

    def __init__(self, runs: Sequence[_BatchRun]) -> None:
        self._runs = list(runs)
        self._starts = np.cumsum([0, *(len(run.tokens) for run in self._runs)]).tolist()

    @classmethod
    def of(cls, shards: ShardSet, names: Sequence[str]) -> "TokenText":
        """Returns the text of some shards, in the given order."""
        runs = []
        for name in names:
            row = 0
            for tokens, offsets in shards.shard(name).batches():
                runs.append(_BatchRun(name, row, tokens, offsets))
                row += len(offsets) - 1
        return cls(runs)

    @classmethod
    def joined(cls, texts: Iterable["TokenText"]) -> "TokenText":
        """Concatenates texts."""
        return cls([run for text in texts for run in text._runs])

    def __len__(self) -> int:
        """Number of tokens, including end-of-text tokens."""
        return int(self._starts[-1])

    def begins(self) -> dict[str, int]:
        """Returns the start of each shard in the text, in order."""
        begins: dict[str, int] = {}
        for run, start in zip(self._runs, self._starts, strict=False):
            begins.setdefault(run.shard, start)
        return begins

    def runs(self) -> Iterator[NDArray[Any]]:
        """Yields the tokens as consecutive views."""
        return (run.tokens for run in self._runs)

    def read(self, position: int, count: int) -> list[int]:
        """Returns `count` tokens from a position, fewer at the end of the text."""
        tokens: list[int] = []
        while len(tokens) < count and position < len(self):
            index = bisect_right(self._starts, position) - 1
            first = position - self._starts[index]
            chunk = self._runs[index].tokens[first : first + count - len(tokens)].tolist()
            tokens += chunk
            position += len(chunk)
        return tokens

    def windows(self, positions: NDArray[np.int64], count: int) -> NDArray[Any]:
        """Returns `count` tokens from each position, shape (positions, count), in the dtype of the shards.

        Tokens after an end-of-text token in a window are undefined; after the last document of a batch its end-of-text
        token is repeated.
        """
        windows = np.empty((len(positions), count), self._runs[0].tokens.dtype)
        run_numbers = np.searchsorted(self._starts, positions, side="right") - 1
        order = np.argsort(run_numbers, kind="stable")
        numbers, begins = np.unique(run_numbers[order], return_index=True)
        for number, rows in zip(numbers.tolist(), np.split(order, begins[1:]), strict=False):
            windows[rows] = self._runs[number].windows(positions[rows] - self._starts[number], count)
        return windows

    def place(self, position: int) -> TokenPosition:
        """Returns shard, row and token index of a position in the text."""
        index = bisect_right(self._starts, position) - 1
        run, first = self._runs[index], position - self._starts[index]
        row = int(np.searchsorted(run.offsets, first, side="right")) - 1
        return TokenPosition(run.shard, run.row + row, first - int(run.offsets[row]))


def group_name(index: int, count: int) -> str:
    """Returns the name of one of `count` groups of shards, which is the name of its part and file.

    >>> group_name(0, 2)
    'group-00000-of-00002'
    """
    return f"group-{index:05d}-of-{count:05d}"


def sample_path(path: str) -> str:
    """Returns the path of the sample of a suffix array.

    >>> sample_path("spans/group-00000-of-00001.arrow")
    'spans/group-00000-of-00001-sample.npy'
    """
    return f"{path.removesuffix('.arrow')}-sample.npy"


def write_suffixes(file: BinaryIO, suffixes: NDArray[np.uint32], shards: Sequence[str], tokens: int) -> None:
    """Writes the suffix array of a group of shards."""
    meta = json.dumps({"shards": list(shards), "tokens": tokens}, sort_keys=True).encode()
    schema = SCHEMA.with_metadata({_META: meta})
    with pa.ipc.new_file(file, schema) as writer:
        writer.write_batch(pa.record_batch([pa.array(suffixes)], schema=schema))


def write_sample(file: BinaryIO, suffixes: NDArray[np.uint32], text: TokenText, itemsize: int) -> None:
    """Writes the sample of a suffix array; tokens have `itemsize` bytes."""
    keys = (_key(text.read(int(position), _SAMPLED_TOKENS), itemsize) for position in suffixes[::SAMPLED_EVERY])
    np.lib.format.write_array(file, np.array(list(keys), dtype=f"S{_SAMPLED_TOKENS * itemsize}"), allow_pickle=False)


def _key(tokens: Sequence[int], itemsize: int) -> bytes:
    return np.array(tokens, dtype=f">u{itemsize}").tobytes()


class SuffixArray:
    """The suffix array of one group of shards, mapped into memory like its sample and its shards.

    Args:
        path: local path of the file.
        sample: local path of its sample.
        shards: the shards that it was built from.

    Raises:
        InputError: a file is not readable, or belongs to other shards or another suffix array.
    """

    def __init__(self, path: str, sample: str, shards: ShardSet) -> None:
        try:
            reader = pa.ipc.open_file(map_file(path))
            meta = json.loads(reader.schema.metadata[_META])
            self._suffixes = reader.get_batch(0).column("position").to_numpy()
        except (pa.ArrowInvalid, OSError, KeyError, TypeError) as error:
            raise exhausted(error) or InputError(
                f"{path} is not a readable suffix array ({error})", "run the stage spans again"
            ) from None
        self.text = TokenText.of(shards, meta["shards"])
        if not len(self.text) == len(self._suffixes) == meta["tokens"]:
            raise InputError(f"{path} was built from other shards", "run the stage spans again")
        self.maps = 2 + len(meta["shards"])
        """Files that it maps."""
        self._itemsize = shards.format.itemsize
        try:
            self._keys: NDArray[np.bytes_] = load_array(sample, mapped=True)
        except (OSError, ValueError, EOFError) as error:
            raise exhausted(error) or InputError(
                f"{sample} is not readable ({error})", "run the stage spans again"
            ) from None
        keys = -(-len(self._suffixes) // SAMPLED_EVERY)
        if self._keys.dtype != f"S{_SAMPLED_TOKENS * self._itemsize}" or len(self._keys) != keys:
            raise InputError(f"{sample} is of another suffix array", "run the stage spans again")

    @classmethod
    def of(cls, spans: ArtifactFolder, name: str, shards: ShardSet) -> "SuffixArray":
        """Opens the suffix array of a group by its name; remote files are fetched into a local cache."""
        path = f"{FOLDER}/{name}.arrow"
        return cls(spans.local(path), spans.local(sample_path(path)), shards)

    def __len__(self) -> int:
        """Number of tokens of the text."""
        return len(self._suffixes)

    def longest(self, tokens: Sequence[int]) -> int:
        """Returns the length of the longest prefix of the tokens that occurs in the text."""
        (low, high), in_low, in_high = self._between(tokens), 0, 0
        while low < high:
            middle = (low + high) // 2
            # All suffixes between two share the prefix that both share with the tokens.
            common, above = self._compare(tokens, middle, min(in_low, in_high))
            if common == len(tokens):
                return common
            if above:
                low, in_low = middle + 1, common
            else:
                high, in_high = middle, common
        return max(in_low, in_high)

    def find(self, tokens: Sequence[int]) -> tuple[int, int]:
        """Returns the range (first, end) of suffixes that begin with the tokens; first equals end if there are none."""
        return self._edge(tokens, after=False), self._edge(tokens, after=True)

    def position(self, suffix: int) -> int:
        """Returns the start of a suffix in the text."""
        return int(self._suffixes[suffix])

    def positions(self, first: int, end: int) -> NDArray[np.int64]:
        """Returns the starts of the suffixes `first` .. `end` - 1 in the text, in lexicographic order."""
        positions: NDArray[np.int64] = self._suffixes[first:end].astype(np.int64)
        return positions

    def _between(self, tokens: Sequence[int]) -> tuple[int, int]:
        """Returns the range (first, end) of suffixes to search for some tokens, by the sample.

        It contains all suffixes that begin with the tokens, the last suffix before these and the first one after them.
        """
        # A key may end in zeros, which NumPy does not distinguish from padding, so equal keys stay in the range.
        least = _key(tokens[:_SAMPLED_TOKENS], self._itemsize)
        most = least.ljust(_SAMPLED_TOKENS * self._itemsize, b"\xff")
        before = int(np.searchsorted(self._keys, least, "left")) - 1
        after = int(np.searchsorted(self._keys, most, "right"))
        return max(before, 0) * SAMPLED_EVERY, min(after * SAMPLED_EVERY + 1, len(self._suffixes))

    def _edge(self, tokens: Sequence[int], *, after: bool) -> int:
        (low, high), in_low, in_high = self._between(tokens), 0, 0
        while low < high:
            middle = (low + high) // 2
            common, above = self._compare(tokens, middle, min(in_low, in_high))
            if above or (after and common == len(tokens)):
                low, in_low = middle + 1, common
            else:
                high, in_high = middle, common
        return low

    def _compare(self, tokens: Sequence[int], suffix: int, common: int) -> tuple[int, bool]:
        """Returns the length of the common prefix of tokens and a suffix, and whether the tokens sort after the suffix.

        The first `common` tokens are known to be equal. A suffix that begins with all the tokens does not sort before
        them.
        """
        position, most = self.position(suffix), _FIRST
        while common < len(tokens):
            wanted = list(tokens[common : common + most])
            actual = self.text.read(position + common, len(wanted))
            if actual != wanted:
                differs = (index for index, (a, b) in enumerate(zip(wanted, actual, strict=False)) if a != b)
                return common + next(differs, len(actual)), wanted > actual
            common, most = common + len(wanted), _NEXT
        return common, False


def group_names(artifact: Artifact) -> list[str]:
    """Returns the names of the groups of an artifact of the stage spans, in order."""
    paths = (path for path in artifact.files(f"{FOLDER}/") if path.endswith(".arrow"))
    return [path.removeprefix(f"{FOLDER}/").removesuffix(".arrow") for path in paths]


class SpanIndex:
    """All suffix arrays of an artifact of the stage spans; remote files are fetched into a local cache.

    Keeps the newest ones that map at most MOST_MAPS files together. Not safe for use by several threads.

    Args:
        artifact: an artifact of the stage spans.
        shards: the shards that it was built from.

    Raises:
        InputError: a file cannot be read, or was built from other shards.
    """

    def __init__(self, artifact: Artifact, shards: ShardSet) -> None:
        self._artifact, self._shards = artifact, shards
        self._names = group_names(artifact)
        self._open: dict[str, SuffixArray] = {}  # the one that was used least recently first
        self._maps = 0
        self.tokens = sum(map(len, self._groups()))
        """Number of training tokens, including end-of-text tokens."""

    def longest(self, tokens: Sequence[int]) -> int:
        """Returns the length of the longest prefix of the tokens that occurs in the training text."""
        return max((group.longest(tokens) for group in self._groups()), default=0)

    def count(self, tokens: Sequence[int]) -> int:
        """Returns the number of occurrences of a run of tokens in the training text."""
        return sum(end - first for first, end in (group.find(tokens) for group in self._groups()))

    def places(self, tokens: Sequence[int], most: int) -> list[TokenPosition]:
        """Returns the occurrences of a run of tokens; if there are more than `most`, that many, evenly spaced."""
        ranges = [group.find(tokens) for group in self._groups()]
        total = sum(end - first for first, end in ranges)
        selected = np.unique(np.linspace(0, total - 1, min(most, total)).astype(np.int64)).tolist() if total else []
        positions, before = [], 0
        for name, (first, end) in zip(self._names, ranges, strict=True):
            if suffixes := [index - before + first for index in selected if before <= index < before + end - first]:
                group = self._group(name)
                positions += [group.text.place(group.position(suffix)) for suffix in suffixes]
            before += end - first
        return positions

    def _groups(self) -> Iterator[SuffixArray]:
        return map(self._group, self._names)

    def _group(self, name: str) -> SuffixArray:
        group = self._open.pop(name, None)
        if group is None:
            group = SuffixArray.of(self._artifact, name, self._shards)
            self._maps += group.maps
        self._open[name] = group
        while self._maps > MOST_MAPS and len(self._open) > 1:
            self._maps -= self._open.pop(next(iter(self._open))).maps
        return group
