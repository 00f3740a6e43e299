"""Alerts of a training run, sent while the run goes on: as a gauge of Airflow's metrics, and by an Airflow notifier.

Reads the lines that the stage logs, `[<artifact>] alert: <kind> at <text>`: in the task's own process as log records,
of a pod as the lines of its log, which the triggerer reads. `[place.alerts]` names the notifier: any class of a
provider or of yours, whose templated arguments may use `alert` (kind and text), `artifact`, `dag_id`, `task_id` and
`run_id`. A notifier that fails is logged; the run goes on, and the alert is in the task's log in any case.
"""

import asyncio
import logging
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from airflow.sdk.module_loading import import_string
from asgiref.sync import sync_to_async

from operators import stats
from tasks.core.errors import RecipeError
from tasks.run.place import AlertsPlace, all_filled

log = logging.getLogger("sluice.alerts.sent")

LOGGER = "sluice.alerts"
_LINE = re.compile(r"\[(\S+)\] alert: ((\w+) at .+)")


def notifier_of(place: AlertsPlace) -> Any:
    """Returns a new notifier: rendering its templates changes it.

    Raises:
        RecipeError: there is no such class, or it does not take the arguments.
    """
    place = all_filled(place)
    try:
        return import_string(place.notifier)(**place.arguments)
    except (ImportError, TypeError, ValueError) as error:
        raise RecipeError(
            f'[place.alerts] notifier = "{place.notifier}" cannot be made ({error})',
            "name a class derived from airflow.sdk.BaseNotifier as package.module.Class, and its arguments",
        ) from None


def check(place: AlertsPlace) -> None:
    """Makes the notifier, if there is one, so that a wrong one is found before anything runs; raises RecipeError."""
    if place.notifier:
        notifier_of(place)


def send(place: AlertsPlace, line: str, instance: Any) -> None:
    """Sends the alert in a line; does nothing with other lines. Never raises.

    Args:
        place: the notifier; with none, only the gauge is sent.
        line: of a log.
        instance: the task instance; None where it is not known.
    """
    match = _LINE.search(line)
    if not match:
        return
    stats.alert(match[1], match[3])
    if not place.notifier:
        return
    names = ("dag_id", "task_id", "run_id")
    context = {"artifact": match[1], "alert": match[2], **{name: getattr(instance, name, "") for name in names}}
    try:
        notifier_of(place)(context)
    except Exception as error:  # providers raise many kinds
        log.warning("the notifier did not send the alert: %s: %s", type(error).__name__, error)


@contextmanager
def sent(place: AlertsPlace, instance: Any) -> Iterator[None]:
    """Sends the alerts that are logged in this process.

    Raises:
        RecipeError: before anything is run, as `notifier_of`.
    """
    check(place)
    handler = _Sender(place, instance)
    logger = logging.getLogger(LOGGER)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


class _Sender(logging.Handler):
    def __init__(self, place: AlertsPlace, instance: Any) -> None:
        super().__init__()
        self.place, self.instance = place, instance

    def emit(self, record: logging.LogRecord) -> None:
        # The logger of failed sends is below this one.
        if record.name == LOGGER:
            send(self.place, record.getMessage(), self.instance)


class AlertFinder:
    """Passes the lines of a pod on, and sends the alerts in them, in a thread, since notifiers may block.

    For a triggerer, whose metrics it connects.

    Args:
        pass_on: takes each line.
        place: the notifier.
        instance: the task instance; None where it is not known.
    """

    def __init__(self, pass_on: Callable[[str], None], place: AlertsPlace, instance: Any) -> None:
        self.pass_on, self.place, self.instance = pass_on, place, instance
        self._sending: set[asyncio.Task[None]] = set()
        stats.ready()

    def __call__(self, line: str) -> None:
        """Takes one line of the pod's log."""
        self.pass_on(line)
        if _LINE.search(line):
            task = asyncio.create_task(sync_to_async(send)(self.place, line, self.instance))
            self._sending.add(task)
            task.add_done_callback(self._sending.discard)

    async def settled(self) -> None:
        """Waits for pending sends."""
        if self._sending:
            await asyncio.wait(self._sending, timeout=30.0)
