"""Base classes of annotators and filters.

An annotator measures: the stage `annotate` writes the values it returns as one column. A filter judges: from measured
values it computes which documents the stage `consolidate` drops. So a changed limit needs no new pass over the texts.
Neither changes a document.
"""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from tasks.core.config import Config

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

    from tasks.core.artifact import Artifact
    from tasks.filters.batch import Batch

Measured: TypeAlias = "Mapping[str, NDArray[Any]]"
"""Values measured by an annotator: for each of its fields one value per document."""

Reasons: TypeAlias = "Iterator[tuple[str, NDArray[np.bool_]]]"
"""Machine reasons in order of precedence, each with a mask of the documents to drop for it."""


class Annotator(Config):
    """One measurement; its fields are the settings that change what is measured.

    `measures` names the fields of the annotator's column, with Arrow's name of the type ("int32", "float32", "bool",
    "string"). Recipes are read at DAG parse time and import these files, so heavy modules (NumPy, Arrow, models) are
    imported inside functions.
    """

    measures: ClassVar[Mapping[str, str]] = {}

    version: ClassVar[int] = 1
    """Raised with every change of the code that changes the measured values: only this annotator is then run
    again. Changes of the shared splits raise the version of the stage."""

    reads: ClassVar[tuple[str, ...]] = ()
    """Annotators whose columns it reads where in use: they run before it; no other columns are passed to it."""

    needs: ClassVar[tuple[str, ...]] = ()
    """Annotators that it requires: they must be in use, before it."""

    def named(self) -> Mapping[str, str]:
        """Returns the fields of the annotator's column by name: `measures`, or those that the settings name."""
        return self.measures

    def type(self) -> "pa.StructType":
        """Returns the type of the annotator's column; overridden for nested fields."""
        import pyarrow as pa

        return pa.struct(
            [pa.field(name, pa.type_for_alias(kind), nullable=False) for name, kind in self.named().items()]
        )

    def external(self) -> list[str]:
        """Returns local paths of the external files that the annotator reads; their bytes are in the fingerprint."""
        return []

    def trained(self) -> Mapping[str, tuple[str, ...]]:
        """Returns the models of the pipeline that the annotator reads: by kind of artifact their names, () for all.

        Only artifacts of these kinds are passed to `prepare`.
        """
        return {}

    def prepare(self, models: "Mapping[str, Artifact]") -> None:
        """Loads what the annotator needs, once per part.

        Args:
            models: artifacts with models that the pipeline has trained, by kind (`trained`).

        Raises:
            InputError: it is missing.
        """

    def measure(self, batch: "Batch") -> Mapping[str, Any]:
        """Returns for every field one value per document: a list or NumPy array of len(batch), or an Arrow column."""
        raise NotImplementedError

    def annotate(self, batch: "Batch") -> "pa.StructArray":
        """Returns `measure` as an Arrow column of `type`."""
        import pyarrow as pa

        kind, values = self.type(), self.measure(batch)
        columns = [v if isinstance(v := values[f.name], pa.Array) else pa.array(v, f.type) for f in kind]
        return pa.StructArray.from_arrays(columns, fields=list(kind))


class Filter(Config):
    """A rule that drops documents; its fields are the limits.

    `measured_by` is the annotator whose column the rule reads.
    """

    measured_by: ClassVar[type[Annotator]]

    def reasons(self, measured: Measured) -> Reasons:
        """Yields the reasons, each beginning with the filter's name, in order of precedence."""
        raise NotImplementedError

    def verdict(self, text: str, **known: str) -> str | None:
        """Returns the first reason to drop a document of this text, or None: for tests and docs.

        Args:
            text: the document's text.
            known: `source`, `url` or `language` of the document, where the rule depends on it.
        """
        from tasks.filters.batch import Batch

        annotator = self.measured_by()
        annotator.prepare({})
        batch = Batch([text], **{f"{name}s": [value] for name, value in known.items()})
        values = fields(annotator.annotate(batch))
        return next((reason for reason, goes in self.reasons(values) if goes[0]), None)


class Bounds(Filter):
    """Limits on several model scores, whose names are given by the recipe; base of filters.

    A document whose score is NaN is dropped: no limit counts as met. Such scores come from a broken model, since these
    models score every text. The same rule applies to the marks of the gold tier.
    """

    at_least: dict[str, float] = {}
    """Per model the least score that a document must have, as `quality = 0.02`."""
    at_most: dict[str, float] = {}
    """Per model the greatest score that a document may have, as `toxicity = 0.9`."""

    name: ClassVar[str]

    def reasons(self, measured: Measured) -> Reasons:
        """See `Filter.reasons`; that each score exists is checked before (`ConsolidateConfig.unmeasured`)."""
        for model, limit in sorted(self.at_least.items()):
            yield f"{self.name}_{model}_low", ~(measured[model] >= limit)
        for model, limit in sorted(self.at_most.items()):
            yield f"{self.name}_{model}_high", ~(measured[model] <= limit)


def share(part: "NDArray[Any]", whole: "NDArray[Any]") -> "NDArray[np.float64]":
    """Returns part / whole, and 0 where the whole is 0."""
    import numpy as np

    ratio: NDArray[np.float64] = np.divide(part, whole, out=np.zeros(len(part)), where=whole != 0)
    return ratio


def fields(column: "pa.StructArray") -> dict[str, "NDArray[Any]"]:
    """Returns the fields of an annotator's column as NumPy arrays: numbers, booleans, or objects (text, lists)."""
    return {field.name: column.field(index).to_numpy(zero_copy_only=False) for index, field in enumerate(column.type)}
