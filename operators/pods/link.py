"""Link to the pod's MLflow run, pushed to the task's page while the pod runs.

Airflow pushes an operator's links only when its task ends, but users watch a training run earlier. Reads the URL from a
line of the pod's log, `[<artifact>] MLflow: <url>`.
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
    """Forwards each line of a pod's log, and pushes the MLflow link in them to the task's page.

    Args:
        pass_on: called with each line.
        instance: the task instance; None: the link is not pushed.
        key: XCom key of the link.

    Attributes:
        url: the link, or "" until a line contains one.
    """

    def __init__(self, pass_on: Callable[[str], None], instance: Any, key: str) -> None:
        self.pass_on, self.instance, self.key = pass_on, instance, key
        self.url = ""
        self._pushing: asyncio.Task[None] | None = None

    def __call__(self, line: str) -> None:
        """Handles one line of the pod's log."""
        self.pass_on(line)
        match = _LINE.search(line)
        if match and match[1] != self.url:
            self.url = match[1]
            self._pushing = asyncio.create_task(self._push(match[1]))

    async def settled(self) -> None:
        """Waits for a pending push of the link."""
        if self._pushing is not None:
            await asyncio.wait({self._pushing}, timeout=10.0)

    async def _push(self, url: str) -> None:
        if self.instance is None:
            return
        task = {name: getattr(self.instance, name) for name in ("dag_id", "task_id", "run_id", "map_index")}
        try:
            await sync_to_async(XCom._set_xcom_in_db)(key=self.key, value=url, **task)
        except Exception as error:  # the line is in the log; a missing link must not fail a training run
            log.warning("the MLflow link could not be pushed to the task's page: %s", error)
