"""Reference text of a model: listing, sampling and conversion to word ids.

Reads external files and the artifact `extracted`, in two passes over each file: for hashes and sizes of all texts, then
for the words of the sampled ones. The sample depends only on the texts, not on the order of the files or the number of
workers. Duplicate texts count once.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow.compute as pc
from numpy.typing import NDArray

from tasks.core.artifact import Artifact, ArtifactFolder
from tasks.core.errors import InputError
from tasks.filters.ngram.words import split
from tasks.formats.documents.external_files import SourceFile, find
from tasks.formats.documents.json_rows import parsed_rows
from tasks.formats.documents.text import clean, hash64
from tasks.formats.web.charset import decode
from tasks.stages.perplexity import PerplexityConfig, ReferenceText
from tasks.stages.perplexity.estimate import BEGIN_ID, END_ID, SPECIAL, UNKNOWN_ID

DOCUMENTS = "documents/"

# Maximum number of characters of one text, so that a single long book does not dominate a model.
_LONGEST = 1_000_000

CANDIDATE = np.dtype(
    [("rank", np.uint64), ("hash", np.uint64), ("size", np.int64), ("unit", np.int64), ("place", np.int64)]
)
"""A text that may be sampled: rank, hash, UTF-8 bytes, number of its file (`unit`) and index in it (`place`)."""


@dataclass(frozen=True)
class CorpusPart:
    """One part of the artifact `extracted`."""

    extracted: ArtifactFolder
    path: str


@dataclass(frozen=True)
class ReferenceFile:
    """A file with texts of a reference."""

    reference: ReferenceText
    file: SourceFile | CorpusPart

    def texts(self) -> Iterator[str]:
        """Yields the cleaned texts; raises InputError if the file cannot be read."""
        for text in self._raw():
            yield text[:_LONGEST]

    def _raw(self) -> Iterator[str]:
        if isinstance(self.file, CorpusPart):
            of_source = pc.field("source") == self.reference.name
            table = self.file.extracted.table(self.file.path, columns=["text"], filters=of_source)
            yield from table.column("text").to_pylist()
        elif self.reference.kind == "text":
            with self.file.open() as file:
                text = decode(file.read())
            if "\0" in text:
                raise InputError(f"{self.file.path} is not a text file (it contains NULs)", "leave it out")
            yield clean(text)
        else:
            for number, row in parsed_rows(self.file):
                yield clean(self._field(row, f"{self.file.path}, line {number}"))

    def _field(self, row: object, where: str) -> str:
        text = row.get(self.reference.text_field) if isinstance(row, dict) else None
        if not isinstance(text, str):
            cause = f'the field "{self.reference.text_field}" is not text'
            raise InputError(f"{where}: {cause}", "correct text_field")
        return text


@dataclass(frozen=True)
class WordSample:
    """Texts as word ids.

    Attributes:
        words: the distinct words; SPECIAL are the first.
        ids: int32: the texts as indices into `words`, each sentence between BEGIN_ID and END_ID.
    """

    words: list[str]
    ids: NDArray[np.int32]


def files_of(reference: ReferenceText) -> list[SourceFile]:
    """Returns the files of a reference by name; raises like `tasks.formats.documents.external_files.find`."""
    return find(reference.path, f'the reference "{reference.name}"')


def files_with_texts(references: Sequence[ReferenceText], extracted: Artifact | None) -> list[ReferenceFile]:
    """Returns all files of some references; raises InputError if a reference has none."""
    files = []
    for reference in references:
        if reference.kind == "documents":
            if extracted is None:
                raise InputError(
                    f'the reference "{reference.name}" needs documents of the corpus', "run the stage extract first"
                )
            files += [
                ReferenceFile(reference, CorpusPart(extracted.folder, path)) for path in extracted.files(DOCUMENTS)
            ]
        else:
            files += [ReferenceFile(reference, file) for file in files_of(reference)]
    return files


def listing(task: tuple[int, ReferenceFile]) -> NDArray[np.void]:
    """Returns the texts of a file, given with its number, in order (dtype CANDIDATE); ranks are 0."""
    number, unit = task
    rows = [(hash64(text), len(text.encode())) for text in unit.texts()]
    records = np.zeros(len(rows), CANDIDATE)
    records["hash"], records["size"] = np.array([row[0] for row in rows], np.uint64), [row[1] for row in rows]
    records["unit"], records["place"] = number, np.arange(len(rows))
    return records


@dataclass(frozen=True)
class SampleIndices:
    """Indices of the training and held-out texts of each file."""

    training: list[NDArray[np.int64]]
    heldout: list[NDArray[np.int64]]


def draw(listings: Sequence[NDArray[np.void]], config: PerplexityConfig) -> SampleIndices:
    """Samples the training and held-out texts of a model from the listings of its files, by number.

    Raises:
        InputError: there are fewer than two distinct texts.
    """
    texts = np.concatenate(listings)
    texts = texts[texts["size"] > 0]
    distinct = len(np.unique(texts["hash"]))
    if distinct < 2:
        raise InputError(
            f"the references have {distinct} distinct texts", "name more: some are held out to evaluate the model"
        )
    texts["rank"] = ranks(texts["hash"], _sample(config.seed))
    split_hashes = ranks(texts["hash"], "heldout")
    is_heldout = split_hashes <= np.uint64(max(int(config.heldout_share * 2**64), int(split_hashes.min())))
    if is_heldout.all():
        is_heldout = split_hashes <= split_hashes.min()

    def places(pool: NDArray[np.void], limit: float) -> list[NDArray[np.int64]]:
        selected = lowest(pool, limit)
        return [np.sort(selected["place"][selected["unit"] == number]) for number in range(len(listings))]

    return SampleIndices(
        training=places(texts[~is_heldout], config.sample_bytes),
        heldout=places(texts[is_heldout], config.sample_bytes * config.heldout_share),
    )


def _sample(seed: int) -> str:
    return f"sample/{seed}"


def ranks(hashes: NDArray[np.uint64], purpose: str) -> NDArray[np.uint64]:
    """Returns a hash of each hash and `purpose`, so that samples for different purposes are independent."""
    # An iterator, because a list of Python integers would take 100 bytes per text.
    return np.fromiter((hash64(f"{purpose}/{value}") for value in hashes), np.uint64, len(hashes))


def candidates(limit: float, seed: int, task: tuple[int, ReferenceFile]) -> NDArray[np.void]:
    """Returns the texts of a file, given with its number, that may be in the sample of all files; see `lowest`."""
    records = listing(task)
    records["rank"] = ranks(records["hash"], _sample(seed))
    return lowest(records, limit)


def lowest(candidates: NDArray[np.void], limit: float) -> NDArray[np.void]:
    """Returns a sample of `limit` bytes of some candidates: the distinct texts with the lowest ranks, at least one.

    A text that is not among the lowest of its file is not among the lowest of all, so files can be added in sequence.
    """
    candidates = candidates[candidates["size"] > 0]
    ordered = candidates[np.lexsort([candidates[name] for name in ("place", "unit", "hash", "rank")])]
    first = np.ones(len(ordered), np.bool_)
    first[1:] = ordered["hash"][1:] != ordered["hash"][:-1]
    distinct = ordered[first]
    selected: NDArray[np.void] = distinct[np.cumsum(distinct["size"]) - distinct["size"] < limit]
    return selected


def read_sample(task: tuple[ReferenceFile, NDArray[np.int64], NDArray[np.int64]]) -> tuple[WordSample, list[str]]:
    """Reads the sampled texts of a file; returns the training texts as word ids, and the held-out texts."""
    unit, training, heldout = task
    training_places, heldout_places = frozenset(training.tolist()), frozenset(heldout.tolist())
    heldout_texts: list[str] = []

    def texts() -> Iterator[str]:
        for index, text in enumerate(unit.texts()):
            if index in training_places:
                yield text
            elif index in heldout_places:
                heldout_texts.append(text)

    return (to_word_ids(texts() if training_places or heldout_places else ()), heldout_texts)


def to_word_ids(texts: Iterable[str]) -> WordSample:
    """Returns texts as word ids, reading a megabyte at a time."""
    words, numbers_by_hash, streams = list(SPECIAL), dict[int, int](), [np.empty(0, np.int32)]
    source = iter(texts)
    while chunk := _chunk(source):
        for block in split(chunk):
            hashes, first, inverse = np.unique(block.hashes, return_index=True, return_inverse=True)
            numbers = []
            for value, index in zip(hashes.tolist(), first.tolist(), strict=True):
                if value not in numbers_by_hash:
                    numbers_by_hash[value] = len(words)
                    words.append(block.spelling(index))
                numbers.append(numbers_by_hash[value])
            offsets = 2 * np.arange(len(block.owner))
            ids = np.full(len(block.hashes) + 2 * len(offsets), END_ID, np.int32)
            ids[block.sentences[:-1] + offsets] = BEGIN_ID
            positions = np.arange(len(block.hashes)) + np.repeat(offsets, np.diff(block.sentences)) + 1
            ids[positions] = np.array(numbers, np.int32)[inverse]
            streams.append(ids)
    return WordSample(words, np.concatenate(streams))


def _chunk(source: Iterator[str]) -> list[str]:
    chunk, size = [], 0
    for text in source:
        chunk.append(text)
        size += len(text)
        if size >= 1_000_000:
            break
    return chunk


def concatenate(samples: Sequence[WordSample], most: int) -> WordSample:
    """Concatenates samples; the `most` most frequent words are the vocabulary, and all others become UNKNOWN_ID."""
    counts: dict[str, int] = {}
    for part in samples:
        for word, count in zip(part.words, np.bincount(part.ids, minlength=len(part.words)).tolist(), strict=True):
            counts[word] = counts.get(word, 0) + count
    frequent = sorted(counts.keys() - set(SPECIAL), key=lambda word: (-counts[word], word))[:most]
    numbers = {word: number for number, word in enumerate([*SPECIAL, *frequent])}
    streams = [np.array([numbers.get(word, UNKNOWN_ID) for word in part.words], np.int32)[part.ids] for part in samples]
    return WordSample(list(numbers), np.concatenate(streams))
