"""docs/filters.md is correct: its example filter works with the added line, and its table is complete."""

import doctest
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from tasks.filters import catalogue
from tasks.run.recipe import find_recipe
from tasks.run.runner import open_store, run_stage
from tasks.run.tracking import TrackingContext
from tasks.stages.annotate import AnnotateConfig
from tasks.stages.consolidate.config import ConsolidateConfig
from tasks.stages.decontaminate import DecontaminateConfig
from tasks.stages.paragraphs import ParagraphsConfig

ROOT = Path(__file__).parents[3]
DOCUMENT = ROOT / "docs" / "filters.md"


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", DOCUMENT.read_text(), re.S)


@pytest.fixture
def own_filter(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The example module of the document, as in tasks/filters, with its line in the catalogue."""
    file, line, _ = blocks("python")
    ((name, place),) = re.findall(r'"(\w+)": "([\w.]+)"', line)
    module = ModuleType(place)
    monkeypatch.setitem(sys.modules, place, module)
    exec(compile(file, place, "exec"), module.__dict__)
    monkeypatch.setitem(catalogue.CATALOGUE, name, place)
    return module


def test_the_examples_of_the_document_hold(own_filter: ModuleType) -> None:
    assert doctest.testmod(own_filter) == doctest.TestResults(failed=0, attempted=2)


def test_the_filter_of_the_document_passes_the_checks_of_every_filter(tmp_path: Path) -> None:
    for name in ("tasks", "operators", "plugins", "dags", "docs", "tests/tasks/filters"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", *(f"tests/{one.name}" for one in (ROOT / "tests").glob("*.py"))):
        shutil.copy(ROOT / name, tmp_path / name)
    file, line, _ = blocks("python")
    (row,) = blocks("markdown")
    (tmp_path / "tasks/filters/question_marks.py").write_text(file)
    for name, before, more in (
        ("tasks/filters/catalogue.py", '    "pii": "tasks.filters.pii",\n', line),
        ("docs/filters.md", "| `pii` | ", row),
    ):
        text = (tmp_path / name).read_text()
        assert text.count(before) == 1
        (tmp_path / name).write_text(text.replace(before, more + before))
    assert "`python docs/module_map.py`" in DOCUMENT.read_text()
    checks = ("test_catalogue.py", "test_filters_doc.py")
    asked = (*(f"tests/tasks/filters/{name}" for name in checks), "tests/test_module_map.py")
    for command in (
        ("docs/module_map.py",),
        ("-m", "pytest", "-q", "-p", "no:cacheprovider", *asked, "-k", "question_marks or described or module_map"),
        ("-m", "ruff", "check", "--no-cache", "tasks/filters"),
        ("-m", "ruff", "format", "--no-cache", "--check", "tasks/filters"),
    ):
        done = subprocess.run(
            [sys.executable, *command],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(tmp_path)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        if "pytest" in command:
            assert "7 passed" in done.stdout, "the contracts of a file with annotator and filter, its row, and its line"


def test_a_recipe_takes_the_new_filter_by_its_name(own_filter: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "texts").mkdir()
    for name, text in (("asks", "Who?\nWhen?\nAnd why?\nWhere?"), ("tells", "The baker.\nOn Monday.")):
        (tmp_path / "texts" / f"{name}.txt").write_text(text)
    recipe = find_recipe("demo").override(
        {
            "place.store": str(tmp_path / "store"),
            "crawl.enabled": False,
            "canary.current": {},
            "extract.files": [{"name": "texts", "kind": "text", "path": f"{tmp_path}/texts/*.txt"}],
            "extract.min_chars": 1,
            "annotate.use": ["question_marks", "prose_score", "pii"],
            "consolidate.filters": ["question_marks"],
            "consolidate.limits": {},
            "consolidate.sources": ["texts"],
        }
    )
    for stage in ("extract", "annotate", "dedup", "consolidate"):
        made = run_stage(recipe, stage, tracking=TrackingContext("", "demo"))
    assert made.rows == {"in": 2, "out": 1, "question_marks_many": 1}
    assert b"question_marks_many" in open_store(recipe).read("demo/documents/dev/audit.html")


def test_the_new_filter_has_settings_that_are_checked(own_filter: ModuleType) -> None:
    limits = {"question_marks": {"max_shar": 0.5}}
    with pytest.raises(ValueError, match='did you mean "max_share"'):
        ConsolidateConfig(filters=("question_marks",), limits=limits)


def test_the_settings_shown_are_settings() -> None:
    settings, own, languages, paragraphs, mixed, hub, sets, models, _, parser = map(tomllib.loads, blocks("toml"))
    assert set(parser["extract"]) == {"files", "parsers"}
    AnnotateConfig(**settings["annotate"])
    ConsolidateConfig(**settings["consolidate"])
    of_papers = ConsolidateConfig(**own["consolidate"], kinds={"papers": "pdf"}).limits_of("papers")["gopher_quality"]
    assert (of_papers["min_words"], of_papers["min_letters"]) == (200, 0.5)
    assert ConsolidateConfig(**mixed["consolidate"]).limits["language"]["max_other_share"] == 0.3
    assert AnnotateConfig(**hub["annotate"]).settings["language"]["model"].startswith("hf://")
    of_japanese = ConsolidateConfig(**languages["consolidate"]).limits_of("web", language="ja")
    assert (of_japanese["gopher_quality"]["max_mean_word"], of_japanese["gopher_quality"]["min_words"]) == (6.0, 50)
    assert ParagraphsConfig(**paragraphs["paragraphs"]).active
    ConsolidateConfig(**paragraphs["consolidate"])
    assert DecontaminateConfig(**sets["decontaminate"]).active
    ConsolidateConfig(**sets["consolidate"])
    assert find_recipe("demo").override(models).perplexity.active


def test_every_file_of_the_catalogue_is_described() -> None:
    (section,) = re.findall(r"## Catalogue\n(.*?)\n## ", DOCUMENT.read_text(), re.S)
    rows = re.findall(r"^\| `(\w+)` \|", section, re.M)
    assert sorted(rows) == sorted(catalogue.CATALOGUE)
