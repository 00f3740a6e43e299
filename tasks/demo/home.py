"""A local stack: its state folder, ports, external servers, and the environment of its processes.

Reads SLUICE_HOME, SLUICE_*_PORT, SLUICE_DATABASE and SLUICE_STORE; writes the state folder (default `.sluice/` in the
checkout) and the keys in it. The DAGs do not need the state folder elsewhere.

The databases are SQLite files in the state folder, or on the Postgres server of SLUICE_DATABASE: `airflow` (metadata)
and `mlflow` (runs); missing ones are created if the user has the right. The password does not appear in command lines,
logs, status or messages: processes read it from their environment or from a file that only its owner can read.

SLUICE_STORE sets the location of the store, MLflow's files, task logs and large XComs. With s3://bucket/prefix the
store is at the prefix itself, and `<prefix>-mlflow`, `<prefix>-logs` and `<prefix>-xcom` are next to it, so that a
listing of the store contains nothing else. S3 credentials come from the AWS environment, or from the Airflow connection
`aws_default` in AIRFLOW_CONN_AWS_DEFAULT; they are not written anywhere.
"""

import json
import os
import secrets
import sys
from base64 import urlsafe_b64encode
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from tasks.core.errors import InputError, TransientError
from tasks.demo.site import HOSTS, SITE_PORT

STORE_VARIABLE = "SLUICE_STORE"
AWS_CONNECTION = "AIRFLOW_CONN_AWS_DEFAULT"
CONN_ID = "aws_default"

LARGE_XCOM = 8192
"""Minimum size in bytes of an XCom on S3. A stage's result has 1 to 2 KB, but a long list of members has more."""

_RETRIES = {"AWS_RETRY_MODE": "adaptive", "AWS_MAX_ATTEMPTS": "10"}
"""Retry settings of the S3 clients of MLflow, task logs and XComs. The defaults fail after about 20 s."""

AIRFLOW, MLFLOW = "airflow", "mlflow"
DRIVER = "postgresql+psycopg2"
CONNECT_S = 10
DATABASE_VARIABLE = "SLUICE_DATABASE"

CHECKOUT = Path(__file__).parents[2]
USER = "admin"
MARK = "SLUICE_STACK"
"""Environment variable of every process of a stack, with the state folder as its value."""


@dataclass(frozen=True)
class Ports:
    """The ports of a stack, all on 127.0.0.1.

    The scheduler's status page uses the port after `dask`; the other hosts of the site use the ports after `site`.
    """

    airflow: int
    mlflow: int
    dask: int
    site: int

    def users(self) -> dict[int, tuple[str, str]]:
        """Returns {port: (service, variable that sets the port)} for every port of the stack."""
        ports = {
            self.airflow: ("Airflow", "SLUICE_AIRFLOW_PORT"),
            self.mlflow: ("MLflow", "SLUICE_MLFLOW_PORT"),
            self.dask: ("the Dask scheduler", "SLUICE_DASK_PORT"),
            self.dask + 1: ("the Dask status page", "SLUICE_DASK_PORT"),
        }
        ports |= {self.site + index: (f"the host {host}", "SLUICE_SITE_PORT") for index, host in enumerate(HOSTS)}
        return ports


class Postgres:
    """A Postgres server.

    Args:
        url: `postgresql+psycopg2://user[:password]@host:port`.

    Raises:
        InputError: the URL is invalid. The message does not repeat it: it may contain a password.
    """

    def __init__(self, url: str) -> None:
        from sqlalchemy.engine import make_url
        from sqlalchemy.exc import ArgumentError

        try:
            parsed = make_url(url)
        except (ArgumentError, ValueError):
            raise _bad_address("it is not a URL") from None
        if parsed.drivername not in (DRIVER, "postgresql"):
            raise _bad_address(f"it begins with {parsed.drivername}://")
        if not parsed.host or not parsed.username:
            raise _bad_address("user or host is missing")
        if parsed.database or parsed.query:
            raise _bad_address(
                "something follows the port; the databases are named airflow and mlflow, and options are set by "
                "variables such as PGSSLMODE"
            )
        self._url = parsed.set(drivername=DRIVER, port=parsed.port or 5432)

    def __repr__(self) -> str:
        return f"Postgres at {self._url.host}:{self._url.port}"

    def url(self, database: str) -> str:
        """Returns the URL of one database, with the password."""
        return str(self._url.set(database=database).render_as_string(hide_password=False))

    def prepare(self) -> None:
        """Creates missing databases and checks that tables can be created in them.

        Raises:
            TransientError: the server does not answer.
            InputError: it rejects the user, or the user may not create a database or tables.
        """
        with closing(self._connect("postgres")) as server:
            existing = {name for (name,) in _query(server, "SELECT datname FROM pg_database")}
            for name in (AIRFLOW, MLFLOW):
                if name not in existing:
                    self._create(server, name)
        for name in (AIRFLOW, MLFLOW):
            with closing(self._connect(name)) as database:
                if not _query(database, "SELECT has_schema_privilege(current_schema(), 'CREATE')")[0][0]:
                    raise InputError(
                        f"{self}: {self._url.username} may not create tables in the database {name}",
                        f"as its administrator: ALTER DATABASE {name} OWNER TO {self._url.username}",
                    )

    def is_migrated(self) -> bool:
        """Returns whether Airflow has created its tables here."""
        with closing(self._connect(AIRFLOW)) as database:
            return bool(_query(database, "SELECT to_regclass('alembic_version')")[0][0])

    def _create(self, server: Any, name: str) -> None:
        from psycopg2.errors import DuplicateDatabase, InsufficientPrivilege  # type: ignore[import-untyped]

        try:
            with server.cursor() as cursor:
                cursor.execute(f'CREATE DATABASE "{name}"')
        except DuplicateDatabase:
            return  # another stack has created it meanwhile
        except InsufficientPrivilege:
            raise InputError(
                f"{self}: {self._url.username} may not create the database {name}",
                f"as its administrator: CREATE DATABASE {name} OWNER {self._url.username}",
            ) from None

    def _connect(self, database: str) -> Any:
        import psycopg2  # type: ignore[import-untyped]

        url = self._url
        try:
            connection = psycopg2.connect(
                host=url.host,
                port=url.port,
                user=url.username,
                password=url.password,
                dbname=database,
                connect_timeout=CONNECT_S,
                application_name="sluice",
            )
        except psycopg2.OperationalError as error:
            raise self._connection_error(str(error)) from None
        connection.autocommit = True
        return connection

    def _connection_error(self, message: str) -> InputError | TransientError:
        cause = " ".join(message.split()).rpartition("FATAL: ")[2].strip()
        if "FATAL" not in message:
            return TransientError(
                f"{self} does not answer ({cause})", f"start it, or unset {DATABASE_VARIABLE} for SQLite"
            )
        if "starting up" in message or "too many" in message or "shutting down" in message:
            return TransientError(f"{self} does not accept connections now ({cause})", "try again")
        return InputError(
            f"{self} refuses {self._url.username}: {cause}",
            f"correct {DATABASE_VARIABLE}, or the user's rights on the server",
        )


@dataclass(frozen=True)
class Home:
    """A local stack: its state folder, its ports, and its external services.

    `postgres` is the database server, or None for SQLite files; `remote` is the s3:// URL of the store, or "".
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
        url, remote = os.environ.get(DATABASE_VARIABLE, ""), store_url(os.environ)
        if remote:
            apply_credentials(os.environ)
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
        """Returns the last line in the log of a service, or ""."""
        path = self.logs / f"{name}.log"
        lines = path.read_text(errors="replace").strip().splitlines() if path.exists() else []
        return lines[-1].strip() if lines else ""

    @property
    def database(self) -> Path:
        """Path of Airflow's metadata database, if it is a SQLite file."""
        return self.root / "airflow.db"

    @property
    def mlflow_database(self) -> str:
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
        """Creates missing folders, keys and passwords; does not print or log them.

        Raises:
            InputError: the state folder cannot be created or written.
        """
        try:
            self._create()
        except OSError as error:
            cause = f"the state folder {self.root} cannot be written ({error.strerror}: {error.filename})"
            raise InputError(cause, "correct that, or set SLUICE_HOME to another folder") from error

    def _create(self) -> None:
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
        # Without the mark: `down` kills every process that has it, and must not kill the user's shell.
        (self.run / "env").write_text("".join(line for line in lines if not line.startswith(f"export {MARK}=")))

    def environment(self) -> dict[str, str]:
        """Returns the environment of every process of the stack: that of this process, overridden by the stack's.

        Settings of another Airflow in the caller's shell are removed: the demo must not write to its database.
        """
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("AIRFLOW__")}
        return inherited | self._sluice() | self._airflow() | self._process_settings()

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
            **(airflow_settings(self.remote, os.environ) if self.remote else {}),
            "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"{self.airflow_url}/execution/",
            "AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "False",
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

    def _process_settings(self) -> dict[str, str]:
        return {
            # Airflow runs the command `airflow`, and stages run `torchrun`, by name.
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
            # setproctitle would otherwise overwrite the environment, from which `stack_processes` reads the mark.
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


def _query(connection: Any, query: str) -> list[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(query)
        return list(cursor.fetchall())


def _bad_address(cause: str) -> InputError:
    return InputError(
        f"{DATABASE_VARIABLE} is not the address of a Postgres server: {cause}", f"write {DRIVER}://user@host:port"
    )


def store_url(environment: Mapping[str, str]) -> str:
    """Returns the s3:// URL of the store, or "" if it is a folder of the stack.

    Raises:
        InputError: the URL has no bucket or prefix, or another scheme.
    """
    url = environment.get(STORE_VARIABLE, "").rstrip("/")
    if "://" not in url:
        return ""
    parsed = urlsplit(url)
    if parsed.scheme != "s3" or not parsed.netloc or not parsed.path.strip("/"):
        raise InputError(f"{STORE_VARIABLE}={url} is not a store for a stack", "write s3://bucket/prefix, or unset it")
    return url


def apply_credentials(environment: Mapping[str, str]) -> None:
    """Sets the credentials of the connection `aws_default` and S3 retries for this process and its children."""
    for name, value in {**_RETRIES, **_from_connection(environment.get(AWS_CONNECTION, ""))}.items():
        if name not in _RETRIES or name not in environment:
            os.environ[name] = value


def airflow_settings(url: str, environment: Mapping[str, str]) -> dict[str, str]:
    """Returns the variables that configure Airflow's task logs and large XComs next to the store at `url`."""
    settings = {
        "AIRFLOW__LOGGING__REMOTE_LOGGING": "True",
        "AIRFLOW__LOGGING__REMOTE_BASE_LOG_FOLDER": f"{url}-logs",
        "AIRFLOW__LOGGING__REMOTE_LOG_CONN_ID": CONN_ID,
        "AIRFLOW__CORE__XCOM_BACKEND": "airflow.providers.common.io.xcom.backend.XComObjectStorageBackend",
        "AIRFLOW__COMMON_IO__XCOM_OBJECTSTORAGE_PATH": f"s3://{CONN_ID}@{url.removeprefix('s3://')}-xcom",
        "AIRFLOW__COMMON_IO__XCOM_OBJECTSTORAGE_THRESHOLD": str(LARGE_XCOM),
    }
    # Without a connection of that name every task would log a warning. An empty one means the AWS environment.
    return settings if environment.get(AWS_CONNECTION) else {**settings, AWS_CONNECTION: "aws://"}


def _from_connection(text: str) -> dict[str, str]:
    """Returns the AWS environment of an Airflow connection (JSON or URI)."""
    if not text:
        return {}
    try:
        login, password, extra = _json_connection(text) if text.lstrip().startswith("{") else _uri_connection(text)
    except (ValueError, AttributeError):
        raise InputError(
            f"{AWS_CONNECTION} is neither JSON nor a URI", "see the Amazon provider's connections"
        ) from None
    endpoint = (extra.get("service_config") or {}).get("s3", {}).get("endpoint_url") or extra.get("endpoint_url")
    variables = {
        "AWS_ACCESS_KEY_ID": login or extra.get("aws_access_key_id"),
        "AWS_SECRET_ACCESS_KEY": password or extra.get("aws_secret_access_key"),
        "AWS_SESSION_TOKEN": extra.get("aws_session_token"),
        "AWS_DEFAULT_REGION": extra.get("region_name"),
        "AWS_PROFILE": extra.get("profile_name"),
        "AWS_ENDPOINT_URL_S3": endpoint,
    }
    return {name: str(value) for name, value in variables.items() if value}


def _json_connection(text: str) -> tuple[str, str, dict[str, Any]]:
    connection = json.loads(text)
    extra = connection.get("extra") or {}
    return (
        connection.get("login") or "",
        connection.get("password") or "",
        json.loads(extra) if isinstance(extra, str) else extra,
    )


def _uri_connection(text: str) -> tuple[str, str, dict[str, Any]]:
    parsed = urlsplit(text)
    query = dict(parse_qsl(parsed.query))
    extra = json.loads(query["__extra__"]) if "__extra__" in query else query
    return unquote(parsed.username or ""), unquote(parsed.password or ""), extra
