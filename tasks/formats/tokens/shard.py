"""Token shards: whole documents as tokens in memory-mapped Arrow IPC files, written once.

Reads and writes `shards/<source>-<split>-<part>-<piece>.arrow`, each with one source and one split ("train" or
"heldout"). Each row is a document:

    doc_uid   fixed_size_binary(16)   the document's id as bytes
    tokens    list<uint16 | uint32>   uint16 for vocabularies up to 65,536 entries; the last token is end-of-text
    n_tokens  uint32                  including end-of-text
    n_bytes   uint32                  UTF-8 bytes of the text, the denominator of bits per byte
    source, split  string
    label columns  dictionary<int32, string>   columns of the document by which sequences can be grouped (`labels`)

Files are not compressed, so a slice of a document is a zero-copy view into the page cache. Dictionaries are sorted, so
equal documents give equal bytes. The schema metadata has `vocab_size`, `eos_id` and the sha256 of the tokenizer.
`Shard` maps a whole file, `ShardSet` all shards of an encoding; `read_format`, `read_uids` and `read_label` read a few
ranges of an open file.
"""

import json
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tasks.core.artifact import Artifact, ArtifactFolder
from tasks.core.config import nearest
from tasks.core.errors import InputError
from tasks.core.open_files import MOST_MAPS, exhausted, map_file
from tasks.formats.tokens.components import JOINT, columns_of, joint_name
from tasks.formats.tokens.labels import BASE_COLUMNS, SOURCE, label

_LABEL_TYPE = pa.dictionary(pa.int32(), pa.string())

TRAIN = "train"
HELDOUT = "heldout"
SPLITS = (TRAIN, HELDOUT)
FOLDER = "shards"
META = b"sluice.tokens"
BATCH_ROWS = 8192
_WRITE_BYTES = 1 << 20


@dataclass(frozen=True)
class TokenFormat:
    """Format of all shards of one artifact."""

    vocab_size: int
    eos_id: int
    tokenizer_sha256: str

    @property
    def dtype(self) -> str:
        """NumPy dtype name of the tokens: uint16 if the vocabulary fits, else uint32."""
        return "uint16" if self.vocab_size <= 65_536 else "uint32"

    @property
    def itemsize(self) -> int:
        """Bytes per token."""
        return np.dtype(self.dtype).itemsize

    def schema(self, labels: Iterable[str] = ()) -> pa.Schema:
        """Returns the Arrow schema of a shard with the given label columns."""
        fields = [
            ("doc_uid", pa.binary(16)),
            ("tokens", pa.list_(pa.from_numpy_dtype(self.dtype))),
            ("n_tokens", pa.uint32()),
            ("n_bytes", pa.uint32()),
            ("source", pa.string()),
            ("split", pa.string()),
            *((name, _LABEL_TYPE) for name in labels),
        ]
        meta = json.dumps(self.__dict__, sort_keys=True).encode()
        return pa.schema([pa.field(name, kind, nullable=False) for name, kind in fields], metadata={META: meta})


@dataclass(frozen=True)
class ShardBuffer:
    """Documents of one shard to write: Arrow arrays of equal length."""

    source: str
    split: str
    uids: pa.FixedSizeBinaryArray
    tokens: pa.LargeListArray
    """Of unsigned integers, shape (rows, tokens of the document)."""
    n_bytes: pa.UInt32Array
    labels: Mapping[str, pa.StringArray] = field(default_factory=dict)
    """Label column -> label of each document."""


def uid_bytes(uids: pa.FixedSizeBinaryArray) -> NDArray[np.uint8]:
    """Returns ids of 16 bytes as an array, shape (rows, 16), without copying them."""
    # An Arrow buffer of fixed-size values has no offsets, only 16 bytes per row.
    return np.frombuffer(uids.buffers()[1], np.uint8).reshape(-1, 16)[uids.offset :][: len(uids)]


def _uid_array(uids: NDArray[np.uint8]) -> pa.FixedSizeBinaryArray:
    return pa.FixedSizeBinaryArray.from_buffers(pa.binary(16), len(uids), [None, pa.py_buffer(uids)])


def list_array(tokens: Sequence[NDArray[Any]]) -> pa.LargeListArray:
    """Returns the tokens of documents, each of shape (tokens,), as one array, shape (documents, tokens)."""
    offsets = np.cumsum([0, *map(len, tokens)], dtype=np.int64)
    return pa.LargeListArray.from_arrays(offsets, np.concatenate(tokens) if tokens else np.empty(0, np.uint32))


def shard_name(source: str, split: str, part: int, piece: int) -> str:
    """Returns a shard's name, unique in its artifact.

    >>> shard_name("web", "train", 3, 0)
    'web-train-00003-000'
    """
    return f"{source}-{split}-{part:05d}-{piece:03d}"


def shard_path(name: str) -> str:
    """Returns the path of a shard in its artifact.

    >>> shard_path("web-train-00003-000")
    'shards/web-train-00003-000.arrow'
    """
    return f"{FOLDER}/{name}.arrow"


def parse_shard_name(name: str) -> tuple[str, str]:
    """Returns (source, split) from a shard's name.

    >>> parse_shard_name("my-site-heldout-00003-000")
    ('my-site', 'heldout')
    """
    source, split, _, _ = name.rsplit("-", 3)
    return source, split


def part_number(name: str) -> int:
    """Returns the number of the part of documents that a shard was encoded from.

    >>> part_number("my-site-heldout-00003-000")
    3
    """
    return int(name.rsplit("-", 2)[1])


def write_shard(file: BinaryIO, buffer: ShardBuffer, fmt: TokenFormat) -> NDArray[np.int64]:
    """Writes one shard; equal documents give equal bytes.

    Returns:
        the offset of the first token of each document, as in `Shard.token_offsets`, shape (rows,).
    """
    schema = fmt.schema(buffer.labels)
    labels = [_dictionary_encoded(values) for values in buffer.labels.values()]
    uids, offsets_by_batch = uid_bytes(buffer.uids), [np.empty(0, np.int64)]
    sink = pa.output_stream(pa.PythonFile(file, mode="w"), buffer_size=_WRITE_BYTES)
    with pa.ipc.new_file(sink, schema) as writer:
        for first in range(0, len(buffer.uids), BATCH_ROWS):
            rows = slice(first, first + BATCH_ROWS)
            tokens = buffer.tokens[rows]
            edges = tokens.offsets.to_numpy()
            offsets = (edges - edges[0]).astype(np.int32)
            # Of an Arrow slice, the file would have bytes that follow it; of a NumPy slice it has none.
            values = tokens.values.to_numpy()[edges[0] : edges[-1]].astype(fmt.dtype, copy=False)
            columns = [
                _uid_array(uids[rows]),
                pa.ListArray.from_arrays(pa.array(offsets), pa.array(values), type=schema.field("tokens").type),
                pa.array(np.diff(offsets).astype(np.uint32)),
                pa.array(buffer.n_bytes.to_numpy()[rows]),
                pa.repeat(buffer.source, len(tokens)),
                pa.repeat(buffer.split, len(tokens)),
                *(column[rows] for column in labels),
            ]
            batch = pa.record_batch(columns, schema=schema)
            writer.write_batch(batch)
            offsets_by_batch.append((sink.tell() - _size_from_tokens(batch)) // fmt.itemsize + offsets[:-1])
    sink.flush()
    return np.concatenate(offsets_by_batch)


def _size_from_tokens(batch: pa.RecordBatch) -> int:
    """Returns the size in bytes of a written batch from its first token on.

    Arrow IPC format: the buffers of the columns in order, each padded to 8 bytes, at the end of the batch; columns
    without nulls have no validity buffer.
    """
    rows, sizes = len(batch), [batch.column("tokens").values.nbytes]
    for column in batch.columns[2:]:
        is_text = pa.types.is_string(column.type)
        sizes += [4 * (rows + 1), pc.sum(pc.binary_length(column)).as_py() or 0] if is_text else [4 * rows]
    return sum(-(-size // 8) * 8 for size in sizes)


def column_of(name: str) -> str:
    """Returns the column of the documents from which a label is read.

    >>> column_of("tier"), column_of("metadata.topic")
    ('tier', 'metadata')
    """
    return name.partition(".")[0]


def label_values(column: pa.Array, name: str) -> pa.StringArray:
    """Returns the label of each value in a column of the documents, shape (rows,).

    Args:
        column: the column that `column_of` names.
        name: the label; the part after a dot names a field of the column's JSON objects.

    Raises:
        InputError: see `label`.
    """
    if inner := name.partition(".")[2]:
        fields = (json.loads(value).get(inner) if value else None for value in column.to_pylist())
        return pa.array([label(value, name) for value in fields], pa.string())
    if not pa.types.is_string(column.type):
        return pa.array([label(value, name) for value in column.to_pylist()], pa.string())
    values = column.dictionary_encode("encode")  # few distinct values: `label` is called once for each
    names = pa.array([label(value, name) for value in values.dictionary.to_pylist()], pa.string())
    return names.take(values.indices)


class Shard:
    """One shard, mapped into memory.

    Args:
        path: local path of the file `<name>.arrow`.

    Raises:
        InputError: the file is not a token shard or is truncated.
    """

    def __init__(self, path: str) -> None:
        try:
            self._bytes = map_file(path)
            reader = pa.ipc.open_file(self._bytes)
            meta = json.loads(reader.schema.metadata[META])
        except (pa.ArrowInvalid, OSError, KeyError, TypeError) as error:
            raise exhausted(error) or InputError(
                f"{path} is not a readable token shard ({error})", "run the stage encode again"
            ) from None
        self.format = TokenFormat(**meta)
        self._reader = reader
        self._mapped_batches: dict[int, _ShardBatch] = {}
        count = reader.num_record_batches
        # All batches except the last are full, so a row is located without reading the others.
        self.rows = (count - 1) * BATCH_ROWS + reader.get_batch(count - 1).num_rows if count else 0
        """Number of documents in the shard."""

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Tokens of each document, shape (rows,)."""
        return self._column("n_tokens").astype(np.int64)

    @property
    def n_tokens(self) -> int:
        """Tokens of all documents."""
        return int(self._column("n_tokens").sum(dtype=np.int64))

    @property
    def token_offsets(self) -> NDArray[np.int64]:
        """Offset of each document's first token from the beginning of the file, in units of tokens, shape (rows,)."""
        batches = [self._batch(index) for index in range(self._reader.num_record_batches)]
        parts = [batch.base + batch.offsets[:-1].astype(np.int64) for batch in batches]
        return np.concatenate([*parts, np.empty(0, np.int64)])

    def token_offset(self, row: int) -> int:
        """Returns the offset of the first token of the document in a row; see `token_offsets`."""
        batch, position = self._locate(row)
        return batch.base + int(batch.offsets[position])

    @property
    def flat(self) -> NDArray[Any]:
        """The bytes of the file as tokens: `flat[offset : offset + n]` are the tokens of a plan's slice.

        A read-only view, without trailing bytes that do not fill a token.
        """
        count = len(self._bytes) // self.format.itemsize
        view: NDArray[Any] = np.frombuffer(self._bytes, self.format.dtype, count)
        return view

    @property
    def n_bytes(self) -> NDArray[np.int64]:
        """UTF-8 bytes of each document, shape (rows,)."""
        return self._column("n_bytes").astype(np.int64)

    @property
    def uids(self) -> NDArray[np.uint8]:
        """The documents' ids, shape (rows, 16)."""
        parts = [uid_bytes(batch.column("doc_uid")) for batch in self._batches()]
        return np.concatenate([*parts, np.empty((0, 16), np.uint8)])

    def column(self, name: str) -> pa.DictionaryArray:
        """Returns the column `source` or a label column, shape (rows,); raises InputError if there is none.

        Of several columns, "source+language", the values are joint names, "web+ja".
        """
        return _read_columns(self._batches(), self._reader.schema, columns_of(name))

    def uid(self, row: int) -> bytes:
        """Returns the id of the document in a row."""
        batch, position = self._locate(row)
        return bytes(batch.records.column("doc_uid")[position].as_py())

    def slice(self, row: int, start: int, length: int) -> NDArray[Any]:
        """Returns `length` tokens of a document from its token `start` on, a read-only view of shape (length,).

        Raises:
            IndexError: the row or the range does not exist.
        """
        batch, position = self._locate(row)
        first, end = int(batch.offsets[position]), int(batch.offsets[position + 1])
        if start < 0 or length < 0 or first + start + length > end:
            raise IndexError(f"row {row} has {end - first} tokens, not {start} .. {start + length}")
        view: NDArray[Any] = batch.flat[first + start : first + start + length]
        return view

    def batches(self) -> Iterator[tuple[NDArray[Any], NDArray[np.int32]]]:
        """Yields for each batch the concatenated tokens, and the offsets of its documents, shape (rows + 1,)."""
        for index in range(self._reader.num_record_batches):
            batch = self._batch(index)
            yield batch.flat, batch.offsets

    def _locate(self, row: int) -> "tuple[_ShardBatch, int]":
        if not 0 <= row < self.rows:
            raise IndexError(f"the shard has the rows 0 .. {self.rows - 1}, not {row}")
        index, position = divmod(row, BATCH_ROWS)
        return self._batch(index), position

    def _batch(self, index: int) -> "_ShardBatch":
        if index not in self._mapped_batches:
            records = self._reader.get_batch(index)
            self._mapped_batches[index] = _ShardBatch.of(records, self._bytes.address, self.format.itemsize)
        return self._mapped_batches[index]

    def _batches(self) -> list[pa.RecordBatch]:
        return [self._reader.get_batch(index) for index in range(self._reader.num_record_batches)]

    def _column(self, name: str) -> NDArray[Any]:
        parts = [batch.column(name).to_numpy(zero_copy_only=True) for batch in self._batches()]
        return np.concatenate([*parts, np.empty(0, np.uint32)])


@dataclass(frozen=True)
class _ShardBatch:
    """One batch of a shard; `flat` has its tokens, and `base` is their offset in the file in units of tokens."""

    records: pa.RecordBatch
    flat: NDArray[Any]
    offsets: NDArray[np.int32]
    base: int

    @classmethod
    def of(cls, records: pa.RecordBatch, file: int, itemsize: int) -> "_ShardBatch":
        tokens = records.column("tokens")
        flat = tokens.values.to_numpy()
        # The values are a view into the mapped file: the difference of addresses is the offset. Arrow aligns buffers.
        return cls(records, flat, tokens.offsets.to_numpy(), (flat.ctypes.data - file) // itemsize)


def _read_columns(batches: Sequence[pa.RecordBatch], schema: pa.Schema, names: Sequence[str]) -> pa.DictionaryArray:
    """Returns one column, or the joint names of several over all batches, whose dictionary is sorted."""
    first, *others = (_read_column(batches, schema, name) for name in names)
    for other in others:
        # Codes of pairs of values, of which few occur.
        codes = first.indices.to_numpy().astype(np.int64) * len(other.dictionary) + other.indices.to_numpy()
        pairs, indices = np.unique(codes, return_inverse=True)
        left, right = np.divmod(pairs, max(len(other.dictionary), 1))
        joint = pc.binary_join_element_wise(first.dictionary.take(left), other.dictionary.take(right), JOINT)
        order = np.argsort(np.array(joint.to_pylist(), dtype=object), kind="stable")
        rank = np.empty_like(order)
        rank[order] = np.arange(len(order))
        first = pa.DictionaryArray.from_arrays(pa.array(rank[indices].astype(np.int32)), joint.take(pa.array(order)))
    return first


def _read_column(batches: Iterable[pa.RecordBatch], schema: pa.Schema, name: str) -> pa.DictionaryArray:
    """Returns the column `source` or a label column over all batches; raises InputError if there is none."""
    _check_column(schema, name)
    parts = [batch.column(name) for batch in batches]
    column = pa.chunked_array(parts, schema.field(name).type)
    if name == SOURCE:
        column = column.dictionary_encode()
    column = column.unify_dictionaries().combine_chunks()
    return column if isinstance(column, pa.DictionaryArray) else column.chunk(0)


def _check_column(schema: pa.Schema, name: str) -> None:
    """Raises InputError unless `name` is `source` or a label column of the schema."""
    columns = [SOURCE, *(field.name for field in schema if field.name not in BASE_COLUMNS)]
    if name not in columns:
        raise InputError(
            f'the token shards have no column "{name}": {nearest(name, columns)}',
            "name it in [encode] columns and run the stage encode again",
        )


def _dictionary_encoded(values: pa.StringArray) -> pa.DictionaryArray:
    """Returns the values of a column, dictionary-encoded with a sorted dictionary, shape (rows,).

    >>> _dictionary_encoded(pa.array(["silver", "gold", "silver"])).dictionary.to_pylist()
    ['gold', 'silver']
    """
    names = pa.array(sorted(values.unique().to_pylist()), pa.string())
    return pa.DictionaryArray.from_arrays(pc.index_in(values, names), names)


class ShardEntry(NamedTuple):
    """What is known of a shard without opening it."""

    path: str
    """In the folder of its artifact."""
    rows: int
    tokens: int
    part: str = ""
    """Part of the artifact that has it; "" if the shard was not opened from an artifact."""


class ShardSet:
    """All shards of an encoding. Files are mapped when they are read; picklable and safe to use after a fork.

    Args:
        entries: the shards by name.
        folder: the files of an artifact; None: the paths are of local files.
    """

    def __init__(self, entries: Mapping[str, ShardEntry], folder: ArtifactFolder | None) -> None:
        self._entries = entries
        self._folder = folder
        self._shard = lru_cache(MOST_MAPS)(self._map)

    @classmethod
    def open(cls, artifact: Artifact) -> "ShardSet":
        """Opens the shards of an artifact of the stage encode.

        Remote files are fetched into a local cache, each when it is first read.
        """
        prefixes, entries = artifact.only or ("",), {}
        for part in artifact.parts:
            for file in part.files:
                if file.path.startswith(f"{FOLDER}/") and file.path.startswith(prefixes):
                    if file.rows is None or file.tokens is None:
                        raise InputError(
                            f"{artifact.address} has no count of the tokens of {file.path}",
                            "run the stage encode again",
                        )
                    # A cached copy of a remote file has another name, so shards are named after the artifact's files.
                    entries[Path(file.path).stem] = ShardEntry(file.path, file.rows, file.tokens, part.name)
        if not entries:
            raise InputError(f"{artifact.address} contains no token shard", "run the stage encode again")
        return cls(entries, artifact.folder)

    def __reduce__(self) -> tuple[Any, ...]:
        return ShardSet, (self._entries, self._folder)

    @property
    def format(self) -> TokenFormat:
        """Vocabulary size, end-of-text token and tokenizer."""
        return self.shard(next(iter(self._entries))).format

    @property
    def sources(self) -> tuple[str, ...]:
        """The sources, sorted."""
        return tuple(sorted({parse_shard_name(name)[0] for name in self._entries}))

    @property
    def all_names(self) -> tuple[str, ...]:
        """The names of all shards, sorted."""
        return tuple(sorted(self._entries))

    def names(self, source: str, split: str = TRAIN) -> tuple[str, ...]:
        """Returns the names of a source's shards of one split, sorted."""
        return tuple(sorted(name for name in self._entries if parse_shard_name(name) == (source, split)))

    def entry(self, name: str) -> ShardEntry:
        """Returns what is known of a shard without opening it; raises InputError if there is none."""
        if name not in self._entries:
            raise InputError(f"no token shard is called {name}", "use the plan that was packed from these shards")
        return self._entries[name]

    def shard(self, name: str) -> Shard:
        """Returns a shard by name; raises InputError if there is none."""
        return self._shard(name)

    def _map(self, name: str) -> Shard:
        path = self.entry(name).path
        return Shard(self._folder.local(path) if self._folder else path)

    def n_tokens(self, source: str, split: str = TRAIN) -> int:
        """Returns the number of tokens of a source."""
        return sum(self.entry(name).tokens for name in self.names(source, split))

    def n_documents(self, source: str, split: str = TRAIN) -> int:
        """Returns the number of documents of a source."""
        return sum(self.entry(name).rows for name in self.names(source, split))

    def heldout(self, source: str) -> Iterator[tuple[bytes, NDArray[Any], int]]:
        """Yields (id, tokens including end-of-text, number of UTF-8 bytes) of the held-out documents of a source."""
        for name in self.names(source, HELDOUT):
            shard = self.shard(name)
            for row, (length, size) in enumerate(zip(shard.lengths.tolist(), shard.n_bytes.tolist(), strict=True)):
                yield shard.uid(row), shard.slice(row, 0, length), size


def read_format(file: BinaryIO, name: str) -> TokenFormat:
    """Returns the format of a shard; `name` appears in messages.

    Raises:
        InputError: the file is not a token shard.
    """
    try:
        return TokenFormat(**json.loads(_open_column(file).schema.metadata[META]))
    except (pa.ArrowInvalid, KeyError, TypeError) as error:
        raise InputError(f"{name} is not a readable token shard ({error})", "run the stage encode again") from None


def read_uids(file: BinaryIO, rows: Collection[int]) -> dict[int, str]:
    """Returns the ids (hex) of the documents in some rows of a shard, as a dict by row."""
    reader = _open_column(file)
    uids_by_row = {}
    for index in sorted({row // BATCH_ROWS for row in rows}):
        uids = reader.get_batch(index).column("doc_uid")
        inside = (row for row in rows if row // BATCH_ROWS == index)
        uids_by_row.update({row: uids[row % BATCH_ROWS].as_py().hex() for row in inside})
    return uids_by_row


def read_label(file: BinaryIO, row: int, name: str) -> str:
    """Returns the value of the column `source` or a label column, or of several, for the document in a row.

    Raises:
        InputError: the shard has no such column.
    """
    schema, columns = pa.ipc.open_file(pa.PythonFile(file, mode="r")).schema, columns_of(name)
    for column in columns:
        _check_column(schema, column)
    batch = _open_column(file, *map(schema.get_field_index, columns)).get_batch(row // BATCH_ROWS)
    return joint_name(str(batch.column(column)[row % BATCH_ROWS].as_py()) for column in columns)


def read_labels(file: BinaryIO, name: str) -> tuple[pa.DictionaryArray, NDArray[np.int64]]:
    """Returns `Shard.column` and `Shard.lengths`, shape (rows,) each; no tokens are read.

    Raises:
        InputError: the shard has no such column.
    """
    schema, columns = pa.ipc.open_file(pa.PythonFile(file, mode="r")).schema, columns_of(name)
    for column in columns:
        _check_column(schema, column)
    reader = _open_column(file, *sorted({schema.get_field_index(column) for column in (*columns, "n_tokens")}))
    batches = [reader.get_batch(index) for index in range(reader.num_record_batches)]
    lengths = [batch.column("n_tokens").to_numpy() for batch in batches]
    return _read_columns(batches, schema, columns), np.concatenate([*lengths, np.empty(0, np.uint32)]).astype(np.int64)


def count_labels(file: BinaryIO, by: str) -> dict[tuple[str, str, str], int]:
    """Returns the tokens of a shard by (value of `by`, other label column or `source`, its label).

    Of several columns in `by`, each is also one of the others.

    Raises:
        InputError: the shard has no column `by`.
    """
    schema, columns = pa.ipc.open_file(pa.PythonFile(file, mode="r")).schema, columns_of(by)
    for column in columns:
        _check_column(schema, column)
    others = [name for name in schema.names if name == SOURCE or name not in BASE_COLUMNS]
    fields = [schema.get_field_index(name) for name in (*others, "n_tokens")]
    counts: Counter[tuple[str, str, str]] = Counter()
    reader = _open_column(file, *fields)
    for index in range(reader.num_record_batches):
        batch = pa.Table.from_batches([reader.get_batch(index)])
        for name in others:
            if name != by:
                keys = list(dict.fromkeys([*columns, name]))
                sums = batch.group_by(keys).aggregate([("n_tokens", "sum")])
                for row in sums.to_pylist():
                    value = joint_name(row[column] for column in columns)
                    counts[value, name, row[name]] += row["n_tokens_sum"]
    return dict(counts)


def _open_column(file: BinaryIO, *columns: int) -> Any:
    # Column 0 is `doc_uid`. Columns that are not included are not read.
    options = pa.ipc.IpcReadOptions(included_fields=list(columns or (0,)))
    return pa.ipc.open_file(pa.PythonFile(file, mode="r"), options=options)
