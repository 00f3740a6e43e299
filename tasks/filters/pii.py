"""Personal data: spans in the text, and a filter for documents with many of them.

The annotator writes spans, which `consolidate` replaces with placeholders; the recognisers and their sources are in
`tasks.filters.recognisers`. The filter drops contact lists, since masking them would leave mostly placeholders.

Names of persons have no format that a rule could match, so they need a trained model: a spaCy pipeline in a local
folder. None is part of this project or on a package index, because spaCy publishes its pipelines elsewhere. spaCy
reports some 10,000 words per second on a CPU for its large English pipeline (spacy.io, "Facts & Figures"), hundreds of
times slower than all other recognisers together.
"""

from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field, PrivateAttr

from tasks.core.errors import InputError
from tasks.filters.base import Annotator, Filter, Measurements, Threshold
from tasks.filters.recognisers.span import Evidence, PiiSpan

if TYPE_CHECKING:
    import pyarrow as pa

    from tasks.core.artifact import Artifact
    from tasks.filters.batch import DocumentBatch

Kind = Literal["email", "phone", "ip", "ssn", "card", "iban", "address"]
Country = Literal["US", "CA", "GB", "DE", "FR", "ES", "IT", "NL", "IN", "BR"]
PERSON_LABELS = frozenset(("PERSON", "PER"))
"""Labels of persons in spaCy's pipelines: those of OntoNotes and of WikiNER."""

_CHUNK = 20_000
"""Characters per call of the pipeline: spaCy needs about a gigabyte for a million (its `max_length`)."""

_UNUSED = ["tagger", "parser", "lemmatizer", "attribute_ruler", "morphologizer", "senter"]


class Pii(Annotator):
    """Finds personal data: e-mail, telephone, IP address, US social security number, card, IBAN, postal address.

    The spans of a document do not overlap (`tasks.filters.recognisers.span.resolve`). The sources of each rule are in
    the module of its recogniser.
    """

    places: ClassVar[bool] = True

    splits: ClassVar[tuple[str, ...]] = ()
    segmented: ClassVar[bool] = True
    version: ClassVar[int] = 3

    kinds: tuple[Kind, ...] = ("email", "phone", "ip", "ssn", "card", "iban", "address")
    """Kinds of personal data to search for. The kind of a span is also its placeholder, such as `<email>`."""

    countries: tuple[Country, ...] = ("US", "CA", "GB", "DE", "FR", "ES", "IT", "NL", "IN", "BR")
    """Countries whose national telephone numbers and addresses are searched for. Numbers with a country code are always
    searched for."""

    names: str = ""
    """Folder of a spaCy pipeline; the persons that it recognizes become spans of the kind `person`. Empty: none. Needs
    the extra `ner`, and takes hundreds of times as long as all other kinds together."""

    _names: "NameRecogniser | None" = PrivateAttr(default=None)

    def external(self) -> list[str]:
        """Returns the local paths of the pipeline's files; their bytes are part of the fingerprint."""
        return pipeline_files(self.names) if self.names else []

    def prepare(self, models: "Mapping[str, Artifact]") -> None:
        """See `Annotator.prepare`; raises InputError if the pipeline for names cannot be loaded."""
        self._names = NameRecogniser(self.names) if self.names else None

    def type(self) -> "pa.StructType":
        """See `Annotator.type`; `start` and `end` are in code points; words: `tasks.formats.documents.words`."""
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

    def measure(self, batch: "DocumentBatch") -> Mapping[str, Any]:
        """See `Annotator.measure`."""
        import pyarrow.compute as pc

        from tasks.filters.recognisers.folding import DOT
        from tasks.filters.recognisers.scan import find
        from tasks.filters.recognisers.span import resolve
        from tasks.formats.documents.words import words

        dots = pc.match_substring(batch.column, DOT, ignore_case=True).to_pylist()
        matches = [find(text, self.kinds, self.countries, dot) for text, dot in zip(batch.texts, dots, strict=True)]
        if self._names:
            persons = self._names.find(batch.texts)
            matches = [
                resolve([*by_rule, *by_model], text)
                for by_rule, by_model, text in zip(matches, persons, batch.texts, strict=True)
            ]
        counts = [len(spans) for spans in matches]
        return {
            "spans": [[span[:3] for span in spans] for spans in matches],
            "count": counts,
            # Words are counted only in the few texts with spans.
            "per_1000_words": [
                count * 1000 / len(words(text)) if count else 0.0
                for count, text in zip(counts, batch.texts, strict=True)
            ],
        }


class PiiDense(Filter):
    """Drops documents that consist mostly of personal data: directories, leaked lists, contact pages.

    Our own rule; other projects only mask (datatrove's PIIFormatter) or use a fixed count (dolma's `pii_regex` taggers
    mark documents with more than five spans). The default drops very little: on ordinary pages, a contact block gives 2
    to 20 spans per 1,000 words.

    >>> PiiDense().verdict(" ".join(f"{name}@example.org," for name in ("ann", "ben", "cem", "dan", "eve")))
    'pii_dense'
    >>> PiiDense().verdict("Write to ann@example.org if one of the " + "many words on this page is wrong. " * 30)
    """

    measured_by = Pii

    max_per_1000_words: float = Field(default=200.0, ge=0)
    """Spans per 1,000 words above which a document is dropped."""

    min_spans: int = Field(default=5, ge=1)
    """Documents with fewer spans are kept: a short notice with one address is not a list."""

    def thresholds(self, measured: Measurements) -> Iterator[Threshold]:
        """See `Filter.thresholds`."""
        enough, density = measured["count"] >= self.min_spans, measured["per_1000_words"]
        yield Threshold("max_per_1000_words", "pii_dense", "most", self.max_per_1000_words, density, enough)


class NameRecogniser:
    """Recognizes names of persons with a spaCy pipeline.

    Args:
        folder: written by `nlp.to_disk`, or the folder of an unpacked pipeline package.

    Raises:
        InputError: spaCy is not installed, or the folder contains no pipeline.
    """

    def __init__(self, folder: str) -> None:
        try:
            spacy: Any = import_module("spacy")
        except ImportError as error:
            raise InputError(f"the setting names needs spaCy ({error})", "install the extra: sluice[ner]") from None
        try:
            self._pipeline = spacy.load(folder, exclude=_UNUSED)
        except (OSError, ValueError) as error:
            raise InputError(
                f"{folder} has no spaCy pipeline: {error}", "download a pipeline and name its folder"
            ) from None

    def find(self, texts: Sequence[str]) -> list[list[PiiSpan]]:
        """Returns the names in each text. Their evidence is the weakest, CONTEXT, so that matches of rules win."""
        matches: list[list[PiiSpan]] = [[] for _ in texts]
        chunks = [(chunk, (row, at)) for row, text in enumerate(texts) for at, chunk in _chunks(text)]
        for document, (row, at) in self._pipeline.pipe(chunks, as_tuples=True):
            for entity in document.ents:
                if entity.label_ in PERSON_LABELS:
                    start, end = at + entity.start_char, at + entity.end_char
                    matches[row].append(PiiSpan("person", start, end, Evidence.CONTEXT))
        return matches


def pipeline_files(folder: str) -> list[str]:
    """Returns the paths of all files of a pipeline, sorted."""
    return sorted(str(path) for path in Path(folder).rglob("*") if path.is_file())


def _chunks(text: str) -> Iterator[tuple[int, str]]:
    """Yields (start, chunk), split after a line end or, failing that, a space."""
    at = 0
    while at < len(text):
        end = at + _CHUNK
        if end < len(text):
            cut = max(text.rfind("\n", at, end), 0) or text.rfind(" ", at, end)
            end = cut + 1 if cut > at else end
        yield at, text[at:end]
        at = end
