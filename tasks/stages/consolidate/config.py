"""Settings of the consolidate stage. A change only reruns the join, without a new pass over the texts.

Limits of the filters are general, and can be overridden for a kind of source or for one source:

    [consolidate.limits.gopher_quality]        # general: for all filtered sources
    min_words = 30

    [consolidate.limits.pdf.gopher_quality]    # overrides those for sources of this kind (`[[extract.files]] kind`)
    min_letters = 0.5

    [consolidate.limits.papers.gopher_quality] # overrides both for one source
    min_words = 200

Tables of a kind or source are stored without defaults, so that a later change of a general limit applies to all sources
that do not override it. A table with the name of a filter is always the table of that filter.

Imports no heavy modules, because DAG files read recipes at parse time.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, Literal, TypeAlias

from pydantic import Field, ValidationInfo, field_validator

from tasks.core.config import Config, Problems, nearest
from tasks.filters.catalogue import SCORE_SETTINGS, complete, filter_names, filter_of, require_unique

Limits: TypeAlias = Mapping[str, Mapping[str, Any]]
"""Limits by filter; `consolidate.limits` of a recipe also has such tables by kind or source."""

_KEY = "consolidate.limits"
_PAGED_KIND = "pdf"

SILVER, GOLD = "silver", "gold"
"""The tiers of kept documents."""

_WEB = "web"
"""Name of the crawl as a source, and its kind."""

# Prefixes of Arrow's names of numeric and boolean types.
_NUMBERS = ("int", "uint", "float", "halffloat", "double", "bool")


class ConsolidateConfig(Config):
    """Filters, deduplication, masking and tiers."""

    filters: tuple[str, ...] = ("language", "gopher_quality", "gopher_repetition")
    """Filters in order of precedence of their reasons; the annotators that they read must be in `[annotate] use`."""

    limits: dict[str, dict[str, Any]] = Field(default={}, validate_default=True)
    """Limits by filter, such as `[consolidate.limits.gopher_quality] min_words = 30`; the rest are defaults. Tables of
    a kind of source or of one source override them: `[consolidate.limits.pdf.gopher_quality] min_letters = 0.5`."""

    sources: tuple[str, ...] | None = ("web",)
    """Sources that are filtered, except `trusted` ones; None for all. The default of a recipe is the crawl, files of
    kind "warc", which come from the web, and sources with tables in `limits`; without a crawl, all sources. Gopher's
    rules are designed for web prose: code has few stop words and many symbols, so their general limits reject all 551
    files of Python's standard library."""

    kinds: dict[str, str] = Field(default={}, exclude_if=lambda kinds: not kinds)
    """Kind of each source, for limits by kind; filled in from [extract]."""

    dedup: bool = True
    """Drop duplicates of documents that pass the filters, as `duplicate_exact` and `duplicate_near`, and all but the
    newest capture of a page that passes, as `duplicate_page`."""

    contaminated: Literal["drop", "keep"] = Field(default="drop", exclude_if=lambda value: value == "drop")
    """Treatment of documents of any source that contain an item of `[decontaminate]`: `drop` rejects them as
    `contaminated`; `keep` keeps them, and they appear only in the report of that stage and in evaluation scores."""

    contaminated_share: float = Field(default=0.0, ge=0, le=1, exclude_if=lambda share: share == 0.0)
    """Minimum share of an item's n-grams in a contaminated document; 0: one n-gram is enough, as for GPT-3. With 0.5, a
    document that quotes one sentence of an item is kept."""

    repeated_share: float = Field(default=0.5, ge=0, le=1, exclude_if=lambda share: share == 0.5)
    """Maximum share of characters in repeated paragraphs (`[paragraphs]`); documents of filtered sources with a larger
    share are dropped as `repeated_paragraphs`. 1: no limit."""

    cut_repeated: int = Field(default=0, ge=0, exclude_if=lambda words: words == 0)
    """Remove repeated paragraphs from kept documents of filtered sources, and drop, as `repeated_paragraphs`, documents
    that would have fewer than this number of words left; 0: remove nothing."""

    mask_pii: bool = True
    """Replace personal data (annotator `pii`) with its kind in angle brackets, such as `<email>`."""

    drop_lines: bool = False
    """Remove the lines that C4's rules drop (menus, cookie notices, headings) from documents of filtered sources. The
    filter `c4` must be in use with `min_sentences` of at least 1, so that no text loses all its lines."""

    gold: dict[str, float] = {}
    """Criteria of the tier gold: minimum values of numeric or boolean (1) attributes, by annotator and field joined by
    a dot, such as `"classifier.quality" = 0.6`. Without any, only trusted sources are gold. Other kept documents are
    silver."""

    trusted: tuple[str, ...] = ()
    """Sources whose documents are gold and not filtered: they are dropped only as duplicates, if they are contaminated
    or taken down, or if an annotator failed. Personal data is masked as in all others."""

    samples: int = Field(default=5, ge=0, le=1000)
    """Number of documents on the audit page per reason, and of kept documents."""

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
            raise ValueError("drop_lines and cut_repeated together could remove all lines of a text: use one of them")
        return drop_lines

    def tables(self) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
        """Yields the dotted path, the filter and the limits of every table of limits; see `limit_tables`."""
        return limit_tables(self.filters, self.limits)

    def limits_of(self, source: str, paged: bool = False) -> dict[str, dict[str, Any]]:
        """Returns the complete limits of each filter for the documents of a source.

        Args:
            source: name of the source.
            paged: return those of its PDF files, which have the limits of kind "pdf" in any source.
        """
        return limits_of(self.filters, self.limits, source, _PAGED_KIND if paged else self.kinds.get(source, ""))

    def scopes_of(self, source: str, paged: bool = False) -> tuple[str, ...]:
        """Returns the kind and the source of some documents that have limits of their own; the last one precedes."""
        return scopes_of(self.filters, self.limits, source, _PAGED_KIND if paged else self.kinds.get(source, ""))

    def limit_path(self, scopes: Sequence[str], name: str, limit: str) -> str:
        """Returns the dotted path, below the section, of the table entry that a limit of a filter comes from.

        Args:
            scopes: see `scopes_of`.
            name: the filter.
            limit: its limit; that of an entry is joined to its field by a dot.
        """
        field = limit.partition(".")[0]
        own = [scope for scope in scopes if field in self.limits[scope].get(name, {})]
        return ".".join(["limits", *own[-1:], name, limit])

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
        """Yields an error for every table of limits that applies to no document; see `misplaced_limits`.

        Args:
            kinds: kinds that sources can have, in addition to those of this recipe.
        """
        sources = tuple(self.kinds) if self.sources is None else self.sources
        judged = set(sources) - set(self.trusted)
        return misplaced_limits(self.filters, self.limits, self.kinds, {*kinds, *self.kinds.values()}, judged)

    def marks(self) -> Iterator[tuple[str, str, float]]:
        """Yields annotator, field and minimum of every criterion of `gold`."""
        for name, least in self.gold.items():
            annotator, _, field = name.partition(".")
            yield annotator, field, least

    def reads(self) -> tuple[str, ...]:
        """Returns the annotators whose columns are read."""
        return tuple(dict.fromkeys(name for name, _ in self._readers()))

    def _readers(self) -> Iterator[tuple[str, str]]:
        """Yields each annotator whose column is read, and the setting that reads it."""
        yield from ((name, "filters") for name in self.filters)
        yield from ((name, "gold") for name, _, _ in self.marks())
        if self.mask_pii:
            yield "pii", "mask_pii"

    def unmeasured(
        self, measured: Collection[str], fields_of: Callable[[str], Mapping[str, str]]
    ) -> Iterator[tuple[str, str]]:
        """Yields an error and its remedy for each attribute that is read but not measured.

        Args:
            measured: the annotators that have a column.
            fields_of: returns the fields of an annotator's column, with Arrow's names of their types.
        """
        for name, setting in dict.fromkeys(self._readers()):
            if name not in (names := filter_names()):
                yield f'consolidate.{setting}: no annotator "{name}"', nearest(name, names)
            elif name not in measured:
                other = "set mask_pii = false" if setting == "mask_pii" else f"take it out of consolidate.{setting}"
                yield f'consolidate.{setting}: "{name}" is not measured', f'add "{name}" to annotate.use, or {other}'
        yield from self._score_errors(measured, fields_of)
        yield from self._gold_errors(measured, fields_of)

    def _score_errors(
        self, measured: Collection[str], fields_of: Callable[[str], Mapping[str, str]]
    ) -> Iterator[tuple[str, str]]:
        """Yields errors and remedies of limits on scores whose names the recipe defines."""
        for at, name, table in self.tables():
            if name not in SCORE_SETTINGS or name not in measured:
                continue
            hint, fields = f"annotate.settings.{name}.{SCORE_SETTINGS[name]} lists the scores", fields_of(name)
            for bound in ("at_least", "at_most"):
                for model in (model for model in table.get(bound, ()) if model not in fields):
                    yield f'{at}.{bound}: "{model}" is not measured ({hint})', nearest(model, fields)

    def _gold_errors(
        self, measured: Collection[str], fields_of: Callable[[str], Mapping[str, str]]
    ) -> Iterator[tuple[str, str]]:
        """Yields errors and remedies of `gold`."""
        for annotator, field, _ in self.marks():
            if annotator not in measured:
                continue
            at, fields = f'consolidate.gold: "{annotator}.{field}"', fields_of(annotator)
            if field not in fields:
                yield f'{at}: {annotator} measures no "{field}"', nearest(field, fields)
            elif not fields[field].startswith(_NUMBERS):
                yield f"{at} is not a number ({fields[field]})", "name a numeric or boolean field"


def completed_limits(filters: tuple[str, ...], limits: Limits) -> dict[str, dict[str, Any]]:
    """Returns the limits of a recipe: general ones of all `filters` with defaults, others unchanged.

    Raises:
        Problems: filters or limits are unknown, out of range or of the wrong type, or a filter is not in use.
    """
    scoped = {name: table for name, table in limits.items() if _is_scope(name, table)}
    errors: list[str] = []
    completed: dict[str, dict[str, Any]] = {}
    try:
        general = {name: table for name, table in limits.items() if name not in scoped}
        completed = complete(filter_of, filters, general, ("consolidate.filters", _KEY))
    except Problems as problems:
        errors += problems.messages
    for scope, table in sorted(scoped.items()):
        try:
            completed[scope] = _checked_overrides(scope, filters, completed, table)
        except Problems as problems:
            errors += problems.messages
    if errors:
        raise Problems(errors)
    return completed


def _is_scope(name: str, table: Mapping[str, Any]) -> bool:
    """Returns whether a table has the limits of a kind or source: tables by filter, or nothing."""
    return name not in filter_names() and all(isinstance(limits, Mapping) for limits in table.values())


def _checked_overrides(
    scope: str, filters: tuple[str, ...], general: Limits, table: Limits
) -> dict[str, dict[str, Any]]:
    """Returns the limits of a kind or source without defaults, checked alone and together with the general ones."""
    errors: list[str] = []
    checked: dict[str, dict[str, Any]] = {}
    for name, limits in table.items():
        try:
            overrides = filter_of(name, limits).model_dump(mode="json", exclude_unset=True)
            if overrides and name not in filters:
                raise Problems(
                    [
                        f"limits of {name}, which is not in use: name it in consolidate.filters, or take them out "
                        f"(--set {_KEY}.{scope}.{name}={{}})"
                    ]
                )
            if overrides:
                filter_of(name, {**general.get(name, {}), **overrides})
                checked[name] = overrides
        except Problems as problems:
            errors += [f".{scope}{text}" if text.startswith(".") else f".{scope}: {text}" for text in problems.messages]
    if errors:
        raise Problems(errors)
    return checked


def limit_tables(filters: tuple[str, ...], limits: Limits) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    """Yields the dotted path, the filter and the limits of every table of limits, general ones first."""
    yield from ((f"{_KEY}.{name}", name, limits[name]) for name in filters)
    for scope in limit_scopes(filters, limits):
        yield from ((f"{_KEY}.{scope}.{name}", name, table) for name, table in limits[scope].items())


def limit_scopes(filters: tuple[str, ...], limits: Limits) -> list[str]:
    """Returns the kinds and sources with limits of their own."""
    return [name for name in limits if name not in filters]


def scopes_of(filters: tuple[str, ...], limits: Limits, source: str, kind: str) -> tuple[str, ...]:
    """Returns the kind and the source that have limits of their own; the last one precedes."""
    return tuple(scope for scope in dict.fromkeys((kind, source)) if scope in limit_scopes(filters, limits))


def limits_of(filters: tuple[str, ...], limits: Limits, source: str, kind: str) -> dict[str, dict[str, Any]]:
    """Returns the complete limits of each filter for a source: general ones, overridden by its kind's and its own."""
    layers = [limits, *(limits[scope] for scope in scopes_of(filters, limits, source, kind))]
    return {name: {key: value for layer in layers for key, value in layer.get(name, {}).items()} for name in filters}


def misplaced_limits(
    filters: tuple[str, ...],
    limits: Limits,
    kinds: Mapping[str, str],
    known_kinds: Collection[str],
    judged: Collection[str],
) -> Iterator[str]:
    """Yields an error, "where: defect: remedy", for every table of limits that applies to no document.

    Args:
        filters: the filters in use.
        limits: the limits of a recipe.
        kinds: kind of each source of the recipe.
        known_kinds: kinds that sources can have.
        judged: the filtered sources.
    """
    for scope in limit_scopes(filters, limits):
        names = {*kinds, *known_kinds}
        if scope not in names:
            yield f'{_KEY}: no filter, source or kind of source "{scope}": {nearest(scope, {*names, *filter_names()})}'
        elif scope in kinds and scope not in {*judged, *known_kinds}:
            yield (f'{_KEY}.{scope}: "{scope}" is not filtered: add it to consolidate.sources, or take its limits out')
