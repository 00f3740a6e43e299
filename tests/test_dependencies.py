"""pyproject.toml declares all imported packages; none is only a dependency of another package."""

import ast
import functools
import re
import sys
import tomllib
from collections import defaultdict
from collections.abc import Iterable
from importlib.metadata import packages_distributions, requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
OURS = {"tasks", "operators", "sluice_ui", "sluice_plugin"}
EXTRAS_OF_STAGES = (
    *(
        "train",
        "gguf",
        "render",
        "kenlm",
        "ner",
        "careful",
        "office",
        "lm-eval",
        "kafka",
        "delta",
        "iceberg",
        "ocr",
        "unigram",
    ),
)
BY_NAME = {
    "adlfs": "fsspec loads it for abfs:// addresses",
    "apache-airflow": "brings core and task SDK of one version",
    "apache-airflow-providers-amazon": "Airflow makes its S3 connections and remote logs with it",
    "apache-airflow-providers-common-io": "airflow.cfg names its XCom backend",
    "asyncpg": "SQLAlchemy's driver for the API server",
    "awkward": "gigatoken returns its arrays",
    "gcsfs": "fsspec loads it for gs:// addresses",
    "lxml-html-clean": "lxml.html.clean, which trafilatura imports",
    "onnxruntime": "rapidocr runs its models with it",
    "plotly": "the pages serve its script",
    "psycopg2-binary": "the demo imports it, and SQLAlchemy as its driver",
    "s3fs": "fsspec loads it for s3:// addresses",
}
"""Distributions that are loaded by the name of a protocol or a setting, and by what."""
NOT_INSTALLED = {"openlineage": "apache-airflow-providers-openlineage", "cv2": "opencv-python-headless"}
"""Modules of optional packages that are not installed here, with the requirement that brings them."""


def normalised(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def declared(lines: Iterable[str]) -> set[str]:
    """Returns the names of requirements and of those of their extras (`dask[distributed]`: distributed)."""
    names = set()
    for requirement in map(Requirement, lines):
        names.add(normalised(requirement.name))
        for extra in requirement.extras:
            for line in requires(requirement.name) or []:
                needed = Requirement(line)
                if needed.marker and needed.marker.evaluate({"extra": extra}) and "extra" in str(needed.marker):
                    names.add(normalised(needed.name))
    return names


def project() -> tuple[list[str], dict[str, list[str]]]:
    table = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return table["dependencies"], table["optional-dependencies"]


def imported(files: Iterable[Path]) -> dict[str, list[str]]:
    """Returns {third-party top-level module: where it is imported}, including imports in functions."""
    lines = defaultdict(list)
    for path in files:
        for top, number in imports_of(path):
            if top not in OURS and top not in sys.stdlib_module_names:
                lines[top].append(f"{path.relative_to(ROOT)}:{number}")
    return lines


@functools.cache
def imports_of(path: Path) -> list[tuple[str, int]]:
    """Returns (top-level module, line number) of each import of a file."""
    imports = []
    for node in ast.walk(ast.parse(path.read_text())):
        match node:
            case ast.Import():
                names = [alias.name for alias in node.names]
            case ast.ImportFrom(level=0, module=str(module)):
                names = [module]
            case ast.Call(
                func=ast.Attribute(attr="import_module") | ast.Name(id="import_module"),
                args=[ast.Constant(value=str(module)), *_],
            ):
                names = [module]
            case _:
                continue
        imports += [(name.partition(".")[0], node.lineno) for name in names]
    return imports


def undeclared(found: dict[str, list[str]], allowed: set[str]) -> dict[str, list[str]]:
    owners = packages_distributions()
    return {
        module: lines
        for module, lines in found.items()
        if not {normalised(owner) for owner in owners.get(module, [NOT_INSTALLED.get(module, module)])} & allowed
    }


@pytest.fixture(scope="module")
def stages() -> list[Path]:
    """The modules of the stages: an image without Airflow must install their imports."""
    return [path for path in (ROOT / "tasks").rglob("*.py") if path.relative_to(ROOT).parts[1] != "demo"]


@pytest.fixture(scope="module")
def with_airflow() -> list[Path]:
    folders = ("tasks/demo", "operators", "plugins", "dags")
    return [path for folder in folders for path in (ROOT / folder).rglob("*.py")]


def test_imports_of_stages_are_declared_outside_the_airflow_extra(stages: list[Path]) -> None:
    always, extras = project()
    allowed = declared([*always, *(line for name in EXTRAS_OF_STAGES for line in extras[name])])
    found = imported(stages)
    assert {"numpy", "pyarrow", "torch"} <= found.keys()
    assert undeclared(found, allowed) == {}
    assert undeclared({"airflow": ["x.py:1"]}, allowed)


def test_imports_of_operators_plugins_and_demo_are_declared(with_airflow: list[Path]) -> None:
    always, extras = project()
    assert undeclared(imported(with_airflow), declared([*always, *extras["airflow"], *extras["openlineage"]])) == {}


def test_declared_dependencies_are_imported(stages: list[Path], with_airflow: list[Path]) -> None:
    always, extras = project()
    lines = [*always, *(line for name, extra in extras.items() if name != "dev" for line in extra)]
    owners = packages_distributions()
    modules = imported([*stages, *with_airflow])
    # Packages that are not installed here are assumed to have the name of their module.
    used = {
        normalised(owner) for module in modules for owner in owners.get(module, [NOT_INSTALLED.get(module, module)])
    }
    unused = {normalised(Requirement(line).name) for line in lines} - used
    assert unused - BY_NAME.keys() == set()


def test_a_requirement_is_listed_once_and_in_order() -> None:
    names = [normalised(Requirement(line).name) for line in (ROOT / "requirements.txt").read_text().splitlines()]
    assert names == sorted(set(names))
