"""Base classes of annotators and filters.

An annotator measures documents: the stage `annotate` writes its results as one column. A filter computes from these
values which documents the stage `consolidate` drops, so a changed limit needs no new pass over the texts. Neither
changes a document.
"""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, TypeAlias

from tasks.core.config import Config

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

    from tasks.core.artifact import Artifact
    from tasks.filters.batch import DocumentBatch

Measurements: TypeAlias = "Mapping[str, NDArray[Any]]"
"""An annotator's column: for each of its fields an array of shape (n_documents,)."""

Reasons: TypeAlias = "Iterator[tuple[str, NDArray[np.bool_]]]"
"""Machine-readable reasons in order of precedence, each with a mask of shape (n_documents,) of documents to drop."""


class Threshold(NamedTuple):
    """A limit that is a number, and the values that it is compared with.

    Attributes:
        path: dotted path of the limit in the settings: of the filter, or of `consolidate` (`limit_values`).
        reason: the reason to drop a document beyond the limit.
        side: what the limit is: the least or the most that a value may be, or ("below") more than it may be.
        bound: the limit; None for no limit.
        values: the value of each document, shape (n_documents,).
        applies: whether the limit applies to each document, shape (n_documents,); None for all.
    """

    path: str
    reason: str
    side: 'Literal["least", "most", "below"]'
    bound: float | None
    values: "NDArray[Any]"
    applies: "NDArray[np.bool_] | None" = None

    def beyond(self) -> "NDArray[np.bool_]":
        """Returns a mask of the documents to drop, shape (n_documents,); a value that is NaN is within any limit."""
        import numpy as np

        if self.bound is None:
            return np.zeros(len(self.values), np.bool_)
        is_beyond = {"least": np.less, "most": np.greater, "below": np.greater_equal}[self.side]
        mask: NDArray[np.bool_] = is_beyond(self.values, self.bound)
        return mask if self.applies is None else self.applies & mask


class Annotator(Config):
    """One measurement; its fields are the settings that change what is measured.

    `measures` names the fields of the annotator's column, with Arrow's name of the type ("int32", "float32", "bool",
    "string"). Recipes are read at DAG parse time and import these files, so heavy modules (NumPy, Arrow, models) are
    imported inside functions.
    """

    measures: ClassVar[Mapping[str, str]] = {}

    version: ClassVar[int] = 1
    """Incremented with every code change that changes the measured values; only this annotator then runs again. A
    change of the shared splits increments the version of the stage instead."""

    segmented: ClassVar[bool] = False
    """Whether its values depend on the words of scripts without spaces, whose version (`tasks.formats.documents.words`)
    is then part of the fingerprint."""

    reads: ClassVar[tuple[str, ...]] = ()
    """Annotators whose columns it reads if they are in use. They run before it; no other columns are passed to it."""

    needs: ClassVar[tuple[str, ...]] = ()
    """Annotators that it requires: they must be in use and come before it."""

    places: ClassVar[bool] = False
    """Whether its values are places in the text. It then reads the text as it is stored, and all others read it without
    the marks of Markdown."""

    splits: ClassVar[tuple[str, ...]] = ("words", "line_columns")
    """The splits of a batch that it reads; the others are freed before it runs."""

    def field_types(self) -> Mapping[str, str]:
        """Returns Arrow's type name of each field of the column: `measures`, or the fields that the settings name."""
        return self.measures

    def type(self) -> "pa.StructType":
        """Returns the type of the annotator's column; overridden for nested fields."""
        import pyarrow as pa

        return pa.struct(
            [pa.field(name, pa.type_for_alias(kind), nullable=False) for name, kind in self.field_types().items()]
        )

    def external(self) -> list[str]:
        """Returns the external files that it reads: local paths, or the address of one file of a model of the hub.

        Their bytes are part of the fingerprint. The stage replaces a setting that equals the address by the address at
        the commit that the run has resolved.
        """
        return []

    def trained(self) -> Mapping[str, tuple[str, ...]]:
        """Returns the names of the models trained by the pipeline that it reads, by kind of artifact; () means all.

        Only artifacts of these kinds are passed to `prepare`.
        """
        return {}

    def prepare(self, models: "Mapping[str, Artifact]") -> None:
        """Loads models and files, once per part.

        Args:
            models: artifacts with models that the pipeline has trained, by kind (`trained`).

        Raises:
            InputError: a model or file is missing.
        """

    def measure(self, batch: "DocumentBatch") -> Mapping[str, Any]:
        """Returns for every field one value per document: a list or NumPy array of len(batch), or an Arrow column."""
        raise NotImplementedError

    def summary(self, column: "pa.StructArray") -> Mapping[str, int]:
        """Returns counts of the documents of a part for the report, by name, from the annotator's column.

        The stage adds them up over the parts, as metrics `<annotator>/<name>`. The number of names must be bounded,
        whatever the documents are. Rows of documents on which the annotator failed are null.
        """
        return {}

    def annotate(self, batch: "DocumentBatch") -> "pa.StructArray":
        """Returns `measure` as an Arrow column of `type`."""
        import pyarrow as pa

        kind, values = self.type(), self.measure(batch)
        columns = [v if isinstance(v := values[f.name], pa.Array) else pa.array(v, f.type) for f in kind]
        return pa.StructArray.from_arrays(columns, fields=list(kind))


class Filter(Config):
    """A rule that drops documents; its fields are the limits.

    `measured_by` is the annotator whose column the rule reads. A filter defines `thresholds` for the limits that are
    numbers, which makes them visible beside the values, or `reasons`, or both.
    """

    measured_by: ClassVar[type[Annotator]]

    elsewhere: ClassVar[Mapping[str, Any]] = {}
    """Limits that describe English, with their values for documents of other languages. Only limits of a language, kind
    or source replace these (`ConsolidateConfig.limits_of`)."""

    def thresholds(self, measured: Measurements) -> Iterator[Threshold]:
        """Yields the limits that are numbers, in order of precedence, including those without a bound."""
        yield from ()

    def reasons(self, measured: Measurements) -> Reasons:
        """Yields the reasons, each beginning with the filter's name, in order of precedence; those of `thresholds`."""
        for threshold in self.thresholds(measured):
            if threshold.bound is not None:
                yield threshold.reason, threshold.beyond()

    def verdict(self, text: str, **properties: str) -> str | None:
        """Returns the first reason to drop a document with this text, or None; for tests and docs.

        Args:
            text: the document's text.
            properties: `source`, `url` or `language` of the document, if the rule depends on it.
        """
        from tasks.filters.batch import DocumentBatch

        annotator = self.measured_by()
        annotator.prepare({})
        batch = DocumentBatch([text], **{f"{name}s": [value] for name, value in properties.items()})
        values = fields(annotator.annotate(batch))
        return next((reason for reason, mask in self.reasons(values) if mask[0]), None)


class ScoreLimits(Filter):
    """Limits on the scores of several models that the recipe names; a base class of filters.

    A document whose score is NaN is dropped, because NaN meets no limit. Such scores come from a broken model: these
    models score every text. The same rule applies to the marks of the gold tier.
    """

    at_least: dict[str, float] = {}
    """Minimum score by model, such as `quality = 0.02`."""
    at_most: dict[str, float] = {}
    """Maximum score by model, such as `toxicity = 0.9`."""

    name: ClassVar[str]

    def thresholds(self, measured: Measurements) -> Iterator[Threshold]:
        """See `Filter.thresholds`; `ConsolidateConfig.unmeasured` has checked that each score exists."""
        import numpy as np

        for model, limit in sorted(self.at_least.items()):
            values = np.nan_to_num(measured[model], nan=-np.inf, posinf=np.inf, neginf=-np.inf)
            yield Threshold(f"at_least.{model}", f"{self.name}_{model}_low", "least", limit, values)
        for model, limit in sorted(self.at_most.items()):
            values = np.nan_to_num(measured[model], nan=np.inf, posinf=np.inf, neginf=-np.inf)
            yield Threshold(f"at_most.{model}", f"{self.name}_{model}_high", "most", limit, values)


def share(part: "NDArray[Any]", whole: "NDArray[Any]") -> "NDArray[np.float64]":
    """Returns part / whole, and 0 where the whole is 0."""
    import numpy as np

    ratio: NDArray[np.float64] = np.divide(part, whole, out=np.zeros(len(part)), where=whole != 0)
    return ratio


def fields(column: "pa.StructArray") -> dict[str, "NDArray[Any]"]:
    """Returns the fields of an annotator's column as NumPy arrays: numbers, booleans, or objects (text, lists)."""
    return {field.name: column.field(index).to_numpy(zero_copy_only=False) for index, field in enumerate(column.type)}
