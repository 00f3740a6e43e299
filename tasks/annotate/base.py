"""What an annotator is, and the kinds of annotators there are.

Used by every annotator. An annotator sees one document and returns values for columns of the attributes; it never
changes or drops the document.
"""

from typing import TYPE_CHECKING, Any

from tasks.config import Config

if TYPE_CHECKING:
    from tasks.annotate.view import View


class Annotator(Config):
    """One judgement on a document; its fields are its settings."""

    def prepare(self) -> None:
        """Loads what the annotator needs, once per part; raises InputError when it is not there."""

    def annotate(self, view: "View") -> dict[str, Any]:
        """Returns values by column of `tasks.annotate.stage.ATTRIBUTES`."""
        raise NotImplementedError


class Filter(Annotator):
    """A rule that some documents should not pass."""

    def verdict(self, view: "View") -> str | None:
        """Returns the machine reason why the document should go, prefixed by the filter's name, or None."""
        raise NotImplementedError

    def annotate(self, view: "View") -> dict[str, Any]:
        """See `Annotator.annotate`."""
        return {"quality_reason": self.verdict(view)}


class SpanFinder(Annotator):
    """Finds stretches of text that consolidation masks."""

    def spans(self, text: str) -> list[tuple[int, int]]:
        """Returns (start, end) in characters (Unicode code points), in order and without overlap."""
        raise NotImplementedError

    @property
    def kind(self) -> str:
        """What the spans are called."""
        raise NotImplementedError

    def annotate(self, view: "View") -> dict[str, Any]:
        """See `Annotator.annotate`."""
        return {"pii_spans": [{"kind": self.kind, "start": a, "end": b} for a, b in self.spans(view.text)]}
