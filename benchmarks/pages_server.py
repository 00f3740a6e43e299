"""Airflow's API server in a process that has imported nothing else, and requests to it. Not a benchmark.

    python -m benchmarks.pages_server < STAGES

Standard input is JSON, a list of stages: name, times of each request after the first one, and the requests by name, an
address or an address with the fields of a form. Prints times of the requests, and resident and anonymous memory before
the first one, when the server has answered some of Airflow's own, and after each stage.
"""

import json
import logging
import os
import statistics
import sys
import time
from typing import Any

AIRFLOW = ("/api/v2/dags", "/api/v2/assets", "/api/v2/pools")
BEFORE = "without the plugin"


def serve(stages: list[tuple[str, int, dict[str, Any]]]) -> dict[str, Any]:
    """Starts Airflow's API server in this process, and sends the requests; returns its memory and their times."""
    from airflow import settings
    from airflow.api_fastapi.app import create_app, get_auth_manager
    from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser
    from airflow.utils.db import initdb
    from starlette.testclient import TestClient

    settings.initialize()
    initdb()
    with TestClient(create_app(apps="core"), base_url="http://127.0.0.1") as client:
        logging.getLogger("httpx2").setLevel(logging.WARNING)
        user = SimpleAuthManagerUser(username="user", role="op")
        client.cookies.set("_token", get_auth_manager().generate_jwt(user))
        client.headers["Sec-Fetch-Site"] = "same-origin"
        for address in AIRFLOW * 3:
            assert client.get(address).status_code == 200, address
        assert "tasks" not in sys.modules, "Sluice is imported before its first page"
        memory, times = {BEFORE: memory_mb()}, {}
        for stage, rounds, requests in stages:
            for name, request in requests.items():
                times[name] = timed(client, request, rounds)
                print(name, times[name], memory_mb(), file=sys.stderr, flush=True)
            memory[stage] = memory_mb()
    resident, anonymous = ({stage: both[at] for stage, both in memory.items()} for at in range(2))
    return {"memory_mb": resident, "anonymous_mb": anonymous, "requests": times}


def timed(client: Any, request: str | list[Any], rounds: int) -> dict[str, Any]:
    """Returns the times of a request."""
    times, cpu = [], []
    address, fields = (request, None) if isinstance(request, str) else request
    for _ in range(rounds + 1):
        begin, used = time.perf_counter(), sum(os.times()[:4])
        if fields is None:
            answer = client.get(f"/sluice{address}", follow_redirects=False)
        else:
            answer = client.post(f"/sluice{address}", data=fields)
        times.append(time.perf_counter() - begin)
        cpu.append(sum(os.times()[:4]) - used)
        assert answer.status_code in (200, 307), (request, answer.status_code, answer.text[:2000])
    return {
        "s": round(statistics.median(times[1:]), 3),
        "cpu_s": round(statistics.median(cpu[1:]), 3),
        "first_s": round(times[0], 3),
        "bytes": len(answer.content),
    }


def memory_mb() -> tuple[float, float]:
    """Returns the resident memory of this process and the anonymous part of it, in MB."""
    with open("/proc/self/status") as file:
        fields = dict(line.split(":", 1) for line in file)
    resident, anonymous = (int(fields[name].split()[0]) * 1024 / 1e6 for name in ("VmRSS", "RssAnon"))
    return round(resident, 1), round(anonymous, 1)


if __name__ == "__main__":
    print(json.dumps(serve(json.load(sys.stdin))))
