"""Shape of the product: each file has one concept that its name states; none is a fragment of another.

`python -m tests.test_structure` prints the counts, the largest modules and the fragments.
"""

import ast
import functools
import re
import sys
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
MOST_IN_A_FOLDER = 25
FRAGMENT_LINES = 60


@dataclass(frozen=True)
class Module:
    """A module of `tasks`.

    Attributes:
        name: dotted.
        lines: of its file.
        importers: modules of the product that import it.
    """

    name: str
    lines: int
    importers: frozenset[str]


@functools.cache
def modules() -> list[Module]:
    """Returns the modules of `tasks`, with their importers in `tasks`, `operators`, `plugins` and `dags`."""
    paths = {
        _name(path): path for top in ("tasks", "operators", "plugins", "dags") for path in (ROOT / top).rglob("*.py")
    }
    importers = defaultdict(set)
    for name, path in paths.items():
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.module:
                inner = (f"{node.module}.{alias.name}" for alias in node.names)
                names = [one if one in paths else node.module for one in inner]
            for imported in names:
                if imported in paths and imported != name:
                    importers[imported].add(name)
    return [
        Module(name, len(path.read_text().splitlines()), frozenset(importers[name]))
        for name, path in sorted(paths.items())
        if name == "tasks" or name.startswith("tasks.")
    ]


def fragments(found: list[Module]) -> list[Module]:
    """Returns short modules with a single importer; modules that a catalogue finds by name have none."""
    packages = {one.name.rpartition(".")[0] for one in found}
    return [one for one in found if one.lines < FRAGMENT_LINES and len(one.importers) == 1 and one.name not in packages]


def _name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def test_no_folder_has_too_many_modules() -> None:
    folders = {path.parent for path in (ROOT / "tasks").rglob("*.py")}
    crowded = {str(one.relative_to(ROOT)): len(list(one.glob("*.py"))) for one in folders}
    too_many = {name: number for name, number in crowded.items() if number > MOST_IN_A_FOLDER}
    assert not too_many, (
        f"more than {MOST_IN_A_FOLDER} modules in a folder: make a package of those that belong together"
    )


def test_a_short_file_with_one_importer_is_merged_into_it() -> None:
    short = [f"{one.name} ({one.lines} lines) into {min(one.importers)}" for one in fragments(modules())]
    assert not short, f"under {FRAGMENT_LINES} lines with one importer: merge {', '.join(short)}"


def test_the_trainer_is_read_in_six_files_and_its_loop_on_a_few_pages() -> None:
    trainer = {one.name.removeprefix("tasks.trainer."): one for one in modules() if "tasks.trainer." in one.name}
    assert trainer["loop"].lines < 400
    first = (ROOT / "docs/training.md").read_text().split("\n\n")[1]
    named = re.findall("`([a-z/]+)`", first)
    assert len([name for name in named if name.replace("/", ".") in trainer]) == 6


def circles() -> list[list[str]]:
    """Returns the groups of modules of which each imports the others, directly or not, also only for types."""
    imported: defaultdict[str, set[str]] = defaultdict(set)
    for one in modules():
        for name in one.importers:
            imported[name].add(one.name)
    reached = {name: _reached(name, imported) for name in imported}
    together = {
        frozenset({name, *(other for other in found if name in reached.get(other, ()))})
        for name, found in reached.items()
    }
    return sorted(sorted(group) for group in together if len(group) > 1)


def _reached(name: str, imported: dict[str, set[str]]) -> set[str]:
    found, waiting = set(), [name]
    while waiting:
        for other in imported.get(waiting.pop(), ()):
            if other not in found:
                found.add(other)
                waiting.append(other)
    return found


def test_no_modules_import_each_other() -> None:
    assert not circles(), "move what several of these need into a module that imports none of them"


def main() -> int:
    """Prints the counts; returns 1 if there are fragments or circles, else 0."""
    found = modules()
    print(f"{len(found)} files, {sum(one.lines for one in found):,} lines")
    print(f"{sum(one.lines < FRAGMENT_LINES for one in found)} of them under {FRAGMENT_LINES} lines")
    print(f"{sum(len(one.importers) == 1 for one in found)} imported by one other file")
    print(
        "largest:", *(f"{one.name} {one.lines}" for one in sorted(found, key=lambda one: -one.lines)[:10]), sep="\n  "
    )
    short, closed = [one.name for one in fragments(found)], circles()
    print("fragments:", ", ".join(short) or "none")
    print("modules that import each other:", "; ".join(map(", ".join, closed)) or "none")
    return int(bool(short or closed))


if __name__ == "__main__":
    sys.exit(main())
