"""Filters and parsers of installed packages, registered by entry points.

Reads the metadata of the installed packages, once per process. A package registers one module per filter or parser in a
group; name and version of the package are stored in the settings that use it, and so count in fingerprints. Recipes
are read at DAG parse time and import such modules, so these import heavy libraries inside functions.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from types import ModuleType
from typing import Any, TypeVar

from pydantic import ValidationError

from tasks.core.config import Config, Problems, faults, nearest, validate_strict

FILTERS = "sluice.filters"
"""Entry point group of filters: each a module with an annotator, or with an annotator and a filter."""

PARSERS = "sluice.parsers"
"""Entry point group of parsers: each a module with a `tasks.stages.extract.parser.Parser`."""

PACKAGE = "package"
"""Key in the settings of an extension with name and version of its package."""

C = TypeVar("C", bound=Config)


@dataclass(frozen=True)
class Extension:
    """A filter or parser of a package: its name, its module, and the package with its version."""

    name: str
    module: str
    package: str


@cache
def registered(group: str) -> Mapping[str, tuple[Extension, ...]]:
    """Returns the extensions of a group, by name; several packages may provide the same name."""
    found: dict[str, list[Extension]] = {}
    for entry in entry_points(group=group):
        package = f"{entry.dist.name} {entry.dist.version}" if entry.dist else "a package without metadata"
        found.setdefault(entry.name, []).append(Extension(entry.name, entry.value, package))
    return {name: tuple(sorted(found[name], key=lambda extension: extension.package)) for name in sorted(found)}


def packages() -> str:
    """Returns the packages with extensions and their versions, which the processes of a run must have in common."""
    extensions = (
        extension for group in (FILTERS, PARSERS) for named in registered(group).values() for extension in named
    )
    return ", ".join(sorted({extension.package for extension in extensions})) or "none"


def names(group: str, own: Mapping[str, str]) -> list[str]:
    """Returns the names of a group: `own`, by name and module, and those of extensions."""
    return sorted({*own, *registered(group)})


def module_of(group: str, word: str, name: str, own: Mapping[str, str]) -> tuple[ModuleType, str]:
    """Imports the module of a filter or a parser.

    Args:
        group: FILTERS or PARSERS.
        word: its type in messages: "filter" or "parser".
        name: its name.
        own: modules of Sluice itself, by name.

    Returns:
        the module, and the package with its version; "" for a module of Sluice itself.

    Raises:
        Problems: the name is unknown or ambiguous; or the module cannot be imported.
    """
    found = registered(group).get(name, ())
    if name in own and not found:
        return import_module(own[name]), ""
    if not found:
        raise Problems([f'no {word} "{name}": {nearest(name, names(group, own))}'])
    if name in own or len(found) > 1:
        whose = [*(["Sluice"] if name in own else []), *(extension.package for extension in found)]
        raise Problems([f'{word} "{name}": {" and ".join(whose)} each bring one: uninstall all but one of them'])
    (extension,) = found
    if ":" in extension.module:
        raise Problems(
            [f'{word} "{name}": {extension.package} names {extension.module}, no module: name the module alone']
        )
    try:
        return import_module(extension.module), extension.package
    except (Exception, SystemExit) as error:  # code of other packages may raise anything when it is imported
        cause = " ".join(f"{type(error).__name__}: {error}".split())
        raise Problems(
            [f'{word} "{name}" of {extension.package} cannot be imported ({cause}): mend or uninstall it']
        ) from None


def configured(kind: type[C], name: str, settings: Mapping[str, Any], package: str = "") -> C:
    """Builds an annotator, filter or parser from its settings.

    Args:
        kind: its class.
        name: its name in recipes.
        settings: its settings; PACKAGE among them is the version with which they were completed.
        package: its package, with the version that is installed here.

    Raises:
        Problems: settings are unknown, out of range or of another type, or another version is installed.
    """
    given = {key: value for key, value in settings.items() if key != PACKAGE}
    unknown = sorted(set(given) - set(kind.model_fields))
    errors = [f"{name} has no setting {key}: {nearest(key, kind.model_fields)}" for key in unknown]
    if (stated := settings.get(PACKAGE, package)) != package:
        here = f"{package} is" if package else "no package that brings it is"
        errors.append(f"{name} is to come from {stated}, and {here} installed here: install that, or take out the key")
    try:
        found = validate_strict(kind, {key: value for key, value in given.items() if key not in unknown})
    except ValidationError as error:
        errors += [f".{name}.{at}: {cause}" if at else f".{name}: {cause}" for at, cause in faults(error)]
    except TypeError as error:
        errors.append(f".{name}.{error}")
    if errors:
        raise Problems(errors)
    return found
