"""An index of the words of documents: which rows have all words of a search, in the order of the files.

Files are SQLite databases (`words/<group>.sqlite`), each for some consecutive files of documents, with

    files        first row in the index, and path of each file of documents
    scores       prose score of each row
    words        an FTS5 table without content: the words of title, URL and text of each row, with their positions if
                 the index finds phrases, and a word for each value of COLUMNS, by which a search is restricted
    parts        an FTS5 table without content and positions: each three letters of title and URL of each row

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

FORMAT = 2
"""Number of the format, in the header of each file; files without it are of an earlier one."""

_SCHEMA = f"""
PRAGMA user_version = {FORMAT};
CREATE TABLE files (first INTEGER PRIMARY KEY, path TEXT NOT NULL);
CREATE TABLE scores (row INTEGER PRIMARY KEY, score REAL);
CREATE VIRTUAL TABLE parts USING fts5(
    letters, content='', columnsize=0, detail=none, tokenize='trigram case_sensitive 1'
);
"""
_WORDS = "CREATE VIRTUAL TABLE words USING fts5(text, content='', columnsize=0, detail={}, tokenize='{}');"
_TOKENS = "unicode61 remove_diacritics 2"
_BETWEEN = " \ue000 "
"""A word that no text has (U+E000 is for private use), between title, URL and text, which no phrase spans."""

_LETTERS = 3
"""Letters of a part in the index of titles and URLs."""


class IndexedRow(NamedTuple):
    """A row of documents: path of its file, and row in the file."""

    path: str
    row: int


def group_name(number: int, count: int) -> str:
    """Returns the name of a group of files."""
    return f"group-{number:05d}-of-{count:05d}"


class TextIndexWriter:
    """Writes one index; a context manager that holds it in a temporary folder.

    Args:
        phrases: whether it has the positions of words, by which phrases are found.
    """

    def __init__(self, phrases: bool = True) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="sluice-words-")
        self._connection = sqlite3.connect(Path(self._folder.name) / "words.sqlite", isolation_level=None)
        schema = _SCHEMA + _WORDS.format("full" if phrases else "none", _TOKENS)
        self._connection.executescript(f"PRAGMA journal_mode = off; PRAGMA synchronous = off; {schema}")
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
        names = (
            (number, _lower(f"{row['title'] or ''}\n{row['url']}"))
            for number, row in zip(numbers, documents, strict=True)
        )
        self._connection.executemany("INSERT INTO parts (rowid, letters) VALUES (?, ?)", names)
        scores = ((number, row["prose_score"]) for number, row in zip(numbers, documents, strict=True))
        self._connection.executemany("INSERT INTO scores VALUES (?, ?)", scores)
        self.rows += len(documents)

    def write(self, file: BinaryIO) -> None:
        """Ends the index and writes it."""
        whole = os.path.join(self._folder.name, "whole.sqlite")
        for table in ("words", "parts"):
            self._connection.execute(f"INSERT INTO {table} ({table}) VALUES ('optimize')")
        self._connection.execute("COMMIT")
        self._connection.execute("VACUUM INTO ?", (whole,))
        with open(whole, "rb") as source:
            shutil.copyfileobj(source, file, 1 << 20)


def _indexed(document: Mapping[str, Any]) -> str:
    values = [_word_of(column, document[column] or "") for column in COLUMNS]
    texts = (document[name] or "" for name in ("title", "url", "text"))
    return _BETWEEN.join([*values, *(text if text.isascii() else " ".join(words(text)) for text in texts)])


def _lower(text: str) -> str:
    """Returns a text in lower case letter by letter, as DuckDB's `lower`, which compares the parts that are found."""
    return text.replace("İ", "i").replace("Σ", "σ").lower()


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

    @property
    def is_readable(self) -> bool:
        """Whether the index has this format, and not that of an earlier version of Sluice."""
        (path, *_) = self._index.files(f"{FOLDER}/")
        with self._open(path) as connection:
            return bool(connection.execute("PRAGMA user_version").fetchone()[0] == FORMAT)

    def files_with(self, part: str, most: int) -> list[str] | None:
        """Returns the files of documents with rows whose title or URL may contain a part, regardless of case.

        A row that contains it is in one of them; whether a row of them does is for the caller to see.

        Args:
            part: the part.
            most: number of rows above which the index is of no use.

        Returns:
            Paths in the order of the files; None if the part has fewer than three letters, or more rows may have it.
        """
        if len(part) < _LETTERS or "\0" in part:
            return None
        query = " AND ".join(f'"{three}"' for three in _threes(_lower(part)))
        found: dict[str, None] = {}
        rows = 0
        for path in self._index.files(f"{FOLDER}/"):
            with self._open(path) as connection:
                select = "SELECT rowid FROM parts WHERE parts MATCH ? ORDER BY rowid LIMIT ?"
                own = [row for (row,) in connection.execute(select, (query, most + 1 - rows))]
                rows += len(own)
                if rows > most:
                    return None
                found |= dict.fromkeys(row.path for row in _places(connection, own))
        return list(found)

    def _open(self, path: str) -> closing[sqlite3.Connection]:
        return closing(sqlite3.connect(f"file:{self._index.local(path)}?immutable=1", uri=True))

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
            text: words, in any order; those in double quotes are a phrase, beside each other in this order in title,
                URL or text. "*" after the last word finds words that begin with it.
            values: values of COLUMNS that the rows have.
            scores: least and most prose score; None for no limit.
            first: number of matching rows to leave out.
            most: number of rows to return.
            counted: number of rows at which counting ends; the result is then larger by one.

        Raises:
            InputError: the text has no word, or a phrase, and the index has no positions.
        """
        query = _query(text, values)
        number, rows = 0, list[IndexedRow]()
        for path in self._index.files(f"{FOLDER}/"):
            where, bounds = _where(scores)
            select = f"FROM words JOIN scores ON scores.row = words.rowid WHERE words MATCH ?{where}" if where else (
                "FROM words WHERE words MATCH ?"
            )  # fmt: skip
            with self._open(path) as connection:
                count = f"SELECT count(*) FROM (SELECT words.rowid {select} LIMIT ?)"
                limit = max(counted + 1 - number, first + most - number)
                if " " in query.replace(" AND ", "") and not _has_positions(connection):
                    raise InputError("the index has no phrases", "search for words, or set [text_index] phrases = true")
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

    def best(
        self,
        text: str,
        values: Mapping[str, str],
        scores: tuple[float | None, float | None] = (None, None),
        *,
        descending: bool = True,
        first: int = 0,
        most: int = 20,
    ) -> list[IndexedRow]:
        """Returns rows that have all words in the order of their prose scores; those without a score are last.

        Args:
            text: words, as in `find`, which tells whether there are too many to sort.
            values: values of COLUMNS that the rows have.
            scores: least and most prose score; None for no limit.
            descending: whether the largest score is first.
            first: number of matching rows to leave out.
            most: number of rows to return.
        """
        query, found = _query(text, values), list[tuple[float, IndexedRow]]()
        where, bounds = _where(scores)
        order = "DESC" if descending else "ASC"
        for path in self._index.files(f"{FOLDER}/"):
            with self._open(path) as connection:
                own = connection.execute(
                    "SELECT words.rowid, score FROM words JOIN scores ON scores.row = words.rowid "
                    f"WHERE words MATCH ?{where} ORDER BY score {order} NULLS LAST, words.rowid LIMIT ?",
                    (query, *bounds, first + most),
                ).fetchall()
                keys = [float("inf") if score is None else -score if descending else score for _, score in own]
                found += zip(keys, _places(connection, [row for row, _ in own]), strict=True)
        found.sort(key=lambda one: one[0])
        return [row for _, row in found[first : first + most]]


def _query(text: str, values: Mapping[str, str]) -> str:
    """Returns a query of FTS5: all words and phrases, quoted, so that none of them is an operator."""
    found: list[str] = []
    for number, piece in enumerate(text.split('"')):
        own = [part for word in words(piece) for part in word.split("_") if part]
        found += [" ".join(own)] if number % 2 and own else own
    if not found:
        raise InputError("the search has no word", "give letters or digits")
    last = "*" if text.rstrip().endswith("*") else ""
    return " AND ".join(
        [*(f'"{_word_of(column, value)}"' for column, value in values.items()),
         *(f'"{words_beside}"' for words_beside in found[:-1]), f'"{found[-1]}"{last}']
    )  # fmt: skip


def _threes(text: str) -> list[str]:
    """Returns each three letters of a text, quoted for FTS5.

    >>> _threes("a-b.c")
    ['a-b', '-b.', 'b.c']
    """
    threes = dict.fromkeys(text[at : at + _LETTERS] for at in range(len(text) - _LETTERS + 1))
    return [three.replace('"', '""') for three in threes]


def _has_positions(connection: sqlite3.Connection) -> bool:
    (schema,) = connection.execute("SELECT sql FROM sqlite_master WHERE name = 'words'").fetchone()
    return "detail=full" in schema


def _where(scores: tuple[float | None, float | None]) -> tuple[str, list[float]]:
    bounds = [(sign, value) for sign, value in zip((">=", "<="), scores, strict=True) if value is not None]
    return "".join(f" AND scores.score {sign} ?" for sign, _ in bounds), [value for _, value in bounds]


def _places(connection: sqlite3.Connection, rows: Sequence[int]) -> Iterator[IndexedRow]:
    for row in rows:
        file = "SELECT path, first FROM files WHERE first <= ? ORDER BY first DESC LIMIT 1"
        path, first = connection.execute(file, (row,)).fetchone()
        yield IndexedRow(path, row - first)
