"""Link to the pod's MLflow run, pushed to the task's page while the pod runs.

Airflow pushes an operator's links when its task ends; a training run is watched earlier. Reads the URL from one line of
the pod's log, `[<artifact>] MLflow: <url>`.
"""

import asyncio
import logging
import re
from collections.abc import Callable
from typing import Any

from airflow.sdk.execution_time.xcom import XCom
from asgiref.sync import sync_to_async

log = logging.getLogger("sluice.pods")

_LINE = re.compile(r"\] MLflow: (https?://\S+)")


class LinkFinder:
    """Passes the lines of a pod on, and puts the MLflow link in them onto the task's page.

    Args:
        say: takes each line.
        instance: the task instance; None: there is no page.
        key: XCom key of the link.

    Attributes:
        url: the link, or "" as long as none was said.
    """

    def __init__(self, say: Callable[[str], None], instance: Any, key: str) -> None:
        self.say, self.instance, self.key = say, instance, key
        self.url = ""
        self._pushing: asyncio.Task[None] | None = None

    def __call__(self, line: str) -> None:
        """Takes one line of the pod's log."""
        self.say(line)
        match = _LINE.search(line)
        if match and match[1] != self.url:
            self.url = match[1]
            self._pushing = asyncio.create_task(self._push(match[1]))

    async def settled(self) -> None:
        """Waits for a pending push of the link."""
        if self._pushing is not None:
            await asyncio.wait({self._pushing}, timeout=10.0)

    async def _push(self, url: str) -> None:
        at = self.instance
        if at is None:
            return
        place = {"dag_id": at.dag_id, "task_id": at.task_id, "run_id": at.run_id, "map_index": at.map_index}
        try:
            await sync_to_async(XCom._set_xcom_in_db)(key=self.key, value=url, **place)
        except Exception as error:  # the line itself is in the log; a button is not worth a training run
            log.warning("the MLflow link could not be put onto the task's page: %s", error)
