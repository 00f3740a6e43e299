"""Writes the map of packages and modules from the first lines of their docstrings: `python docs/module_map.py`.

The packages go between the two markers of docs/architecture.md, all modules into docs/modules.md.
"""

import ast
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parent
TREES = ("tasks", "operators", "plugins", "dags")
BEGIN, END = "<!-- module map: python docs/module_map.py -->", "<!-- end of the module map -->"
HEAD = """# Modules

All modules with the first line of their docstrings, written by `python docs/module_map.py`.
[Architecture](architecture.md#module-map) has the packages alone, and the paths of a URL, a document and a trace.
"""


def summaries(root: Path = ROOT) -> dict[str, dict[str, str]]:
    """Returns the first line of the docstring of each module, by package and name; "" is the package itself."""
    packages: defaultdict[str, dict[str, str]] = defaultdict(dict)
    for tree in TREES:
        for path in sorted((root / tree).rglob("*.py")):
            package = ".".join(path.parent.relative_to(root).parts)
            text = ast.get_docstring(ast.parse(path.read_text())) or ""
            packages[package]["" if path.stem == "__init__" else path.stem] = text.partition("\n")[0].rstrip(".")
    return dict(sorted(packages.items(), key=lambda item: (TREES.index(item[0].partition(".")[0]), item[0])))


def table(head: str, rows: Iterable[tuple[str, str]]) -> str:
    """Returns a Markdown table of names and texts."""
    lines = [f"| `{name}` | {text.replace('|', chr(92) + '|')} |" for name, text in rows]
    return "\n".join([f"| {head} | content |", "|---|---|", *lines, ""])


def written(root: Path = ROOT) -> dict[Path, str]:
    """Returns the two files as they should be, by path."""
    packages = summaries(root)
    own = [(name, modules[""]) for name, modules in packages.items() if "" in modules]
    sections = [HEAD]
    for name, modules in packages.items():
        rows = [(module, text) for module, text in modules.items() if module]
        about = f"{modules['']}.\n\n" if "" in modules else ""
        sections.append(f"## {name}\n\n{about}{table('module', rows) if rows else ''}".rstrip() + "\n")
    architecture = root / "docs/architecture.md"
    before, _, rest = architecture.read_text().partition(BEGIN)
    after = rest.partition(END)[2]
    return {
        architecture: f"{before}{BEGIN}\n\n{table('package', own)}\n{END}{after}",
        root / "docs/modules.md": "\n".join(sections),
    }


if __name__ == "__main__":
    for path, text in written().items():
        path.write_text(text)
