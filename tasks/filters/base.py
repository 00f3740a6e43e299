"""What an annotator is, and what a filter is.

An annotator measures: the stage `annotate` writes what it returns as one column. A filter judges what was measured: the
stage `consolidate` asks it which documents go. So a changed limit costs no new pass over the texts. Neither ever
changes or drops a document.
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
"""What an annotator has found: for each of its fields one value per document."""

Reasons: TypeAlias = "Iterator[tuple[str, NDArray[np.bool_]]]"
"""Machine reasons, the first one first, each with a mask of the documents that should go for it."""


class Annotator(Config):
    """One measurement; its fields are the settings that change what is measured.

    `measures` names what is measured of a document, with Arrow's name of its type ("int32", "float32", "bool",
    "string"): the fields of the annotator's column. Recipes are read at DAG parse time and import these files, so what
    is heavy (NumPy, Arrow, models) is imported inside functions.
    """

    measures: ClassVar[Mapping[str, str]] = {}

    version: ClassVar[int] = 1
    """Raised with every change of the code that changes what is measured: what an earlier one has measured is then
    measured again, and nothing else. What came out of the shared splits is known by the version of the stage."""

    reads: ClassVar[tuple[str, ...]] = ()
    """Annotators whose findings it reads where they are in use: they stand before it, and it sees those of no other."""

    needs: ClassVar[tuple[str, ...]] = ()
    """Those without whose findings it would judge wrongly: they are in use, before it."""

    def named(self) -> Mapping[str, str]:
        """Returns the fields of the annotator's column by name: `measures`, or those that the settings name."""
        return self.measures

    def type(self) -> "pa.StructType":
        """Returns the type of the annotator's column; for fields that no name describes it is overridden."""
        import pyarrow as pa

        return pa.struct(
            [pa.field(name, pa.type_for_alias(kind), nullable=False) for name, kind in self.named().items()]
        )

    def external(self) -> list[str]:
        """Returns the files outside the store that the annotator reads, as local paths: they bear on the result."""
        return []

    def trained(self) -> Mapping[str, tuple[str, ...]]:
        """Returns the models of the pipeline that the annotator reads: by kind of artifact their names, () for all.

        It is given the artifacts of these kinds alone (`prepare`).
        """
        return {}

    def prepare(self, models: "Mapping[str, Artifact]") -> None:
        """Loads what the annotator needs, once per part.

        Args:
            models: artifacts with models that the pipeline has trained, by kind (`trained`).

        Raises:
            InputError: it is not there.
        """

    def measure(self, batch: "Batch") -> Mapping[str, Any]:
        """Returns for every field one value per document: a list or NumPy array of len(batch), or an Arrow column."""
        raise NotImplementedError

    def annotate(self, batch: "Batch") -> "pa.StructArray":
        """Returns `measure` as an Arrow column of `type`."""
        import pyarrow as pa

        kind, found = self.type(), self.measure(batch)
        columns = [one if isinstance(one := found[f.name], pa.Array) else pa.array(one, f.type) for f in kind]
        return pa.StructArray.from_arrays(columns, fields=list(kind))


class Filter(Config):
    """A rule that some documents should not pass; its fields are the limits.

    `measured_by` is the annotator whose column the rule reads.
    """

    measured_by: ClassVar[type[Annotator]]

    def reasons(self, measured: Measured) -> Reasons:
        """Yields the reasons, each beginning with the filter's name, the first one first."""
        raise NotImplementedError

    def verdict(self, text: str, **known: str) -> str | None:
        """Returns the first reason why a document of this text should go, or None: for tests and docs.

        Args:
            text: the document's text.
            known: `source`, `url` or `language` of the document, where the rule depends on it.
        """
        from tasks.filters.batch import Batch

        annotator = self.measured_by()
        annotator.prepare({})
        batch = Batch([text], **{f"{name}s": [value] for name, value in known.items()})
        found = fields(annotator.annotate(batch))
        return next((reason for reason, goes in self.reasons(found) if goes[0]), None)


def share(part: "NDArray[Any]", whole: "NDArray[Any]") -> "NDArray[np.float64]":
    """Returns part / whole, and 0 where the whole is 0."""
    import numpy as np

    found: NDArray[np.float64] = np.divide(part, whole, out=np.zeros(len(part)), where=whole != 0)
    return found


def fields(column: "pa.StructArray") -> dict[str, "NDArray[Any]"]:
    """Returns the fields of an annotator's column as NumPy arrays: numbers, booleans, or objects (text, lists)."""
    return {field.name: column.field(index).to_numpy(zero_copy_only=False) for index, field in enumerate(column.type)}
