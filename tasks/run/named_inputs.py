"""Inputs that a setting names by their id, such as the checkpoint from whose weights a run begins.

Reads the records of artifacts, of any recipe and version in the same store.
"""

from tasks.core.artifact import Artifact, ArtifactId
from tasks.core.config import Config
from tasks.core.errors import InputError
from tasks.core.stage_spec import StageSpec
from tasks.core.store import Store
from tasks.run.previous_version import Found


def named_inputs(store: Store, stage: StageSpec, config: Config, own: ArtifactId) -> Found:
    """Returns the artifacts that the settings of a stage name, by role, without an entry where they name none.

    Args:
        store: store of the artifacts.
        stage: the stage that reads them.
        config: its settings.
        own: id of the artifact that it writes.

    Raises:
        InputError: a named artifact does not exist, or is the one that the stage writes.
    """
    names = {role: (field, getattr(config, field)) for role, field in stage.named.items()}
    return {
        role: _opened(store, f"{stage.section}.{field}", name, own) for role, (field, name) in names.items() if name
    }


def _opened(store: Store, field: str, name: str, own: ArtifactId) -> Artifact:
    address = ArtifactId.parse(name)
    if address == own:
        raise InputError(
            f"{field}: {name} is what this run would make", "name an earlier version, or give the run another version"
        )
    if artifact := Artifact.find(store, address):
        return artifact
    raise InputError(
        f"{field}: {name} is not in {store.root}, or was never completed",
        "list what is there with `python -m tasks ledger`, and name one of these; or leave the setting out",
    )
