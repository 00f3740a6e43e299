"""The result of a stage run has one format: the shell's line, a pod's XCom and that of a task are equal."""

import json
from dataclasses import fields
from pathlib import Path

import pytest

from operators.results import read_result
from tasks.run.recipe import find_recipe
from tasks.run.result import StageResult
from tasks.run.runner import run_stage
from tasks.run.shell import main

RESULT = StageResult("demo/warc@1", "f", "c", "1", False, ("p0", "p1"), {"pages": 2.5}, {"in": 3, "out": 3}, "http://m")


def test_a_result_survives_json() -> None:
    shown = RESULT.to_json()
    assert list(shown) == [field.name for field in fields(StageResult)]
    assert StageResult.from_json(json.loads(json.dumps(shown))) == RESULT


def test_a_field_that_is_missing_or_unknown_is_an_error() -> None:
    shown = RESULT.to_json()
    with pytest.raises(TypeError, match="colour"):
        StageResult.from_json({**shown, "colour": "red"})
    del shown["rows"]
    with pytest.raises(TypeError, match="rows"):
        StageResult.from_json(shown)


def test_the_shell_prints_the_result_that_operators_return(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setenv("SLUICE_STORE", str(tmp_path / "store"))
    recipe = find_recipe("demo")
    made = run_stage(recipe, "inject", version="v1")
    assert main(["inject", "--recipe", "demo", "--version", "v1"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert (made.version, made.skipped, printed["skipped"]) == ("v1", False, True)
    assert {**printed, "skipped": False} == made.to_json() == read_result(recipe, "inject", "v1").to_json()
