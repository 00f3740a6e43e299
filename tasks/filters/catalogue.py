"""Catalogue of annotators and filters by name. A new one is a file beside this one and a line here, or a package.

A file contains an annotator, a filter or both; the classes are found by their base class. Files are imported by name
when needed, and import heavy modules inside functions, because recipes are read at DAG parse time.
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

SCORE_SETTINGS = {"classifier": "models", "hugging_face": "scores"}
"""Annotators that write one probability or score for each name in one of their settings."""

Kind = TypeVar("Kind", Annotator, Filter)


def annotator(name: str, settings: Mapping[str, Any]) -> Annotator:
    """Returns the annotator `name` with `settings`; raises Problems naming all unknown or invalid ones."""
    return _load(Annotator, "annotator", name, settings)


def filter_of(name: str, limits: Mapping[str, Any]) -> Filter:
    """Returns the filter `name` with `limits`; raises Problems naming all unknown or invalid ones."""
    return _load(Filter, "filter", name, limits)


def known() -> list[str]:
    """Returns the names of all annotators and filters, including those of installed packages."""
    return extensions.names(extensions.FILTERS, CATALOGUE)


def complete(
    load: Callable[[str, Mapping[str, Any]], Annotator | Filter],
    use: Iterable[str],
    given: Mapping[str, Mapping[str, Any]],
    keys: tuple[str, str],
) -> dict[str, dict[str, Any]]:
    """Returns the settings of all names in use, with defaults: a changed default changes the fingerprint.

    Settings of a package's annotator or filter also contain the package's name and version (`extensions.PACKAGE`).

    Args:
        load: `annotator` or `filter_of`.
        use: names.
        given: settings by name. For names not in use only defaults are allowed, left by a list that was longer before.
        keys: the keys of `use` and `given` in a recipe.

    Raises:
        Problems: names or settings are unknown, out of range or of another type, or there are settings for a name that
            is not in use.
    """
    names = tuple(use)
    settings: dict[str, dict[str, Any]] = {}
    wrong: list[str] = []
    for name in (*names, *sorted(set(given) - set(names))):
        try:
            if name in names:
                settings[name] = load(name, given.get(name, {})).model_dump(mode="json")
                if package := _module("annotator", name)[1]:
                    settings[name][extensions.PACKAGE] = package
            elif changed := _changed(load, name, given[name]):
                wrong.append(
                    f"settings for {name} ({changed}), which is not in use: name it in {keys[0]}, or take them out "
                    f"(--set {keys[1]}.{name}={{}})"
                )
        except Problems as problems:
            wrong += problems.messages
    if wrong:
        raise Problems(wrong)
    return settings


def require_unique(names: tuple[str, ...]) -> tuple[str, ...]:
    """Returns `names`; raises ValueError if one of them occurs twice."""
    if several := duplicates(names):
        raise ValueError(f"{several[0]} is named twice")
    return names


def measured(name: str, settings: Mapping[str, Any]) -> dict[str, str]:
    """Returns the fields of an annotator's column, with the names of their types.

    Loads Arrow only for nested fields (without `Annotator.named`), as for `language` and `pii`.
    """
    instance = annotator(name, settings)
    return dict(instance.named()) or {field.name: str(field.type) for field in instance.type()}


def misfit(annotator: str, method: str, positive: str) -> tuple[str, str] | None:
    """Returns why an annotator cannot use a model, and the remedy; None where it can.

    Args:
        annotator: "classifier", "topic" or "quality".
        method: how the model was trained, `fasttext` or `signals`.
        positive: its positive label; "" where it has none.

    >>> misfit("classifier", "signals", "good")
    ('is of the method signals', 'ask it through "quality"')
    >>> misfit("topic", "fasttext", "")
    """
    fits, other = ("signals", "classifier") if annotator == "quality" else ("fasttext", "quality")
    if method != fits:
        return f"is of the method {method}", f'ask it through "{other}"'
    if annotator == "classifier" and not positive:
        return "has no positive label", 'give it one, or ask it through "topic"'
    return None


def _changed(load: Callable[[str, Mapping[str, Any]], Annotator | Filter], name: str, given: Mapping[str, Any]) -> str:
    """Returns the settings that differ from their defaults, for a message; "" for none."""
    if not given:
        return ""
    loaded = load(name, given)
    changes = []
    for key, field in type(loaded).model_fields.items():
        value, default = getattr(loaded, key), field.get_default(call_default_factory=True)
        if value != default:
            changes.append(f"{key} = {value}" + ("" if field.is_required() else f", by default {default}"))
    return "; ".join(changes)


def _load(kind: type[Kind], word: str, name: str, settings: Mapping[str, Any]) -> Kind:
    module, package = _module(word, name)
    loaded = defined_in(module, kind)
    if loaded is None:
        raise Problems([f'"{name}" is no {word}'])
    if issubclass(loaded, Filter) and defined_in(module, Annotator) is not loaded.measured_by:
        raise Problems([f'the filter "{name}" judges what another module measures: put its annotator beside it'])
    return extensions.configured(loaded, name, settings, package)


def _module(word: str, name: str) -> tuple[ModuleType, str]:
    return extensions.module_of(extensions.FILTERS, word, name, CATALOGUE)


def defined_in(module: ModuleType, kind: type[Kind]) -> type[Kind] | None:
    """Returns the annotator or the filter that a module defines, None where it defines none."""
    own = [value for value in vars(module).values() if isinstance(value, type) and value.__module__ == module.__name__]
    return next((value for value in own if issubclass(value, kind)), None)
