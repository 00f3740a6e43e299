"""How long a Dask cluster waits for its operator."""

import asyncio
import time

from operators.dask import api as module
from operators.dask.api import _StartupWait
from tasks.core.errors import TransientError


class Unserved:
    """A cluster whose Dask operator has not looked at the object yet."""

    async def get(self, kind, namespace, name, **_):
        return {"metadata": {"name": name}}


def fails(monkeypatch, seconds):
    """Returns the error of a cluster that its operator has left alone for this time, or None."""
    now = [time.monotonic()]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    wait = _StartupWait(Unserved(), "work", "demo")
    for _ in range(int(seconds)):
        reason, failure = asyncio.run(wait._look())
        try:
            wait._judge(reason, failure)
        except TransientError as error:
            return error
        now[0] += 1
    return None


def test_an_operator_that_has_just_started_has_time_to_serve(monkeypatch):
    assert fails(monkeypatch, 85 + 30) is None


def test_an_operator_that_does_not_serve_is_reported_within_minutes(monkeypatch):
    error = fails(monkeypatch, 240)
    assert "no Dask operator has processed the DaskCluster demo" in str(error)
    assert "start the operator" in error.remedy
