"""The stack with taken ports, during an MLflow outage, and across a stop and restart."""

import os
import socket
import subprocess
import sys
import time
import urllib.request

import pytest

from tasks.demo.home import CHECKOUT
from tasks.demo.stack import read_status, stack_processes


def test_a_taken_port_is_one_line_with_a_remedy(stack, tmp_path) -> None:
    other = stack.demo("up", SLUICE_HOME=str(tmp_path))
    assert other.returncode == 2
    assert len(other.stderr.splitlines()) == 1
    assert f"port {stack.home.ports.airflow} for Airflow is taken by" in other.stderr
    assert "SLUICE_AIRFLOW_PORT" in other.stderr
    assert stack_processes(tmp_path) == []


def test_everything_listens_on_loopback_only(stack) -> None:
    listening = {}
    for process in stack_processes(stack.home.root):
        for connection in process.net_connections("inet"):
            if connection.status == "LISTEN":
                listening[connection.laddr.port] = connection.laddr.ip
    assert {stack.home.ports.airflow, stack.home.ports.mlflow, stack.home.ports.dask} <= set(listening)
    assert set(listening.values()) == {"127.0.0.1"}


def test_the_trigger_form_refuses_invalid_values(stack) -> None:
    from tasks.demo.drive import ApiError

    with pytest.raises(ApiError) as caught:
        stack.airflow.trigger("smoke.crawl", {"crawl.max_pages": "many"})
    assert caught.value.status == 400


def test_a_wrong_override_fails_at_once_and_says_why(stack) -> None:
    from tasks.demo.drive import RunFailed

    began = time.monotonic()
    with pytest.raises(RunFailed) as caught:
        stack.run("smoke.crawl", {"version": "wrong", "overrides": {"crawl.max_pagse": 3}})
    assert "unknown key crawl.max_pagse" in str(caught.value)
    assert "max_pages" in str(caught.value)
    assert time.monotonic() - began < 60  # no retries


@pytest.mark.soak
def test_without_mlflow_the_run_continues_and_is_logged_later(stack, smoke, airflow_until) -> None:
    home = stack.home
    stack.pause("smoke.corpus", True)
    mlflow = next(one for one in stack_processes(home.root, "mlflow") if one.ppid() == read_status(home.run).pid)
    with socket.socket() as holder:
        for process in [*mlflow.children(recursive=True), mlflow]:
            process.kill()
        airflow_until(lambda: binds(holder, home.ports.mlflow), 20)  # blocks a restart of MLflow
        stack.run("smoke.crawl", {"version": "untold"})
    stack.pause("smoke.corpus", False)
    airflow_until(lambda: read_status(home.run).services["mlflow"].state == "healthy", 90)
    url = f"{home.mlflow_url}/api/2.0/mlflow/runs/search"
    told = subprocess.run(
        [sys.executable, "-m", "tasks", "sync", "--recipe", "smoke"],
        cwd=CHECKOUT,
        env=os.environ | home.environment(),
        capture_output=True,
        text=True,
    )
    assert told.returncode == 0, told.stderr
    last = told.stdout.strip().splitlines()[-1]
    assert last.endswith("0 waiting")
    assert int(last.split()[0]) >= 4  # generate, fetch, update, publish
    assert b"untold" in post(url, b'{"experiment_ids": ["1", "2", "3"], "max_results": 1000}')


def test_every_dag_run_has_its_version_as_note(stack, smoke) -> None:
    for run in smoke.dag_runs:
        assert stack.airflow.run(run.dag_id, run.run_id)["note"].startswith("version dev"), run.dag_id


def test_down_leaves_no_process_and_up_restores_everything(stack, smoke) -> None:
    down = stack.demo("down")
    assert down.returncode == 0, down.stderr
    assert stack_processes(stack.home.root) == []
    assert stack.demo("down").stdout.strip() == "nothing is running"
    began = time.monotonic()
    up = stack.demo("up")
    assert up.returncode == 0, up.stderr
    assert time.monotonic() - began < 90
    assert stack.airflow.run(smoke.dag_runs[0].dag_id, smoke.dag_runs[0].run_id)["state"] == "success"
    assert stack.demo("up").returncode == 0  # the second time it exists already


def binds(holder: socket.socket, port: int) -> bool:
    """Binds a port without listening: connections are refused, and no other process can bind it."""
    try:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("127.0.0.1", port))
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)
    except OSError:
        return False
    return True


def post(url: str, body: bytes) -> bytes:
    request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=30) as answer:
        return bytes(answer.read())
