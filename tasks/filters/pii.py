"""Personal data: spans in the text, and a filter for documents with many of them.

The annotator writes spans, which `consolidate` replaces by placeholders; recognisers and their sources are in
`tasks.filters.recognisers`. The filter drops lists of contacts, of which masking would leave mostly placeholders.

Names of persons have no format that a rule could recognise, so they need a trained model: a spaCy pipeline on the
user's disk. None is part of this project, nor is one in a package index: spaCy publishes its pipelines elsewhere. It
states some 10,000 words per second on a CPU for its large English one (spacy.io, "Facts & Figures"), which is hundreds
of times slower than all other recognisers together.
"""

from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field, PrivateAttr

from tasks.core.errors import InputError
from tasks.filters.base import Annotator, Filter, Measured, Reasons
from tasks.filters.recognisers.span import Evidence, Span

if TYPE_CHECKING:
    import pyarrow as pa

    from tasks.core.artifact import Artifact
    from tasks.filters.batch import Batch

Kind = Literal["email", "phone", "ip", "ssn", "card", "iban", "address"]
Country = Literal["US", "CA", "GB", "DE", "FR", "ES", "IT", "NL", "IN", "BR"]
PERSON_LABELS = frozenset(("PERSON", "PER"))
"""What spaCy's pipelines call a person: OntoNotes' label and WikiNER's."""

_PIECE = 20_000
"""Characters that are read at once: spaCy wants about a gigabyte for a million (its `max_length`)."""

_UNUSED = ["tagger", "parser", "lemmatizer", "attribute_ruler", "morphologizer", "senter"]


class Pii(Annotator):
    """Finds personal data: e-mail, telephone, IP address, US social security number, card, IBAN, postal address.

    What overlaps is resolved here (`tasks.filters.recognisers.span.resolve`), so that the spans of
    a document never do. The sources of each rule are in the file of its recogniser.
    """

    version: ClassVar[int] = 2

    kinds: tuple[Kind, ...] = ("email", "phone", "ip", "ssn", "card", "iban", "address")
    """Kinds of personal data to search for; a span's kind is also its placeholder, `<email>`."""

    countries: tuple[Country, ...] = ("US", "CA", "GB", "DE", "FR", "ES", "IT", "NL", "IN", "BR")
    """Countries whose national telephone numbers and addresses are found. Numbers with a country code always are."""

    names: str = ""
    """Folder of a spaCy pipeline; the persons that it recognises become spans of the kind `person`. Empty: none. Needs
    the extra `ner`, and costs hundreds of times all the rest."""

    _names: "Names | None" = PrivateAttr(default=None)

    def external(self) -> list[str]:
        """Returns the files of the pipeline as local paths: their bytes are part of the fingerprint."""
        return pipeline_files(self.names) if self.names else []

    def prepare(self, models: "Mapping[str, Artifact]") -> None:
        """See `Annotator.prepare`; raises InputError when the pipeline for names cannot be loaded."""
        self._names = Names(self.names) if self.names else None

    def type(self) -> "pa.StructType":
        """See `Annotator.type`; `start` and `end` count code points, words are separated by spaces."""
        import pyarrow as pa

        span = [pa.field("kind", pa.string(), nullable=False)]
        span += [pa.field(name, pa.int32(), nullable=False) for name in ("start", "end")]
        return pa.struct(
            [
                pa.field("spans", pa.list_(pa.field("item", pa.struct(span), nullable=False)), nullable=False),
                pa.field("count", pa.int32(), nullable=False),
                pa.field("per_1000_words", pa.float32(), nullable=False),
            ]
        )

    def measure(self, batch: "Batch") -> Mapping[str, Any]:
        """See `Annotator.measure`."""
        import pyarrow.compute as pc

        from tasks.filters.recognisers.folding import DOT
        from tasks.filters.recognisers.scan import find
        from tasks.filters.recognisers.span import resolve

        dots = pc.match_substring(batch.column, DOT, ignore_case=True).to_pylist()
        found = [find(text, self.kinds, self.countries, dot) for text, dot in zip(batch.texts, dots, strict=True)]
        if self._names:
            named = self._names.find(batch.texts)
            found = [
                resolve([*ours, *theirs], text) for ours, theirs, text in zip(found, named, batch.texts, strict=True)
            ]
        spans = [[span[:3] for span in one] for one in found]
        return {
            "spans": spans,
            "count": [len(one) for one in spans],
            # Words are counted only in the few texts with spans.
            "per_1000_words": [
                len(one) * 1000 / len(text.split()) if one else 0.0
                for one, text in zip(spans, batch.texts, strict=True)
            ],
        }


class PiiDense(Filter):
    """Drops documents in which personal data is the content: directories, leaked lists, pages of contacts.

    Our own rule; peers only mask (datatrove's PIIFormatter) or drop by a fixed count (dolma's `pii_regex` taggers mark
    documents with more than five spans). The default lets nearly everything through: measured on ordinary pages, one
    contact block gives 2 to 20 spans per 1,000 words.

    >>> PiiDense().verdict(" ".join(f"{name}@example.org," for name in ("ann", "ben", "cem", "dan", "eve")))
    'pii_dense'
    >>> PiiDense().verdict("Write to ann@example.org if one of the " + "many words on this page is wrong. " * 30)
    """

    measured_by = Pii

    max_per_1000_words: float = Field(default=200.0, ge=0)
    """Spans per 1,000 words above which a document is dropped."""

    min_spans: int = Field(default=5, ge=1)
    """Spans below which no document is dropped: a short notice with one address is not a list."""

    def reasons(self, measured: Measured) -> Reasons:
        """See `Filter.reasons`."""
        many = measured["count"] >= self.min_spans
        yield "pii_dense", many & (measured["per_1000_words"] > self.max_per_1000_words)


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
