"""State folder and ports of a stack, and the environment of its processes.

Reads SLUICE_HOME, SLUICE_*_PORT, SLUICE_DATABASE and SLUICE_STORE; writes the state folder (default `.sluice/` in the
checkout) and the keys in it. Nothing below the state folder is needed to run the DAGs elsewhere.
"""

import json
import os
import secrets
import sys
from base64 import urlsafe_b64encode
from dataclasses import dataclass
from pathlib import Path
from shlex import quote

from tasks.core.errors import InputError
from tasks.demo import objects
from tasks.demo.database import AIRFLOW, DATABASE_VARIABLE, MLFLOW, Postgres
from tasks.demo.site import HOSTS, SITE_PORT

CHECKOUT = Path(__file__).parents[2]
USER = "admin"
MARK = "SLUICE_STACK"
"""Environment variable of every process of a stack, with the state folder as its value."""


@dataclass(frozen=True)
class Ports:
    """The ports of one stack, all on 127.0.0.1.

    `dask` is followed by the port of the scheduler's own status page; `site` by one port for each further host.
    """

    airflow: int
    mlflow: int
    dask: int
    site: int

    def taken_by(self) -> dict[int, tuple[str, str]]:
        """Returns {port: (service, variable that sets the port)} for every port of the stack."""
        ports = {
            self.airflow: ("Airflow", "SLUICE_AIRFLOW_PORT"),
            self.mlflow: ("MLflow", "SLUICE_MLFLOW_PORT"),
            self.dask: ("the Dask scheduler", "SLUICE_DASK_PORT"),
            self.dask + 1: ("the Dask status page", "SLUICE_DASK_PORT"),
        }
        ports |= {self.site + index: (f"the host {host}", "SLUICE_SITE_PORT") for index, host in enumerate(HOSTS)}
        return ports


@dataclass(frozen=True)
class Home:
    """One stack on this machine: its state folder, its ports, and its external services.

    `postgres` is a database server in place of SQLite files; `remote` is the s3:// URL of the store, else "".
    """

    root: Path
    ports: Ports
    postgres: Postgres | None = None
    remote: str = ""

    @classmethod
    def here(cls) -> "Home":
        """Returns the stack that the environment configures.

        Raises:
            InputError: a variable has an invalid value.
        """
        root = Path(os.environ.get("SLUICE_HOME") or CHECKOUT / ".sluice").absolute()
        ports = Ports(
            airflow=_port("SLUICE_AIRFLOW_PORT", 18080),
            mlflow=_port("SLUICE_MLFLOW_PORT", 15000),
            dask=_port("SLUICE_DASK_PORT", 18786),
            site=_port("SLUICE_SITE_PORT", SITE_PORT),
        )
        url, remote = os.environ.get(DATABASE_VARIABLE, ""), objects.store_url(os.environ)
        if remote:
            objects.apply_credentials(os.environ)
        return cls(root, ports, Postgres(url) if url else None, remote)

    @property
    def run(self) -> Path:
        """Folder of files that are valid only while the stack runs: lock, status, environment."""
        return self.root / "run"

    @property
    def logs(self) -> Path:
        """Folder with one log per service, and Airflow's own logs below `airflow/`."""
        return self.root / "logs"

    def last_line(self, name: str) -> str:
        """Returns the last line in the log of a service, "" where there is none."""
        path = self.logs / f"{name}.log"
        lines = path.read_text(errors="replace").strip().splitlines() if path.exists() else []
        return lines[-1].strip() if lines else ""

    @property
    def database(self) -> Path:
        """Airflow's metadata database, where it is a file."""
        return self.root / "airflow.db"

    @property
    def runs(self) -> str:
        """URL of MLflow's database; may contain a password."""
        return self.postgres.url(MLFLOW) if self.postgres else f"sqlite:///{self.root / 'mlflow.db'}"

    @property
    def store(self) -> str:
        """Folder or URL of the artifacts."""
        return self.remote or str(self.root / "store")

    @property
    def mlflow_files(self) -> str:
        """Folder or URL of MLflow's files."""
        return f"{self.remote}-mlflow" if self.remote else str(self.root / "mlartifacts")

    @property
    def airflow_url(self) -> str:
        """URL of the Airflow UI and API."""
        return f"http://127.0.0.1:{self.ports.airflow}"

    @property
    def mlflow_url(self) -> str:
        """URL of the MLflow UI and API."""
        return f"http://127.0.0.1:{self.ports.mlflow}"

    @property
    def passwords(self) -> Path:
        """Airflow's password file: JSON, user to password."""
        return self.root / "secrets" / "airflow_passwords.json"

    def password(self) -> str:
        """Returns the password of the Airflow user `admin`."""
        return str(json.loads(self.passwords.read_text())[USER])

    def prepare(self) -> None:
        """Creates the folders, and missing keys and passwords, which are never printed or logged."""
        for name in ("logs", "run", "store", "models", "mlartifacts", "dask", "site", "secrets"):
            (self.root / name).mkdir(parents=True, exist_ok=True)
        folder = self.root / "secrets"
        folder.chmod(0o700)
        _write_new(folder / "fernet", urlsafe_b64encode(secrets.token_bytes(32)).decode())
        for name in ("jwt", "api"):
            _write_new(folder / name, secrets.token_hex(64))
        _write_new(self.passwords, json.dumps({USER: secrets.token_urlsafe(12), "viewer": secrets.token_urlsafe(12)}))
        if self.postgres:
            _write_new(folder / "database", "")
            (folder / "database").write_text(self.postgres.url(AIRFLOW))

    def write_environment(self) -> None:
        """Writes `run/env`, for a shell that runs a stage or `airflow` on this stack: `. .sluice/run/env`."""
        lines = [
            f"export {name}={quote(value)}\n" for name, value in sorted((self._sluice() | self._airflow()).items())
        ]
        # Without the mark: `down` ends every process that has it, and must not end the shell of a person.
        (self.run / "env").write_text("".join(line for line in lines if not line.startswith(f"export {MARK}=")))

    def environment(self) -> dict[str, str]:
        """Returns the environment of every process of the stack: that of this process, overridden by the stack's.

        Settings of another Airflow in the caller's shell are left out: the demo must not write to its database.
        """
        kept = {name: value for name, value in os.environ.items() if not name.startswith("AIRFLOW__")}
        return kept | self._sluice() | self._airflow() | self._quiet()

    def _sluice(self) -> dict[str, str]:
        return {
            MARK: str(self.root),
            "SLUICE_HOME": str(self.root),
            "SLUICE_STORE": self.store,
            "SLUICE_MODELS": os.environ.get("SLUICE_MODELS") or str(self.root / "models"),
            "SLUICE_DASK": f"tcp://127.0.0.1:{self.ports.dask}",
            "MLFLOW_TRACKING_URI": self.mlflow_url,
        }

    def _airflow(self) -> dict[str, str]:
        folder = self.root / "secrets"
        return {
            "AIRFLOW_HOME": str(CHECKOUT),
            **self._airflow_database(),
            **(objects.airflow_settings(self.remote, os.environ) if self.remote else {}),
            "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"{self.airflow_url}/execution/",
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": str(self.passwords),
            "AIRFLOW__CORE__FERNET_KEY_CMD": f"cat {quote(str(folder / 'fernet'))}",
            "AIRFLOW__API_AUTH__JWT_SECRET_CMD": f"cat {quote(str(folder / 'jwt'))}",
            "AIRFLOW__API__SECRET_KEY_CMD": f"cat {quote(str(folder / 'api'))}",
            "AIRFLOW__API__HOST": "127.0.0.1",
            "AIRFLOW__API__PORT": str(self.ports.airflow),
            "AIRFLOW__API__BASE_URL": self.airflow_url,
            "AIRFLOW__LOGGING__BASE_LOG_FOLDER": str(self.logs / "airflow"),
            "AIRFLOW__LOGGING__DAG_PROCESSOR_CHILD_PROCESS_LOG_DIRECTORY": str(self.logs / "airflow" / "dag_processor"),
        }

    def _airflow_database(self) -> dict[str, str]:
        variable = "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"
        if self.postgres:
            return {f"{variable}_CMD": f"cat {quote(str(self.root / 'secrets' / 'database'))}"}
        return {variable: f"sqlite:///{self.database}"}

    def _quiet(self) -> dict[str, str]:
        return {
            # Airflow runs the command `airflow`, and stages run `torchrun`, by name.
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
            # setproctitle would overwrite the environment with the title, where `marked` reads the mark.
            "SPT_NOENV": "1",
            "MLFLOW_DISABLE_TELEMETRY": "true",
            "PYTHONUNBUFFERED": "1",
            "NO_PROXY": ",".join(filter(None, [os.environ.get("NO_PROXY", ""), "127.0.0.1,localhost,.localhost"])),
        }


def _write_new(path: Path, text: str) -> None:
    if not path.exists():
        path.touch(mode=0o600)
        path.write_text(text)


def _port(variable: str, default: int) -> int:
    text = os.environ.get(variable) or str(default)
    if not text.isdecimal() or not 0 < int(text) < 65_000:
        raise InputError(f"{variable}={text} is not a port", "set it to a free port between 1024 and 64999")
    return int(text)
