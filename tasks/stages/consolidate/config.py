"""Settings of the consolidate stage.

Changing one costs a join, not a new pass over the texts.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from pydantic import Field, ValidationInfo, field_validator

from tasks.core.config import Config, nearest
from tasks.filters.catalogue import SCORE_SETTINGS, complete, filter_of, known, require_unique

# What Arrow calls the types of numbers and truth values.
_NUMBERS = ("int", "uint", "float", "halffloat", "double", "bool")


class ConsolidateConfig(Config):
    """Which verdicts drop a document, what is masked in those that stay, and which of them are gold."""

    filters: tuple[str, ...] = ("language", "gopher_quality", "gopher_repetition")
    """Filters in the order in which their reasons count; what they read must be in `[annotate] use`."""

    limits: dict[str, dict[str, Any]] = Field(default={}, validate_default=True)
    """Limits by filter, such as `[consolidate.limits.gopher_quality] min_words = 30`; the rest are defaults."""

    sources: tuple[str, ...] | None = ("web",)
    """Sources that filters judge, `trusted` ones apart; None for all. Where a recipe does not say: the crawl and files
    of kind "warc", which come from the web; without a crawl, all sources. Gopher's rules were drawn up for web prose:
    code has few stop words and many symbols, so they would reject 338 of 551 files of Python's standard library, good
    code as it is."""

    dedup: bool = True
    """Drop copies, as `duplicate_exact` and `duplicate_near`, of documents that pass the rules above."""

    mask_pii: bool = True
    """Replace personal data that the annotator `pii` has found by its kind in angle brackets, such as `<email>`."""

    drop_lines: bool = False
    """Take out the lines that C4's rules drop: menus, notices on cookies, headings; of the sources that filters judge.
    The filter `c4` must be in use and ask for one sentence at least, so that no text loses all its lines."""

    gold: dict[str, float] = {}
    """What a document needs to be gold: the least value of measured numbers or truth values (1), as annotator and field
    joined by a dot, such as `"classifier.quality" = 0.6`. Without any, only trusted sources are gold. The rest of what
    is kept is silver."""

    trusted: tuple[str, ...] = ()
    """Sources whose documents are gold, and which no filter judges: they go only as copies, or where an annotator
    failed on them. Personal data in them is masked as in all others."""

    samples: int = Field(default=5, ge=0, le=1000)
    """Documents that the audit page shows of what is kept, and of each reason."""

    @field_validator("filters")
    @classmethod
    def _once(cls, given: tuple[str, ...]) -> tuple[str, ...]:
        return require_unique(given)

    @field_validator("limits")
    @classmethod
    def _complete(cls, given: dict[str, dict[str, Any]], info: ValidationInfo) -> dict[str, dict[str, Any]]:
        if "filters" not in info.data:
            return given  # what is wrong with `filters` is told already
        return complete(filter_of, info.data["filters"], given, ("consolidate.filters", "consolidate.limits"))

    @field_validator("gold")
    @classmethod
    def _named(cls, given: dict[str, float]) -> dict[str, float]:
        for name in given:
            if name.count(".") != 1:
                raise ValueError(f'"{name}": name an annotator and its field, such as "classifier.quality"')
        return given

    @field_validator("drop_lines")
    @classmethod
    def _something_left(cls, given: bool, info: ValidationInfo) -> bool:
        if not {"filters", "limits"} <= info.data.keys():
            return given
        if given and "c4" not in info.data["filters"]:
            raise ValueError('drop_lines needs "c4" among the filters')
        if given and info.data["limits"].get("c4", {}).get("min_sentences", 1) < 1:
            raise ValueError("drop_lines needs a c4.min_sentences of 1 or more: a text could lose all its lines")
        return given

    def marks(self) -> Iterator[tuple[str, str, float]]:
        """Yields annotator, field and least value of every mark of `gold`."""
        for name, least in self.gold.items():
            annotator, _, field = name.partition(".")
            yield annotator, field, least

    def reads(self) -> tuple[str, ...]:
        """Returns the annotators whose columns are read."""
        return tuple(dict.fromkeys(name for name, _ in self._readers()))

    def _readers(self) -> Iterator[tuple[str, str]]:
        """Yields each annotator that is read, and the setting that reads it."""
        yield from ((name, "filters") for name in self.filters)
        yield from ((name, "gold") for name, _, _ in self.marks())
        if self.mask_pii:
            yield "pii", "mask_pii"

    def unmeasured(
        self, measured: Collection[str], fields_of: Callable[[str], Mapping[str, str]]
    ) -> Iterator[tuple[str, str]]:
        """Yields what is read and not measured, and what to do about it.

        Args:
            measured: the annotators that have a column.
            fields_of: gives the fields of an annotator's column, with Arrow's names of their types.
        """
        for name, setting in dict.fromkeys(self._readers()):
            if name not in (names := known()):
                yield f'consolidate.{setting}: no annotator "{name}"', nearest(name, names)
            elif name not in measured:
                way_out = "set mask_pii = false" if setting == "mask_pii" else f"take it out of consolidate.{setting}"
                yield f'consolidate.{setting}: "{name}" is not measured', f'add "{name}" to annotate.use, or {way_out}'
        yield from self._unbounded(measured, fields_of)
        yield from self._unmarked(measured, fields_of)

    def _unbounded(
        self, measured: Collection[str], fields_of: Callable[[str], Mapping[str, str]]
    ) -> Iterator[tuple[str, str]]:
        """Yields what is wrong with limits on models of which only the recipe knows."""
        for name in (one for one in SCORE_SETTINGS if one in self.filters and one in measured):
            for bound in ("at_least", "at_most"):
                for model in self.limits[name][bound]:
                    if model not in (asked := fields_of(name)):
                        says = f"annotate.settings.{name}.{SCORE_SETTINGS[name]} says what is"
                        at = f"consolidate.limits.{name}.{bound}"
                        yield f'{at}: "{model}" is not measured ({says})', nearest(model, asked)

    def _unmarked(
        self, measured: Collection[str], fields_of: Callable[[str], Mapping[str, str]]
    ) -> Iterator[tuple[str, str]]:
        """Yields what is wrong with the marks of `gold`."""
        for annotator, field, _ in self.marks():
            if annotator not in measured:
                continue
            at, fields = f'consolidate.gold: "{annotator}.{field}"', fields_of(annotator)
            if field not in fields:
                yield f'{at}: {annotator} measures no "{field}"', nearest(field, fields)
            elif not fields[field].startswith(_NUMBERS):
                yield f"{at} is no number ({fields[field]})", "name a number, or a truth value"
