"""Settings of the consolidate stage. A change costs the join, not a new pass over the texts.

Limits of the filters are general ones, and those of a kind of source or of one source laid over them:

    [consolidate.limits.gopher_quality]        # general: for all sources that filters judge
    min_words = 30

    [consolidate.limits.pdf.gopher_quality]    # over those, for sources of this kind (`[[extract.files]] kind`)
    min_letters = 0.5

    [consolidate.limits.papers.gopher_quality] # over both, for one source
    min_words = 200

A table of a kind or source stays as short as it was given, so that a general limit that changes later reaches all
sources without a limit of their own. The name of a filter is always the filter's table.

Light to import, because DAG files read recipes at parse time.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, Literal, TypeAlias

from pydantic import Field, ValidationInfo, field_validator

from tasks.core.config import Config, Problems, nearest
from tasks.filters.catalogue import SCORE_SETTINGS, complete, filter_names, filter_of, require_unique

Limits: TypeAlias = Mapping[str, Mapping[str, Any]]
"""Limits by filter; those of a recipe (`consolidate.limits`) also hold such tables by kind or source."""

_KEY = "consolidate.limits"

SILVER, GOLD = "silver", "gold"
"""The tiers of kept documents."""

_WEB = "web"
"""The crawl as a source, and its kind."""

# Prefixes of Arrow's names of numeric and boolean types.
_NUMBERS = ("int", "uint", "float", "halffloat", "double", "bool")


class ConsolidateConfig(Config):
    """Filters, deduplication, masking and tiers."""

    filters: tuple[str, ...] = ("language", "gopher_quality", "gopher_repetition")
    """Filters in the precedence of their reasons; the annotators that they read must be in `[annotate] use`."""

    limits: dict[str, dict[str, Any]] = Field(default={}, validate_default=True)
    """Limits by filter, such as `[consolidate.limits.gopher_quality] min_words = 30`; the rest are defaults. Tables of
    a kind of source or of one source lie over them: `[consolidate.limits.pdf.gopher_quality] min_letters = 0.5`."""

    sources: tuple[str, ...] | None = ("web",)
    """Sources that are filtered, except `trusted` ones; None for all. A recipe's default: the crawl, files of kind
    "warc", which come from the web, and sources that `limits` names; without a crawl, all sources. Gopher's rules were
    designed for web prose: code has few stop words and many symbols, so their general limits reject every one of 551
    files of Python's standard library."""

    kinds: dict[str, str] = Field(default={}, exclude_if=lambda kinds: not kinds)
    """Kind of each source, for limits by kind. Filled in from [extract]."""

    dedup: bool = True
    """Drop duplicates of documents that pass the filters, as `duplicate_exact` and `duplicate_near`, and all but the
    newest capture of a page that passes, as `duplicate_page`."""

    contaminated: Literal["drop", "keep"] = Field(default="drop", exclude_if=lambda value: value == "drop")
    """What becomes of documents that contain an item of `[decontaminate]`, of whatever source: `drop` rejects them as
    `contaminated`; `keep` leaves them to the report of that stage, and to the scores of a model that has read them."""

    contaminated_share: float = Field(default=0.0, ge=0, le=1, exclude_if=lambda share: share == 0.0)
    """Share of an item's n-grams from which a document counts as contaminated; 0: one n-gram is enough, as for GPT-3.
    A document that quotes a sentence of an item stays with a share of 0.5."""

    repeated_share: float = Field(default=0.5, ge=0, le=1, exclude_if=lambda share: share == 0.5)
    """Share of its characters in repeated paragraphs (`[paragraphs]`) above which a document of a filtered source goes
    as `repeated_paragraphs`; 1: none goes for its share."""

    cut_repeated: int = Field(default=0, ge=0, exclude_if=lambda words: words == 0)
    """Cut the repeated paragraphs out of documents of filtered sources that are kept, and reject as
    `repeated_paragraphs` those of which fewer than so many words would be left; 0: cut nothing."""

    mask_pii: bool = True
    """Replace personal data found by the annotator `pii` with its kind in angle brackets, such as `<email>`."""

    drop_lines: bool = False
    """Remove the lines that C4's rules drop (menus, cookie notices, headings) from documents of filtered sources. The
    filter `c4` must be in use with `min_sentences` of at least 1, so that no text loses all its lines."""

    gold: dict[str, float] = {}
    """Marks of the tier gold: minimum values of numeric or boolean (1) attributes, by annotator and field joined by a
    dot, such as `"classifier.quality" = 0.6`. Without marks, only trusted sources are gold. Other kept documents are
    silver."""

    trusted: tuple[str, ...] = ()
    """Sources whose documents are gold and not filtered: they are dropped only as duplicates or where an annotator
    failed. Personal data in them is masked as in all others."""

    samples: int = Field(default=5, ge=0, le=1000)
    """Documents per reason, and of the kept ones, on the audit page."""

    @field_validator("filters")
    @classmethod
    def _unique(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        return require_unique(names)

    @field_validator("limits")
    @classmethod
    def _complete(cls, limits: dict[str, dict[str, Any]], info: ValidationInfo) -> dict[str, dict[str, Any]]:
        if "filters" not in info.data:
            return limits  # the error in `filters` is already reported
        return completed_limits(info.data["filters"], limits)

    @field_validator("gold")
    @classmethod
    def _named(cls, marks: dict[str, float]) -> dict[str, float]:
        for name in marks:
            if name.count(".") != 1:
                raise ValueError(f'"{name}": name an annotator and its field, such as "classifier.quality"')
        return marks

    @field_validator("drop_lines")
    @classmethod
    def _keeps_lines(cls, drop_lines: bool, info: ValidationInfo) -> bool:
        if not {"filters", "limits"} <= info.data.keys():
            return drop_lines
        if drop_lines and "c4" not in info.data["filters"]:
            raise ValueError('drop_lines needs "c4" among the filters')
        filters, limits = info.data["filters"], info.data["limits"]
        for at, name, table in limit_tables(filters, limits) if drop_lines else ():
            if name == "c4" and table.get("min_sentences", 1) < 1:
                raise ValueError(f"drop_lines needs {at}.min_sentences of 1 or more: a text could lose all its lines")
        if drop_lines and info.data.get("cut_repeated"):
            raise ValueError("drop_lines and cut_repeated together could take all lines of a text: use one of them")
        return drop_lines

    def tables(self) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
        """Yields the dotted path of every table of limits, its filter, and the limits in it; see `limits.tables`."""
        return limit_tables(self.filters, self.limits)

    def limits_of(self, source: str) -> dict[str, dict[str, Any]]:
        """Returns the complete limits of each filter for the documents of a source; see `limits.of_source`."""
        return limits_of(self.filters, self.limits, source, self.kinds.get(source, ""))

    def limited(self) -> tuple[str, ...]:
        """Returns the sources with limits of their own, by name or by kind."""
        scopes = limit_scopes(self.filters, self.limits)
        return tuple(source for source, kind in self.kinds.items() if source in scopes or kind in scopes)

    def judged_by_default(self) -> tuple[str, ...]:
        """Returns the default of `sources`."""
        kinds, limited = self.kinds or {_WEB: _WEB}, self.limited()
        judged = [name for name in kinds if _WEB not in kinds or kinds[name] in (_WEB, "warc") or name in limited]
        return tuple(name for name in judged if name not in self.trusted)

    def misplaced_limits(self, kinds: Collection[str]) -> Iterator[str]:
        """Yields every table of limits that no document could meet; see `limits.misplaced`.

        Args:
            kinds: kinds that sources can have, beyond those of this recipe.
        """
        sources = tuple(self.kinds) if self.sources is None else self.sources
        judged = set(sources) - set(self.trusted)
        return misplaced_limits(self.filters, self.limits, self.kinds, {*kinds, *self.kinds.values()}, judged)

    def marks(self) -> Iterator[tuple[str, str, float]]:
        """Yields annotator, field and minimum of every mark of `gold`."""
        for name, least in self.gold.items():
            annotator, _, field = name.partition(".")
            yield annotator, field, least

    def reads(self) -> tuple[str, ...]:
        """Returns the annotators whose columns are read."""
        return tuple(dict.fromkeys(name for name, _ in self._readers()))

    def _readers(self) -> Iterator[tuple[str, str]]:
        """Yields each annotator that is read, with the setting that reads it."""
        yield from ((name, "filters") for name in self.filters)
        yield from ((name, "gold") for name, _, _ in self.marks())
        if self.mask_pii:
            yield "pii", "mask_pii"

    def unmeasured(
        self, measured: Collection[str], fields_of: Callable[[str], Mapping[str, str]]
    ) -> Iterator[tuple[str, str]]:
        """Yields an error and its remedy for each attribute that is read and not measured.

        Args:
            measured: the annotators that have a column.
            fields_of: returns the fields of an annotator's column, with Arrow's names of their types.
        """
        for name, setting in dict.fromkeys(self._readers()):
            if name not in (names := filter_names()):
                yield f'consolidate.{setting}: no annotator "{name}"', nearest(name, names)
            elif name not in measured:
                way_out = "set mask_pii = false" if setting == "mask_pii" else f"take it out of consolidate.{setting}"
                yield f'consolidate.{setting}: "{name}" is not measured', f'add "{name}" to annotate.use, or {way_out}'
        yield from self._unbounded(measured, fields_of)
        yield from self._unmarked(measured, fields_of)

    def _unbounded(
        self, measured: Collection[str], fields_of: Callable[[str], Mapping[str, str]]
    ) -> Iterator[tuple[str, str]]:
        """Yields errors and remedies of limits on models that the recipe defines."""
        for at, name, table in self.tables():
            if name not in SCORE_SETTINGS or name not in measured:
                continue
            hint, fields = f"annotate.settings.{name}.{SCORE_SETTINGS[name]} says what is", fields_of(name)
            for bound in ("at_least", "at_most"):
                for model in (model for model in table.get(bound, ()) if model not in fields):
                    yield f'{at}.{bound}: "{model}" is not measured ({hint})', nearest(model, fields)

    def _unmarked(
        self, measured: Collection[str], fields_of: Callable[[str], Mapping[str, str]]
    ) -> Iterator[tuple[str, str]]:
        """Yields errors and remedies of the marks of `gold`."""
        for annotator, field, _ in self.marks():
            if annotator not in measured:
                continue
            at, fields = f'consolidate.gold: "{annotator}.{field}"', fields_of(annotator)
            if field not in fields:
                yield f'{at}: {annotator} measures no "{field}"', nearest(field, fields)
            elif not fields[field].startswith(_NUMBERS):
                yield f"{at} is no number ({fields[field]})", "name a number, or a truth value"


def completed_limits(filters: tuple[str, ...], given: Limits) -> dict[str, dict[str, Any]]:
    """Returns the limits of a recipe: general ones of all `filters` with defaults, others as they were given.

    Raises:
        Problems: filters or limits are unknown, out of range or of another type, or a filter is not in use.
    """
    own = {name: table for name, table in given.items() if _is_scope(name, table)}
    wrong: list[str] = []
    found: dict[str, dict[str, Any]] = {}
    try:
        general = {name: table for name, table in given.items() if name not in own}
        found = complete(filter_of, filters, general, ("consolidate.filters", _KEY))
    except Problems as problems:
        wrong += problems.messages
    for scope, table in sorted(own.items()):
        try:
            found[scope] = _short(scope, filters, found, table)
        except Problems as problems:
            wrong += problems.messages
    if wrong:
        raise Problems(wrong)
    return found


def _is_scope(name: str, table: Mapping[str, Any]) -> bool:
    """Returns whether a table holds the limits of a kind or source: tables by filter, or nothing."""
    return name not in filter_names() and all(isinstance(limits, Mapping) for limits in table.values())


def _short(scope: str, filters: tuple[str, ...], general: Limits, table: Limits) -> dict[str, dict[str, Any]]:
    """Returns the limits of a kind or source without defaults, checked alone and together with the general ones."""
    wrong: list[str] = []
    short: dict[str, dict[str, Any]] = {}
    for name, limits in table.items():
        try:
            alone = filter_of(name, limits).model_dump(mode="json", exclude_unset=True)
            if alone and name not in filters:
                raise Problems(
                    [
                        f"limits of {name}, which is not in use: name it in consolidate.filters, or take them out "
                        f"(--set {_KEY}.{scope}.{name}={{}})"
                    ]
                )
            if alone:
                filter_of(name, {**general.get(name, {}), **alone})
                short[name] = alone
        except Problems as problems:
            wrong += [f".{scope}{text}" if text.startswith(".") else f".{scope}: {text}" for text in problems.messages]
    if wrong:
        raise Problems(wrong)
    return short


def limit_tables(filters: tuple[str, ...], limits: Limits) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    """Yields the dotted path of every table of limits, its filter, and the limits in it, general ones first."""
    yield from ((f"{_KEY}.{name}", name, limits[name]) for name in filters)
    for scope in limit_scopes(filters, limits):
        yield from ((f"{_KEY}.{scope}.{name}", name, table) for name, table in limits[scope].items())


def limit_scopes(filters: tuple[str, ...], limits: Limits) -> list[str]:
    """Returns the kinds and sources with limits of their own."""
    return [name for name in limits if name not in filters]


def limits_of(filters: tuple[str, ...], limits: Limits, source: str, kind: str) -> dict[str, dict[str, Any]]:
    """Returns the complete limits of each filter for a source of a kind: its own before its kind's before others."""
    several = [
        limits,
        *(limits[scope] for scope in dict.fromkeys((kind, source)) if scope in limit_scopes(filters, limits)),
    ]
    return {name: {key: value for one in several for key, value in one.get(name, {}).items()} for name in filters}


def misplaced_limits(
    filters: tuple[str, ...],
    limits: Limits,
    kinds: Mapping[str, str],
    known_kinds: Collection[str],
    judged: Collection[str],
) -> Iterator[str]:
    """Yields every table of limits that no document could meet, as "where: what: what to do".

    Args:
        filters: the filters in use.
        limits: the limits of a recipe.
        kinds: kind of each source of the recipe.
        known_kinds: kinds that sources can have.
        judged: sources that filters judge.
    """
    for scope in limit_scopes(filters, limits):
        names = {*kinds, *known_kinds}
        if scope not in names:
            yield f'{_KEY}: no filter, source or kind of source "{scope}": {nearest(scope, {*names, *filter_names()})}'
        elif scope in kinds and scope not in {*judged, *known_kinds}:
            yield (
                f'{_KEY}.{scope}: filters do not judge "{scope}": add it to consolidate.sources, or take its limits out'
            )
