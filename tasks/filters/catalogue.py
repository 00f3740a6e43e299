"""Catalogue of annotators and filters by name. To add one, add a file to this folder and a line here, or a package.

A file contains an annotator, a filter or both, which are identified by their base class. Files are imported by name
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
"""Annotators that write one score per name, and the setting that lists the names."""

Kind = TypeVar("Kind", Annotator, Filter)


def annotator(name: str, settings: Mapping[str, Any]) -> Annotator:
    """Returns the annotator `name` with `settings`; raises Problems with all unknown or invalid settings."""
    return _load(Annotator, "annotator", name, settings)


def filter_of(name: str, limits: Mapping[str, Any]) -> Filter:
    """Returns the filter `name` with `limits`; raises Problems with all unknown or invalid limits."""
    return _load(Filter, "filter", name, limits)


def filter_names() -> list[str]:
    """Returns the names of all annotators and filters, including those of installed packages."""
    return extensions.names(extensions.FILTERS, CATALOGUE)


def complete(
    load: Callable[[str, Mapping[str, Any]], Annotator | Filter],
    use: Iterable[str],
    settings: Mapping[str, Mapping[str, Any]],
    keys: tuple[str, str],
) -> dict[str, dict[str, Any]]:
    """Returns the settings of all names in use, with defaults, so that a changed default changes the fingerprint.

    Settings of a package's annotator or filter also contain the package's name and version (`extensions.PACKAGE`).

    Args:
        load: `annotator` or `filter_of`.
        use: names in use.
        settings: settings by name. For names that are not in use only defaults are accepted, as a name that was removed
            from `use` leaves them behind.
        keys: the recipe keys of `use` and `settings`, for messages.

    Raises:
        Problems: names or settings are unknown, out of range or of the wrong type, or there are settings for a name
            that is not in use.
    """
    used = tuple(use)
    completed: dict[str, dict[str, Any]] = {}
    errors: list[str] = []
    for name in (*used, *sorted(set(settings) - set(used))):
        try:
            if name in used:
                completed[name] = load(name, settings.get(name, {})).model_dump(mode="json")
                if package := _module("annotator", name)[1]:
                    completed[name][extensions.PACKAGE] = package
            elif changes := _changes(load, name, settings[name]):
                errors.append(
                    f"settings for {name} ({changes}), which is not in use: name it in {keys[0]}, or take them out "
                    f"(--set {keys[1]}.{name}={{}})"
                )
        except Problems as problems:
            errors += problems.messages
    if errors:
        raise Problems(errors)
    return completed


def require_unique(names: tuple[str, ...]) -> tuple[str, ...]:
    """Returns `names`; raises ValueError if one of them occurs twice."""
    if repeated := duplicates(names):
        raise ValueError(f"{repeated[0]} is named twice")
    return names


def field_types_of(name: str, settings: Mapping[str, Any]) -> dict[str, str]:
    """Returns the fields of an annotator's column, with Arrow's names of their types.

    Imports Arrow only for columns with nested fields, such as `language` and `pii` (`Annotator.field_types` is empty).
    """
    instance = annotator(name, settings)
    return dict(instance.field_types()) or {field.name: str(field.type) for field in instance.type()}


def mismatch(annotator: str, method: str, positive: str) -> tuple[str, str] | None:
    """Returns why an annotator cannot use a model, and the remedy; None if it can.

    Args:
        annotator: "classifier", "topic" or "quality".
        method: training method of the model, `fasttext` or `signals`.
        positive: positive label of the model; "" for none.

    >>> mismatch("classifier", "signals", "good")
    ('is of the method signals', 'use it with the annotator "quality"')
    >>> mismatch("topic", "fasttext", "")
    """
    required, other = ("signals", "classifier") if annotator == "quality" else ("fasttext", "quality")
    if method != required:
        return f"is of the method {method}", f'use it with the annotator "{other}"'
    if annotator == "classifier" and not positive:
        return "has no positive label", 'give it one, or use it with the annotator "topic"'
    return None


def _changes(
    load: Callable[[str, Mapping[str, Any]], Annotator | Filter], name: str, settings: Mapping[str, Any]
) -> str:
    """Returns the settings that differ from their defaults, for a message; "" for none."""
    if not settings:
        return ""
    loaded = load(name, settings)
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
        raise Problems([f'the annotator of the filter "{name}" is in another module: define both in the same module'])
    return extensions.configure(loaded, name, settings, package)


def _module(word: str, name: str) -> tuple[ModuleType, str]:
    return extensions.module_of(extensions.FILTERS, word, name, CATALOGUE)


def defined_in(module: ModuleType, kind: type[Kind]) -> type[Kind] | None:
    """Returns the annotator or filter class that a module defines; None if it defines none."""
    own = [value for value in vars(module).values() if isinstance(value, type) and value.__module__ == module.__name__]
    return next((value for value in own if issubclass(value, kind)), None)
