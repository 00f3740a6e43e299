"""Every annotator and filter by name. Adding one is a file beside this one and a line here.

Used by the settings of `annotate` and `consolidate` and by both stages. A file holds an annotator, a filter or both;
the classes are found by their kind. Files are named by strings and imported when wanted, and import what is heavy
inside functions, because recipes are read at DAG parse time.
"""

from collections.abc import Callable, Iterable, Mapping
from importlib import import_module, metadata
from typing import Any, TypeVar

from pydantic import ValidationError

from tasks.config import fault, nearest, strictly, twice
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

FIRST = "1"
"""What `code_of` returns for an annotator of Sluice whose code has measured the same ever since."""

Kind = TypeVar("Kind", Annotator, Filter)


def annotator(name: str, settings: Mapping[str, Any]) -> Annotator:
    """Returns the annotator `name` with `settings`; raises ValueError naming what is unknown or out of range."""
    return _load(Annotator, "annotator", name, settings)


def code_of(one: Annotator) -> str:
    """Returns which code an annotator is: its `version`, and name and version of the package that it comes with.

    Packages that come with Sluice are told by `version` alone.
    """
    module = type(one).__module__.partition(".")[0]
    if module == __name__.partition(".")[0]:
        return str(one.version)
    packages = sorted(set(metadata.packages_distributions().get(module, ())))
    return ", ".join([str(one.version), *(f"{package} {metadata.version(package)}" for package in packages)])


def filter_of(name: str, limits: Mapping[str, Any]) -> Filter:
    """Returns the filter `name` with `limits`; raises ValueError naming what is unknown or out of range."""
    return _load(Filter, "filter", name, limits)


def complete(
    load: Callable[[str, Mapping[str, Any]], Annotator | Filter],
    use: Iterable[str],
    given: Mapping[str, Mapping[str, Any]],
    keys: tuple[str, str],
) -> dict[str, dict[str, Any]]:
    """Returns the settings of all that is in use, defaults written out: a changed default changes the fingerprint.

    Args:
        load: `annotator` or `filter_of`.
        use: names.
        given: settings by name. Of what is not in use there may be defaults, left by a list that was longer before.
        keys: where in a recipe `use` and `given` stand.

    Raises:
        ValueError: a name or setting is unknown, out of range or of another type, or there are settings for what is
            not in use.
    """
    wanted = tuple(use)
    for name in sorted(set(given) - set(wanted)):
        if changed := _changed(load, name, given[name]):
            raise ValueError(
                f"settings for {name} ({changed}), which is not in use: name it in {keys[0]}, or take them out "
                f"(--set {keys[1]}.{name}={{}})"
            )
    return {name: load(name, given.get(name, {})).model_dump(mode="json") for name in wanted}


def once(names: tuple[str, ...]) -> tuple[str, ...]:
    """Returns `names`; raises ValueError if one of them stands there twice."""
    if several := twice(names):
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
    if name not in CATALOGUE:
        raise ValueError(f'no {word} "{name}": {nearest(name, CATALOGUE)}')
    module = import_module(CATALOGUE[name])
    own = [one for one in vars(module).values() if isinstance(one, type) and one.__module__ == module.__name__]
    found = next((one for one in own if issubclass(one, kind)), None)
    if found is None:
        raise ValueError(f'"{name}" is no {word}')
    if unknown := sorted(set(settings) - set(found.model_fields)):
        raise ValueError(f"{name} has no setting {unknown[0]}: {nearest(unknown[0], found.model_fields)}")
    try:
        return strictly(found, settings)
    except ValidationError as error:
        at = ".".join(map(str, error.errors(include_url=False)[0]["loc"]))
        raise ValueError(f"{name}.{at}: {fault(error)}" if at else f"{name}: {fault(error)}") from None
    except TypeError as error:
        raise ValueError(f"{name}.{error}") from None
