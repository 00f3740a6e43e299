"""Recipe files: TOML, with what a file inherits from another one in its folder."""

import tomllib
from pathlib import Path
from typing import Any

from tasks.core.errors import RecipeError

_MIXTURES = ("current", "target", "weights", "mixture")
"""Tables that an extending recipe overrides only as a whole: shares that sum to 1."""


def read_settings(file: Path) -> dict[str, Any]:
    """Returns the settings of a file over those of the one that its `extends` names.

    Raises:
        RecipeError: a file is missing, cannot be read or is not TOML, or what is extended extends another one itself.
    """
    settings = _toml(file)
    base = settings.pop("extends", None)
    if not base:
        return settings
    below = _toml(file.parent / str(base))
    if "extends" in below:
        raise RecipeError(f"{file.name}: {base} extends another recipe itself", "extend one level only")
    return _merged(below, settings)


def _toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise RecipeError(f"no recipe at {path}", "check the path") from None
    except OSError as error:
        raise RecipeError(f"{path.name} cannot be read: {error}", "check the file and its rights") from None
    except (ValueError, RecursionError) as error:
        raise RecipeError(f"{path.name} is not TOML: {error}", "correct the line") from None


def _merged(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    both = {key: _merged(below[key], above[key]) for key in below.keys() & above.keys() if _tables(below, above, key)}
    return {**below, **above, **both}


def _tables(below: dict[str, Any], above: dict[str, Any], key: str) -> bool:
    return key not in _MIXTURES and isinstance(below[key], dict) and isinstance(above[key], dict)
