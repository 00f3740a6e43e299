"""Filters and parsers that installed packages bring, by entry points.

Reads the metadata of the installed packages, once per process. A package names in a group one module for each filter or
parser; name and version of the package go into the settings of whoever uses it, and so into fingerprints. Recipes are
read at DAG parse time and import such modules, so they import what is heavy inside functions, like our own.
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
"""The group of filters: each a module with an annotator, or with an annotator and a filter."""

PARSERS = "sluice.parsers"
"""The group of parsers: each a module with a `tasks.stages.extract.parser.Parser`."""

PACKAGE = "package"
"""The key under which settings of what a package brings hold its name and version."""

C = TypeVar("C", bound=Config)


@dataclass(frozen=True)
class Extension:
    """What a package brings: its name, the module that holds it, and the package with its version."""

    name: str
    module: str
    package: str


@cache
def brought(group: str) -> Mapping[str, tuple[Extension, ...]]:
    """Returns what installed packages bring to a group, by name; several packages may bring one name."""
    found: dict[str, list[Extension]] = {}
    for entry in entry_points(group=group):
        package = f"{entry.dist.name} {entry.dist.version}" if entry.dist else "a package without metadata"
        found.setdefault(entry.name, []).append(Extension(entry.name, entry.value, package))
    return {name: tuple(sorted(found[name], key=lambda one: one.package)) for name in sorted(found)}


def packages() -> str:
    """Returns the packages that bring anything, with their versions: what two processes must have in common."""
    several = {one.package for group in (FILTERS, PARSERS) for ones in brought(group).values() for one in ones}
    return ", ".join(sorted(several)) or "none"


def names(group: str, own: Mapping[str, str]) -> list[str]:
    """Returns the names that a group knows: `own`, by name and module, and those that packages bring."""
    return sorted({*own, *brought(group)})


def module_of(group: str, word: str, name: str, own: Mapping[str, str]) -> tuple[ModuleType, str]:
    """Imports what holds a filter or a parser.

    Args:
        group: FILTERS or PARSERS.
        word: what it is, for the message: "filter".
        name: its name.
        own: those of Sluice itself, by name and module.

    Returns:
        the module, and the package with its version; "" for one of Sluice itself.

    Raises:
        Problems: there is none of that name, or two; or it cannot be imported.
    """
    several = brought(group).get(name, ())
    if name in own and not several:
        return import_module(own[name]), ""
    if not several:
        raise Problems([f'no {word} "{name}": {nearest(name, names(group, own))}'])
    if name in own or len(several) > 1:
        whose = [*(["Sluice"] if name in own else []), *(one.package for one in several)]
        raise Problems([f'{word} "{name}": {" and ".join(whose)} each bring one: uninstall all but one of them'])
    (one,) = several
    if ":" in one.module:
        raise Problems([f'{word} "{name}": {one.package} names {one.module}, no module: name the module alone'])
    try:
        return import_module(one.module), one.package
    except (Exception, SystemExit) as error:  # whatever somebody else's code does when it is imported
        cause = " ".join(f"{type(error).__name__}: {error}".split())
        raise Problems(
            [f'{word} "{name}" of {one.package} cannot be imported ({cause}): mend or uninstall it']
        ) from None


def made(kind: type[C], name: str, settings: Mapping[str, Any], package: str = "") -> C:
    """Builds what a module holds from its settings.

    Args:
        kind: its class.
        name: what recipes call it.
        settings: its settings; PACKAGE among them says with which version they were completed.
        package: the package that brings it, with the version that is installed here.

    Raises:
        Problems: settings are unknown, out of range or of another type, or another version is installed.
    """
    given = {key: value for key, value in settings.items() if key != PACKAGE}
    unknown = sorted(set(given) - set(kind.model_fields))
    wrong = [f"{name} has no setting {one}: {nearest(one, kind.model_fields)}" for one in unknown]
    if (stated := settings.get(PACKAGE, package)) != package:
        here = f"{package} is" if package else "no package that brings it is"
        wrong.append(f"{name} is to come from {stated}, and {here} installed here: install that, or take out the key")
    try:
        found = validate_strict(kind, {key: value for key, value in given.items() if key not in unknown})
    except ValidationError as error:
        wrong += [f".{name}.{at}: {said}" if at else f".{name}: {said}" for at, said in faults(error)]
    except TypeError as error:
        wrong.append(f".{name}.{error}")
    if wrong:
        raise Problems(wrong)
    return found
