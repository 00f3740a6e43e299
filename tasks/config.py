"""Settings: the frozen base of every configuration class, and their one encoding.

Used by every stage and by the recipe. Light on purpose: the Airflow dag-processor imports it at parse time.
"""

import difflib
import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import date, datetime
from enum import Enum
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from tasks.errors import RecipeError


class Config(BaseModel):
    """Immutable settings; an unknown key is an error, and so is a number that is not finite: nothing encodes it."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


C = TypeVar("C", bound=Config)


def canonical_json(value: Any) -> str:
    """Encodes `value` so that equal values give equal text in every process.

    Raises:
        TypeError: a value has no deterministic encoding. A permissive `str(value)` would let two processes
            disagree about the fingerprint of the same settings.
    """
    return json.dumps(_encodable(value, "value"), sort_keys=True, ensure_ascii=False, separators=(",", ":"))


def _encodable(value: Any, where: str) -> Any:
    if isinstance(value, Config):
        return {name: _encodable(getattr(value, name), f"{where}.{name}") for name in type(value).model_fields}
    if isinstance(value, Enum):
        return _encodable(value.value, where)
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        if not math.isfinite(value):
            raise TypeError(f"{where} is {value}: only finite numbers can be fingerprinted")
        return value
    if isinstance(value, datetime | date):
        return value.isoformat()
    if isinstance(value, Mapping):
        return {_key(key, where): _encodable(item, f"{where}.{key}") for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_encodable(item, f"{where}[{index}]") for index, item in enumerate(value)]
    hint = " (write paths as text)" if isinstance(value, Path) else ""
    raise TypeError(f"{where} is a {type(value).__name__}, which has no deterministic encoding{hint}")


def _key(key: Any, where: str) -> str:
    if not isinstance(key, str):
        raise TypeError(f"{where} has the key {key!r}: only text keys can be fingerprinted")
    return key


def nearest(word: str, known: Iterable[str]) -> str:
    """Returns `did you mean "x"?` for the closest of `known`, or the list of what is known."""
    names = sorted(known)
    close = difflib.get_close_matches(word, names, n=1, cutoff=0.6)
    return f'did you mean "{close[0]}"?' if close else f"known are: {', '.join(names)}"


def twice(names: Iterable[str]) -> list[str]:
    """Returns the names that stand there more than once, sorted."""
    return sorted(name for name, count in Counter(names).items() if count > 1)


def absolute(path: str) -> str:
    """Returns a path or pattern of files; raises ValueError where it is neither absolute nor a URL."""
    if not (path.startswith("/") or "://" in path):
        raise ValueError(f'the path "{path}" is not absolute: begin it with / or s3://')
    return path


def strictly(model: type[C], settings: Mapping[str, Any]) -> C:
    """Builds `model`; types are taken strictly ("30" is not 30, and neither is true 1).

    Raises:
        ValidationError: a field is unknown, missing, or of another type or range.
        TypeError: a value has no deterministic encoding; the message begins with its key.
    """
    # By way of JSON, because strict validation of JSON still takes a list for a tuple and text for a date.
    return model.model_validate_json(json.dumps(_plain(settings)), strict=True)


def parse(model: type[C], settings: Mapping[str, Any], where: str) -> C:
    """Builds `model` from settings read out of a file (`strictly`); what it returns has a canonical encoding.

    Args:
        model: the class to build.
        settings: nested mapping as `tomllib` returns it.
        where: the file or form the settings came from; named in the error.

    Raises:
        RecipeError: one line naming the field, what was wrong and what would be right.
    """
    try:
        found = strictly(model, settings)
        _plain(found)  # settings of free form may still hold what the class cannot know of
    except ValidationError as error:
        raise RecipeError(*_explain(model, error, where)) from None
    except TypeError as error:
        finite = "only finite" in str(error)
        raise RecipeError(
            f"{where}: {error}", "write a finite number" if finite else "write text or a number"
        ) from None
    return found


def _plain(settings: Any) -> Any:
    """Returns `settings` as JSON holds them; raises TypeError that begins with the key of what has no encoding."""
    try:
        return _encodable(settings, "value")
    except TypeError as error:
        raise TypeError(str(error).removeprefix("value.")) from None


def assign(settings: dict[str, Any], values: Mapping[str, Any]) -> None:
    """Puts values into nested settings, each named by a dotted path ("limits.c4.min_sentences").

    >>> settings = {"a": {"b": 1}}
    >>> assign(settings, {"a.c": 2, "d.e": 3})
    >>> settings
    {'a': {'b': 1, 'c': 2}, 'd': {'e': 3}}
    """
    for path, value in values.items():
        *folders, last = path.split(".")
        at = settings
        for folder in folders:
            if not isinstance(at.get(folder), dict):
                at[folder] = {}
            at = at[folder]
        at[last] = value


def fault(error: ValidationError) -> str:
    """Returns what is wrong with the first field of `error`, and what stood there."""
    first = error.errors(include_url=False)[0]
    shown = first.get("input")
    got = "" if isinstance(shown, Mapping | list) else f" (got {shown!r})"
    return f"{str(first['msg']).removeprefix('Value error, ')}{got}"


def _explain(model: type[Config], error: ValidationError, where: str) -> tuple[str, str]:
    first = error.errors(include_url=False)[0]
    path = [str(step) for step in first["loc"]]
    more = f" ({error.error_count() - 1} more)" if error.error_count() > 1 else ""
    field = ".".join(path)
    if first["type"] == "extra_forbidden":
        known = _fields_at(model, path[:-1])
        return f"{where}: unknown key {field}{more}", nearest(path[-1], known) if known else "remove it"
    if first["type"] == "missing":
        return f"{where}: {field} is missing{more}", "add it"
    cause, _, remedy = fault(error).rpartition(": ") if fault(error).endswith("?") else (fault(error), "", "")
    return ": ".join(part for part in (where, field, cause + more) if part), remedy


def _fields_at(model: type[Config], path: list[str]) -> list[str]:
    current: Any = model
    for step in path:
        if step.isdigit():
            continue
        field = current.model_fields.get(step)
        current = field and _config_in(field.annotation)
        if current is None:
            return []
    return list(current.model_fields)


def _config_in(annotation: Any) -> type[Config] | None:
    if isinstance(annotation, type) and issubclass(annotation, Config):
        return annotation
    for inner in getattr(annotation, "__args__", ()):
        if found := _config_in(inner):
            return found
    return None
