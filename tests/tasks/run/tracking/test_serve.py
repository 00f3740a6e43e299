"""A registered model answers: `mlflow models serve` returns continuations of prompts, the same as the model itself.

Change what is registered, `tasks.trainer.serve`, or the version of MLflow, and run this.
"""

import json
import os
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from tasks.core.artifact import Artifact
from tasks.run.tracking import TrackingContext
from tasks.run.tracking.send import StageRun
from tasks.stages.registry import RegisterConfig
from tasks.trainer.evaluation.config import EvaluateConfig
from tasks.trainer.serve import TextModel
from tests.conftest import run_stage_in
from tests.corpora import corpus, tokens_in
from tests.tasks.run.tracking.servers import client, free_port, mlflow_server
from tests.tasks.run.tunings import Tunings, tunings
from tests.tasks.trainer.small_run import small_config

__all__ = ["tunings"]

PROMPTS = ["The river", "import os"]
STARTS_S = 120

pytestmark = pytest.mark.soak  # two servers, a training, and three processes that import torch


def registered(folder: Path) -> Artifact:
    """Returns the model of a tiny run."""
    made = tokens_in(folder, corpus(60))
    config = small_config(mixture={"web": 0.25, "code": 0.5, "my-books": 0.25}, steps=4)
    inputs = {"shards": made.shards, "plan": made.plan}
    checkpoint = run_stage_in(folder, "tasks.stages.train.stage", config, inputs, kind="checkpoint")
    inputs = {"checkpoint": checkpoint, "shards": made.shards, "tokenizer": made.tokenizer}
    scores = run_stage_in(folder, "tasks.stages.evaluate.stage", EvaluateConfig(), inputs, kind="scores")
    inputs = {"checkpoint": checkpoint, "scores": scores, "tokenizer": made.tokenizer}
    return run_stage_in(folder, "tasks.stages.registry.register", RegisterConfig(), inputs, kind="model")


def asked(port: int, process: "subprocess.Popen[bytes]", prompts: list[Any]) -> list[str]:
    """Returns the response of the server, waiting until it listens."""
    body = json.dumps({"inputs": prompts, "params": {"max_tokens": 8}}).encode()
    request = urllib.request.Request(f"http://127.0.0.1:{port}/invocations", body, {"Content-Type": "application/json"})
    for _ in range(STARTS_S * 2):
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return list(json.load(answer)["predictions"])
        except urllib.error.HTTPError as error:
            pytest.fail(error.read().decode()[:2000])
        except OSError:
            assert process.poll() is None, "the server has ended"
            time.sleep(0.5)
    return pytest.fail("the server does not answer")


def served(folder: Path, model: Artifact, prompts: list[Any]) -> tuple[list[str], Path, dict[str, str]]:
    """Registers and queries a model; returns responses, the folder in MLflow, and the tags of the version."""
    with mlflow_server(folder / "mlflow", free_port()) as uri:
        run = StageRun(TrackingContext(uri, "served"), "served|model", "register")
        run.open()
        run.message.registered = ("model", "served")
        assert run.close("FINISHED", model)
        (version,) = client(uri).search_model_versions("name='served'")
        assert version.tags["sluice.fingerprint"] == model.record.fingerprint
        port, number = free_port(), version.version
        command = [sys.executable, "-m", "mlflow", "models", "serve", "--model-uri", f"models:/served/{number}",
                   "--env-manager", "local", "--host", "127.0.0.1", "--port", str(port)]  # fmt: skip
        # As in an activated environment: MLflow searches its web server on the PATH.
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        environment = {**os.environ, "PATH": path, "MLFLOW_TRACKING_URI": uri, "MLFLOW_DISABLE_TELEMETRY": "true"}
        process = subprocess.Popen(command, env=environment, start_new_session=True, cwd=Path(__file__).parents[4])
        try:
            answers = asked(port, process, prompts)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, 9)
            process.wait()
        (folder / "served").mkdir()
        found = Path(client(uri).download_artifacts(version.run_id, "model", str(folder / "served")))
    return answers, next(path.parent for path in found.rglob("config.json")), dict(version.tags)


def test_a_registered_model_is_served_and_its_folder_loads_in_transformers(tmp_path: Path) -> None:
    answer, data, _ = served(tmp_path, registered(tmp_path), PROMPTS)
    assert answer == TextModel(data).predict(PROMPTS, {"max_tokens": 8})
    assert any(answer)
    assert "# Model of test/checkpoint@dev" in (data / "README.md").read_text()
    from transformers import AutoModelForCausalLM

    assert AutoModelForCausalLM.from_pretrained(data).num_parameters() > 0


def test_a_registered_fine_tuned_model_answers_messages_and_names_its_base(tunings: Tunings, tmp_path: Path) -> None:
    tunings.tune("apart", examples__heldout_share=0.3)
    for stage in ("evaluate_tuned", "register_tuned"):
        tunings.run(stage, "apart", examples__heldout_share=0.3)
    said = [{"role": "user", "content": "Doors"}]
    answer, data, tags = served(tmp_path, tunings.artifact("tuned_model", "apart"), [{"messages": said}])
    assert answer == TextModel(data).predict([said], {"max_tokens": 8})
    assert answer == TextModel(data).predict(["### Instruction:\nDoors\n\n### Response:\n"], {"max_tokens": 8})
    card = (data / "README.md").read_text()
    assert "# Fine-tuned model of mine/finetuned@apart" in card
    assert "- of the chunks `mine/chunks@1`" in card
    assert "| source books | bpb |" in card
    assert tags["sluice.initial"].startswith("mine/checkpoint@1 ")
    assert {"sluice.examples", "sluice.chunks", "sluice.documents"} <= tags.keys()
