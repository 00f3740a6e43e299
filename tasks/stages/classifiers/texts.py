"""The texts that a classifier learns from: read, drawn from the crawl, rid of copies, split.

Reads JSON lines outside the store and `extracted` (documents/). What it returns depends on the texts and the settings
alone, not on the order of files or the number of workers.
"""

import hashlib
import json
import logging
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow.compute as pc

from tasks.core.artifact import Artifact, ArtifactFolder
from tasks.core.digest import sha256_of_file
from tasks.core.engine import Engine
from tasks.core.errors import InputError
from tasks.formats.external_files import SourceFile, find
from tasks.formats.text import clean, hash64, normalise
from tasks.stages.classifiers.config import ClassifierSettings, CrawlTexts, Texts

log = logging.getLogger("sluice.classifiers")

_HASHES = 2**64


@dataclass(frozen=True)
class Example:
    """One text to learn from or to be tested on.

    Attributes:
        text: cleaned, and cut to what the classifier reads.
        label: its label.
        key: hash by which copies know one another.
        group: what it belongs to; "" where only copies belong together.
        source: the file or the part of the crawl it came from.
    """

    text: str
    label: str
    key: str
    group: str
    source: str


@dataclass(frozen=True)
class Examples:
    """What a classifier gets.

    Attributes:
        train: to learn from, in an order that only their hashes decide.
        heldout: to be tested on; no text and no group of them is in `train`.
        rejected: texts left out, by reason.
        files: sha256 (hex) of each file that was read, by path.
        read: texts read.
    """

    train: list[Example]
    heldout: list[Example]
    rejected: dict[str, int]
    files: dict[str, str]
    read: int


def files_of(settings: ClassifierSettings) -> list[SourceFile]:
    """Returns all files of a classifier's texts; raises what `tasks.formats.external_files.find` raises."""
    return [file for texts in settings.texts for file in _files(settings, texts)]


def _files(settings: ClassifierSettings, texts: Texts) -> list[SourceFile]:
    return find(texts.path, f'the classifier "{settings.name}"')


def gather(settings: ClassifierSettings, extracted: Artifact | None, engine: Engine) -> Examples:
    """Reads and draws the texts of one classifier, drops copies and contradictions, and splits what is left.

    Args:
        settings: of the classifier.
        extracted: the crawl's documents; None where the settings ask for none of them.
        engine: where they are drawn.

    Raises:
        InputError: a file is not there or not readable, or a label has no text on one of the sides.
    """
    files: dict[str, str] = {}
    rejected: Counter[str] = Counter()
    found: list[Example] = []
    for texts in settings.texts:
        for file in _files(settings, texts):
            files[file.path] = sha256_of_file(file.local())
            for example in _read(texts, file, settings.chars):
                if isinstance(example, str):
                    rejected[example] += 1
                else:
                    found.append(example)
    if settings.crawl and extracted:
        found += _draw(settings.crawl, settings, extracted, engine)
    read = len(found) + rejected.total()
    kept = _capped(settings, list(_without_copies(found, rejected)), rejected)
    heldout = {_unit(example) for example in kept if _share(settings, "split", _unit(example)) < settings.heldout_share}
    train = [example for example in kept if _unit(example) not in heldout]
    tests = [example for example in kept if _unit(example) in heldout]
    _check_labels(settings, train, tests)
    return Examples(train, tests, dict(sorted(rejected.items())), files, read)


def _read(texts: Texts, file: SourceFile, chars: int) -> Iterator[Example | str]:
    """Yields the texts of a file; of one that cannot be used, the reason."""
    name = file.path.rpartition("/")[2]
    others: Counter[str] = Counter()
    for number, row in file.rows():
        try:
            text, written, group = _fields(texts, row)
            label = texts.relabel.get(written, "") if texts.relabel else written
            others[written] += not label
            found = (_example(text, chars, label, group, name) or "empty") if label else "other_label"
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(
                f"{file.path}, line {number}: no row with a text and a label ({type(error).__name__}: {error})",
                "mend the file, or name its fields: text_field, label_field, group_field",
            ) from None
        yield found
    if others := +others:
        most = ", ".join(f"{label!r} ({count:,})" for label, count in others.most_common(5))
        log.warning("%s: left out %s texts whose label relabel does not name: %s", file.path, others.total(), most)


def _fields(texts: Texts, row: dict[str, Any]) -> tuple[str, str, str]:
    """Returns text, label as written and group of a row; raises KeyError, TypeError or ValueError."""
    text = row[texts.text_field]
    if not isinstance(text, str | None):
        raise TypeError(f'the field "{texts.text_field}" holds no text')
    label = texts.label or _plain(row[texts.label_field])
    group = f"{texts.group_field}={_plain(row[texts.group_field])}" if texts.group_field else ""
    return text or "", label, group


def _plain(value: Any) -> str:
    # A label may be a number or a truth value in the file; in a recipe it is a word. Tables write 3.0 for 3 as soon as
    # one value is missing.
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    plain = value if isinstance(value, str) else json.dumps(value)
    plain.encode()  # half a surrogate pair can stand in no card and no model
    return plain


def _example(text: str, chars: int, label: str, group: str, source: str) -> Example | None:
    # Cut twice: cleaning a book to read its first page would take longer than all the rest.
    text = clean(text[: 2 * chars])[:chars]
    same = normalise(text)
    if not same:
        return None
    return Example(text, label, hashlib.blake2b(same.encode(), digest_size=16).hexdigest(), group, source)


def _draw(crawl: CrawlTexts, settings: ClassifierSettings, extracted: Artifact, engine: Engine) -> list[Example]:
    """Returns the documents of the lowest hashes of their ids. Two passes: ids first, then the texts of those drawn."""
    paths = extracted.files("documents/")
    ranked: list[tuple[int, str]] = []
    for _, rows in engine.map(partial(_ranks, extracted.folder, crawl, settings.seed), paths):
        ranked = sorted(ranked + rows)[: crawl.documents]
    if not ranked:
        raise InputError(
            f"{extracted.address} has no document of the sources {', '.join(crawl.sources)}",
            f"name others under crawl.sources of the classifier {settings.name}",
        )
    chosen = [doc_id for _, doc_id in ranked]
    found: list[Example] = []
    for _, examples in engine.map(partial(_texts, extracted.folder, crawl, settings.chars, chosen), paths):
        found += examples
    return found


def _ranks(extracted: ArtifactFolder, crawl: CrawlTexts, seed: int, path: str) -> list[tuple[int, str]]:
    ids = extracted.table(path, columns=["id"], filters=pc.field("source").isin(crawl.sources)).column("id").to_pylist()
    # What is not among the lowest of its part is not among the lowest of all.
    return sorted((hash64(f"classifiers/{seed}/{doc_id}"), doc_id) for doc_id in ids)[: crawl.documents]


def _texts(extracted: ArtifactFolder, crawl: CrawlTexts, chars: int, chosen: list[str], path: str) -> list[Example]:
    wanted = pc.field("id").isin(chosen)
    table = extracted.table(path, columns=["host", "text"], filters=wanted)
    rows = zip(table.column("host").to_pylist(), table.column("text").to_pylist(), strict=True)
    made = (_example(text, chars, crawl.label, _group(crawl, host), "crawl") for host, text in rows)
    return [example for example in made if example]


def _group(crawl: CrawlTexts, host: str) -> str:
    return f"host={host}" if crawl.split_by == "host" else ""


def _without_copies(examples: Iterable[Example], rejected: Counter[str]) -> Iterator[Example]:
    """Yields each text once; texts that stand there under several labels not at all."""
    same: dict[str, list[Example]] = defaultdict(list)
    for example in examples:
        same[example.key].append(example)
    for copies in same.values():
        if len({example.label for example in copies}) > 1:
            rejected["contradiction"] += len(copies)
            continue
        rejected["copy"] += len(copies) - 1
        yield min(copies, key=lambda example: (example.group, example.source, example.text))


def _capped(settings: ClassifierSettings, examples: list[Example], rejected: Counter[str]) -> list[Example]:
    """Returns the examples in the order of their hashes, of each label no more than asked for."""
    kept: list[Example] = []
    taken: Counter[str] = Counter()
    for example in sorted(examples, key=lambda one: (_share(settings, "order", one.key), one.key)):
        if settings.max_per_label is not None and taken[example.label] >= settings.max_per_label:
            rejected["over_max"] += 1
            continue
        taken[example.label] += 1
        kept.append(example)
    return kept


def _unit(example: Example) -> str:
    return example.group or example.key


def _share(settings: ClassifierSettings, purpose: str, key: str) -> float:
    """Returns an even number in 0..1 that depends on the key and what it is for."""
    return hash64(f"{purpose}/{settings.seed}/{key}") / _HASHES


def _check_labels(settings: ClassifierSettings, train: list[Example], heldout: list[Example]) -> None:
    labels = {example.label for example in (*train, *heldout)}
    if len(labels) < 2 or (settings.positive and settings.positive not in labels):
        found = ", ".join(sorted(labels)) or "none"
        raise InputError(
            f'the texts of the classifier {settings.name} bear too few labels (positive: "{settings.positive}", found: '
            f"{found})",
            "add texts of another label, or correct label, relabel and positive",
        )
    if settings.method == "signals" and len(labels) > 2:
        raise InputError(
            f"the classifier {settings.name} has {len(labels)} labels, and signals tell two apart",
            "join them by relabel, or use the method fasttext",
        )
    for side, examples in (("to learn from", train), ("held out", heldout)):
        if missing := sorted(labels - {example.label for example in examples}):
            raise InputError(
                f'the classifier {settings.name} has no text of the label "{missing[0]}" {side}',
                'add texts or groups of it, change heldout_share or seed, or (of the crawl) set split_by = "document"',
            )
