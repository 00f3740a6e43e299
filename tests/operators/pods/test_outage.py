"""Temporary errors of an API server: retried, each kind for its time, with jitter."""

import asyncio
import json

import aiohttp
import pytest

from operators.pods import outage
from operators.pods.outage import Refused, Unreachable, retry_outages

RIGHTS = 'pods is forbidden: User "airflow" cannot list resource "pods" in API group "" in the namespace "work"'
UNSYNCED = 'pods "x" is forbidden: not yet ready to handle request'
QUOTA = 'pods "x" is forbidden: exceeded quota: work, requested: pods=1, used: pods=400, limited: pods=400'


def refusal(status: int, message: str = "", retry_after: str = "") -> Refused:
    return Refused(status, "", json.dumps({"message": message}).encode(), retry_after)


@pytest.fixture
def clock(monkeypatch):
    """A virtual clock advanced by sleeps; records the pauses."""
    now, pauses = [0.0], []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)
        now[0] += seconds

    monkeypatch.setattr(outage.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(outage.asyncio, "sleep", sleep)
    return pauses


def asked(answers: list, forbidden_s: float = 20.0, outage_s: float = 900.0) -> str:
    """The result of a call that gets `answers` in order, and the last one repeatedly."""
    left = list(answers)

    async def call() -> str:
        answer = left.pop(0) if len(left) > 1 else left[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    return asyncio.run(retry_outages(call, outage_s, "GET /x", forbidden_s))


@pytest.mark.parametrize("message", [RIGHTS, UNSYNCED])
def test_a_403_of_a_starting_server_is_retried(clock, message):
    assert asked([refusal(403, message), refusal(403, message), "well"]) == "well"
    assert len(clock) == 2


def test_a_403_for_missing_rights_is_raised_after_its_patience(clock):
    with pytest.raises(Refused, match="cannot list"):
        asked([refusal(403, RIGHTS)], forbidden_s=20.0)
    assert 20.0 <= sum(clock) < 40.0
    clock.clear()
    with pytest.raises(Refused, match="cannot list"):
        asked([refusal(403, RIGHTS)], forbidden_s=0.0)
    assert clock == []


def test_an_exhausted_quota_is_not_missing_rights(clock):
    with pytest.raises(Refused, match="exceeded quota"):
        asked([refusal(403, QUOTA)])
    assert clock == []


def test_an_outage_does_not_count_as_refusal(clock):
    away = [refusal(503)] * 6
    assert asked([*away, refusal(403, RIGHTS), "well"], forbidden_s=3.0) == "well"


def test_pauses_double_with_jitter(clock):
    with pytest.raises(Unreachable, match="did not answer"):
        asked([aiohttp.ClientConnectionError("refused")], outage_s=300.0)
    full = [min(2.0**at, 15.0) for at in range(len(clock))]
    assert all(most / 2 <= pause <= most for pause, most in zip(clock, full, strict=True))
    assert len(set(clock)) > len(clock) / 2


def test_retry_after_of_the_server_is_respected(clock):
    assert asked([refusal(429, retry_after="7"), "well"]) == "well"
    assert clock == [7.0]
