"""Every annotator and filter by name. Adding one is a file beside this one and a line here, or an installed package.

A file holds an annotator, a filter or both; the classes are found by their kind. Files are named by strings and
imported when wanted, and import what is heavy inside functions, because recipes are read at DAG parse time.
"""

from collections.abc import Callable, Iterable, Mapping
from types import ModuleType
from typing import Any, TypeVar

from tasks.core import extensions
from tasks.core.config import Problems, duplicates
from tasks.filters.base import Annotator, Filter

CATALOGUE = {
    "language": "tasks.filters.language",
    "gopher_quality": "tasks.filters.gopher_quality",
    "gopher_repetition": "tasks.filters.gopher_repetition",
    "c4": "tasks.filters.c4",
    "fineweb": "tasks.filters.fineweb",
    "url_blocklist": "tasks.filters.url_blocklist",
    "lexicon": "tasks.filters.lexicon",
    "perplexity": "tasks.filters.perplexity",
    "quality": "tasks.filters.quality",
    "classifier": "tasks.filters.classifier",
    "topic": "tasks.filters.topic",
    "hugging_face": "tasks.filters.hugging_face",
    "prose_score": "tasks.filters.prose_score",
    "pii": "tasks.filters.pii",
}

ASKED = {"classifier": "models", "hugging_face": "scores"}
"""Annotators that write one probability or score for each name in one of their settings."""

Kind = TypeVar("Kind", Annotator, Filter)


def annotator(name: str, settings: Mapping[str, Any]) -> Annotator:
    """Returns the annotator `name` with `settings`; raises Problems naming all that is unknown or out of range."""
    return _load(Annotator, "annotator", name, settings)


def filter_of(name: str, limits: Mapping[str, Any]) -> Filter:
    """Returns the filter `name` with `limits`; raises Problems naming all that is unknown or out of range."""
    return _load(Filter, "filter", name, limits)


def known() -> list[str]:
    """Returns the names of all annotators and filters, those of installed packages among them."""
    return extensions.names(extensions.FILTERS, CATALOGUE)


def complete(
    load: Callable[[str, Mapping[str, Any]], Annotator | Filter],
    use: Iterable[str],
    given: Mapping[str, Mapping[str, Any]],
    keys: tuple[str, str],
) -> dict[str, dict[str, Any]]:
    """Returns the settings of all that is in use, defaults written out: a changed default changes the fingerprint.

    Those of what a package brings hold its name and version, too (`extensions.PACKAGE`).

    Args:
        load: `annotator` or `filter_of`.
        use: names.
        given: settings by name. Of what is not in use there may be defaults, left by a list that was longer before.
        keys: where in a recipe `use` and `given` stand.

    Raises:
        Problems: names or settings are unknown, out of range or of another type, or there are settings for what is not
            in use.
    """
    wanted = tuple(use)
    found: dict[str, dict[str, Any]] = {}
    wrong: list[str] = []
    for name in (*wanted, *sorted(set(given) - set(wanted))):
        try:
            if name in wanted:
                found[name] = load(name, given.get(name, {})).model_dump(mode="json")
                if package := _module("annotator", name)[1]:
                    found[name][extensions.PACKAGE] = package
            elif changed := _changed(load, name, given[name]):
                wrong.append(
                    f"settings for {name} ({changed}), which is not in use: name it in {keys[0]}, or take them out "
                    f"(--set {keys[1]}.{name}={{}})"
                )
        except Problems as problems:
            wrong += problems.several
    if wrong:
        raise Problems(wrong)
    return found


def require_unique(names: tuple[str, ...]) -> tuple[str, ...]:
    """Returns `names`; raises ValueError if one of them stands there twice."""
    if several := duplicates(names):
        raise ValueError(f"{several[0]} is named twice")
    return names


def measured(name: str, settings: Mapping[str, Any]) -> dict[str, str]:
    """Returns the fields of an annotator's column, with the names of their types.

    It loads Arrow only where no name describes them (`Annotator.named`), as for `language` and `pii`.
    """
    one = annotator(name, settings)
    return dict(one.named()) or {field.name: str(field.type) for field in one.type()}


def _changed(load: Callable[[str, Mapping[str, Any]], Annotator | Filter], name: str, given: Mapping[str, Any]) -> str:
    """Returns which of some settings are other than by default; "" for none."""
    if not given:
        return ""
    held = load(name, given)
    told = []
    for key, field in type(held).model_fields.items():
        value, default = getattr(held, key), field.get_default(call_default_factory=True)
        if value != default:
            told.append(f"{key} = {value}" + ("" if field.is_required() else f", by default {default}"))
    return "; ".join(told)


def _load(kind: type[Kind], word: str, name: str, settings: Mapping[str, Any]) -> Kind:
    module, package = _module(word, name)
    found = held(module, kind)
    if found is None:
        raise Problems([f'"{name}" is no {word}'])
    if issubclass(found, Filter) and held(module, Annotator) is not found.measured_by:
        raise Problems([f'the filter "{name}" judges what another module measures: put its annotator beside it'])
    return extensions.made(found, name, settings, package)


def _module(word: str, name: str) -> tuple[ModuleType, str]:
    return extensions.module_of(extensions.FILTERS, word, name, CATALOGUE)


def held(module: ModuleType, kind: type[Kind]) -> type[Kind] | None:
    """Returns the annotator or the filter that a module holds, None where it holds none."""
    own = [one for one in vars(module).values() if isinstance(one, type) and one.__module__ == module.__name__]
    return next((one for one in own if issubclass(one, kind)), None)
