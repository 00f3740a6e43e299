"""The decision as a record: written once, read by pages, gate and later cycles without the libraries of statistics."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tasks.core.artifact import Artifact, ArtifactId
from tasks.core.commit import commit
from tasks.core.config import Config
from tasks.core.errors import InputError
from tasks.core.stage import Output, Report
from tasks.core.store import Store
from tasks.stages.canary import BudgetConfig, CanaryConfig
from tasks.stages.canary.cost import CycleCost
from tasks.stages.canary.decision import Decision
from tasks.trainer.model.config import ModelConfig
from tests.decisions import commit_decision, decision


def test_what_is_read_is_what_was_written(tmp_path: Path) -> None:
    written = decision({"web": 0.7, "code": 0.3}, proposed={"web": 1.0}, settings={"pack.seq_len": 64}, variant="long")
    assert Decision.read(commit_decision(tmp_path, "test/mixture@1", written)) == written


def test_a_cycle_of_mixtures_without_tasks_has_no_key_of_settings_or_tasks_and_null_where_nothing_was_found() -> None:
    content = json.loads(decision({"web": 1.0}).content())
    assert content.keys().isdisjoint({"settings", "variant", "tasks"})
    assert (content["confirmation"], content["response"], content["checks"]) == (None, None, {})


def test_a_decision_that_this_version_cannot_read_is_refused_with_the_missing_key(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"test/mixture@1 has a mixture.json that this version cannot read: arms"):
        Decision.read(file_of(tmp_path, {"weights": {"web": 1.0}}))


def test_keys_that_this_version_does_not_know_are_left_out(tmp_path: Path) -> None:
    known = decision({"web": 1.0})
    assert Decision.read(file_of(tmp_path, {**json.loads(known.content()), "of_a_later_version": 1})) == known


def file_of(folder: Path, content: dict) -> Artifact:
    output = Output(Store(str(folder)), ArtifactId("test/mixture", "1"), "0" * 64)
    with output.part("mixture", conserved=False) as part, part.file(Decision.FILE) as file:
        file.write(json.dumps(content).encode())
    return commit(output, "decide", 1, Config(), [], Report())


def test_a_decision_is_read_without_numpy_and_torch() -> None:
    program = "import sys, tasks.stages.canary.decision; print({'numpy', 'scipy', 'torch'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


def test_the_reserve_always_pays_for_one_pair_at_the_low_rate() -> None:
    larger = CanaryConfig(confirmations=3, confirm_model=ModelConfig(layers=4, dim=128, heads=4, kv_heads=2))
    reserved = CycleCost(larger, 256, 32).reserved
    for screening in range(3, 12):
        config = larger.model_copy(update={"budget": BudgetConfig(runs=screening + reserved)})
        assert CycleCost(config, 256, 32).low_rate_pairs(screening) == 1
    assert CycleCost(larger.model_copy(update={"lr_check": False}), 256, 32).low_rate_pairs(5) == 0
