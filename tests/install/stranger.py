"""A stranger's Airflow: an environment of its own with stock Airflow and the wheel, a home, a user for each role.

Nothing of the checkout is on its path. Its settings are those that docs/existing-airflow.md lists, plus free ports.
"""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import httpx
import pytest

from tasks.demo.site import HOSTS, address
from tests.system.conftest import MODELS, free_ports
from tests.waiting import until

ROOT = Path(__file__).parents[2]
ROLES = ("viewer", "user", "op", "admin")
CHAIN = ("crawl", "corpus", "tokens", "canary", "pretrain")
RUN = {"logical_date": None}
SERVICES = ("api-server", "scheduler", "dag-processor", "triggerer")
NO_REGISTRY = re.compile(r"dns error|error sending request|[Cc]onnect(ion|)\b.*(refus|fail|error|timed)", re.S)


def run(*command: object, **options: Any) -> subprocess.CompletedProcess[str]:
    """Runs a command; returns its output."""
    return subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False, **options)


def uv(*arguments: object) -> str:
    """Runs uv; skips the test if no registry answers."""
    done = run(sys.executable, "-m", "uv", *arguments, cwd=ROOT)
    if done.returncode and NO_REGISTRY.search(done.stderr):
        pytest.skip(f"no package registry answers: {done.stderr.strip().splitlines()[-1]}")
    assert done.returncode == 0, done.stderr
    return done.stdout


def build_wheel(folder: Path) -> Path:
    """Builds the wheel of the checkout."""
    uv("build", "--quiet", "--wheel", "--out-dir", folder, ROOT)
    [wheel] = folder.glob("sluice-*.whl")
    return wheel


def install(python: str, folder: Path, *requirements: str) -> Path:
    """Makes an environment with packages in the versions of the lock; returns its interpreter.

    Skips if there is no such Python on PATH.
    """
    found = run(sys.executable, "-m", "uv", "python", "find", "--no-python-downloads", "--system", python)
    if found.returncode:
        pytest.skip(f"no Python {python} on this machine")
    uv("venv", "--quiet", "--seed", "--python", found.stdout.strip(), folder)
    links = [word for place in os.environ.get("PIP_FIND_LINKS", "").split() for word in ("--find-links", place)]
    uv(
        *("pip", "install", "--quiet", "--python", folder / "bin/python", "--constraint", ROOT / "requirements.txt"),
        *(*links, *requirements),
    )
    return folder / "bin/python"


@dataclass
class Stranger:
    """An Airflow home with the interpreter of its environment.

    Attributes:
        python: the interpreter.
        home: $AIRFLOW_HOME.
        settings: more variables of the environment of its processes.
    """

    python: Path
    home: Path
    settings: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.ports = free_ports()
        recipes = self.home / "recipes"
        recipes.mkdir(parents=True, exist_ok=True)
        seeds = ", ".join(f'"{address(host, self.ports.site + at)}"' for at, host in enumerate(HOSTS))
        for name in ("demo", "smoke"):
            text = (self.dags / "recipes" / f"{name}.toml").read_text()
            (recipes / f"{name}.toml").write_text(re.sub(r"(?m)^seeds = \[.http.*\]", f"seeds = [{seeds}]", text))

    @cached_property
    def dags(self) -> Path:
        """Folder of the DAG files in the environment."""
        [folder] = self.python.parents[1].glob("lib/python*/site-packages/sluice_dags")
        return folder

    @property
    def url(self) -> str:
        """Address of the API server."""
        return f"http://127.0.0.1:{self.ports.airflow}"

    @property
    def environment(self) -> Mapping[str, str]:
        """Environment of its processes; nothing of the environment of the tests but PATH."""
        return {
            "PATH": f"{self.python.parent}{os.pathsep}/usr/bin{os.pathsep}/bin",
            "HOME": str(self.home),
            "AIRFLOW_HOME": str(self.home),
            # Its own choices: ports, users, no examples.
            "AIRFLOW__API__PORT": str(self.ports.airflow),
            "AIRFLOW__API__BASE_URL": self.url,
            "AIRFLOW__LOGGING__WORKER_LOG_SERVER_PORT": str(self.ports.dask),
            "AIRFLOW__LOGGING__TRIGGER_LOG_SERVER_PORT": str(self.ports.dask + 1),
            "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"{self.url}/execution/",
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": ",".join(f"{role}:{role}" for role in ROLES),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            # A busy machine answers late.
            "AIRFLOW__CORE__PARALLELISM": "2",
            "AIRFLOW__CORE__DAGBAG_IMPORT_TIMEOUT": "600",
            "AIRFLOW__DAG_PROCESSOR__DAG_FILE_PROCESSOR_TIMEOUT": "900",
            "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "1800",
            "AIRFLOW__WORKERS__EXECUTION_API_TIMEOUT": "600",
            **documented("SluiceDags"),
            "SLUICE_RECIPES": str(self.home / "recipes"),
            "SLUICE_STORE": str(self.home / "store"),
            "SLUICE_MODELS": str(MODELS),
            **self.settings,
        }

    def airflow(self, *arguments: str) -> str:
        """Runs the command `airflow`; returns its output."""
        done = run(self.python.parent / "airflow", *arguments, env=self.environment, cwd=self.home)
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
        return done.stdout

    def listed(self, *arguments: str) -> list[dict[str, Any]]:
        """Runs a command of `airflow` that lists; returns its rows."""
        shown = self.airflow(*arguments, "--output", "json")
        rows: list[dict[str, Any]] = json.loads(shown[shown.index("[{") :])
        return rows

    @contextmanager
    def running(self) -> Iterator[None]:
        """Runs Airflow's services and the demo's site until the end of the block.

        Each service has a command of its own: `airflow standalone` replaces the auth manager by the simple one.
        """
        site = f"from tasks.demo.site import serve; serve({self.ports.site}, __import__('pathlib').Path('site'))"
        airflow = self.python.parent / "airflow"
        commands = ([self.python, "-c", site], *([airflow, service] for service in SERVICES))
        with (self.home / "services.log").open("w") as log:
            started = [
                subprocess.Popen(
                    command, env=self.environment, cwd=self.home, stdout=log, stderr=log, start_new_session=True
                )
                for command in commands
            ]
            try:
                until(self._healthy, 1800, every_s=1)
                yield
            finally:
                for process in started:
                    os.killpg(process.pid, signal.SIGTERM)
                for process in started:
                    with suppress(subprocess.TimeoutExpired):
                        process.wait(30)
                    with suppress(ProcessLookupError):  # children may outlive a service
                        os.killpg(process.pid, signal.SIGKILL)

    def _healthy(self) -> bool:
        try:
            health = httpx.get(f"{self.url}/api/v2/monitor/health", trust_env=False, timeout=60).json()
        except (httpx.HTTPError, ValueError):
            return False
        return all(health[part]["status"] == "healthy" for part in ("scheduler", "dag_processor", "triggerer"))

    def client(self, user: str) -> httpx.Client:
        """Returns a client of the API and the pages, logged in by token as a user.

        Users whose password the simple auth manager did not generate have their name as password.
        """
        generated = self.home / "simple_auth_manager_passwords.json.generated"
        password = json.loads(generated.read_text())[user] if generated.exists() else user
        login = {"username": user, "password": password}
        answer = httpx.post(f"{self.url}/auth/token", json=login, trust_env=False, timeout=600)
        assert answer.status_code == 201, answer.text
        token = answer.json()["access_token"]
        headers = {"Authorization": f"Bearer {token}"}
        return httpx.Client(base_url=self.url, headers=headers, cookies={"_token": token}, trust_env=False, timeout=600)


def until_run(client: httpx.Client, dag: str) -> None:
    """Waits until a run of a DAG has succeeded; fails if a run that the user may read failed."""

    def succeeded() -> bool:
        states = {one["dag_id"]: one["state"] for one in client.get("/api/v2/dags/~/dagRuns").json()["dag_runs"]}
        assert "failed" not in states.values(), states
        return states.get(dag) == "success"

    until(succeeded, 3600, every_s=2)


def blocks(language: str, word: str) -> list[str]:
    """Returns the blocks of code in a language in docs/existing-airflow.md that contain a word."""
    found = re.findall(rf"```{language}\n(.*?)```", (ROOT / "docs/existing-airflow.md").read_text(), re.S)
    return [block for block in found if word in block]


def documented(word: str) -> dict[str, str]:
    """Returns the settings that contain a word and that docs/existing-airflow.md lists, as environment variables."""
    [block] = blocks("ini", word)
    section, settings = "", {}
    for line in block.splitlines():
        if header := re.fullmatch(r"\[(\w+)\]", line):
            section = header[1]
        elif line and not line.startswith("#"):
            name, _, value = line.partition(" = ")
            settings[f"AIRFLOW__{section}__{name}".upper()] = value
    return settings
