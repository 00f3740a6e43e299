"""The table of benchmarks agrees with their results, and documents name only existing benchmarks."""

import re

import pytest

from benchmarks.__main__ import BENCHMARKS, README, Benchmark, readme
from benchmarks.harness import KEPT, ROOT

DOCUMENTS = (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md")))
SOURCES = (*DOCUMENTS, *sorted((ROOT / "tasks").rglob("*.py")))
MODULES = ROOT / "benchmarks"


def words(one: Benchmark) -> list[str]:
    """The module of a benchmark, and its subcommand if it has one."""
    return re.findall(r"^\w+(?: [a-z_]+(?= |$))?", one.command)[0].split()


def subcommands(module: str) -> set[str]:
    return set(re.findall(r'add_parser\(\s*"(\w+)"', (MODULES / f"{module}.py").read_text()))


def test_the_readme_is_up_to_date() -> None:
    assert README.read_text() == readme(), "python -m benchmarks --readme"


def test_every_result_has_a_row_and_no_benchmark_has_two() -> None:
    names = [one.name for one in BENCHMARKS]
    assert len({*names}) == len(names)
    assert {path.stem for path in KEPT.glob("*.json")} <= {*names}


@pytest.mark.parametrize("one", BENCHMARKS, ids=lambda one: one.name)
def test_a_benchmark_has_its_command_and_a_document_names_it(one: Benchmark) -> None:
    module, *rest = words(one)
    assert {*rest} <= subcommands(module)
    assert bool(rest) == bool(subcommands(module))
    text = " ".join(" ".join(path.read_text() for path in DOCUMENTS).split())
    assert f"benchmarks.{' '.join([module, *rest])}" in text, "a benchmark that backs no figure of a document goes"


def test_benchmarks_named_in_documents_exist() -> None:
    for path in SOURCES:
        text = path.read_text()
        named = re.findall(r"\bbenchmarks[./](\w+)", text)
        assert [name for name in named if not any(MODULES.glob(f"{name}*"))] == [], path
        for module, rest in re.findall(r"\bbenchmarks\.(\w+)\s+(\w+)", text):
            assert not subcommands(module) or rest in subcommands(module), path
