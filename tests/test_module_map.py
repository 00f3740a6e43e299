"""The map of packages and modules in the documentation is that of the docstrings."""

import runpy
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_the_module_map_is_up_to_date() -> None:
    written = runpy.run_path(str(ROOT / "docs/module_map.py"))["written"](ROOT)
    old = [str(path.relative_to(ROOT)) for path, text in written.items() if path.read_text() != text]
    assert not old, f"{' and '.join(old)} differ from the docstrings: run `python docs/module_map.py`"


def test_every_module_states_its_purpose_in_its_first_line() -> None:
    packages = runpy.run_path(str(ROOT / "docs/module_map.py"))["summaries"](ROOT)
    silent = [f"{package}.{name}" for package, modules in packages.items() for name in modules if not modules[name]]
    assert not silent
