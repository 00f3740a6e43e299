"""Runs one stage in pods, inside a real DAG run, and lets a test disturb it meanwhile."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tasks.artifact import Address, Artifact
from tasks.store import Store

DAG_FILE = """
import pendulum
from datetime import timedelta
from airflow.sdk import DAG
from operators.assets import asset
from operators.gpu_pod import GpuPodOperator
from operators.jobset import JobSetOperator

PARAMS = {{"version": None, "overrides": {{}}}}
with DAG("{dag}", schedule=None, start_date=pendulum.datetime(2026, 1, 1), params=PARAMS):
    {operator}(
        task_id="{stage}", recipe="{recipe}", stage="{stage}", retries={retries}, retry_delay=timedelta(seconds=1),
        outlets=[asset("{recipe}", "tokens")], {more}
    )
"""

BEFORE = "import os, sys, time, signal; {code}; from tasks.__main__ import main; sys.exit(main(sys.argv[3:]))"
"""A pod that does something before its stage: `-c` takes the place of `-u`, the stage's arguments follow."""


def first(code: str) -> str:
    """The operator's argument for a pod that runs `code` (one line of Python) and then its stage."""
    return f"cmds={['python', '-u', '-c', BEFORE.format(code=code)]!r},"


@dataclass
class Ended:
    """What came of a run."""

    run: Any
    said: str
    store: Path
    recipe: str

    @property
    def state(self) -> str:
        """`success` or `failed`."""
        return str(getattr(self.run.state, "value", self.run.state))

    @property
    def task(self) -> Any:
        """The task instance."""
        [instance] = self.run.get_task_instances()
        return instance

    @property
    def result(self) -> Any:
        """The XCom."""
        return self.task.xcom_pull(task_ids=self.task.task_id)

    def artifact(self, kind: str, version: str = "dev") -> Artifact:
        """What the stage has made."""
        return Artifact.open_at(Store(str(self.store)), Address(f"{self.recipe}/{kind}", version))


@contextmanager
def meanwhile(*acts: Callable[[], object]) -> Iterator[None]:
    """Runs `acts` one after the other beside the body; what they raise is raised in the end."""
    raised: list[BaseException] = []

    def run() -> None:
        try:
            for act in acts:
                act()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        thread.join(120)
    if raised:
        raise raised[0]
