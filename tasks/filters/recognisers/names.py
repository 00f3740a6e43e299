"""Names of persons, by a spaCy pipeline on the user's disk.

Names have no format that a rule could recognise, so a trained model is needed. No model is part of this
project, nor is one in a package index: spaCy publishes its pipelines elsewhere. It states some 10,000 words per second
on a CPU for its large English one (spacy.io, "Facts & Figures"), which is hundreds of times slower than all other
recognisers together.
"""

from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from tasks.core.errors import InputError
from tasks.filters.recognisers.span import Evidence, Span

PERSON_LABELS = frozenset(("PERSON", "PER"))
"""What spaCy's pipelines call a person: OntoNotes' label and WikiNER's."""

_PIECE = 20_000
"""Characters that are read at once: spaCy wants about a gigabyte for a million (its `max_length`)."""

_UNUSED = ["tagger", "parser", "lemmatizer", "attribute_ruler", "morphologizer", "senter"]


class Names:
    """A loaded pipeline.

    Args:
        folder: what `nlp.to_disk` has written, or the folder of an unpacked pipeline package.

    Raises:
        InputError: spaCy is not installed, or the folder contains no pipeline.
    """

    def __init__(self, folder: str) -> None:
        try:
            spacy: Any = import_module("spacy")
        except ImportError as error:
            raise InputError(f"names need spaCy ({error})", "install the extra: sluice[ner]") from None
        try:
            self._pipeline = spacy.load(folder, exclude=_UNUSED)
        except (OSError, ValueError) as error:
            raise InputError(f"{folder} holds no spaCy pipeline: {error}", "download one and name its folder") from None

    def find(self, texts: Sequence[str]) -> list[list[Span]]:
        """Returns the names in each text; evidence is the context, which every rule outdoes."""
        found: list[list[Span]] = [[] for _ in texts]
        pieces = [(piece, (row, at)) for row, text in enumerate(texts) for at, piece in _pieces(text)]
        for read, (row, at) in self._pipeline.pipe(pieces, as_tuples=True):
            for entity in read.ents:
                if entity.label_ in PERSON_LABELS:
                    found[row].append(Span("person", at + entity.start_char, at + entity.end_char, Evidence.CONTEXT))
        return found


def pipeline_files(folder: str) -> list[str]:
    """Returns all files of a pipeline, sorted: their bytes are part of the fingerprint."""
    return sorted(str(path) for path in Path(folder).rglob("*") if path.is_file())


def _pieces(text: str) -> Iterator[tuple[int, str]]:
    """Yields (start, piece), cut at the end of a line or word where there is one."""
    at = 0
    while at < len(text):
        end = at + _PIECE
        if end < len(text):
            cut = max(text.rfind("\n", at, end), 0) or text.rfind(" ", at, end)
            end = cut + 1 if cut > at else end
        yield at, text[at:end]
        at = end
