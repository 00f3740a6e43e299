"""Pods as processes: run the command like PID 1 of a pod, alone or as the nodes of a gang."""

import hashlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TypeVar

from tasks.core.artifact import Artifact, ArtifactId
from tasks.core.commit import commit
from tasks.core.config import Config
from tasks.core.stage import Output, Report
from tasks.core.store import Store
from tasks.run.recipe import Recipe
from tasks.trainer.config import TrainConfig
from tasks.trainer.launch.gang import ADDRESS, NODE, NODES, NPROC, PORT
from tests.corpora import Made

QUIET = {"MLFLOW_TRACKING_URI": "", "OMP_NUM_THREADS": "1"}


def recipe_of(store: Path | str, train: TrainConfig) -> Recipe:
    """A recipe with the artifacts of the test's store; only its training is run."""
    place = {"store": str(store), "mlflow": ""}
    crawl = {"seeds": ["http://nowhere.localhost/"], "allow_loopback": True}
    return Recipe.model_validate({"name": "test", "crawl": crawl, "canary": {}, "train": train, "place": place})


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def pod(recipe: Recipe, stage: str = "train", *more: str, **environment: str) -> "subprocess.Popen[str]":
    """Starts `python -m tasks <stage>` with SIGTERM ignored, like the kernel for PID 1."""
    return subprocess.Popen(
        [sys.executable, "-u", "-m", "tasks", stage, "--recipe", recipe.text, *more],
        env={**os.environ, **QUIET, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGTERM, signal.SIG_IGN),
    )


def gang(recipe: Recipe, disks: Path) -> "list[subprocess.Popen[str]]":
    """Starts the two nodes of a gang, each with its own empty disk."""
    place = {NODES: "2", ADDRESS: "127.0.0.1", PORT: str(free_port()), NPROC: "1"}
    started = []
    for node in range(2):
        disk = Path(tempfile.mkdtemp(prefix=f"node-{node}-", dir=disks))
        started.append(pod(recipe, **place, **{NODE: str(node), "TMPDIR": str(disk), "SLUICE_CACHE": str(disk)}))
    return started


def ended(pods: "list[subprocess.Popen[str]]", seconds: float = 180) -> list[tuple[int, str]]:
    """Waits for processes to end; returns the exit code and the output of each."""
    said = [one.communicate(timeout=seconds)[0] for one in pods]
    return [(one.returncode, text) for one, text in zip(pods, said, strict=True)]


Root = TypeVar("Root", Path, str)


def store_with(made: Made, root: Root, weights: dict[str, float]) -> Root:
    """Returns a store with the inputs of training, including the mixture `weights`."""
    store, source = Store(str(root)), made.shards.store
    for path in source.list("test"):
        with store.write(path) as file:
            file.write(source.read(path))
    mixture = Output(store, ArtifactId("test/mixture", "dev"), "by-hand")
    with mixture.part("mixture", conserved=False) as part, part.file("mixture.json") as file:
        file.write(json.dumps({"weights": weights}).encode())
    commit(mixture, "by hand", 1, Config(), [], Report())
    return root


def trained_in(store: Path | str) -> Artifact | None:
    """Returns the checkpoint artifact of the store, if there is one."""
    return Artifact.find(Store(str(store)), ArtifactId("test/checkpoint", "dev"))


def contents(artifact: Artifact) -> dict[str, str]:
    """Returns the sha256 of every file of an artifact."""
    return {path: hashlib.sha256(artifact.read(path)).hexdigest() for path in artifact.files()}
