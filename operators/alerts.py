"""Sends the alerts of a training run while it is running: as a gauge in Airflow's metrics and by an Airflow notifier.

Reads the lines that the stage logs, `[<artifact>] alert: <kind> at <text>`: as log records where the stage runs in the
task's own process, or from the pod's log, which the triggerer reads. `[place.alerts]` names the notifier: any notifier
class, whose templated arguments may use `alert` (kind and text), `artifact`, `dag_id`, `task_id` and `run_id`. If the
notifier fails, the failure is logged and the run continues; the alert is in the task's log in any case.

A run whose task has failed for good has no process left that could raise an alert: Airflow does, by `training_failed`.
"""

import asyncio
import logging
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from airflow.sdk.module_loading import import_string
from asgiref.sync import sync_to_async

from operators import stats
from operators.runs import run_of
from tasks.core.errors import RecipeError
from tasks.run.catalogue import STAGES
from tasks.run.place import AlertsPlace, expand_all
from tasks.run.recipe import find_recipe

log = logging.getLogger("sluice.alerts.sent")

LOGGER = "sluice.alerts"
MOST_CHARACTERS = 500
"""Of an error in an alert."""
_LINE = re.compile(r"\[(\S+)\] alert: ((\w+) at .+)")


def notifier_of(place: AlertsPlace) -> Any:
    """Returns a new notifier: rendering its templates changes it.

    Raises:
        RecipeError: there is no such class, or it does not take the arguments.
    """
    place = expand_all(place)
    try:
        return import_string(place.notifier)(**place.arguments)
    except (ImportError, TypeError, ValueError) as error:
        raise RecipeError(
            f'[place.alerts] notifier = "{place.notifier}" cannot be created ({error})',
            "name a class derived from airflow.sdk.BaseNotifier as package.module.Class, and its arguments",
        ) from None


def check_notifier(place: AlertsPlace) -> None:
    """Creates the notifier once, so that a configuration error is raised (as RecipeError) before anything runs."""
    if place.notifier:
        notifier_of(place)


def send(place: AlertsPlace, line: str, instance: Any) -> None:
    """Sends the alert in a log line; ignores other lines. Never raises.

    Args:
        place: the notifier; without one, only the gauge is set.
        line: a line of the log.
        instance: the task instance; None if unknown.
    """
    match = _LINE.search(line)
    if not match:
        return
    stats.set_alert(match[1], match[3])
    if not place.notifier:
        return
    names = ("dag_id", "task_id", "run_id")
    context = {"artifact": match[1], "alert": match[2], **{name: getattr(instance, name, "") for name in names}}
    try:
        notifier_of(place)(context)
    except Exception as error:  # providers raise many kinds
        log.warning("the notifier did not send the alert: %s: %s", type(error).__name__, error)


def training_failed(context: Mapping[str, Any]) -> None:
    """Sends the alert `stall` of a training that makes no more steps, because its task has failed and is not retried.

    The `on_failure_callback` of training tasks. Airflow calls it in the task's process, or in its DAG processor if the
    task's process was killed.

    Args:
        context: of the task.
    """
    instance, task = context["ti"], context["task"]
    recipe = find_recipe(task.recipe)
    artifact = f"{recipe.name}/{STAGES[task.stage].output}"
    with suppress(RecipeError, KeyError):  # a refused run has no version
        artifact += f"@{run_of(recipe, context).version}"
    error = context.get("exception")
    why = " ".join(f"{type(error).__name__} {error}".split())[:MOST_CHARACTERS] if error else "its process was killed"
    stats.connect()
    send(
        recipe.place.alerts,
        f"[{artifact}] alert: stall at try {instance.try_number}: the task has failed and is not tried again ({why}). "
        "Look at its log and remove the cause; cleared, it resumes from its newest checkpoint.",
        instance,
    )


@contextmanager
def forward_alerts(place: AlertsPlace, instance: Any) -> Iterator[None]:
    """Sends the alerts that are logged in this process while the context is open.

    Raises:
        RecipeError: the notifier cannot be created; raised on entry.
    """
    check_notifier(place)
    handler = _AlertHandler(place, instance)
    logger = logging.getLogger(LOGGER)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


class _AlertHandler(logging.Handler):
    def __init__(self, place: AlertsPlace, instance: Any) -> None:
        super().__init__()
        self.place, self.instance = place, instance

    def emit(self, record: logging.LogRecord) -> None:
        # Propagated records, such as the warnings about failed sends, are skipped.
        if record.name == LOGGER:
            send(self.place, record.getMessage(), self.instance)


class AlertFinder:
    """Forwards each line of a pod's log, and sends the alerts in them from a thread, because notifiers may block.

    Runs in a triggerer, and connects the triggerer's metrics client.

    Args:
        pass_on: called with each line.
        place: the notifier.
        instance: the task instance; None if unknown.
    """

    def __init__(self, pass_on: Callable[[str], None], place: AlertsPlace, instance: Any) -> None:
        self.pass_on, self.place, self.instance = pass_on, place, instance
        self._sending: set[asyncio.Task[None]] = set()
        stats.connect()

    def __call__(self, line: str) -> None:
        """Handles one line of the pod's log."""
        self.pass_on(line)
        if _LINE.search(line):
            task = asyncio.create_task(sync_to_async(send)(self.place, line, self.instance))
            self._sending.add(task)
            task.add_done_callback(self._sending.discard)

    async def settled(self) -> None:
        """Waits for pending sends."""
        if self._sending:
            await asyncio.wait(self._sending, timeout=30.0)
