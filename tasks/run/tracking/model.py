"""Registration of a model folder in MLflow's model registry, with its card, and its lineage as tags."""

import json
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tasks.core.artifact import Artifact
from tasks.formats.tombstones import in_force
from tasks.run.tracking.message import Message


def register(client: Any, message: Message, run_id: str, artifact: Artifact) -> None:
    """Creates a version of the model that `message` names, unless one with the same fingerprint exists."""
    import mlflow.pyfunc
    from mlflow.exceptions import MlflowException

    from tasks.run import lineage
    from tasks.run.model_lineage import card  # reads tables, which a process that registers nothing spares

    folder_name, model_name = message.registered or ("", "")
    name = model_name or message.context.experiment
    if client.search_model_versions(f"name='{name}' and tags.`sluice.fingerprint` = '{artifact.record.fingerprint}'"):
        return
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
    client.create_model_version(name, source, run_id=run_id, tags={
        "sluice.fingerprint": artifact.record.fingerprint, "sluice.artifact": artifact.record.artifact, **tags
    })  # fmt: skip


def _signature() -> Any:
    """Returns the parameters of a request, the fields of `Sampling`: MLflow ignores those that no signature names."""
    from mlflow.models import ModelSignature
    from mlflow.types.schema import ParamSchema, ParamSpec

    from tasks.trainer.generate import Sampling  # imports torch

    kinds = {int: "long", float: "double"}
    usual = Sampling().model_dump()
    return ModelSignature(params=ParamSchema([ParamSpec(name, kinds[type(of)], of) for name, of in usual.items()]))


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """Yields a temporary folder, which is removed afterwards."""
    with tempfile.TemporaryDirectory(prefix="sluice-mlflow-") as name:
        yield Path(name)
