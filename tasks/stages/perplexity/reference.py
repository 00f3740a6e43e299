"""The reference text of a model: which texts there are, which are drawn, and their words as numbers.

Reads files outside the store and the artifact `extracted`. Two passes over each file: hashes and sizes of all texts,
then the words of those that were drawn. What is drawn depends on the texts alone, neither on the order of the files nor
on the number of workers. A text that is there twice counts once.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow.compute as pc
from numpy.typing import NDArray

from tasks.core.artifact import Artifact, ArtifactFolder
from tasks.core.errors import InputError
from tasks.filters.ngram.words import split
from tasks.formats.charset import decode
from tasks.formats.external_files import SourceFile, find
from tasks.formats.text import clean, hash64
from tasks.stages.perplexity.config import PerplexityConfig, Reference
from tasks.stages.perplexity.estimate import BEGIN_ID, END_ID, SPECIAL, UNKNOWN_ID

DOCUMENTS = "documents/"
# No more of one text is read, so that a single long book cannot be the whole of a model.
_LONGEST = 1_000_000


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
        """Yields its texts, clean; raises InputError when it cannot be read."""
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
            for number, row in self.file.rows():
                yield clean(self._field(row, f"{self.file.path}, line {number}"))

    def _field(self, row: object, where: str) -> str:
        text = row.get(self.reference.text_field) if isinstance(row, dict) else None
        if not isinstance(text, str):
            wanted = f'the field "{self.reference.text_field}" holds no text'
            raise InputError(f"{where}: {wanted}", "name the right one: text_field")
        return text


@dataclass(frozen=True)
class Listing:
    """The texts of a unit, in order: hash of each (uint64), and its UTF-8 bytes."""

    hashes: NDArray[np.uint64]
    sizes: NDArray[np.int64]


@dataclass(frozen=True)
class Sample:
    """Words of some texts.

    Attributes:
        words: the different words; SPECIAL are the first.
        ids: int32, the text as indices into `words`, each sentence between BEGIN_ID and END_ID.
    """

    words: list[str]
    ids: NDArray[np.int32]


def files_of(reference: Reference) -> list[SourceFile]:
    """Returns the files of a reference in name order; raises what `tasks.formats.external_files.find` raises."""
    return find(reference.path, f'the reference "{reference.name}"')


def units(references: Sequence[Reference], extracted: Artifact | None) -> list[Unit]:
    """Returns all files of some references; raises InputError where one has none."""
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
    """Which texts of each unit are drawn, by their place in it: to learn from, and to measure with."""

    training: list[NDArray[np.int64]]
    heldout: list[NDArray[np.int64]]


def draw(listings: Sequence[Listing], config: PerplexityConfig) -> Draw:
    """Draws the sample of a model; raises InputError when there are no two different texts."""
    hashes = np.concatenate([one.hashes for one in listings])
    sizes = np.concatenate([one.sizes for one in listings])
    found = different(hashes, sizes)
    if len(found) < 2:
        raise InputError(
            f"the references hold {len(found)} different texts", "name more: some are held out to measure the model"
        )
    side = ranks(hashes[found], "heldout")
    held = side <= np.uint64(max(int(config.heldout_share * 2**64), int(side.min())))
    if held.all():
        held = side <= side.min()
    limits = {False: config.sample_bytes, True: config.sample_bytes * config.heldout_share}
    chosen = {}
    for which, limit in limits.items():
        mine = found[held == which]
        chosen[which] = mine[drawn(hashes[mine], sizes[mine], limit, config.seed)]
    return Draw(training=by_unit(chosen[False], listings), heldout=by_unit(chosen[True], listings))


def different(hashes: NDArray[np.uint64], sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Returns the places of the different texts that are not empty: of equal ones the first."""
    first = np.unique(hashes, return_index=True)[1]
    return first[sizes[first] > 0]


def by_unit(chosen: NDArray[np.int64], listings: Sequence[Listing]) -> list[NDArray[np.int64]]:
    """Returns for each unit which of its texts are among the chosen of all, which are counted through."""
    ends = np.cumsum([len(one.hashes) for one in listings])
    ordered = np.sort(chosen)
    groups = np.split(ordered, np.searchsorted(ordered, ends[:-1]))
    return [group - (end - len(one.hashes)) for group, end, one in zip(groups, ends.tolist(), listings, strict=True)]


def drawn(hashes: NDArray[np.uint64], sizes: NDArray[np.int64], limit: float, seed: int) -> NDArray[np.int64]:
    """Returns the places of a sample of texts of `limit` bytes: those of the lowest hash with `seed`, at least one."""
    order = np.argsort(ranks(hashes, _sample(seed)), kind="stable")
    before = np.cumsum(sizes[order]) - sizes[order]
    chosen: NDArray[np.int64] = order[before < limit]
    return chosen


def _sample(seed: int) -> str:
    return f"sample/{seed}"


def ranks(hashes: NDArray[np.uint64], purpose: str) -> NDArray[np.uint64]:
    """Returns a hash of each hash that depends on its purpose, so that one sample says nothing of another."""
    # One by one: lists of Python's numbers would take 100 bytes for each text.
    return np.fromiter((hash64(f"{purpose}/{value}") for value in hashes), np.uint64, len(hashes))


CANDIDATE = np.dtype(
    [("rank", np.uint64), ("hash", np.uint64), ("size", np.int64), ("unit", np.int64), ("place", np.int64)]
)
"""A text that may be drawn: its rank, its hash, its UTF-8 bytes, and where it stands."""


def candidates(limit: float, seed: int, task: tuple[int, Unit]) -> NDArray[np.void]:
    """Returns the texts of a unit, given with its number, that may be in a sample of all units; see `lowest`."""
    number, unit = task
    listed = listing(unit)
    found = np.zeros(len(listed.hashes), CANDIDATE)
    found["rank"] = ranks(listed.hashes, _sample(seed))
    found["hash"], found["size"] = listed.hashes, listed.sizes
    found["unit"], found["place"] = number, np.arange(len(found))
    return lowest(found, limit)


def lowest(found: NDArray[np.void], limit: float) -> NDArray[np.void]:
    """Returns a sample of `limit` bytes of some candidates: the one that `drawn` takes of different texts.

    What is not among the lowest of a unit is not among the lowest of all, so units can be added one after the other.
    """
    found = found[found["size"] > 0]
    ordered = found[np.lexsort([found[name] for name in ("place", "unit", "hash", "rank")])]
    first = np.ones(len(ordered), np.bool_)
    first[1:] = ordered["hash"][1:] != ordered["hash"][:-1]
    several = ordered[first]
    lowest_: NDArray[np.void] = several[np.cumsum(several["size"]) - several["size"] < limit]
    return lowest_


def taken(task: tuple[Unit, NDArray[np.int64], NDArray[np.int64]]) -> tuple[Sample, list[str]]:
    """Reads the drawn texts of a unit; returns the words to learn from, and the texts held out."""
    unit, training, heldout = task
    learnt, held = frozenset(training.tolist()), frozenset(heldout.tolist())
    apart: list[str] = []

    def texts() -> Iterator[str]:
        for place, text in enumerate(unit.texts()):
            if place in learnt:
                yield text
            elif place in held:
                apart.append(text)

    return (sample(texts() if learnt or held else ()), apart)


def sample(texts: Iterable[str]) -> Sample:
    """Returns texts as numbers of words, reading a megabyte at a time."""
    words, known, streams = list(SPECIAL), dict[int, int](), [np.empty(0, np.int32)]
    source = iter(texts)
    while some := _some(source):
        for block in split(some):
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


def _some(source: Iterator[str]) -> list[str]:
    found, size = [], 0
    for text in source:
        found.append(text)
        size += len(text)
        if size >= 1_000_000:
            break
    return found


def joined(samples: Sequence[Sample], most: int) -> Sample:
    """Returns samples as one, with the `most` frequent words as the vocabulary and UNKNOWN_ID for all others."""
    counts: dict[str, int] = {}
    for one in samples:
        for word, count in zip(one.words, np.bincount(one.ids, minlength=len(one.words)).tolist(), strict=True):
            counts[word] = counts.get(word, 0) + count
    plain = sorted(counts.keys() - set(SPECIAL), key=lambda word: (-counts[word], word))[:most]
    place = {word: index for index, word in enumerate([*SPECIAL, *plain])}
    streams = [np.array([place.get(word, UNKNOWN_ID) for word in one.words], np.int32)[one.ids] for one in samples]
    return Sample(list(place), np.concatenate(streams))
