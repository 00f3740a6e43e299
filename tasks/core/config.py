"""Settings: the frozen base of every configuration class, their canonical encoding, and their error messages.

Recipes and policy files contain references to secrets instead of the secrets.

Imports no heavy library: the Airflow dag-processor imports this module at parse time.
"""

import difflib
import json
import math
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import date, datetime
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Annotated, Any, ClassVar, NamedTuple, Self, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, ValidationError

from tasks.core.digest import sha256_of
from tasks.core.errors import RecipeError, without_login


class Problems(ValueError):
    """Several errors in settings, raised by one validator; `parse` lists each of them.

    Args:
        messages: one per error, as "field: cause: remedy". A message that begins with a dot is about a field below the
            one that is validated: ".c4.min_words: ...".
    """

    def __init__(self, messages: Iterable[str]) -> None:
        self.messages = tuple(messages)
        super().__init__("; ".join(text.removeprefix(".") for text in self.messages))


class SectionCopy(NamedTuple):
    """The section, or table of one, that a recipe copies into a field, if the recipe field `when` is true.

    Both are dotted paths. With `named`, `when` has names, and only the tables with these names are copied, in the order
    of the names. `convert` returns what is copied, if it is not all of the section.
    """

    section: str
    when: str
    named: bool = False
    convert: Callable[[Any], Any] | None = None


class Config(BaseModel):
    """Immutable settings. Unknown keys and numbers that JSON cannot encode (not finite) are errors."""

    # Validators are built when a class is first used: most processes, such as parses of DAG files, use few of them.
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, defer_build=True)

    COPIED: ClassVar[Mapping[str, SectionCopy]] = {}
    """Fields of this section that the recipe fills in, with the sections that it copies."""

    @classmethod
    def absent(cls) -> Self:
        """Returns the settings for a recipe without this section."""
        return cls()

    @property
    def active(self) -> bool:
        """Whether stages with these settings have anything to do."""
        return True


C = TypeVar("C", bound=Config)

OPERATION = "operation"
"""Marks a field that sets how a run is carried out, `Annotated[int, OPERATION]`; not part of a result's identity."""


def canonical_json(value: Any) -> str:
    """Encodes `value` as JSON; equal values give equal text in every process.

    Raises:
        TypeError: a value has no deterministic encoding. With `str(value)` instead, two processes could compute
            different fingerprints of the same settings.
    """
    return json.dumps(_encodable(value, "value"), sort_keys=True, ensure_ascii=False, separators=(",", ":"))


def sha256_of_json(value: Any) -> str:
    """Returns the sha256 of a value's canonical JSON; raises TypeError as `canonical_json` does.

    >>> sha256_of_json({"b": 1, "a": 2}) == sha256_of(b'{"a":2,"b":1}')
    True
    """
    return sha256_of(canonical_json(value).encode())


def identity_of(settings: Any) -> Any:
    """Returns settings as nested dicts and lists without the fields that are marked OPERATION."""
    if isinstance(settings, Config):
        fields = type(settings).model_fields
        names = [name for name in _encoded_fields(settings) if OPERATION not in fields[name].metadata]
        return {name: identity_of(getattr(settings, name)) for name in names}
    if isinstance(settings, Mapping):
        return {key: identity_of(value) for key, value in settings.items()}
    if isinstance(settings, list | tuple):
        return [identity_of(value) for value in settings]
    return settings


_SCALARS = frozenset({str, int, bool, type(None)})


def _encodable(value: Any, where: str) -> Any:
    try:
        return _encoded(value)
    except _Unencodable as error:
        raise TypeError(f"{where}{''.join(reversed(error.path))} {error.cause}") from None


class _Unencodable(Exception):
    """A value without a deterministic encoding: why, and the steps of the path to it, the innermost first."""

    def __init__(self, cause: str) -> None:
        super().__init__(cause)
        self.cause = cause
        self.path: list[str] = []


def _encoded(value: Any) -> Any:
    # A recipe has hundreds of values and is encoded at every parse of a DAG file: the path is made only for an error.
    if type(value) in _SCALARS:
        return value
    if isinstance(value, Config):
        own = value.__dict__
        return {name: _within(own[name], f".{name}") for name in _encoded_fields(value)}
    if isinstance(value, Enum):
        return _encoded(value.value)
    if isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        if not math.isfinite(value):
            raise _Unencodable(f"is {value}: only finite numbers can be fingerprinted")
        return value
    if isinstance(value, datetime | date):
        return value.isoformat()
    if isinstance(value, Mapping):
        return {_key(key): _within(item, f".{key}") for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_within(item, f"[{index}]") for index, item in enumerate(value)]
    hint = " (write paths as text)" if isinstance(value, Path) else ""
    raise _Unencodable(f"is a {type(value).__name__}, which has no deterministic encoding{hint}")


def _within(value: Any, step: str) -> Any:
    """Encodes a value; an error has the step to it."""
    if type(value) in _SCALARS:
        return value
    try:
        return _encoded(value)
    except _Unencodable as error:
        error.path.append(step)
        raise


def _encoded_fields(value: Config) -> list[str]:
    """Returns the fields to encode: all but those that `exclude_if` excludes, as in `model_dump`.

    A setting added later is excluded at its default, so that it does not change the fingerprints of older recipes.
    """
    own = value.__dict__
    return [name for name, excluded in _exclusions(type(value)) if not (excluded and excluded(own[name]))]


@cache
def _exclusions(config: type[Config]) -> tuple[tuple[str, Callable[[Any], bool] | None], ...]:
    """Returns the fields of a class, each with its `exclude_if`."""
    return tuple((name, field.exclude_if) for name, field in config.model_fields.items())


def _key(key: Any) -> str:
    if not isinstance(key, str):
        raise _Unencodable(f"has the key {key!r}: only text keys can be fingerprinted")
    return key


def nearest(word: str, valid: Iterable[str]) -> str:
    """Returns `did you mean "x"?` with the valid name closest to `word`, or the list of valid names if none is."""
    names = sorted(valid)
    close = difflib.get_close_matches(word, names, n=1, cutoff=0.6)
    return f'did you mean "{close[0]}"?' if close else f"choose from {', '.join(names)}"


def duplicates(names: Iterable[str]) -> list[str]:
    """Returns the names that occur more than once, sorted."""
    return sorted(name for name, count in Counter(names).items() if count > 1)


def require_absolute(path: str) -> str:
    """Returns `path`, a path or file pattern; raises ValueError if it is neither absolute nor a URL."""
    if not (path.startswith("/") or "://" in path):
        raise ValueError(f'the path "{path}" is not absolute: begin it with / or s3://')
    return path


REFERENCE = re.compile(r"env:[A-Za-z_][A-Za-z0-9_]*|file:/.+")
"""Where a secret is: in a variable of the task's environment, or in a file."""


def _reference(value: Any) -> Any:
    if value and not (isinstance(value, str) and REFERENCE.fullmatch(value)):
        # With a ValueError, or that of a wrong type, the message of the recipe would show the value.
        raise Problems(["the key itself must not be in a recipe: write env:NAME or file:/path"])
    return value


SecretReference = Annotated[str, BeforeValidator(_reference)]
"""A reference to a key, see REFERENCE; or ""."""


def read_reference(reference: str) -> str:
    """Returns the secret at "env:NAME" or "file:/path"; raises KeyError, OSError or UnicodeDecodeError."""
    kind, _, source = reference.partition(":")
    if kind == "env":
        return os.environ[source]
    with open(source, encoding="utf-8") as file:
        return file.read()


def _registry_name(name: str) -> str:
    if wrong := sorted({character for character in name if character in "/:'\"`\\" or not character.isprintable()}):
        raise ValueError(f"a model's name in MLflow cannot have {' '.join(map(repr, wrong))}: leave it out")
    if name != name.strip() or name.startswith(".") or len(name) > 250:
        raise ValueError("a model's name in MLflow has at most 250 characters, and no dot or space before it")
    return name


RegistryName = Annotated[str, AfterValidator(_registry_name)]
"""Name of a registered model in MLflow; "" for a default. Quotes would end the queries that find its versions."""


def validate_strict(model: type[C], settings: Mapping[str, Any]) -> C:
    """Builds `model` with strict types: "30" is not accepted for 30, nor true for 1.

    Raises:
        ValidationError: a field is unknown, missing, out of range or of another type.
        TypeError: a value has no deterministic encoding; the message begins with its key.
    """
    # Through JSON, because strict validation of JSON still accepts a list for a tuple and text for a date.
    return model.model_validate_json(json.dumps(_plain(settings)), strict=True)


def parse(
    model: type[C],
    settings: Mapping[str, Any],
    where: str,
    across: Callable[[Mapping[str, Any]], Iterable[str]] = lambda settings: (),
) -> C:
    """Builds `model` from the settings in a file (see `validate_strict`); the result has a canonical encoding.

    Args:
        model: the class to build.
        settings: nested mapping as `tomllib` returns it.
        where: the file or form that the settings are from, for the error message.
        across: returns the errors between fields. The class itself checks these only if every field is valid.

    Raises:
        RecipeError: one line per error with the field, the cause and the remedy.
    """
    try:
        config = validate_strict(model, settings)
        # Free-form settings may contain values that the class does not check; defaults are not from the file.
        _plain({name: getattr(config, name) for name in config.model_fields_set})
        return config
    except ValidationError as error:
        errors = [_explain(model, detail) for detail in _details(error)]
        if all(detail["loc"] for detail in error.errors()):
            errors += map(_split_remedy, across(settings))
    except TypeError as error:
        finite = "only finite" in str(error)
        errors = [(str(error), "write a finite number" if finite else "write text or a number")]
    (cause, remedy), *more = ((f"{where}: {cause}", remedy) for cause, remedy in dict(errors).items())
    raise RecipeError(cause, remedy, more)


def _plain(settings: Any) -> Any:
    """Returns `settings` as JSON values; raises TypeError that begins with the key of a value without encoding."""
    try:
        return _encodable(settings, "value")
    except TypeError as error:
        raise TypeError(str(error).removeprefix("value.")) from None


def assign(settings: dict[str, Any], values: Mapping[str, Any]) -> None:
    """Sets values in nested settings, each at a dotted path such as "limits.c4.min_sentences".

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


def field_errors(error: ValidationError) -> list[tuple[str, str]]:
    """Returns (dotted path, "cause: remedy") for each field with an error; the path of the whole model is ""."""
    return [
        (".".join(map(str, detail["loc"])), ": ".join(filter(None, (_cause(detail), _WRITE.get(detail["type"])))))
        for detail in _details(error)
    ]


def _details(error: ValidationError) -> Iterator[Any]:
    """Yields the details of a pydantic error; each message of `Problems` becomes a detail of its own."""
    for detail in error.errors(include_url=False):
        cause = (detail.get("ctx") or {}).get("error")
        if not isinstance(cause, Problems):
            yield detail
            continue
        for text in cause.messages:
            field, message = text.removeprefix(".").split(": ", 1) if text.startswith(".") else ("", text)
            yield {**detail, "loc": (*detail["loc"], *([field] if field else [])), "msg": message, "input": {}}


def _cause(detail: Any) -> str:
    value = detail.get("input")
    got = "" if isinstance(value, Mapping | list) else f" (got {without_login(repr(value))})"
    return f"{str(detail['msg']).removeprefix('Value error, ')}{got}"


_WRITE = {
    "bool_type": "write true or false, without quotes",
    "int_type": "write a whole number, without quotes",
    "float_type": "write a number, without quotes",
    "string_type": "write text, in quotes",
    "tuple_type": "write a list, in brackets",
    "list_type": "write a list, in brackets",
    "dict_type": "write a table, with a name and a value for each entry",
    "model_type": "write a section, or a table with a name and a value for each setting",
}
"""Remedies for values of the wrong type, by pydantic's error type."""


def _explain(model: type[Config], detail: Any) -> tuple[str, str]:
    """Returns (cause, remedy) of one detail of a pydantic error."""
    path = [str(step) for step in detail["loc"]]
    field = ".".join(path)
    if detail["type"] == "extra_forbidden":
        valid = _fields_at(model, path[:-1])
        return f"unknown key {field}", nearest(path[-1], valid) if valid else "remove it"
    if detail["type"] == "missing":
        return f"{field} is missing", "add it"
    cause, remedy = _split_remedy(": ".join(part for part in (field, _cause(detail)) if part))
    return cause, remedy or _WRITE.get(detail["type"], "")


def _split_remedy(text: str) -> tuple[str, str]:
    """Splits a message into (cause, remedy); the remedy is a last clause with a question mark ("did you mean ...?")."""
    cause, _, remedy = text.rpartition(": ") if text.endswith("?") else (text, "", "")
    return cause, remedy


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
        if config := _config_in(inner):
            return config
    return None


def is_operation(model: type[Config], path: str) -> bool:
    """Returns whether the field at a dotted path, or a section that contains it, is marked OPERATION."""
    current: type[Config] | None = model
    for step in path.split("."):
        field = current.model_fields.get(step) if current else None
        if field and OPERATION in field.metadata:
            return True
        current = _config_in(field.annotation) if field else None
    return False


def changes(old: Any, new: Any, path: str) -> Iterator[tuple[str, Any, Any]]:
    """Yields (dotted path, old value, new value) for every difference between two nested mappings."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in sorted(old.keys() | new.keys()):
            yield from changes(old.get(key), new.get(key), f"{path}.{key}" if path else key)
    elif old != new:
        yield path, old, new
