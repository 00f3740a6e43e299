"""The databases of a stack: SQLite files below the state folder, or a Postgres server that SLUICE_DATABASE names.

On Postgres the databases are `airflow` (metadata) and `mlflow` (runs); missing ones are created if the user has the
right. The password is in no command line, log, status or message: processes read it from their environment or from a
file that only its owner can read.
"""

from contextlib import closing
from typing import Any

from tasks.core.errors import InputError, TransientError

AIRFLOW, MLFLOW = "airflow", "mlflow"
DRIVER = "postgresql+psycopg2"
CONNECT_S = 10
DATABASE_VARIABLE = "SLUICE_DATABASE"


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
            found = make_url(url)
        except (ArgumentError, ValueError):
            raise _bad_address("it is no URL") from None
        if found.drivername not in (DRIVER, "postgresql"):
            raise _bad_address(f"it begins with {found.drivername}://")
        if not found.host or not found.username:
            raise _bad_address("user or host is missing")
        if found.database or found.query:
            raise _bad_address(
                "something follows the port; the databases are named airflow and mlflow, options go by PGSSLMODE"
            )
        self._url = found.set(drivername=DRIVER, port=found.port or 5432)

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
            existing = {name for (name,) in _fetched(server, "SELECT datname FROM pg_database")}
            for name in (AIRFLOW, MLFLOW):
                if name not in existing:
                    self._create(server, name)
        for name in (AIRFLOW, MLFLOW):
            with closing(self._connect(name)) as database:
                if not _fetched(database, "SELECT has_schema_privilege(current_schema(), 'CREATE')")[0][0]:
                    raise InputError(
                        f"{self}: {self._url.username} may not make tables in the database {name}",
                        f"as its administrator: ALTER DATABASE {name} OWNER TO {self._url.username}",
                    )

    def migrated(self) -> bool:
        """Returns whether Airflow has created its tables here."""
        with closing(self._connect(AIRFLOW)) as database:
            return bool(_fetched(database, "SELECT to_regclass('alembic_version')")[0][0])

    def _create(self, server: Any, name: str) -> None:
        from psycopg2.errors import DuplicateDatabase, InsufficientPrivilege  # type: ignore[import-untyped]

        try:
            with server.cursor() as cursor:
                cursor.execute(f'CREATE DATABASE "{name}"')
        except DuplicateDatabase:
            return  # another stack has created it meanwhile
        except InsufficientPrivilege:
            raise InputError(
                f"{self}: {self._url.username} may not make the database {name}",
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
            raise self._explained(str(error)) from None
        connection.autocommit = True
        return connection

    def _explained(self, message: str) -> InputError | TransientError:
        cause = " ".join(message.split()).rpartition("FATAL: ")[2].strip()
        if "FATAL" not in message:
            return TransientError(
                f"{self} does not answer ({cause})", f"start it, or unset {DATABASE_VARIABLE} for SQLite"
            )
        if "starting up" in message or "too many" in message or "shutting down" in message:
            return TransientError(f"{self} takes no connection now ({cause})", "try again")
        return InputError(
            f"{self} refuses {self._url.username}: {cause}", f"correct {DATABASE_VARIABLE}, or the server's rights"
        )


def _fetched(connection: Any, query: str) -> list[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(query)
        return list(cursor.fetchall())


def _bad_address(cause: str) -> InputError:
    return InputError(
        f"{DATABASE_VARIABLE} is not the address of a Postgres server: {cause}", f"write {DRIVER}://user@host:port"
    )
