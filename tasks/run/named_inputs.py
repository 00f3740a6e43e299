"""Inputs that a setting names by their id, such as the checkpoint from whose weights a run begins.

Reads the records of artifacts, of any recipe and version in the same store. The version `previous` is the newest other
one that was there when the run began: one that is completed while it runs, or between two attempts, does not count.
"""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from tasks.core.artifact import Artifact, ArtifactId
from tasks.core.config import Config
from tasks.core.errors import InputError
from tasks.core.ledger import versions_of
from tasks.core.stage_spec import StageSpec
from tasks.core.store import Store
from tasks.run.previous_version import Found
from tasks.trainer.fence import first_attempt

PREVIOUS = "previous"


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
    found: Found = {}
    for role, field in stage.named.items():
        if not (given := _setting(config, field)):
            continue
        setting = f"{stage.section}.{field}"
        if not isinstance(given, str):
            found[role] = [_opened(store, setting, ArtifactId.parse(name), own) for name in given]
            continue
        address = ArtifactId.parse(given)
        if address.version != PREVIOUS:
            found[role] = _opened(store, setting, address, own)
        elif previous := _previous(store, role, address.name, own):
            found[role] = previous
    return found


def chosen_roles(stage: StageSpec, config: Config) -> Sequence[str]:
    """Returns the roles whose artifact is chosen when the run begins, and not by its settings."""
    return [role for role, field in stage.named.items() if str(_setting(config, field)).endswith(f"@{PREVIOUS}")]


def _setting(config: Config, path: str) -> Any:
    """Returns the setting at a dotted path; "" below a section that is not given."""
    found: Any = config
    for step in path.split("."):
        found = "" if found in (None, "") else getattr(found, step)
    return found


def _opened(store: Store, field: str, address: ArtifactId, own: ArtifactId) -> Artifact:
    if address == own:
        raise InputError(
            f"{field}: {address} is what this run would make",
            "name an earlier version, or give the run another version",
        )
    if artifact := Artifact.find(store, address):
        return artifact
    raise InputError(
        f"{field}: {address} is not in {store.root}, or was never completed",
        "list what is there with `python -m tasks ledger`, and name one of these; or leave the setting out",
    )


def _previous(store: Store, role: str, name: str, own: ArtifactId) -> Artifact | None:
    """Returns what the run began with, or would begin with now; None where nothing was there."""
    if made := Artifact.find(store, own):
        refs = [ref for ref in made.record.inputs if ref.role == role]
        return Artifact.open_at(store, ArtifactId.parse(refs[0].address)) if refs else None
    began = first_attempt(store, own) or datetime.now(UTC)
    others = [one for one in versions_of(store, name) if one.address != own and one.record.finished <= began]
    return max(others, key=lambda one: (one.record.finished, one.address), default=None)
