"""Filters and parsers of installed packages, registered by entry points.

Reads the metadata of the installed packages, once per process. A package registers one module per filter or parser in
an entry point group. Name and version of the package are stored in the settings that use it, so they are part of
fingerprints. Reading a recipe imports these modules, and DAG files read recipes at parse time, so such modules should
import heavy libraries inside functions.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from types import ModuleType
from typing import Any, TypeVar

from pydantic import ValidationError

from tasks.core.config import Config, Problems, field_errors, nearest, validate_strict

FILTERS = "sluice.filters"
"""Entry point group of filters: each a module with an annotator, or with an annotator and a filter."""

PARSERS = "sluice.parsers"
"""Entry point group of parsers: each a module with a `tasks.stages.extract.parser.Parser`."""

PACKAGE = "package"
"""Key for name and version of the package in the settings of an extension."""

NONE = "none"
"""What `packages` returns if there is no extension."""

C = TypeVar("C", bound=Config)


@dataclass(frozen=True)
class Extension:
    """A filter or parser of an installed package; `package` is the package's name and version."""

    name: str
    module: str
    package: str


@cache
def extensions_in(group: str) -> Mapping[str, tuple[Extension, ...]]:
    """Returns the extensions of a group by name; several packages may register the same name."""
    by_name: dict[str, list[Extension]] = {}
    for entry in entry_points(group=group):
        package = f"{entry.dist.name} {entry.dist.version}" if entry.dist else "a package without metadata"
        by_name.setdefault(entry.name, []).append(Extension(entry.name, entry.value, package))
    return {name: tuple(sorted(by_name[name], key=lambda extension: extension.package)) for name in sorted(by_name)}


def packages() -> str:
    """Returns the packages with extensions and their versions; all processes of a run must have the same ones."""
    extensions = (
        extension
        for group in (FILTERS, PARSERS)
        for same_name in extensions_in(group).values()
        for extension in same_name
    )
    return ", ".join(sorted({extension.package for extension in extensions})) or NONE


def names(group: str, own: Mapping[str, str]) -> list[str]:
    """Returns the names in a group, sorted: the keys of `own` (modules by name) and the names of extensions."""
    return sorted({*own, *extensions_in(group)})


def module_of(group: str, word: str, name: str, own: Mapping[str, str]) -> tuple[ModuleType, str]:
    """Imports the module of a filter or a parser.

    Args:
        group: FILTERS or PARSERS.
        word: "filter" or "parser", for messages.
        name: its name.
        own: modules of Sluice itself, by name.

    Returns:
        the module, and name and version of its package; "" for a module of Sluice itself.

    Raises:
        Problems: the name is unknown or ambiguous, or the module cannot be imported.
    """
    matches = extensions_in(group).get(name, ())
    if name in own and not matches:
        return import_module(own[name]), ""
    if not matches:
        raise Problems([f'no {word} "{name}": {nearest(name, names(group, own))}'])
    if name in own or len(matches) > 1:
        providers = [*(["Sluice"] if name in own else []), *(extension.package for extension in matches)]
        raise Problems([f'{word} "{name}": {" and ".join(providers)} each provide one: uninstall all but one of them'])
    (extension,) = matches
    if ":" in extension.module:
        raise Problems(
            [f'{word} "{name}": {extension.package} registers {extension.module}, not a module: register the module']
        )
    try:
        return import_module(extension.module), extension.package
    except (Exception, SystemExit) as error:  # code of other packages may raise anything on import
        cause = " ".join(f"{type(error).__name__}: {error}".split())
        raise Problems(
            [f'{word} "{name}" of {extension.package} cannot be imported ({cause}): repair or uninstall it']
        ) from None


def configure(kind: type[C], name: str, settings: Mapping[str, Any], package: str = "") -> C:
    """Builds an annotator, filter or parser from its settings.

    Args:
        kind: its class.
        name: its name in recipes.
        settings: its settings; the value at PACKAGE is the package version that they were completed with.
        package: name and version of its package as installed here.

    Raises:
        Problems: a setting is unknown, out of range or of another type, or another version is installed.
    """
    own = {key: value for key, value in settings.items() if key != PACKAGE}
    unknown = sorted(set(own) - set(kind.model_fields))
    errors = [f"{name} has no setting {key}: {nearest(key, kind.model_fields)}" for key in unknown]
    if (required := settings.get(PACKAGE, package)) != package:
        here = f"{package} is" if package else "no package with it is"
        errors.append(f"{name} needs {required}, but {here} installed here: install {required}, or remove the key")
    try:
        config = validate_strict(kind, {key: value for key, value in own.items() if key not in unknown})
    except ValidationError as error:
        errors += [f".{name}.{at}: {cause}" if at else f".{name}: {cause}" for at, cause in field_errors(error)]
    except TypeError as error:
        errors.append(f".{name}.{error}")
    if errors:
        raise Problems(errors)
    return config
