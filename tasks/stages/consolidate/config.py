"""Settings of the consolidate stage. A change only reruns the join, without a new pass over the texts.

Limits of the filters are general, and can be overridden for a language, a kind of source or one source:

    [consolidate.limits.gopher_quality]        # general: for all filtered sources
    min_words = 30

    [consolidate.limits.lang.ja.gopher_quality] # overrides those for documents that `language` labels "ja"
    max_mean_word = 4

    [consolidate.limits.pdf.gopher_quality]    # overrides both for sources of this kind (`[[extract.files]] kind`)
    min_letters = 0.5

    [consolidate.limits.papers.gopher_quality] # overrides all for one source
    min_words = 200

Tables of a language, kind or source are stored without defaults, so that a later change of a general limit applies to
all documents whose tables do not override it. A table with the name of a filter is always the table of that filter, and
"lang" has the tables of languages.

Limits that depend on the language have shipped values (`tasks.filters.language_values`), which are the defaults of that
language: below a general limit that the recipe changes, above the default of the filter.

Imports no heavy modules, because DAG files read recipes at parse time.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, Literal, TypeAlias

from pydantic import Field, ValidationInfo, field_validator

from tasks.core.config import Config, Problems, nearest
from tasks.filters.catalogue import SCORE_SETTINGS, complete, filter_names, filter_of, require_unique
from tasks.filters.language import code_of
from tasks.filters.language_values import ENGLISH, OTHER, require_shipped, shipped

Limits: TypeAlias = Mapping[str, Mapping[str, Any]]
"""Limits by filter; `consolidate.limits` of a recipe also has such tables by kind or source."""

_KEY = "consolidate.limits"
_PAGED_KIND = "pdf"
LANG = "lang"
"""The table of limits with those of languages."""

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
    a language ("lang"), of a kind of source or of one source override them:
    `[consolidate.limits.lang.ja.gopher_quality] max_mean_word = 4`,
    `[consolidate.limits.pdf.gopher_quality] min_letters = 0.5`."""

    language_limits: str = Field(default_factory=lambda: shipped().name, validate_default=True)
    """Name of the shipped limits of languages, which apply if the filter `language` is in use; "" for none: then only
    the limits of the recipe apply, and those on mean word length and stop words only to English."""

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

    @field_validator("language_limits")
    @classmethod
    def _known(cls, name: str) -> str:
        return require_shipped(name)

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

    def limits_of(self, source: str, paged: bool = False, language: str = ENGLISH[0]) -> dict[str, dict[str, Any]]:
        """Returns the complete limits of each filter for the documents of a source; see `layers_of`."""
        return merged(self.filters, self.layers_of(source, paged, language))

    def layers_of(self, source: str, paged: bool = False, language: str = ENGLISH[0]) -> list[tuple[str, Limits]]:
        """Returns the limits by filter that apply to some documents, those that override the others last.

        These are the general ones; for a language other than English its shipped ones, and the general ones that the
        recipe changes, except those that describe English; those of the recipe for the language, for the source's kind
        and for the source. Each has its dotted path below `limits`, "" for general ones; those of a language have the
        path of the recipe's.

        Args:
            source: name of the source.
            paged: return those of its PDF files, which have the limits of kind "pdf" in any source.
            language: label of the documents, or OTHER.
        """
        layers: list[tuple[str, Limits]] = [("", {name: self.limits[name] for name in self.filters})]
        at, own = f"{LANG}.{language}", self.limits.get(LANG, {}).get(language, {})
        if language not in ENGLISH and (own or self.language_limits):
            layers.append((at, {name: type(filter_of(name, {})).elsewhere for name in self.filters}))
            values = shipped().limits if self.language_limits else {}
            layers.append((at, values.get(language, values.get(OTHER, {}))))
            layers.append(("", self._changed()))
        layers.append((at, own))
        return [*layers, *((scope, self.limits[scope]) for scope in self.scopes_of(source, paged))]

    def _changed(self) -> dict[str, dict[str, Any]]:
        """Returns the general limits that are not defaults, except those that describe English.

        A limit that describes English has a value there and another one elsewhere.
        """
        changed = {}
        for name in self.filters:
            default = filter_of(name, {})
            values = default.model_dump(mode="json")
            limits = self.limits[name].items()
            english = {key for key in type(default).elsewhere if values[key] is not None}
            changed[name] = {
                key: value for key, value in limits if key in values and value != values[key] and key not in english
            }
        return changed

    def language_of(self, label: str) -> str:
        """Returns the language whose limits a document with this label has: ENGLISH[0] or OTHER for several ones."""
        if "language" not in self.filters or label in ENGLISH[1:]:
            label = ENGLISH[0]
        if label == ENGLISH[0] or label in self.limits.get(LANG, ()):
            return label
        return (label if label in shipped().limits else OTHER) if self.language_limits else ENGLISH[0]

    def scopes_of(self, source: str, paged: bool) -> tuple[str, ...]:
        """Returns the kind and the source of some documents that have limits of their own; the last one precedes."""
        kind = _PAGED_KIND if paged else self.kinds.get(source, "")
        return tuple(scope for scope in dict.fromkeys((kind, source)) if scope in self._scopes())

    def _scopes(self) -> list[str]:
        """Returns the kinds and sources with limits of their own."""
        return [name for name in self.limits if name not in self.filters and name != LANG]

    def limited(self) -> tuple[str, ...]:
        """Returns the sources with limits of their own, by name or by kind."""
        scopes = self._scopes()
        return tuple(source for source, kind in self.kinds.items() if source in scopes or kind in scopes)

    def judged_by_default(self) -> tuple[str, ...]:
        """Returns the default of `sources`."""
        kinds, limited = self.kinds or {_WEB: _WEB}, self.limited()
        judged = [name for name in kinds if _WEB not in kinds or kinds[name] in (_WEB, "warc") or name in limited]
        return tuple(name for name in judged if name not in self.trusted)

    def misplaced_limits(self, kinds: Collection[str], labels: Collection[str] | None = None) -> Iterator[str]:
        """Yields an error, "where: defect: remedy", for every table of limits that applies to no document.

        Args:
            kinds: kinds that sources can have, in addition to those of this recipe.
            labels: labels that the annotator `language` can write; None if they are not known.
        """
        for code in self.limits.get(LANG, ()):
            if labels is not None and code not in labels:
                yield f'{_KEY}.{LANG}: no language "{code}": {nearest(code_of(f"{code}_Zzzz"), labels)}'
        judged = set(self.kinds if self.sources is None else self.sources) - set(self.trusted)
        known = {*kinds, *self.kinds.values()}
        for scope in self._scopes():
            names = {*self.kinds, *known}
            if scope not in names:
                remedy = nearest(scope, {*names, *filter_names()})
                yield f'{_KEY}: no filter, source or kind of source "{scope}": {remedy}'
            elif scope not in {*judged, *known}:
                where = f'{_KEY}.{scope}: "{scope}"'
                yield f"{where} is not filtered: add it to consolidate.sources, or take its limits out"

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
    tables = {name: table for name, table in limits.items() if _is_scope(name, table)}
    scoped = {name: table for name, table in tables.items() if name != LANG}
    languages = tables.get(LANG, {})
    errors: list[str] = []
    completed: dict[str, dict[str, Any]] = {}
    try:
        general = {name: table for name, table in limits.items() if name not in tables}
        completed = complete(filter_of, filters, general, ("consolidate.filters", _KEY))
    except Problems as problems:
        errors += problems.messages
    if languages and "language" not in filters:
        errors.append(
            f".{LANG}: the filter that knows the language is not in use: name language in consolidate.filters"
        )
    for scope, table in [*sorted(scoped.items()), *((f"{LANG}.{code}", languages[code]) for code in sorted(languages))]:
        try:
            completed[scope] = _checked_overrides(scope, filters, completed, table)
        except Problems as problems:
            errors += problems.messages
    if errors:
        raise Problems(errors)
    if languages:
        completed[LANG] = {code: completed.pop(f"{LANG}.{code}") for code in sorted(languages)}
    return completed


def merged(filters: Sequence[str], layers: Sequence[tuple[str, Limits]]) -> dict[str, dict[str, Any]]:
    """Returns the limits of each filter; later layers override earlier ones.

    A limit that is a table, such as `max_duplicate_ngram`, is replaced as a whole by a kind or source, and entry by
    entry by a language.
    """
    limits: dict[str, dict[str, Any]] = {name: {} for name in filters}
    for path, tables in layers:
        for name in filters:
            for key, value in tables.get(name, {}).items():
                is_part = isinstance(value, Mapping) and path.startswith(f"{LANG}.")
                limits[name][key] = {**limits[name].get(key, {}), **value} if is_part else value
    return limits


def limit_path(layers: Sequence[tuple[str, Limits]], name: str, limit: str) -> str:
    """Returns the dotted path, below the section, of the table entry that a limit of a filter comes from.

    Args:
        layers: see `ConsolidateConfig.layers_of`.
        name: the filter.
        limit: its limit; that of an entry is joined to its field by a dot.
    """
    field, _, entry = limit.partition(".")

    def sets(path: str, tables: Limits) -> bool:
        table = tables.get(name, {})
        return field in table and (not entry or not path.startswith(f"{LANG}.") or entry in table[field])

    own = [path for path, tables in layers if sets(path, tables)]
    return ".".join(filter(None, ["limits", *own[-1:], name, limit]))


def _is_scope(name: str, table: Mapping[str, Any]) -> bool:
    """Returns whether a table has the limits of languages, a kind or a source: tables by filter, or nothing."""
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
    languages = limits.get(LANG, {})
    scopes = {name: table for name, table in limits.items() if name not in filters and name != LANG}
    for scope, tables in {**scopes, **{f"{LANG}.{code}": table for code, table in languages.items()}}.items():
        yield from ((f"{_KEY}.{scope}.{name}", name, table) for name, table in tables.items())
