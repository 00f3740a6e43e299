"""Training and held-out texts of a classifier: reading, sampling of the crawl, removal of copies, split.

Reads external JSON lines and `extracted` (documents/). The result depends only on the texts and settings, not on the
order of files or the number of workers.
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
from tasks.formats.documents.external_files import SourceFile, find
from tasks.formats.documents.json_rows import parsed_rows
from tasks.formats.documents.text import clean, hash64, normalise
from tasks.stages.classifiers import ClassifierSettings, CrawlTexts, Texts

log = logging.getLogger("sluice.classifiers")

_HASHES = 2**64


@dataclass(frozen=True)
class LabeledText:
    """A text with its label.

    Attributes:
        text: the cleaned text, truncated to the characters that the classifier reads.
        label: its label.
        key: hash of the normalized text, equal for copies.
        group: its group, which the split never divides; "" for none.
        source: name of its file, or "crawl".
    """

    text: str
    label: str
    key: str
    group: str
    source: str


@dataclass(frozen=True)
class TextSplit:
    """The training and held-out texts of a classifier.

    Attributes:
        train: training texts, in the order of their hashes.
        heldout: held-out texts, which have no text or group in common with `train`.
        rejected: number of rejected texts, by reason.
        files: sha256 (hex) of each file, by path.
        read: number of texts read.
    """

    train: list[LabeledText]
    heldout: list[LabeledText]
    rejected: dict[str, int]
    files: dict[str, str]
    read: int


def files_of(settings: ClassifierSettings) -> list[SourceFile]:
    """Returns all files of a classifier's texts; raises like `tasks.formats.documents.external_files.find`."""
    return [file for texts in settings.texts for file in _files(settings, texts)]


def _files(settings: ClassifierSettings, texts: Texts) -> list[SourceFile]:
    return find(texts.path, f'the classifier "{settings.name}"')


def gather(settings: ClassifierSettings, extracted: Artifact | None, engine: Engine) -> TextSplit:
    """Reads and samples the texts of a classifier, drops copies and contradictions, and splits the rest.

    Args:
        settings: settings of the classifier.
        extracted: the documents; None if the settings do not use them.
        engine: runs the sampling.

    Raises:
        InputError: a file is missing or unreadable, or a label has no training or no held-out text.
    """
    files: dict[str, str] = {}
    rejected: Counter[str] = Counter()
    examples: list[LabeledText] = []
    for texts in settings.texts:
        for file in _files(settings, texts):
            files[file.path] = sha256_of_file(file.local())
            for example in _read(texts, file, settings.chars):
                if isinstance(example, str):
                    rejected[example] += 1
                else:
                    examples.append(example)
    if settings.crawl and extracted:
        examples += _draw(settings.crawl, settings, extracted, engine)
    read = len(examples) + rejected.total()
    examples = _capped(settings, list(_without_copies(examples, rejected)), rejected)
    units = {_unit(example) for example in examples}
    heldout_units = {unit for unit in units if _share(settings, "split", unit) < settings.heldout_share}
    train = [example for example in examples if _unit(example) not in heldout_units]
    heldout = [example for example in examples if _unit(example) in heldout_units]
    _check_labels(settings, train, heldout)
    return TextSplit(train, heldout, dict(sorted(rejected.items())), files, read)


def _read(texts: Texts, file: SourceFile, chars: int) -> Iterator[LabeledText | str]:
    """Yields an example for each row of a file, or the reason why the row is rejected."""
    name = file.path.rpartition("/")[2]
    unmapped: Counter[str] = Counter()
    for number, row in parsed_rows(file):
        try:
            text, raw_label, group = _fields(texts, row)
            label = texts.relabel.get(raw_label, "") if texts.relabel else raw_label
            unmapped[raw_label] += not label
            example = (_example(text, chars, label, group, name) or "empty") if label else "other_label"
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(
                f"{file.path}, line {number}: no row with a text and a label ({type(error).__name__}: {error})",
                "correct the file, or name its fields: text_field, label_field, group_field",
            ) from None
        yield example
    if unmapped := +unmapped:
        most = ", ".join(f"{label!r} ({count:,})" for label, count in unmapped.most_common(5))
        log.warning("%s: skipped %s texts whose label is not in relabel: %s", file.path, unmapped.total(), most)


def _fields(texts: Texts, row: dict[str, Any]) -> tuple[str, str, str]:
    """Returns the text, the label as in the file, and the group of a row; raises KeyError, TypeError or ValueError."""
    text = row[texts.text_field]
    if not isinstance(text, str | None):
        raise TypeError(f'the field "{texts.text_field}" is not text')
    label = texts.label or _plain(row[texts.label_field])
    group = f"{texts.group_field}={_plain(row[texts.group_field])}" if texts.group_field else ""
    return text or "", label, group


def _plain(value: Any) -> str:
    # A label may be a number or a boolean in the file, but is a string in a recipe. Some programs write a column of
    # integers with missing values as floats.
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    plain = value if isinstance(value, str) else json.dumps(value)
    plain.encode()  # raises for a lone surrogate, which neither card nor model can represent
    return plain


def _example(text: str, chars: int, label: str, group: str, source: str) -> LabeledText | None:
    # Truncated before cleaning as well, because cleaning a whole book for its first page would take too long.
    text = clean(text[: 2 * chars])[:chars]
    normalised = normalise(text)
    if not normalised:
        return None
    return LabeledText(text, label, hashlib.blake2b(normalised.encode(), digest_size=16).hexdigest(), group, source)


def _draw(crawl: CrawlTexts, settings: ClassifierSettings, extracted: Artifact, engine: Engine) -> list[LabeledText]:
    """Returns the documents with the lowest hashes of their ids, in two passes: over the ids, then over their texts."""
    paths = extracted.files("documents/")
    ranked: list[tuple[int, str]] = []
    for _, rows in engine.map(partial(_ranks, extracted.folder, crawl, settings.seed), paths):
        ranked = sorted(ranked + rows)[: crawl.documents]
    if not ranked:
        raise InputError(
            f"{extracted.address} has no document of the sources {', '.join(crawl.sources)}",
            f"name others under crawl.sources of the classifier {settings.name}",
        )
    sample = [doc_id for _, doc_id in ranked]
    sampled_texts: list[LabeledText] = []
    for _, examples in engine.map(partial(_texts, extracted.folder, crawl, settings.chars, sample), paths):
        sampled_texts += examples
    return sampled_texts


def _ranks(extracted: ArtifactFolder, crawl: CrawlTexts, seed: int, path: str) -> list[tuple[int, str]]:
    ids = extracted.table(path, columns=["id"], filters=pc.field("source").isin(crawl.sources)).column("id").to_pylist()
    # A document that is not among the lowest of its part is not among the lowest of all.
    return sorted((hash64(f"classifiers/{seed}/{doc_id}"), doc_id) for doc_id in ids)[: crawl.documents]


def _texts(extracted: ArtifactFolder, crawl: CrawlTexts, chars: int, sample: list[str], path: str) -> list[LabeledText]:
    table = extracted.table(path, columns=["host", "text"], filters=pc.field("id").isin(sample))
    rows = zip(table.column("host").to_pylist(), table.column("text").to_pylist(), strict=True)
    examples = (_example(text, chars, crawl.label, _group(crawl, host), "crawl") for host, text in rows)
    return [example for example in examples if example]


def _group(crawl: CrawlTexts, host: str) -> str:
    return f"host={host}" if crawl.split_by == "host" else ""


def _without_copies(examples: Iterable[LabeledText], rejected: Counter[str]) -> Iterator[LabeledText]:
    """Yields each text once; drops texts that occur with several labels."""
    by_key: dict[str, list[LabeledText]] = defaultdict(list)
    for example in examples:
        by_key[example.key].append(example)
    for copies in by_key.values():
        if len({example.label for example in copies}) > 1:
            rejected["contradiction"] += len(copies)
            continue
        rejected["copy"] += len(copies) - 1
        yield min(copies, key=lambda example: (example.group, example.source, example.text))


def _capped(settings: ClassifierSettings, examples: list[LabeledText], rejected: Counter[str]) -> list[LabeledText]:
    """Returns the examples in the order of their hashes, at most `max_per_label` of each label."""
    selected: list[LabeledText] = []
    counts: Counter[str] = Counter()
    for example in sorted(examples, key=lambda item: (_share(settings, "order", item.key), item.key)):
        if settings.max_per_label is not None and counts[example.label] >= settings.max_per_label:
            rejected["over_max"] += 1
            continue
        counts[example.label] += 1
        selected.append(example)
    return selected


def _unit(example: LabeledText) -> str:
    return example.group or example.key


def _share(settings: ClassifierSettings, purpose: str, key: str) -> float:
    """Returns a uniform number in 0..1 from a hash of purpose, seed and key."""
    return hash64(f"{purpose}/{settings.seed}/{key}") / _HASHES


def _check_labels(settings: ClassifierSettings, train: list[LabeledText], heldout: list[LabeledText]) -> None:
    labels = {example.label for example in (*train, *heldout)}
    if len(labels) < 2 or (settings.positive and settings.positive not in labels):
        label_list = ", ".join(sorted(labels)) or "none"
        raise InputError(
            f'the texts of the classifier {settings.name} have too few labels (positive: "{settings.positive}", found: '
            f"{label_list})",
            "add texts of another label, or correct label, relabel and positive",
        )
    if settings.method == "signals" and len(labels) > 2:
        raise InputError(
            f"the classifier {settings.name} has {len(labels)} labels, but the method signals supports two",
            "merge labels with relabel, or use the method fasttext",
        )
    for side, examples in (("to train on", train), ("held out", heldout)):
        if missing := sorted(labels - {example.label for example in examples}):
            raise InputError(
                f'the classifier {settings.name} has no text of the label "{missing[0]}" {side}',
                'add texts or groups of it, change heldout_share or seed, or (for the crawl) set split_by = "document"',
            )
