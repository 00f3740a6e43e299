"""The arrows of a DAG, from what its stages read of one another."""

from collections.abc import Mapping
from typing import Any

from tasks.run.catalogue import upstream


def connect(tasks: Mapping[str, Any]) -> None:
    """Puts every task behind those of the stages whose output its stage reads.

    Args:
        tasks: stage -> its task, for the stages of one DAG.
    """
    for stage, task in tasks.items():
        for before in upstream(stage):
            if before in tasks:
                tasks[before] >> task
