"""The recipes of CONTRIBUTING.md work, and their results pass the rules."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.times import VARIABLE

ROOT = Path(__file__).parents[1]
SECTIONS = {
    title: text
    for title, _, text in (part.partition("\n") for part in (ROOT / "CONTRIBUTING.md").read_text().split("\n## ")[1:])
}
COPIED = ("tasks", "operators", "dags", "plugins", "tests", "docs")
_FILE = re.compile(r"^`([^`\n]+)`:\n\n```python\n(.*?)^```$", re.S | re.M)
_HUNK = re.compile(r"^@@$", re.M)


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("checkout")
    ignored = shutil.ignore_patterns("__pycache__", ".ruff_cache", "*.warc.gz")
    for name in COPIED:
        shutil.copytree(ROOT / name, folder / name, ignore=ignored)
    for name in ("pyproject.toml", "airflow.cfg"):
        shutil.copy(ROOT / name, folder)
    return folder


def change(folder: Path, difference: str) -> None:
    """Applies a diff without line numbers; the lines of each place must occur exactly once."""
    for block in re.split(r"^--- ", difference, flags=re.M)[1:]:
        header, *hunks = _HUNK.split(block)
        path = folder / header.split("\n")[1].removeprefix("+++ b/")
        for hunk in hunks:
            lines = hunk.strip("\n").split("\n")
            before = "\n".join(line[1:] for line in lines if line[0] in " -")
            after = "\n".join(line[1:] for line in lines if line[0] in " +")
            text = path.read_text()
            assert text.count(before) == 1, f"{path.name} has {text.count(before)} of\n{before}"
            path.write_text(text.replace(before, after))


def test_the_recipes_of_contributing_work(checkout: Path) -> None:
    commands: list[str] = []
    for title in ("Add a stage", "Add an operator", "Add a place"):  # in this order: the place refers to the operator
        commands += follow(SECTIONS[title], checkout)
    environment = {
        **{name: value for name, value in os.environ.items() if name != VARIABLE},
        "PYTHONPATH": f"{checkout}{os.pathsep}{checkout / 'plugins'}",
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }
    tests = [command for command in commands if "pytest" in command]
    assert len(tests) == 3
    # One pytest call for all three, since most of its time is its start; with the rules for files of the changed copy.
    rules = ("tests/test_structure.py", "tests/test_module_map.py")
    whole = " ".join([tests[0], *(command.rpartition(" ")[2] for command in tests[1:]), *rules])
    for command in dict.fromkeys([*(command for command in commands if command not in tests), whole]):
        done = subprocess.run(
            shlex.split(command), cwd=checkout, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"


def test_the_hooks_of_a_commit_run_what_make_lint_runs() -> None:
    (lint,) = re.findall(r"^lint:.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(), re.M)
    tools = set(re.findall(r"\$\(BIN\)/(\w[\w-]*(?: check| format)?)", lint))
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"][0]["hooks"]
    assert len(tools) >= 6
    assert {tool for tool in tools if not any(f".venv/bin/{tool} " in hook["entry"] + " " for hook in hooks)} == set()


def follow(section: str, checkout: Path) -> list[str]:
    """Makes the files and changes of a section; returns its commands."""
    files = _FILE.findall(section)
    assert files
    for name, text in files:
        (checkout / name).parent.mkdir(parents=True, exist_ok=True)
        (checkout / name).write_text(text)
    for difference in re.findall(r"^```diff\n(.*?)^```$", section, re.S | re.M):
        change(checkout, difference)
    (commands,) = re.findall(r"^```sh\n(.*?)^```$", section, re.S | re.M)
    return str(commands).splitlines()
