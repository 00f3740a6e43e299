"""A command of the shell, and what several of them do: read the recipe, open its store, print JSON or text."""

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tasks.core.errors import InputError

if TYPE_CHECKING:
    from tasks.core.store import Store
    from tasks.run.recipe import Recipe

Run = Callable[["Recipe", "Store", argparse.Namespace], int | None]
"""A command on the store of a recipe; returns the exit status, None for 0."""


@dataclass(frozen=True)
class Command:
    """A command.

    Attributes:
        name: on the command line.
        help: one line.
        run: reads the options of a command without a recipe; returns the exit status, None for 0.
        arguments: adds the command's own arguments to its parser.
        recipe: whether it takes --recipe, --version and --set.
        json: whether it takes --json.
    """

    name: str
    help: str
    run: Callable[[argparse.Namespace], int | None]
    arguments: Callable[[argparse.ArgumentParser], None] = lambda _: None
    recipe: bool = True
    json: bool = False

    def add_to(self, commands: Any) -> argparse.ArgumentParser:
        """Adds the command's parser to the subparsers `commands` and returns it."""
        parser: argparse.ArgumentParser = commands.add_parser(self.name, help=self.help, description=self.help)
        if self.recipe:
            recipe_arguments(parser, required=True)
        self.arguments(parser)
        if self.json:
            parser.add_argument("--json", action="store_true", help="print JSON")
        parser.set_defaults(run=self.run)
        return parser


def recipe_arguments(parser: argparse._ActionsContainer, *, required: bool) -> None:
    """Adds --recipe, --version and --set."""
    parser.add_argument("--recipe", required=required, help="name in dags/recipes, path of a .toml file, or JSON text")
    parser.add_argument("--version", default="", help="version of the artifacts; default: the recipe's")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="override a field, as in TOML")


def on_store(function: Run) -> Callable[[argparse.Namespace], int | None]:
    """Returns `function` as a command that reads the recipe and opens its store."""

    def run(options: argparse.Namespace) -> int | None:
        from tasks.run.runner import open_store

        recipe = recipe_of(options)
        return function(recipe, open_store(recipe), options)

    return run


def recipe_of(options: argparse.Namespace) -> "Recipe":
    """Returns the recipe of --recipe with the overrides of --set."""
    from tasks.run.recipe import find_recipe

    recipe = find_recipe(options.recipe)
    return recipe.override(dict(overridden(text) for text in options.set)) if options.set else recipe


def overridden(text: str) -> tuple[str, Any]:
    """Returns key and value of an override.

    >>> overridden("train.steps=20"), overridden("train.model=small")
    (('train.steps', 20), ('train.model', 'small'))
    """
    import tomllib

    key, _, value = text.partition("=")
    try:
        return key, tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return key, value


def version_of(recipe: "Recipe", options: argparse.Namespace) -> str:
    """Returns the version of --version, by default the recipe's."""
    return options.version or recipe.version


def show(options: argparse.Namespace, content: Any, text: Callable[[], str]) -> None:
    """Prints `content` as JSON if the options say so, else `text`."""
    print(json.dumps(content, indent=1, default=str, ensure_ascii=False) if options.json else text())


def read_text(argument: str) -> bytes:
    """Returns the bytes of a file, of standard input for "-"; raises InputError."""
    try:
        return sys.stdin.buffer.read() if argument == "-" else Path(argument).read_bytes()
    except OSError as error:
        raise InputError(f"{argument} cannot be read ({error.strerror})", "name a text file, or -") from None


def lines_of(argument: str) -> list[str]:
    """Returns the lines of a file for "@FILE", of standard input for "-", else the argument; raises InputError."""
    if argument != "-" and not argument.startswith("@"):
        return [argument]
    try:
        with open(0 if argument == "-" else argument[1:], encoding="utf-8", closefd=argument != "-") as file:
            return file.read().rstrip("\n").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{argument} cannot be read ({error})", "correct the path, or save it as UTF-8") from None


def filled_lines(arguments: list[str]) -> Iterator[str]:
    """Yields the stripped, non-empty ones of the lines of all arguments (`lines_of`)."""
    for argument in arguments:
        yield from filter(None, map(str.strip, lines_of(argument)))
