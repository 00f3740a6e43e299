"""The data set of real runs: distinct mixtures, and runs that are trained once."""

import json
import sys
from argparse import Namespace
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pytest

from benchmarks import harness, responses
from benchmarks.responses import made, mixtures, runs, split
from tasks.core.config import Config
from tasks.core.engine import Engine
from tasks.core.stage import Inputs, Output, Report


def test_the_mixtures_are_distinct_and_cover_corners_and_edges() -> None:
    found = mixtures()
    assert len({tuple(one.values()) for one in found}) == len(found) >= 60
    assert all(sum(one.values()) == pytest.approx(1) for one in found)
    for domain in responses.BYTES:
        assert max(one[domain] for one in found) > 0.8
    assert sum(sorted(one.values())[-2] == pytest.approx(0.45, abs=0.001) for one in found) >= 15


def test_some_mixtures_are_repeated_with_other_seeds() -> None:
    found = runs()
    assert len(set(found)) == len(found)
    seeds = [{run.seed for run in found if run.arm == arm} for arm in range(len(mixtures()))]
    assert all(0 in some for some in seeds)
    assert sum(len(some) >= 3 for some in seeds) == len(responses.REPEATED)


class Settings(Config):
    """Settings of the stage below."""

    steps: int = 1


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Calls of a stage that stands for a training, and fails when its member is new."""
    done: list[str] = []

    def run(settings: Settings, inputs: Inputs, output: Output, engine: Engine) -> Report:
        done.append(output.member)
        if done.count(output.member) == 1:
            raise KeyboardInterrupt
        with output.part("result.json", conserved=False) as part, part.file("result.json") as file:
            file.write(b"{}")
        return Report(metrics={})

    monkeypatch.setitem(sys.modules, "trained_for_a_test", SimpleNamespace(VERSION=1, run=run))
    monkeypatch.setattr(responses, "FOLDER", tmp_path)
    return done


def test_a_run_that_was_killed_is_repeated_and_a_finished_one_is_not(calls: list[str]) -> None:
    with pytest.raises(KeyboardInterrupt):
        made("run", "trained_for_a_test", Settings(), "arm-0-seed-0")
    first = made("run", "trained_for_a_test", Settings(), "arm-0-seed-0")
    again = made("run", "trained_for_a_test", Settings(), "arm-0-seed-0")
    assert again.record == first.record
    assert calls == ["arm-0-seed-0"] * 2


def test_runs_of_other_settings_are_not_mixed(calls: list[str]) -> None:
    with pytest.raises(KeyboardInterrupt):
        made("run", "trained_for_a_test", Settings(), "arm-0-seed-0")
    made("run", "trained_for_a_test", Settings(), "arm-0-seed-0")
    with pytest.raises(RuntimeError, match="has other settings or inputs: delete"):
        made("run", "trained_for_a_test", Settings(steps=2), "arm-0-seed-0")


def test_the_runs_are_trained_by_the_stages_of_the_product(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    domains = ("one", "two")
    for domain in domains:
        lines = [json.dumps({"text": f"{domain} {number} water river stone " * 20}) for number in range(30)]
        (tmp_path / f"{domain}.jsonl.zst").write_bytes(pa.compress("\n".join(lines).encode(), "zstd", asbytes=True))
    small = {"BYTES": dict.fromkeys(domains, 8_000), "MIXTURES": 1, "REPEATED": (0,), "SEEDS": (0, 1), "STEPS": 1}
    for name, value in {**small, "VOCABULARY": 300, "FOLDER": tmp_path / "store"}.items():
        monkeypatch.setattr(responses, name, value)
    monkeypatch.setattr(harness, "RESULTS", tmp_path)
    responses.make(Namespace(data=tmp_path))
    rows = json.loads((tmp_path / "responses.json").read_text())["runs"]
    assert [(row["arm"], row["seed"]) for row in rows] == [(0, 0), (0, 1)]
    assert all({*row["weights"]} == {*row["epochs"]} == {*row["bpb"]} == {*domains} for row in rows)
    assert rows[0]["bpb"] != rows[1]["bpb"]


def test_all_runs_of_a_mixture_are_on_one_side_of_a_split() -> None:
    some, others = split(responses.kept(), 2 / 3, 0)
    assert not {*some.arms.tolist()} & {*others.arms.tolist()}
    assert len({*some.arms.tolist()}) == pytest.approx(2 * len({*others.arms.tolist()}), abs=2)
