"""Models in MLflow's registry: a version with its card and its lineage as tags, and aliases of versions."""

import json
import logging
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tasks.core.artifact import Artifact, ArtifactId
from tasks.core.ledger import newest
from tasks.formats.documents.tombstones import in_force
from tasks.run.tracking.message import Message

log = logging.getLogger("sluice.tracking")

_FOLDER = "model"
"""Folder of a model's files in the artifact of the stage `register`."""


def register(client: Any, name: str, folder_name: str, run_id: str, artifact: Artifact) -> str:
    """Returns the version of the registered model `name` that has this artifact; creates it of a folder if need be."""
    import mlflow.pyfunc
    from mlflow.exceptions import MlflowException

    from tasks.run import lineage
    from tasks.run.model_lineage import card  # reads tables, which a process that registers nothing spares

    known = f"name='{name}' and tags.`sluice.fingerprint` = '{artifact.record.fingerprint}'"
    if found := client.search_model_versions(known):
        return str(found[0].version)
    with scratch_folder() as folder:
        data = folder / "data"
        data.mkdir()
        for path in artifact.files(f"{folder_name}/"):
            shutil.copyfile(artifact.local(path), data / path.rpartition("/")[2])
        takedowns = in_force(artifact.store, artifact.address.name.partition("/")[0])
        (data / "README.md").write_text(card(lineage.chain_of(artifact), takedowns))
        mlflow.pyfunc.save_model(str(folder / "model"), data_path=str(data), loader_module="tasks.trainer.serve",
                                 signature=_signature(), pip_requirements=["sluice[train]"])  # fmt: skip
        client.log_artifacts(run_id, str(folder / "model"), "model")
    try:
        client.create_registered_model(name)
    except MlflowException:  # it exists
        client.get_registered_model(name)
    tags = {f"sluice.{ref.role}": f"{ref.address} {ref.fingerprint[:16]}" for ref in artifact.record.inputs}
    if initial := json.loads(artifact.read(f"{folder_name}/lineage.json")).get("initial"):
        tags["sluice.initial"] = f"{initial['artifact']} {initial['fingerprint'][:16]}"
    source = f"{client.get_run(run_id).info.artifact_uri}/model"
    made = client.create_model_version(name, source, run_id=run_id, tags={
        "sluice.fingerprint": artifact.record.fingerprint, "sluice.artifact": artifact.record.artifact, **tags
    })  # fmt: skip
    return str(made.version)


def set_aliases(client: Any, message: Message, run_id: str, decision: Artifact) -> None:
    """Gives the registered models of a message their aliases; a version that MLflow has missed is created first.

    The store has the decisions, and MLflow mirrors the newest one: a message that is sent late moves no alias back.
    """
    last = newest(decision.store, decision.address.name)
    if last and last.record.content != decision.record.content:
        log.info("[%s] gives no alias: %s is newer", decision.address, last.address)
        return
    for alias, address in sorted(message.aliases.items()):
        model = Artifact.find(decision.store, ArtifactId.parse(address))
        if model is None:
            log.warning("[%s] %s gets no alias %s: it is gone", decision.address, address, alias)
            continue
        name = model.record.config["model"] or message.context.experiment
        client.set_registered_model_alias(name, alias, register(client, name, _FOLDER, run_id, model))


def _signature() -> Any:
    """Returns the parameters of a request, the fields of `Sampling`: MLflow ignores those that no signature names."""
    from mlflow.models import ModelSignature
    from mlflow.types.schema import ParamSchema, ParamSpec

    from tasks.trainer.inference import Sampling  # imports torch

    kinds = {int: "long", float: "double"}
    usual = Sampling().model_dump()
    return ModelSignature(params=ParamSchema([ParamSpec(name, kinds[type(of)], of) for name, of in usual.items()]))


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """Yields a temporary folder, which is removed afterwards."""
    with tempfile.TemporaryDirectory(prefix="sluice-mlflow-") as name:
        yield Path(name)
