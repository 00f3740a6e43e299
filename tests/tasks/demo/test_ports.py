"""Ports: messages for taken and invalid ports."""

import contextlib
import os
import socket
from pathlib import Path

import pytest

from tasks.core.errors import InputError
from tasks.demo.home import Home, Ports
from tasks.demo.stack import check_ports


@pytest.fixture
def free() -> Ports:
    """Free ports; the system assigns single ports, so consecutive ones are tried."""
    for base in range(21000, 31000, 10):
        with contextlib.ExitStack() as held, contextlib.suppress(OSError):
            for port in range(base, base + 10):
                held.enter_context(socket.create_server(("127.0.0.1", port)))
            return Ports(airflow=base, mlflow=base + 1, dask=base + 2, site=base + 4)
    pytest.fail("no ten free ports in a row")


def test_a_taken_port_is_named_with_its_holder_and_the_variable_that_moves_it(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as holder:
        port = holder.getsockname()[1]
        with pytest.raises(InputError) as caught:
            check_ports(Home(tmp_path, Ports(airflow=port, mlflow=1, dask=1, site=1)))
    line = str(caught.value)
    assert f"port {port} for Airflow is taken" in line
    assert f"process {os.getpid()}" in line
    assert "SLUICE_AIRFLOW_PORT" in line
    assert "\n" not in line


def test_free_ports_pass(tmp_path: Path, free: Ports) -> None:
    check_ports(Home(tmp_path, free))


@pytest.mark.parametrize("text", ["http", "0", "70000", "-1", "80.5"])
def test_an_invalid_port_variable_is_refused(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLUICE_MLFLOW_PORT", text)
    with pytest.raises(InputError, match="SLUICE_MLFLOW_PORT"):
        Home.here()
