"""Keyed permutations of the sequences of a source, in windows: few blocks of neighbors are read at a time.

Sequences that are neighbors in the plan are neighbors in the shards. A permutation of single sequences would need a
block of a file for each of them; so `block` neighbors are read from the same blocks, over many draws. An epoch of n
sequences is a table of positions with `columns` columns, which is read row by row:

    position = turn * columns + column
    column   has the blocks of neighbors P(column), P(columns + column), P(2 columns + column), ..
    turn     takes the next sequence of the column's block, in an order of the block's own

P is a keyed permutation of all blocks, so the blocks that are open at a time, one in each column, are from anywhere in
the source, and of `columns` successive draws no two are of one block. Column c begins c / columns of the way into its
first block and ends its last one there, so that equally many blocks begin in every turn. Of the n sequences fewer than
one per block are left over, at the end: they are permuted one by one. They are not the same in every epoch, since
blocks are counted from a keyed sequence on. A source with few blocks is permuted one by one as a whole.

Nothing is stored: a position is mapped to a sequence and back in constant time and memory.
"""

import hashlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tasks.formats.documents.text import mix

_ROUNDS = 8
_U64 = np.uint64
_BLOCK_TOKENS = 2**20
"""Tokens that are read together: 2 MB, or 4 MB with more than 65,536 tokens in the vocabulary."""
_COLUMNS = 1024
"""Fewest blocks that are open at a time of a source that has as many."""
_FEWEST = 64
"""Sources with fewer blocks are permuted one by one."""


class Windows(NamedTuple):
    """The sequences that are read in the same part of an epoch."""

    block: int
    """Neighbors that are read together, 1 or more; of a source up to twice as many."""
    columns: int
    """Blocks that are open at a time, a power of two; half of it or less of a source that has not as many."""
    fewest: int
    """Blocks from which on a source is permuted in windows."""

    @classmethod
    def of(cls, seq_len: int, batch_size: int) -> "Windows":
        """Returns the windows of a run: a batch has at most one sequence of each block."""
        columns = max(_COLUMNS, 1 << (batch_size - 1).bit_length())
        return cls(max(1, _BLOCK_TOKENS // seq_len), columns, _FEWEST)


class _Table(NamedTuple):
    """The table of an epoch, as numbers or as arrays of shape (k,)."""

    size: int | NDArray[np.int64]
    columns: int | NDArray[np.int64]
    rows: int | NDArray[np.int64]
    """Sequences of a column."""
    base: int | NDArray[np.int64]
    """Sequences of a block."""
    body: int | NDArray[np.int64]
    """Positions in the table; the sequences of the others are permuted one by one."""
    shift: int | NDArray[np.int64]
    """Sequence from which on blocks are counted."""

    @classmethod
    def of(cls, size: int, key: str, windows: Windows) -> "_Table":
        found = size // windows.block
        if found < windows.fewest:
            return cls(size, 1, 1, 1, 0, 0)
        columns = min(windows.columns, 1 << (found.bit_length() - 1))
        blocks = size // (columns * windows.block)
        base = size // (columns * blocks)
        shift = int.from_bytes(hashlib.blake2b(f"{key}/shift".encode(), digest_size=16).digest(), "little") % size
        return cls(size, columns, blocks * base, base, columns * blocks * base, shift)


class Permutations:
    """Permutations of ranges 0 .. size-1 that depend only on their keys, and their inverses.

    Args:
        sizes: sizes of the ranges, each 1 .. 2**62.
        keys: any texts; a key gives the same permutation in every process and on every machine.
        windows: see the module.
    """

    def __init__(self, sizes: Sequence[int], keys: Sequence[str], windows: Windows) -> None:
        for size in sizes:
            if not 1 <= size <= 2**62:
                raise ValueError(f"a permutation needs 1 .. 2**62 items, not {size}")
        tables = [_Table.of(size, key, windows) for size, key in zip(sizes, keys, strict=True)]
        self._tables = np.array(tables, dtype=np.int64).T
        # Networks of the sequences that are permuted one by one, then those of the blocks of the tables.
        in_blocks = [number for number, table in enumerate(tables) if table.body]
        blocks = [int(tables[number].body // tables[number].base) for number in in_blocks]
        self._networks = _Networks.of(
            [max(1, int(table.size - table.body)) for table in tables] + blocks,
            [*keys, *(f"{keys[number]}/blocks" for number in in_blocks)],
        )
        self._place = np.zeros(len(tables), np.int64)
        self._place[in_blocks] = np.arange(len(in_blocks))
        self._within = _Networks.of(
            [int(tables[number].base) for number in in_blocks], [f"{keys[number]}/within" for number in in_blocks]
        )

    def apply(self, numbers: NDArray[np.int64], positions: NDArray[np.integer]) -> NDArray[np.int64]:
        """Maps positions of the permutations `numbers` to items, int64; all of shape (k,)."""
        table, positions = _Table(*self._tables[:, numbers]), positions.astype(np.int64)
        in_table = positions < table.body
        turn, column = np.divmod(positions, table.columns)
        row = (turn + column * table.base // table.columns) % table.rows
        level, inside = np.divmod(row, table.base)
        given = np.where(in_table, level * table.columns + column, positions - table.body)
        found = self._take(numbers, in_table).walk(given)
        items = table.body + found
        if in_table.any():
            of_blocks = self._of_blocks(numbers[in_table], found[in_table]).walk(inside[in_table])
            items[in_table] = (found * table.base)[in_table] + of_blocks
        return (items + table.shift) % table.size

    def invert(self, numbers: NDArray[np.int64], items: NDArray[np.integer]) -> NDArray[np.int64]:
        """Maps items to the positions that `apply` maps to them."""
        table = _Table(*self._tables[:, numbers])
        items = (items.astype(np.int64) - table.shift) % table.size
        in_table = items < table.body
        block, inside = np.divmod(items, table.base)
        given = np.where(in_table, block, items - table.body)
        found = self._take(numbers, in_table).walk(given, invert=True)
        positions = table.body + found
        if in_table.any():
            within = inside.copy()
            within[in_table] = self._of_blocks(numbers[in_table], block[in_table]).walk(inside[in_table], invert=True)
            level, column = np.divmod(found, table.columns)
            turn = (level * table.base + within - column * table.base // table.columns) % table.rows
            positions = np.where(in_table, turn * table.columns + column, positions)
        return positions

    def _take(self, numbers: NDArray[np.int64], in_table: NDArray[np.bool_]) -> "_Networks":
        """Returns the network of a block or of a single sequence, for each of some values."""
        return self._networks.take(np.where(in_table, len(self._place) + self._place[numbers], numbers))

    def _of_blocks(self, numbers: NDArray[np.int64], blocks: NDArray[np.int64]) -> "_Networks":
        """Returns a network for each of some blocks: the keys of its permutation, mixed with its number."""
        networks = self._within.take(self._place[numbers])
        return networks._replace(keys=mix(networks.keys ^ mix(blocks.astype(_U64) + _U64(1))))


class Permutation:
    """One permutation of 0 .. n-1; see `Permutations`."""

    def __init__(self, n: int, key: str, windows: Windows) -> None:
        self.n = n
        self._one = Permutations([n], [key], windows)

    def apply(self, positions: NDArray[np.integer]) -> NDArray[np.int64]:
        """Maps positions (shape (k,), values 0 .. n-1) to items, int64 of the same shape."""
        return self._one.apply(np.zeros(len(positions), np.int64), positions)

    def invert(self, items: NDArray[np.integer]) -> NDArray[np.int64]:
        """Maps items (shape (k,), values 0 .. n-1) to the positions that `apply` maps to them."""
        return self._one.invert(np.zeros(len(items), np.int64), items)


class _Networks(NamedTuple):
    """Feistel networks, each a permutation of the smallest power of two (at least 4) that is at least its size.

    Shape (k,) for k networks, or for k values with one network for each.
    """

    sizes: NDArray[np.uint64]
    left: NDArray[np.uint64]
    """Bits of the left half of a value."""
    right: NDArray[np.uint64]
    """Bits of the right half: with an odd number of bits it has one more. The halves swap their widths in every round;
    an even number of rounds restores them."""
    keys: NDArray[np.uint64]
    """Keys of the rounds, shape (rounds, k)."""

    @classmethod
    def of(cls, sizes: Sequence[int], keys: Sequence[str]) -> "_Networks":
        """Returns one network for each size and key."""
        bits = np.array([max(2, (size - 1).bit_length()) for size in sizes], dtype=_U64)
        left = bits // _U64(2)
        digests = b"".join(hashlib.blake2b(key.encode(), digest_size=8 * _ROUNDS).digest() for key in keys)
        rounds = np.frombuffer(digests, dtype="<u8").astype(_U64).reshape(len(keys), _ROUNDS)
        return cls(np.array(sizes, dtype=_U64), left, bits - left, np.ascontiguousarray(rounds.T))

    def take(self, indices: NDArray[np.integer]) -> "_Networks":
        """Returns the networks of some values."""
        return _Networks(self.sizes[indices], self.left[indices], self.right[indices], self.keys[..., indices])

    def encrypt(self, x: NDArray[np.uint64]) -> NDArray[np.uint64]:
        """Maps values, shape (k,), to values of the same powers of two."""
        low_bits, high_bits = self.right, self.left
        high, low = x >> low_bits, x & _mask(low_bits)
        for key in self.keys:
            high, low = low, high ^ (mix(low ^ key) >> (_U64(64) - high_bits))
            high_bits, low_bits = low_bits, high_bits
        return (high << low_bits) | low

    def decrypt(self, x: NDArray[np.uint64]) -> NDArray[np.uint64]:
        """The inverse of `encrypt`."""
        low_bits, high_bits = self.right, self.left
        high, low = x >> low_bits, x & _mask(low_bits)
        for key in self.keys[::-1]:
            high_bits, low_bits = low_bits, high_bits
            high, low = low ^ (mix(high ^ key) >> (_U64(64) - high_bits)), high
        return (high << low_bits) | low

    def walk(self, values: NDArray[np.integer], *, invert: bool = False) -> NDArray[np.int64]:
        """Permutes values, shape (k,), each below the size of its network: int64 of the same shape, below it too.

        Results outside the size are permuted again until they are inside (cycle walking; Black & Rogaway 2002, "Ciphers
        with Arbitrary Finite Domains"). Beyond 4, the domain is smaller than twice the size, so a walk takes fewer than
        2 applications on average.
        """
        step = _Networks.decrypt if invert else _Networks.encrypt
        result = step(self, np.asarray(values).astype(_U64))
        outside = np.flatnonzero(result >= self.sizes)
        while outside.size:
            networks = self.take(outside)
            again = step(networks, result[outside])
            result[outside] = again
            outside = outside[again >= networks.sizes]
        return result.astype(np.int64)


def _mask(bits: NDArray[np.uint64]) -> NDArray[np.uint64]:
    return (_U64(1) << bits) - _U64(1)
