"""Takedowns for tests: runs the stage in the store of a test. Not a test module."""

from pathlib import Path
from typing import Any

from tasks.core.artifact import Artifact
from tasks.stages.takedown import TakedownConfig
from tests.conftest import run_stage_in


def take_down(folder: Path | str, version: str = "t1", *before: Artifact, **request: Any) -> Artifact:
    """Returns the artifact test/takedown@<version> of a request after others."""
    config = TakedownConfig(**{"date": "2026-11-21T09:30:00+00:00", **request})
    inputs: dict[str, Artifact | list[Artifact]] = {"previous": list(before)} if before else {}
    return run_stage_in(folder, "tasks.stages.takedown.stage", config, inputs, kind="takedown", version=version)
