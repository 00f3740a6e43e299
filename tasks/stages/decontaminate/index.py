"""Index of evaluation n-grams: hash -> items.

Reads the files of the evaluation sets, on this machine or on an object store. Writes, in the artifact:

    index/items.parquet   every item: set, id, words, n-grams (ITEMS), in the order of the recipe and of the files
    index/ngrams.parquet  every n-gram of every item: hash and row of the item (NGRAMS), sorted

An item with fewer words than an n-gram has one n-gram of all its words or, below `shortest`, none.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tasks.core import parquet
from tasks.core.artifact import ArtifactFolder
from tasks.core.errors import InputError
from tasks.core.stage import Part
from tasks.formats.documents.external_files import SourceFile, find
from tasks.formats.documents.json_rows import parsed_rows
from tasks.formats.documents.parquet_rows import read_rows
from tasks.formats.documents.text import hash_words, ngrams, normal_words
from tasks.stages.decontaminate import DecontaminateConfig, EvaluationSet

ITEMS_FILE, NGRAMS_FILE = "index/items.parquet", "index/ngrams.parquet"

ITEMS = pa.schema(
    [
        pa.field("set", pa.string(), nullable=False),
        pa.field("id", pa.string(), nullable=False),
        pa.field("words", pa.int32(), nullable=False),
        pa.field("ngrams", pa.int32(), nullable=False),  # number of distinct n-grams; 0 for an item that is too short
        pa.field("beginning", pa.string(), nullable=False),  # of its text, for the report
    ]
)

NGRAMS = pa.schema(
    [pa.field("hash", pa.uint64(), nullable=False), pa.field("item", pa.int32(), nullable=False)]  # row of ITEMS
)

_BEGINNING = 160
_BITS = 24


class BenchmarkItem(NamedTuple):
    """One item of an evaluation set."""

    set: str
    id: str
    text: str


def files_of(settings: EvaluationSet) -> list[SourceFile]:
    """Returns the files of a set, sorted by name; raises like `tasks.formats.documents.external_files.find`."""
    return find(settings.path, f'the evaluation set "{settings.name}"')


def read_items(settings: EvaluationSet) -> Iterator[BenchmarkItem]:
    """Yields the items of a set, in the order of its files and rows.

    Raises:
        InputError: a file cannot be read, a line is not JSON, a field of a row is missing or not text, or there is no
            row.
    """
    empty = True
    for file in files_of(settings):
        for number, row in _read_parquet(file, settings) if settings.kind == "parquet" else parsed_rows(file):
            empty = False
            yield _parse_item(settings, file, number, row)
    if empty:
        raise InputError(
            f'the evaluation set "{settings.name}" has no item: {settings.path} is empty', "correct its path"
        )


def _read_parquet(file: SourceFile, settings: EvaluationSet) -> Iterator[tuple[int, Any]]:
    try:
        path = file.local()
        names = parquet.schema(path).names
        needed = {*settings.fields, settings.id_field}
        # If a field is missing, all columns are read, so that the error of `_parse_item` lists their names.
        columns = [name for name in names if name in needed] if set(settings.fields) <= set(names) else None
        yield from enumerate(read_rows(path, columns), start=1)
    except (OSError, pa.ArrowException) as error:
        raise InputError(f"{file.path} cannot be read ({error})", "repair or remove it") from error


def _parse_item(settings: EvaluationSet, file: SourceFile, number: int, row: Any) -> BenchmarkItem:
    where = f"{file.path}, line {number}" if settings.kind == "jsonl" else f"{file.path}, row {number}"
    if not isinstance(row, Mapping):
        raise InputError(f"{where}: not a JSON object", "write one item per line, as an object with its fields")
    texts = [
        text
        for field in settings.fields
        for text in _texts(settings, where, field, _value(settings, where, field, row))
    ]
    if not settings.id_field:
        return BenchmarkItem(settings.name, f"{file.name}:{number}", "\n".join(texts))
    value = _value(settings, where, settings.id_field, row)
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise InputError(
            f'{where}: the id "{settings.id_field}" is neither text nor a whole number', "name another field"
        )
    return BenchmarkItem(settings.name, str(value), "\n".join(texts))


def _value(settings: EvaluationSet, where: str, field: str, row: Mapping[str, Any]) -> Any:
    if field not in row:
        names = ", ".join(sorted(map(str, row))) or "none"
        raise InputError(
            f'{where}: no field "{field}" (fields: {names})',
            f'correct fields and id_field of the evaluation set "{settings.name}"',
        )
    return row[field]


def _texts(settings: EvaluationSet, where: str, field: str, value: Any) -> list[str]:
    texts = value if isinstance(value, list) else [] if value is None else [value]
    if not all(isinstance(text, str) for text in texts):
        raise InputError(
            f'{where}: the field "{field}" is neither a text nor a list of texts',
            f'name other fields of the evaluation set "{settings.name}"',
        )
    return texts


def build_index(config: DecontaminateConfig, items: Iterable[BenchmarkItem]) -> tuple[pa.Table, pa.Table]:
    """Returns the tables ITEMS and NGRAMS; memory is about 12 bytes per n-gram, and the table of items."""
    rows: list[tuple[str, str, int, int, str]] = []
    hashes: list[NDArray[np.uint64]] = [np.empty(0, np.uint64)]
    for item in items:
        words = normal_words(item.text)
        width = min(config.ngram, len(words))
        item_ngrams = np.empty(0, np.uint64)
        if width >= min(config.shortest, config.ngram):
            ((_, item_ngrams),) = ngrams(hash_words(words), [width])
            item_ngrams = np.unique(item_ngrams)
        hashes.append(item_ngrams)
        rows.append((item.set, item.id, len(words), len(item_ngrams), " ".join(item.text.split())[:_BEGINNING]))
    columns = list(zip(*rows, strict=True)) or [()] * len(ITEMS.names)
    table = pa.table([pa.array(column, kind.type) for column, kind in zip(columns, ITEMS, strict=True)], schema=ITEMS)
    all_hashes = np.concatenate(hashes)
    owners = np.repeat(np.arange(len(rows), dtype=np.int32), [len(item_hashes) for item_hashes in hashes[1:]])
    order = np.lexsort((owners, all_hashes))
    return table, pa.table([all_hashes[order], owners[order]], schema=NGRAMS)


def write_index(part: Part, items: pa.Table, ngrams_table: pa.Table) -> None:
    """Writes both tables."""
    for path, table in ((ITEMS_FILE, items), (NGRAMS_FILE, ngrams_table)):
        part.write_table(path, table)


@dataclass(frozen=True)
class NgramIndex:
    """The index in memory, for lookups.

    Attributes:
        hashes: the distinct n-grams, ascending, shape (n_ngrams,); the number of an n-gram is its index here.
        starts: index in `items` of the first item of each n-gram, and the end, shape (n_ngrams + 1,).
        items: rows of ITEMS, by n-gram.
        sizes: number of n-grams of each item, shape (n_items,); 0 for an item that is too short.
        widths: words per n-gram, ascending; several if there are items shorter than an n-gram.
        low_bits: whether a hash with these lowest `_BITS` bits exists, shape (2 ** _BITS,); ends nearly all lookups.
    """

    hashes: NDArray[np.uint64]
    starts: NDArray[np.int64]
    items: NDArray[np.int32]
    sizes: NDArray[np.int32]
    widths: Sequence[int]
    low_bits: NDArray[np.bool_]

    @classmethod
    def of(cls, ngram: int, items: pa.Table, ngrams_table: pa.Table) -> "NgramIndex":
        """Returns the index of the tables from `build_index`; `ngram` is the setting."""
        hashes, first = np.unique(ngrams_table.column("hash").to_numpy(), return_index=True)
        sizes, words = items.column("ngrams").to_numpy(), items.column("words").to_numpy()
        low_bits = np.zeros(1 << _BITS, np.bool_)
        low_bits[_low(hashes)] = True
        return cls(
            hashes=hashes,
            starts=np.append(first, ngrams_table.num_rows).astype(np.int64),
            items=ngrams_table.column("item").to_numpy(),
            sizes=sizes,
            widths=np.unique(np.minimum(words[sizes > 0], ngram)).tolist(),
            low_bits=low_bits,
        )

    @classmethod
    def read(cls, ngram: int, own: ArtifactFolder) -> "NgramIndex":
        """Reads the index of the stage's artifact."""
        return cls.of(ngram, own.table(ITEMS_FILE), own.table(NGRAMS_FILE))

    def find(self, hashes: NDArray[np.uint64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Returns the positions of those hashes that are in the index, ascending, and the numbers of their n-grams."""
        positions = np.flatnonzero(self.low_bits[_low(hashes)])
        numbers = np.searchsorted(self.hashes, hashes[positions])
        exists = numbers < len(self.hashes)
        exists[exists] = self.hashes[numbers[exists]] == hashes[positions[exists]]
        return positions[exists], numbers[exists]

    def items_of(self, numbers: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        """Returns all pairs of n-grams and items: positions in `numbers`, ascending, and rows of ITEMS."""
        counts = self.starts[numbers + 1] - self.starts[numbers]
        positions = np.repeat(np.arange(len(numbers)), counts)
        inside = np.arange(len(positions)) - np.repeat(np.cumsum(counts) - counts, counts)
        return positions, self.items[self.starts[numbers][positions] + inside]


def _low(hashes: NDArray[np.uint64]) -> NDArray[np.int64]:
    return (hashes & np.uint64((1 << _BITS) - 1)).astype(np.int64)
