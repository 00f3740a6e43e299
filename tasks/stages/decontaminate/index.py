"""Index of evaluation n-grams: hash -> items.

Built from the evaluation sets in one process, and written in the artifact:

    index/items.parquet   every item: set, id, words, n-grams (ITEMS), in the order of the recipe and of the files
    index/ngrams.parquet  every n-gram of every item: hash, row of the item (NGRAMS), sorted

An item with fewer words than an n-gram is one n-gram of all its words, or, below `shortest`, none.

Items (id and text) are read from the files that the settings name, on this machine or on an object store.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from tasks.core import parquet
from tasks.core.errors import InputError
from tasks.core.stage import Part
from tasks.core.store import Store
from tasks.formats.documents.external_files import SourceFile, find
from tasks.formats.documents.json_rows import parsed_rows
from tasks.formats.documents.text import hash_words, ngrams, normalise
from tasks.stages.decontaminate import DecontaminateConfig, EvaluationSet

_ROWS_AT_ONCE = 256
ITEMS_FILE, NGRAMS_FILE = "index/items.parquet", "index/ngrams.parquet"

ITEMS = pa.schema(
    [
        pa.field("set", pa.string(), nullable=False),
        pa.field("id", pa.string(), nullable=False),
        pa.field("words", pa.int32(), nullable=False),
        pa.field("ngrams", pa.int32(), nullable=False),  # distinct ones; 0 for an item that is too short
        pa.field("beginning", pa.string(), nullable=False),  # of its text, for people
    ]
)

NGRAMS = pa.schema(
    [pa.field("hash", pa.uint64(), nullable=False), pa.field("item", pa.int32(), nullable=False)]  # row of ITEMS
)

_BEGINNING = 160
_BITS = 24


class Item(NamedTuple):
    """One item of an evaluation set."""

    set: str
    id: str
    text: str


def files_of(one: EvaluationSet) -> list[SourceFile]:
    """Returns the files of a set, sorted by name; raises as `tasks.formats.documents.external_files.find` does."""
    return find(one.path, f'the evaluation set "{one.name}"')


def read_items(one: EvaluationSet) -> Iterator[Item]:
    """Yields the items of a set, in the order of its files and rows.

    Raises:
        InputError: a file cannot be read, a line is not JSON, a row lacks a field or has something else than text in
            it, or there is no row at all.
    """
    empty = True
    for file in files_of(one):
        for number, row in _parquet_rows(file, one) if one.kind == "parquet" else parsed_rows(file):
            empty = False
            yield _item(one, file, number, row)
    if empty:
        raise InputError(f'the evaluation set "{one.name}" has no item: {one.path} is empty', "correct its path")


def _parquet_rows(file: SourceFile, one: EvaluationSet) -> Iterator[tuple[int, Any]]:
    try:
        path = file.local()
        there = parquet.schema(path).names
        wanted = {*one.fields, one.id_field}
        # With a field missing, all of them are read: `_item` names it, and those that there are.
        columns = [name for name in there if name in wanted] if set(one.fields) <= set(there) else None
        with parquet.open_file(path) as rows:
            batches = rows.iter_batches(batch_size=_ROWS_AT_ONCE, columns=columns)
            yield from enumerate((row for batch in batches for row in batch.to_pylist()), start=1)
    except (OSError, pa.ArrowException) as error:
        raise InputError(f"{file.path} cannot be read ({error})", "mend it or leave it out") from error


def _item(one: EvaluationSet, file: SourceFile, number: int, row: Any) -> Item:
    where = f"{file.path}, line {number}" if one.kind == "jsonl" else f"{file.path}, row {number}"
    if not isinstance(row, Mapping):
        raise InputError(f"{where}: no JSON object", "write one item per line, as an object with its fields")
    texts = [text for field in one.fields for text in _texts(one, where, field, _value(one, where, field, row))]
    if not one.id_field:
        return Item(one.name, f"{file.name}:{number}", "\n".join(texts))
    value = _value(one, where, one.id_field, row)
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise InputError(f'{where}: the id "{one.id_field}" is neither text nor a whole number', "name another field")
    return Item(one.name, str(value), "\n".join(texts))


def _value(one: EvaluationSet, where: str, field: str, row: Mapping[str, Any]) -> Any:
    if field not in row:
        names = ", ".join(sorted(map(str, row))) or "none"
        raise InputError(
            f'{where}: no field "{field}" (there are: {names})',
            f'correct fields and id_field of the evaluation set "{one.name}"',
        )
    return row[field]


def _texts(one: EvaluationSet, where: str, field: str, value: Any) -> list[str]:
    texts = value if isinstance(value, list) else [] if value is None else [value]
    if not all(isinstance(text, str) for text in texts):
        raise InputError(
            f'{where}: the field "{field}" is neither a text nor a list of texts',
            f'name other fields of the evaluation set "{one.name}"',
        )
    return texts


def build_index(config: DecontaminateConfig, items: Iterable[Item]) -> tuple[pa.Table, pa.Table]:
    """Returns the tables ITEMS and NGRAMS; memory is about 12 bytes per n-gram, and the table of items."""
    rows: list[tuple[str, str, int, int, str]] = []
    hashes: list[NDArray[np.uint64]] = [np.empty(0, np.uint64)]
    for item in items:
        split = normalise(item.text).split()
        width = min(config.ngram, len(split))
        found = np.empty(0, np.uint64)
        if width >= min(config.shortest, config.ngram):
            ((_, found),) = ngrams(hash_words(split), [width])
            found = np.unique(found)
        hashes.append(found)
        rows.append((item.set, item.id, len(split), len(found), " ".join(item.text.split())[:_BEGINNING]))
    columns = list(zip(*rows, strict=True)) or [()] * len(ITEMS.names)
    table = pa.table([pa.array(column, kind.type) for column, kind in zip(columns, ITEMS, strict=True)], schema=ITEMS)
    every = np.concatenate(hashes)
    owners = np.repeat(np.arange(len(rows), dtype=np.int32), [len(one) for one in hashes[1:]])
    order = np.lexsort((owners, every))
    return table, pa.table([every[order], owners[order]], schema=NGRAMS)


def write_index(part: Part, items: pa.Table, found: pa.Table) -> None:
    """Writes both tables."""
    for path, table in ((ITEMS_FILE, items), (NGRAMS_FILE, found)):
        with part.file(path, rows=table.num_rows) as file:
            pq.write_table(table, file, compression="zstd", compression_level=3)


@dataclass(frozen=True)
class NgramIndex:
    """The index in memory, for look-ups.

    Attributes:
        hashes: the distinct n-grams, ascending, shape (n-grams,); the number of an n-gram is its place here.
        starts: where the items of each n-gram begin in `items`, shape (n-grams + 1,).
        items: rows of ITEMS by n-gram.
        sizes: n-grams of each item, shape (items,); 0 for one that is not looked for.
        widths: words per n-gram, ascending: more than one width where there are items shorter than an n-gram.
        seen: which values the last `_BITS` bits of the hashes have: nearly all look-ups end here.
    """

    hashes: NDArray[np.uint64]
    starts: NDArray[np.int64]
    items: NDArray[np.int32]
    sizes: NDArray[np.int32]
    widths: Sequence[int]
    seen: NDArray[np.bool_]

    @classmethod
    def of(cls, ngram: int, items: pa.Table, found: pa.Table) -> "NgramIndex":
        """Returns the index of the tables that `build_index` returns; `ngram` is the setting."""
        hashes, first = np.unique(found.column("hash").to_numpy(), return_index=True)
        sizes, words = items.column("ngrams").to_numpy(), items.column("words").to_numpy()
        seen = np.zeros(1 << _BITS, np.bool_)
        seen[_low(hashes)] = True
        return cls(
            hashes=hashes,
            starts=np.append(first, found.num_rows).astype(np.int64),
            items=found.column("item").to_numpy(),
            sizes=sizes,
            widths=np.unique(np.minimum(words[sizes > 0], ngram)).tolist(),
            seen=seen,
        )

    @classmethod
    def read(cls, ngram: int, store: Store, folder: str) -> "NgramIndex":
        """Reads the index of the artifact in `folder`."""
        tables = [parquet.read(store.local(f"{folder}/{path}")) for path in (ITEMS_FILE, NGRAMS_FILE)]
        return cls.of(ngram, *tables)

    def find(self, hashes: NDArray[np.uint64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Returns the places of those hashes that are in the index, ascending, and the number of each one's n-gram."""
        places = np.flatnonzero(self.seen[_low(hashes)])
        numbers = np.searchsorted(self.hashes, hashes[places])
        there = numbers < len(self.hashes)
        there[there] = self.hashes[numbers[there]] == hashes[places[there]]
        return places[there], numbers[there]

    def items_of(self, numbers: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        """Returns all pairs of n-grams and items: places in `numbers`, ascending, and rows of ITEMS."""
        counts = self.starts[numbers + 1] - self.starts[numbers]
        places = np.repeat(np.arange(len(numbers)), counts)
        inside = np.arange(len(places)) - np.repeat(np.cumsum(counts) - counts, counts)
        return places, self.items[self.starts[numbers][places] + inside]


def _low(hashes: NDArray[np.uint64]) -> NDArray[np.int64]:
    return (hashes & np.uint64((1 << _BITS) - 1)).astype(np.int64)
