"""Limits of the filters: general ones, and those of a kind of source or of one source laid over them.

    [consolidate.limits.gopher_quality]        # general: for all sources that filters judge
    min_words = 30

    [consolidate.limits.pdf.gopher_quality]    # over those, for sources of this kind (`[[extract.files]] kind`)
    min_letters = 0.5

    [consolidate.limits.papers.gopher_quality] # over both, for one source
    min_words = 200

A table of a kind or source stays as short as it was given, so that a general limit that changes later reaches all
sources without a limit of their own. The name of a filter is always the filter's table. Light, since recipes are read
at DAG parse time.
"""

from collections.abc import Collection, Iterator, Mapping
from typing import Any, TypeAlias

from tasks.core.config import Problems, nearest
from tasks.filters.catalogue import complete, filter_of, known

Limits: TypeAlias = Mapping[str, Mapping[str, Any]]
"""Limits by filter; those of a recipe (`consolidate.limits`) also hold such tables by kind or source."""

_KEY = "consolidate.limits"


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
    return name not in known() and all(isinstance(limits, Mapping) for limits in table.values())


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
            yield f'{_KEY}: no filter, source or kind of source "{scope}": {nearest(scope, {*names, *known()})}'
        elif scope in kinds and scope not in {*judged, *known_kinds}:
            yield (
                f'{_KEY}.{scope}: filters do not judge "{scope}": add it to consolidate.sources, or take its limits out'
            )
