"""Runs one stage in pods, inside a real DAG run, while a test disturbs it."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from airflow.sdk.exceptions import TaskDeferred
from kubernetes.client import models as k8s

from operators.kubernetes_stage import GpuPodOperator
from tasks.core.artifact import Artifact, ArtifactId
from tasks.core.store import Store

DAG_FILE = """
import pendulum
from datetime import timedelta
from airflow.sdk import DAG
from operators.recipes import asset
from operators.kubernetes_stage import GpuPodOperator, JobSetOperator
from tests.cluster.runs import CommandedPod

PARAMS = {{"version": None, "source_version": None, "overrides": {{}}}}
with DAG("{dag}", schedule=None, start_date=pendulum.datetime(2026, 1, 1), params=PARAMS):
    {operator}(
        task_id="{stage}", recipe="{recipe}", stage="{stage}", retries={retries}, retry_delay=timedelta(seconds=1),
        outlets=[asset("{recipe}", "tokens")], {more}
    )
"""

BEFORE = "import os, sys, time, signal; {code}; from tasks.run.shell import main; sys.exit(main(sys.argv[3:]))"
"""A pod that does something before its stage: `-c` takes the place of `-u`, the stage's arguments follow."""


def first(code: str) -> list[str]:
    """The command of a pod that runs `code` (one line of Python) and then its stage."""
    return ["python", "-u", "-c", BEFORE.format(code=code)]


class CommandedPod(GpuPodOperator):
    """Its pod runs `cmds` in place of `python -u`; the arguments of the stage follow."""

    def __init__(self, *, cmds: list[str], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.cmds = cmds

    def pod(self, context: Any) -> k8s.V1Pod:
        """The stage's pod with that command."""
        pod = super().pod(context)
        pod.spec.containers[0].command = self.cmds
        return pod


@dataclass
class Ended:
    """The result of a run."""

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
        """The artifact of the stage."""
        return Artifact.open_at(Store(str(self.store)), ArtifactId(f"{self.recipe}/{kind}", version))


@contextmanager
def meanwhile(*acts: Callable[[], object]) -> Iterator[None]:
    """Runs `acts` sequentially in the background of the body; their exceptions are raised at the end."""
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


class Task:
    """A task without Airflow: each `process` acts as an independent worker process.

    For cases that a DAG run cannot produce: two processes of one task, a trigger that is stopped.
    """

    def __init__(self, make: Callable[[], Any], name: str = "alone") -> None:
        self.make, self.name = make, name
        self.pushed: dict[str, Any] = {}

    def context(self) -> dict[str, Any]:
        """An Airflow context, the same for every process of the task."""
        instance = SimpleNamespace(dag_id=self.name, task_id="train", map_index=-1, try_number=1, start_date=None)
        instance.run_id, instance.xcom_push = "manual__2026", lambda key, value: self.pushed.update({key: value})
        params = {"version": None, "source_version": None, "overrides": {}}
        run = SimpleNamespace(run_type="manual", run_id="manual__2026")
        about = {"dag": SimpleNamespace(dag_id=self.name), "dag_run": run, "run_id": "manual__2026"}
        return {"params": params, "triggering_asset_events": {}, "logical_date": None, "ti": instance, **about}

    def process(self) -> tuple[Any, Any]:
        """Executes the operator as a new process until it defers; returns the operator and its trigger."""
        operator = self.make()
        try:
            operator.execute(self.context())
        except TaskDeferred as deferred:
            trigger = deferred.trigger
            trigger.task_instance = self.context()["ti"]
            return operator, trigger
        raise AssertionError("the operator did not defer")

    def resumed(self, operator: Any, event: Any) -> Any:
        """Resumes the operator with the trigger's event."""
        return operator.resume({**self.context(), "outlet_events": {}}, event)


def event_of(trigger: Any) -> dict[str, Any]:
    """Runs a trigger to its event, like the triggerer."""

    async def wait() -> dict[str, Any]:
        async for event in trigger.run():
            return dict(event.payload)
        raise AssertionError("the trigger ended without an event")

    return asyncio.run(wait())


def ended_by(trigger: Any, state: str) -> None:
    """Cancels a trigger, like the triggerer after a user has set the task's state."""

    async def told() -> str:
        return state

    trigger._task_state = told
    asyncio.run(trigger.on_kill())
