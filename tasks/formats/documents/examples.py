"""Tokenized fine-tuning examples, packed into sequences.

`examples/<part>.arrow` (Arrow IPC, uncompressed so that it can be memory-mapped) has one row of SCHEMA per example. An
example is one text, several texts of a conversation, or a preference pair of two: the chosen and the rejected text.
Sequences are not stored; they are computed from the lengths. `heldout/<part>.arrow` has the held-out examples in the
same form.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO, NamedTuple, TypedDict

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tasks.core.artifact import Artifact
from tasks.core.errors import InputError
from tasks.core.open_files import map_file
from tasks.formats.documents.chunks import BOX

FOLDER = "examples"
HELDOUT = "heldout"
SUMMARY = "examples.json"
"""{kind, vocab_size, eos_id, tokenizer_sha256, seq_len, template, files: {part: name of the file}}"""
OWN_BEGIN = "jinja"
"""Key of a template (the chat template of an imported model) that writes the first token of each text itself. Otherwise
the first token of a text is predicted from end-of-text, which is not stored."""
PREFERENCES = "preferences"
"""The kind whose examples are pairs."""
SOURCE = "examples"
"""Name of the only source, for the order of sequences."""
SCHEMA = pa.schema(
    [
        ("line", pa.int64()),
        ("id", pa.string()),
        ("lengths", pa.list_(pa.int32())),
        ("tokens", pa.list_(pa.uint32())),
        ("learned", pa.list_(pa.bool_())),
        ("document", pa.string()),
        ("url", pa.string()),
        ("source", pa.string()),
        ("pages", pa.list_(pa.int32())),
        ("boxes", pa.list_(BOX)),
    ]
)
"""line: 1-based line number in the source file of the part. id: id of the row (or "") or of the chunk. lengths: tokens
of each text, including its end-of-text token, if it has one. tokens: those of all texts, concatenated. learned: loss
mask, one per token. document, url, source, pages, boxes: those of the chunk (`chunks`), null for a row of a file; pages
and boxes are also null for a document without pages."""
_TOKENS = ("lengths", "tokens", "learned")
ROWS = 1024
"""Rows per record batch."""


@dataclass(frozen=True)
class Example:
    """One row of SCHEMA, with the path of its part; `origin` has the columns that are not tokens."""

    part: str
    origin: dict[str, Any]
    lengths: list[int]
    tokens: NDArray[np.uint32]
    learned: NDArray[np.bool_]


class LearnedText(NamedTuple):
    """A text to predict: token before it, tokens, and which of them are learned, shape (tokens,) each."""

    before: int
    tokens: NDArray[np.uint32]
    learned: NDArray[np.bool_]


class Writer:
    """Writes rows of SCHEMA as an Arrow file, one record batch at a time.

    Args:
        file: receives the bytes.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._writer = pa.ipc.new_file(file, SCHEMA)
        self._buffer: list[dict[str, Any]] = []

    def add(self, row: Mapping[str, Any]) -> None:
        """Writes one row; missing columns are null."""
        self._buffer.append({name: row.get(name) for name in SCHEMA.names})
        if len(self._buffer) == ROWS:
            self._flush()

    def __enter__(self) -> "Writer":
        return self

    def __exit__(self, *raised: object) -> None:
        if self._buffer:
            self._flush()
        self._writer.close()

    def _flush(self) -> None:
        self._writer.write_batch(pa.RecordBatch.from_pylist(self._buffer, SCHEMA))
        self._buffer = []


def pack(lengths: NDArray[np.int64], seq_len: int) -> NDArray[np.int64]:
    """Returns the index of the first example of each sequence, followed by the number of examples.

    Examples keep their order. Each joins the sequence of the previous example if it fits, else starts a new one
    (next-fit).

    >>> pack(np.array([3, 4, 2, 8]), 8)
    array([0, 2, 3, 4])
    """
    firsts, used = [0], 0
    for number, length in enumerate(lengths.tolist()):
        if used and used + length > seq_len:
            firsts.append(number)
            used = 0
        used += length
    return np.array([*firsts, len(lengths)] if len(lengths) else [0], dtype=np.int64)


class ExampleSource(TypedDict, total=False):
    """Provenance of an example: file, line and id of a row of a file, or the other fields for a chunk.

    `pages` and `boxes` are present only if the document has pages.
    """

    file: str
    line: int
    id: str | None
    chunk: str
    document: str
    url: str
    source: str
    pages: list[int]
    boxes: list[dict[str, Any]]


class Examples:
    """The examples of an artifact, mapped into memory, in the order of its parts.

    Args:
        artifact: an artifact of the stage `examples`.
        folder: FOLDER, or HELDOUT for the held-out examples.

    Raises:
        InputError: the artifact has no examples.
    """

    def __init__(self, artifact: Artifact, folder: str = FOLDER) -> None:
        self.summary: dict[str, Any] = json.loads(artifact.read(SUMMARY))
        self._folder = folder
        self.paths: Sequence[str] = artifact.files(f"{folder}/")
        self._tables = [pa.ipc.open_file(map_file(artifact.local(path))).read_all() for path in self.paths]
        rows = [table.num_rows for table in self._tables]
        self._begins = np.concatenate([[0], np.cumsum(rows)]).astype(np.int64)
        if not self._begins[-1]:
            raise InputError(f"{artifact.address} has no example", "see the rejected rows in its record")
        totals = [_totals(table) for table in self._tables]
        self.firsts = pack(np.concatenate(totals), int(self.summary["seq_len"]))

    @property
    def own_begin(self) -> bool:
        """Whether texts begin with their own first token, instead of being predicted from end-of-text."""
        return OWN_BEGIN in self.summary.get("template", {})

    @property
    def sequences(self) -> int:
        """Number of sequences."""
        return len(self.firsts) - 1

    @property
    def longest(self) -> int:
        """Number of tokens of the longest text."""
        return max(pc.max(pc.list_flatten(table.column("lengths"))).as_py() or 0 for table in self._tables)

    def numbers(self, sequence: int) -> range:
        """Returns the indices of the examples of a sequence."""
        return range(int(self.firsts[sequence]), int(self.firsts[sequence + 1]))

    def where(self, covers: Callable[[pa.Table], NDArray[np.bool_]]) -> list[int]:
        """Returns the indices of the examples whose document is covered, ascending.

        Args:
            covers: maps a table with columns id and url of documents to a mask of shape (rows,). Examples without a
                document are skipped.
        """
        numbers: list[int] = []
        for begin, table in zip(self._begins.tolist(), self._tables, strict=False):
            if "document" not in table.column_names:  # written by a version without chunks
                continue
            rows = np.flatnonzero(table.column("document").is_valid().to_numpy(zero_copy_only=False))
            documents = table.select(["document", "url"]).take(rows).rename_columns(["id", "url"])
            numbers += (begin + rows[covers(documents)]).tolist()
        return numbers

    def sequence_of(self, number: int) -> int:
        """Returns the sequence of an example."""
        return int(np.searchsorted(self.firsts, number, side="right")) - 1

    def place(self, number: int) -> tuple[int, int]:
        """Returns the index in `paths` and the row of an example."""
        part = int(np.searchsorted(self._begins, number, side="right")) - 1
        return part, number - int(self._begins[part])

    def __getitem__(self, number: int) -> Example:
        part, offset = self.place(number)
        row = self._tables[part].slice(offset, 1).combine_chunks()
        tokens, learned = (row.column(name).chunk(0).flatten() for name in ("tokens", "learned"))
        return Example(
            part=self.paths[part],
            origin={name: row[name][0].as_py() for name in row.column_names if name not in _TOKENS},
            lengths=row["lengths"][0].as_py(),
            tokens=tokens.to_numpy(),
            learned=learned.to_numpy(zero_copy_only=False),
        )

    def texts(self, example: Example, eos_id: int) -> list[LearnedText]:
        """Returns the texts of an example.

        The token before a text is end-of-text. If texts have their own begin, it is the first token of the text, and
        an end-of-text that is not learned follows the last one.
        """
        ends = np.cumsum(example.lengths)[:-1]
        parts = zip(np.split(example.tokens, ends), np.split(example.learned, ends), strict=True)
        if self.own_begin:
            return [
                LearnedText(int(tokens[0]), np.append(tokens[1:], np.uint32(eos_id)), np.append(learned[1:], False))
                for tokens, learned in parts
            ]
        return [LearnedText(eos_id, tokens, learned) for tokens, learned in parts]

    def source(self, example: Example) -> ExampleSource:
        """Returns the provenance of an example."""
        origin = example.origin
        if not origin.get("document"):
            name = example.part.removeprefix(f"{self._folder}/").removesuffix(".arrow")
            return {"file": self.summary["files"][name], "line": origin["line"], "id": origin["id"]}
        source: ExampleSource = {
            "chunk": origin["id"],
            "document": origin["document"],
            "url": origin["url"],
            "source": origin["source"],
        }
        if origin["pages"] is not None:
            source["pages"], source["boxes"] = origin["pages"], origin["boxes"]
        return source

    def sources(self, sequence: int) -> list[ExampleSource]:
        """Returns the provenance of the examples of a sequence, in order."""
        return [self.source(self[number]) for number in self.numbers(sequence)]


def has_heldout(artifact: Artifact) -> bool:
    """Returns whether an artifact has held-out examples."""
    return bool(artifact.record.metrics.get(HELDOUT))


def _totals(table: pa.Table) -> NDArray[np.int64]:
    """Returns the number of tokens of each example of a table, shape (rows,)."""
    chunks = [np.diff(chunk.offsets.to_numpy()) for chunk in table.column("tokens").chunks]
    return np.concatenate([np.zeros(0), *chunks]).astype(np.int64)
