"""An index of the words of documents: which rows have all words of a search, in the order of the files.

Files are SQLite databases (`words/<group>.sqlite`), each for some consecutive files of documents, with

    files        first row in the index, and path of each file of documents
    scores       prose score of each row
    words        an FTS5 table without content and positions: the words of title, URL and text of each row, and a word
                 for each value of COLUMNS, by which a search is restricted

Words are those of `tasks.formats.documents.text.words`; case and accents are ignored, and in scripts without spaces
every letter is a word. The bytes depend on the version of SQLite, which the header of its files records.
"""

import os
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from tasks.core.artifact import Artifact
from tasks.core.errors import InputError
from tasks.formats.documents.key_index import key_of
from tasks.formats.documents.text import words

FOLDER = "words"
KEPT = "kept/"
COLUMNS = ("source", "host", "language", "tier")
"""Columns to whose values a search can be restricted."""

_SCHEMA = """
CREATE TABLE files (first INTEGER PRIMARY KEY, path TEXT NOT NULL);
CREATE TABLE scores (row INTEGER PRIMARY KEY, score REAL);
CREATE VIRTUAL TABLE words USING fts5(text, content='', detail=none, tokenize='unicode61 remove_diacritics 2');
"""


class IndexedRow(NamedTuple):
    """A row of documents: path of its file, and row in the file."""

    path: str
    row: int


def group_name(number: int, count: int) -> str:
    """Returns the name of a group of files."""
    return f"group-{number:05d}-of-{count:05d}"


class TextIndexWriter:
    """Writes one index; a context manager that holds it in a temporary folder."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="sluice-words-")
        self._connection = sqlite3.connect(Path(self._folder.name) / "words.sqlite", isolation_level=None)
        self._connection.executescript(f"PRAGMA journal_mode = off; PRAGMA synchronous = off; {_SCHEMA}")
        self._connection.execute("BEGIN")
        self.rows = 0

    def __enter__(self) -> "TextIndexWriter":
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()
        self._folder.cleanup()

    def begin(self, path: str) -> None:
        """Begins a file of documents."""
        self._connection.execute("INSERT OR REPLACE INTO files VALUES (?, ?)", (self.rows, path))

    def add(self, documents: Sequence[Mapping[str, Any]]) -> None:
        """Adds rows of the file: title, url, text, prose_score and COLUMNS."""
        numbers = range(self.rows, self.rows + len(documents))
        entries = zip(numbers, map(_indexed, documents), strict=True)
        self._connection.executemany("INSERT INTO words (rowid, text) VALUES (?, ?)", entries)
        scores = ((number, row["prose_score"]) for number, row in zip(numbers, documents, strict=True))
        self._connection.executemany("INSERT INTO scores VALUES (?, ?)", scores)
        self.rows += len(documents)

    def write(self, file: BinaryIO) -> None:
        """Ends the index and writes it."""
        whole = os.path.join(self._folder.name, "whole.sqlite")
        self._connection.execute("INSERT INTO words (words) VALUES ('optimize')")
        self._connection.execute("COMMIT")
        self._connection.execute("VACUUM INTO ?", (whole,))
        with open(whole, "rb") as source:
            shutil.copyfileobj(source, file, 1 << 20)


def _indexed(document: Mapping[str, Any]) -> str:
    values = [_word_of(column, document[column] or "") for column in COLUMNS]
    texts = (document[name] or "" for name in ("title", "url", "text"))
    return " ".join([*values, *(text if text.isascii() else " ".join(words(text)) for text in texts)])


def _word_of(column: str, value: str) -> str:
    """Returns the word that stands for a value of a column."""
    return f"{column}x{key_of(column, value):016x}"


class TextIndex:
    """Searches the index of the words of an artifact of documents.

    Args:
        index: an artifact with the files of a TextIndexWriter.
    """

    def __init__(self, index: Artifact) -> None:
        self._index = index

    def find(
        self,
        text: str,
        values: Mapping[str, str],
        scores: tuple[float | None, float | None] = (None, None),
        first: int = 0,
        most: int = 20,
        counted: int = 100_000,
    ) -> tuple[int, list[IndexedRow]]:
        """Returns the number of rows that have all words, and some of them in the order of the files.

        Args:
            text: words, in any order; "*" after the last one finds words that begin with it.
            values: values of COLUMNS that the rows have.
            scores: least and most prose score; None for no limit.
            first: number of matching rows to leave out.
            most: number of rows to return.
            counted: number of rows at which counting ends; the result is then larger by one.

        Raises:
            InputError: the text has no word.
        """
        query = _query(text, values)
        number, rows = 0, list[IndexedRow]()
        for path in self._index.files(f"{FOLDER}/"):
            where, bounds = _where(scores)
            select = f"FROM words JOIN scores ON scores.row = words.rowid WHERE words MATCH ?{where}" if where else (
                "FROM words WHERE words MATCH ?"
            )  # fmt: skip
            with closing(sqlite3.connect(f"file:{self._index.local(path)}?immutable=1", uri=True)) as connection:
                count = f"SELECT count(*) FROM (SELECT words.rowid {select} LIMIT ?)"
                limit = max(counted + 1 - number, first + most - number)
                matching = 0
                if limit > 0:
                    (matching,) = connection.execute(count, (query, *bounds, limit)).fetchone()
                skip = max(0, first - number)
                if skip < matching and len(rows) < most:
                    page = f"SELECT words.rowid {select} ORDER BY words.rowid LIMIT ? OFFSET ?"
                    found = connection.execute(page, (query, *bounds, most - len(rows), skip))
                    rows += _places(connection, [row for (row,) in found])
            number += matching
        return min(number, max(counted + 1, first + most)), rows


def _query(text: str, values: Mapping[str, str]) -> str:
    """Returns a query of FTS5: all words, quoted, so that none of them is an operator."""
    found = [piece for word in words(text) for piece in word.split("_") if piece]
    if not found:
        raise InputError("the search has no word", "give letters or digits")
    last = "*" if text.rstrip().endswith("*") else ""
    return " AND ".join(
        [*(f'"{_word_of(column, value)}"' for column, value in values.items()),
         *(f'"{word}"' for word in found[:-1]), f'"{found[-1]}"{last}']
    )  # fmt: skip


def _where(scores: tuple[float | None, float | None]) -> tuple[str, list[float]]:
    bounds = [(sign, value) for sign, value in zip((">=", "<="), scores, strict=True) if value is not None]
    return "".join(f" AND scores.score {sign} ?" for sign, _ in bounds), [value for _, value in bounds]


def _places(connection: sqlite3.Connection, rows: Sequence[int]) -> Iterator[IndexedRow]:
    for row in rows:
        file = "SELECT path, first FROM files WHERE first <= ? ORDER BY first DESC LIMIT 1"
        path, first = connection.execute(file, (row,)).fetchone()
        yield IndexedRow(path, row - first)
