"""The supervisor, with small real processes instead of Airflow and MLflow."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import psutil
import pytest

from tasks.core.errors import InputError, TransientError
from tasks.demo import stack
from tasks.demo.home import Home, Ports
from tasks.demo.stack import Status, read_status, stack_processes
from tasks.demo.supervise import IMPORTS, services
from tests.waiting import until

SERVE = """
import sys
from pathlib import Path
from tasks.demo.home import Home, Ports
from tasks.demo.supervise import Service
from tasks.demo.stack import take_lock
from tasks.demo.supervise import Supervisor

home = Home(Path(sys.argv[1]), Ports(1, 2, 3, 5))
home.prepare()
child = "import subprocess, time; subprocess.Popen(['sleep', '600']); open({0!r}, 'a').write('x'); time.sleep(600)"
marker = home.root / "started"
steady = Service("steady", (sys.executable, "-c", child.format(str(marker))), lambda: marker.exists())
with take_lock(home.run) as lock:
    Supervisor(home, [steady], lambda: True).run()
"""


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    """A stack of one service with a child process; it is always stopped after the test."""
    made = Home(tmp_path / "state", Ports(1, 2, 3, 5))
    made.prepare()
    with (made.logs / "supervisor.log").open("wb") as log:
        process = subprocess.Popen([sys.executable, "-c", SERVE, str(made.root)], env=made.environment(), stderr=log)
    until(lambda: ready(made))
    yield made
    stack.down(made)
    process.wait()


def ready(home: Home) -> Status | None:
    status = read_status(home.run)
    return status if status and status.ready and status.services["steady"].state == "healthy" else None


def steady(home: Home) -> list[psutil.Process]:
    return stack_processes(home.root, "steady")


def test_a_killed_service_restarts_after_its_orphans_are_killed(home: Home) -> None:
    status = ready(home)
    assert status is not None
    until(lambda: len(steady(home)) == 2)  # the service and its child
    before = steady(home)
    os.kill(status.services["steady"].pid, signal.SIGKILL)
    until(lambda: (now := ready(home)) and now.services["steady"].restarts == 1)
    assert not any(one.is_running() and one.status() != psutil.STATUS_ZOMBIE for one in before)
    until(lambda: len(steady(home)) == 2)


ORDERED = """
import sys
from pathlib import Path
from tasks.demo.home import Home, Ports
from tasks.demo.supervise import Service
from tasks.demo.stack import take_lock
from tasks.demo.supervise import Supervisor

home = Home(Path(sys.argv[1]), Ports(1, 2, 3, 5))
wait = (sys.executable, "-c", "import time; time.sleep(600)")
first = Service("first", wait, lambda: (home.root / "ready").exists())
second = Service("second", wait, lambda: True, after="first")
with take_lock(home.run) as lock:
    Supervisor(home, [second, first], lambda: True).run()
"""


def test_a_service_starts_when_the_one_before_it_is_healthy(tmp_path: Path) -> None:
    home = Home(tmp_path / "state", Ports(1, 2, 3, 5))
    home.prepare()
    process = subprocess.Popen([sys.executable, "-c", ORDERED, str(home.root)], env=home.environment())

    def state(name: str) -> str:
        status = read_status(home.run)
        return status.services[name].state if status else ""

    try:
        until(lambda: state("first") == "starting")
        time.sleep(0.6)  # two ticks of the supervisor
        assert (state("first"), state("second")) == ("starting", "waiting")
        (home.root / "ready").touch()
        until(lambda: state("second") == "healthy")
    finally:
        stack.down(home)
        process.wait()


def test_the_scheduler_starts_after_the_api_server(tmp_path: Path) -> None:
    after = {service.name: service.after for service in services(Home(tmp_path, Ports(1, 2, 3, 5))) if service.after}
    assert after == {"scheduler": "api-server"}


def test_services_that_fork_import_what_every_fork_needs(tmp_path: Path) -> None:
    found = services(Home(tmp_path, Ports(1, 2, 3, 5)))
    imports = {one.name: one.environment[IMPORTS].split() for one in found if IMPORTS in one.environment}
    assert imports.keys() == {"scheduler", "dag-processor"}
    assert {"operators.forms", "operators.gate", "operators.recipes"} <= {*imports["dag-processor"]}
    assert [name for names in imports.values() for name in names if find_spec(name) is None] == []
    # A task runs the code that is on disk.
    assert not [name for name in imports["scheduler"] if name.startswith(("tasks", "operators"))]


def test_down_leaves_no_process(home: Home) -> None:
    until(lambda: len(steady(home)) == 2)
    stack.down(home)
    assert stack_processes(home.root) == []
    assert read_status(home.run) is None


def test_down_ends_processes_of_a_killed_supervisor(home: Home) -> None:
    status = ready(home)
    assert status is not None
    os.kill(status.pid, signal.SIGKILL)
    until(lambda: read_status(home.run) is None)
    assert len(steady(home)) == 2
    stack.down(home)
    assert stack_processes(home.root) == []


DYING = """
import sys
from pathlib import Path
from tasks.demo.home import Home, Ports
from tasks.demo.supervise import Service
from tasks.demo.stack import take_lock
from tasks.demo.supervise import Supervisor

home = Home(Path(sys.argv[1]), Ports(1, 2, 3, 5))
dying = Service("dying", (sys.executable, "-c", "print('no key in the drawer'); exit(3)"), lambda: False)
with take_lock(home.run) as lock:
    Supervisor(home, [dying], lambda: True).run()
"""


def test_a_service_that_fails_to_start_is_named_with_restarts_and_last_log_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = Home(tmp_path / "state", Ports(1, 2, 3, 5))
    home.prepare()
    process = subprocess.Popen([sys.executable, "-c", DYING, str(home.root)], env=home.environment())
    try:
        until(lambda: (status := read_status(home.run)) and status.services["dying"].restarts >= 2)
        monkeypatch.setattr(stack, "UP_S", 1.0)
        with pytest.raises(TransientError) as caught:
            stack.up(home)
        again = r"dying not healthy after 1 s; dying was restarted \d times; "
        assert re.search(again + "its last log line: no key in the drawer", str(caught.value))
        assert str(home.logs / "dying.log") in str(caught.value)
    finally:
        stack.down(home)
        process.wait()


def test_foreign_processes_are_not_touched(home: Home) -> None:
    other = subprocess.Popen(["sleep", "600"], env={**os.environ, "SLUICE_STACK": str(home.root) + "-other"})
    try:
        stack.down(home)
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()


def test_keys_are_readable_by_the_owner_only_and_reused(tmp_path: Path) -> None:
    home = Home(tmp_path, Ports(1, 2, 3, 5))
    home.prepare()
    held = {path.name: path.read_text() for path in (tmp_path / "secrets").iterdir()}
    home.prepare()
    assert {path.name: path.read_text() for path in (tmp_path / "secrets").iterdir()} == held
    assert (tmp_path / "secrets").stat().st_mode & 0o777 == 0o700
    values = " ".join(home.environment().values())
    assert not [name for name, text in held.items() if text in values]


def test_a_state_folder_that_cannot_be_written_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"the state folder .*file cannot be written \(.*\)\. .* set SLUICE_HOME to"):
        Home(tmp_path / "file", Ports(1, 2, 3, 5)).prepare()


def test_settings_of_another_airflow_are_ignored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__CORE__EXECUTOR", "CeleryExecutor")
    monkeypatch.setenv("AIRFLOW__DATABASE__SQL_ALCHEMY_CONN", "postgresql://production")
    environment = Home(tmp_path, Ports(1, 2, 3, 5)).environment()
    assert "AIRFLOW__CORE__EXECUTOR" not in environment
    assert environment["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"].startswith("sqlite:///")
