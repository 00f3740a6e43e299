"""Reference text of a model: listing, sampling and conversion to word ids.

Reads external files and the artifact `extracted`. Two passes over each file: hashes and sizes of all texts, then the
words of the sampled ones. The sample depends only on the texts, not on the order of the files or the number of workers.
Duplicate texts count once.
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
from tasks.stages.perplexity import PerplexityConfig, Reference
from tasks.stages.perplexity.estimate import BEGIN_ID, END_ID, SPECIAL, UNKNOWN_ID

DOCUMENTS = "documents/"

# Characters that are read of one text, so that a single long book does not dominate a model.
_LONGEST = 1_000_000

CANDIDATE = np.dtype(
    [("rank", np.uint64), ("hash", np.uint64), ("size", np.int64), ("unit", np.int64), ("place", np.int64)]
)
"""A text that may be sampled: its rank, its hash, its UTF-8 bytes, number of its unit and index within it."""


@dataclass(frozen=True)
class CorpusPart:
    """One part of the artifact `extracted`."""

    extracted: ArtifactFolder
    path: str


@dataclass(frozen=True)
class Unit:
    """One file with texts of a reference."""

    reference: Reference
    file: SourceFile | CorpusPart

    def texts(self) -> Iterator[str]:
        """Yields its texts, cleaned; raises InputError if it cannot be read."""
        for text in self._raw():
            yield text[:_LONGEST]

    def _raw(self) -> Iterator[str]:
        if isinstance(self.file, CorpusPart):
            chosen = pc.field("source") == self.reference.name
            table = self.file.extracted.table(self.file.path, columns=["text"], filters=chosen)
            yield from table.column("text").to_pylist()
        elif self.reference.kind == "text":
            with self.file.open() as file:
                text = decode(file.read())
            if "\0" in text:
                raise InputError(f"{self.file.path} is no text (it holds NULs)", "leave it out")
            yield clean(text)
        else:
            for number, row in parsed_rows(self.file):
                yield clean(self._field(row, f"{self.file.path}, line {number}"))

    def _field(self, row: object, where: str) -> str:
        text = row.get(self.reference.text_field) if isinstance(row, dict) else None
        if not isinstance(text, str):
            cause = f'the field "{self.reference.text_field}" holds no text'
            raise InputError(f"{where}: {cause}", "name the right one: text_field")
        return text


@dataclass(frozen=True)
class Listing:
    """Hashes and sizes in UTF-8 bytes of the texts of a unit, in order."""

    hashes: NDArray[np.uint64]
    sizes: NDArray[np.int64]


@dataclass(frozen=True)
class Sample:
    """Texts as word ids.

    Attributes:
        words: the distinct words; SPECIAL are the first.
        ids: int32, the text as indices into `words`, each sentence between BEGIN_ID and END_ID.
    """

    words: list[str]
    ids: NDArray[np.int32]


def files_of(reference: Reference) -> list[SourceFile]:
    """Returns the files of a reference in name order; raises as `tasks.formats.documents.external_files.find` does."""
    return find(reference.path, f'the reference "{reference.name}"')


def units(references: Sequence[Reference], extracted: Artifact | None) -> list[Unit]:
    """Returns all files of some references; raises InputError if a reference has none."""
    found = []
    for reference in references:
        if reference.kind == "documents":
            if extracted is None:
                raise InputError(f'the reference "{reference.name}" is of the corpus, and there is none: extract first')
            found += [Unit(reference, CorpusPart(extracted.folder, path)) for path in extracted.files(DOCUMENTS)]
        else:
            found += [Unit(reference, file) for file in files_of(reference)]
    return found


def listing(unit: Unit) -> Listing:
    """Hashes the texts of a unit."""
    rows = [(hash64(text), len(text.encode())) for text in unit.texts()]
    return Listing(np.array([row[0] for row in rows], np.uint64), np.array([row[1] for row in rows], np.int64))


@dataclass(frozen=True)
class Draw:
    """Indices of the training and held-out texts of each unit."""

    training: list[NDArray[np.int64]]
    heldout: list[NDArray[np.int64]]


def draw(listings: Sequence[Listing], config: PerplexityConfig) -> Draw:
    """Draws the training and held-out texts of a model; raises InputError for fewer than two distinct texts."""
    hashes = np.concatenate([listed.hashes for listed in listings])
    sizes = np.concatenate([listed.sizes for listed in listings])
    found = different(hashes, sizes)
    if len(found) < 2:
        raise InputError(
            f"the references hold {len(found)} different texts", "name more: some are held out to measure the model"
        )
    split_hashes = ranks(hashes[found], "heldout")
    is_heldout = split_hashes <= np.uint64(max(int(config.heldout_share * 2**64), int(split_hashes.min())))
    if is_heldout.all():
        is_heldout = split_hashes <= split_hashes.min()
    limits = {False: config.sample_bytes, True: config.sample_bytes * config.heldout_share}
    chosen = {}
    for heldout, limit in limits.items():
        side = found[is_heldout == heldout]
        chosen[heldout] = side[drawn(hashes[side], sizes[side], limit, config.seed)]
    return Draw(training=by_unit(chosen[False], listings), heldout=by_unit(chosen[True], listings))


def different(hashes: NDArray[np.uint64], sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Returns the indices of the distinct non-empty texts: the first of equal ones."""
    first = np.unique(hashes, return_index=True)[1]
    return first[sizes[first] > 0]


def by_unit(chosen: NDArray[np.int64], listings: Sequence[Listing]) -> list[NDArray[np.int64]]:
    """Splits indices into the concatenation of all units into indices within each unit."""
    ends = np.cumsum([len(listed.hashes) for listed in listings])
    ordered = np.sort(chosen)
    groups = np.split(ordered, np.searchsorted(ordered, ends[:-1]))
    return [group - (end - len(of.hashes)) for group, end, of in zip(groups, ends.tolist(), listings, strict=True)]


def drawn(hashes: NDArray[np.uint64], sizes: NDArray[np.int64], limit: float, seed: int) -> NDArray[np.int64]:
    """Returns the indices of a sample of `limit` bytes: the texts with the lowest hash with `seed`, at least one."""
    order = np.argsort(ranks(hashes, _sample(seed)), kind="stable")
    before = np.cumsum(sizes[order]) - sizes[order]
    chosen: NDArray[np.int64] = order[before < limit]
    return chosen


def _sample(seed: int) -> str:
    return f"sample/{seed}"


def ranks(hashes: NDArray[np.uint64], purpose: str) -> NDArray[np.uint64]:
    """Returns a hash of each hash that depends on `purpose`, so that samples are independent."""
    # By iterator: a list of Python integers would take 100 bytes per text.
    return np.fromiter((hash64(f"{purpose}/{value}") for value in hashes), np.uint64, len(hashes))


def candidates(limit: float, seed: int, task: tuple[int, Unit]) -> NDArray[np.void]:
    """Returns the texts of a unit (number and unit) that may be in a sample of all units; see `lowest`."""
    number, unit = task
    listed = listing(unit)
    found = np.zeros(len(listed.hashes), CANDIDATE)
    found["rank"] = ranks(listed.hashes, _sample(seed))
    found["hash"], found["size"] = listed.hashes, listed.sizes
    found["unit"], found["place"] = number, np.arange(len(found))
    return lowest(found, limit)


def lowest(found: NDArray[np.void], limit: float) -> NDArray[np.void]:
    """Returns a sample of `limit` bytes of some candidates: the sample that `drawn` takes of distinct texts.

    A text that is not among the lowest of its unit is not among the lowest of all, so units can be added in sequence.
    """
    found = found[found["size"] > 0]
    ordered = found[np.lexsort([found[name] for name in ("place", "unit", "hash", "rank")])]
    first = np.ones(len(ordered), np.bool_)
    first[1:] = ordered["hash"][1:] != ordered["hash"][:-1]
    distinct = ordered[first]
    sample_: NDArray[np.void] = distinct[np.cumsum(distinct["size"]) - distinct["size"] < limit]
    return sample_


def taken(task: tuple[Unit, NDArray[np.int64], NDArray[np.int64]]) -> tuple[Sample, list[str]]:
    """Reads the sampled texts of a unit; returns the training texts as word ids, and the held-out texts."""
    unit, training, heldout = task
    training_places, heldout_places = frozenset(training.tolist()), frozenset(heldout.tolist())
    heldout_texts: list[str] = []

    def texts() -> Iterator[str]:
        for place, text in enumerate(unit.texts()):
            if place in training_places:
                yield text
            elif place in heldout_places:
                heldout_texts.append(text)

    return (sample(texts() if training_places or heldout_places else ()), heldout_texts)


def sample(texts: Iterable[str]) -> Sample:
    """Returns texts as word ids, reading a megabyte at a time."""
    words, known, streams = list(SPECIAL), dict[int, int](), [np.empty(0, np.int32)]
    source = iter(texts)
    while chunk := _chunk(source):
        for block in split(chunk):
            hashes, first, inverse = np.unique(block.hashes, return_index=True, return_inverse=True)
            numbers = []
            for value, place in zip(hashes.tolist(), first.tolist(), strict=True):
                if value not in known:
                    known[value] = len(words)
                    words.append(block.spelling(place))
                numbers.append(known[value])
            before = 2 * np.arange(len(block.owner))
            marked = np.full(len(block.hashes) + 2 * len(before), END_ID, np.int32)
            marked[block.sentences[:-1] + before] = BEGIN_ID
            places = np.arange(len(block.hashes)) + np.repeat(before, np.diff(block.sentences)) + 1
            marked[places] = np.array(numbers, np.int32)[inverse]
            streams.append(marked)
    return Sample(words, np.concatenate(streams))


def _chunk(source: Iterator[str]) -> list[str]:
    chunk, size = [], 0
    for text in source:
        chunk.append(text)
        size += len(text)
        if size >= 1_000_000:
            break
    return chunk


def joined(samples: Sequence[Sample], most: int) -> Sample:
    """Concatenates samples; the vocabulary is the `most` most frequent words, all others become UNKNOWN_ID."""
    counts: dict[str, int] = {}
    for part in samples:
        for word, count in zip(part.words, np.bincount(part.ids, minlength=len(part.words)).tolist(), strict=True):
            counts[word] = counts.get(word, 0) + count
    plain = sorted(counts.keys() - set(SPECIAL), key=lambda word: (-counts[word], word))[:most]
    place = {word: index for index, word in enumerate([*SPECIAL, *plain])}
    streams = [np.array([place.get(word, UNKNOWN_ID) for word in part.words], np.int32)[part.ids] for part in samples]
    return Sample(list(place), np.concatenate(streams))
