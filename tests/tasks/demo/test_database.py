"""The stack's tables on a real Postgres server."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tasks.core.errors import InputError, SluiceError, TransientError
from tasks.demo.home import Home, Postgres
from tasks.demo.supervise import services
from tests.postgres import PASSWORD, PostgresServer


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with PostgresServer() as running:
        yield running


def test_both_databases_are_created_once(server: PostgresServer) -> None:
    for _ in range(2):
        Postgres(server.url()).prepare()
    names = {name for (name,) in server.query("postgres", "SELECT datname FROM pg_database")}
    assert {"airflow", "mlflow"} <= names
    assert not Postgres(server.url()).is_migrated()


def test_a_user_who_may_not_create_databases_gets_the_statement_to_run(server: PostgresServer) -> None:
    for name in ("airflow", "mlflow"):
        server.query("postgres", f"DROP DATABASE IF EXISTS {name}")
    server.query("postgres", "CREATE ROLE poor LOGIN PASSWORD 'x'")
    with pytest.raises(
        InputError, match=r"poor may not create the database airflow.*CREATE DATABASE airflow OWNER poor"
    ):
        Postgres(server.url("poor", "x")).prepare()


def test_a_user_who_may_not_create_tables_gets_the_statement_to_run(server: PostgresServer) -> None:
    Postgres(server.url()).prepare()
    server.query("postgres", "CREATE ROLE guest LOGIN PASSWORD 'x'")
    with pytest.raises(InputError, match=r"guest may not create tables in the database airflow.*OWNER TO guest"):
        Postgres(server.url("guest", "x")).prepare()


def test_a_wrong_password_is_permanent_and_not_printed(server: PostgresServer) -> None:
    with pytest.raises(InputError, match="password authentication failed") as caught:
        Postgres(server.url(password="wrong-secret")).prepare()
    assert "wrong-secret" not in str(caught.value)


def test_a_silent_server_is_a_retryable_error(server: PostgresServer) -> None:
    server.stop()
    try:
        with pytest.raises(
            TransientError, match=rf"127\.0\.0\.1:{server.port} does not answer.*SLUICE_DATABASE"
        ) as caught:
            Postgres(server.url()).prepare()
    finally:
        server.start()
    assert PASSWORD not in str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        "mysql://u:hush@host/",
        "postgresql+psycopg2://host:5432",
        "postgresql+psycopg2://u:hush@host:5432/airflow",
        "postgresql+psycopg2://u:hush@host:port",
        "hush",
    ],
)
def test_an_unsupported_address_is_refused_without_printing_it(url: str) -> None:
    with pytest.raises(InputError, match=r"SLUICE_DATABASE.*postgresql\+psycopg2://user@host:port") as caught:
        Postgres(url)
    assert "hush" not in str(caught.value)


def test_the_password_is_in_no_command_and_no_file_readable_by_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLUICE_HOME", str(tmp_path))
    monkeypatch.setenv("SLUICE_DATABASE", "postgresql+psycopg2://sluice:hush%2Fhush@db:6000")
    home = Home.here()
    home.prepare()
    home.write_environment()
    secret = tmp_path / "secrets" / "database"
    assert secret.read_text() == "postgresql+psycopg2://sluice:hush%2Fhush@db:6000/airflow"
    assert secret.stat().st_mode & 0o777 == 0o600
    assert "hush" not in (tmp_path / "run" / "env").read_text()
    assert "hush" not in repr(home)
    assert "hush" not in str([service.command for service in services(home)])
    environment = home.environment()
    assert "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN" not in environment
    assert str(secret) in environment["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN_CMD"]


def test_without_the_setting_sqlite_files_are_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLUICE_HOME", str(tmp_path))
    monkeypatch.delenv("SLUICE_DATABASE", raising=False)
    home = Home.here()
    assert home.environment()["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"] == f"sqlite:///{tmp_path}/airflow.db"
    assert home.mlflow_database == f"sqlite:///{tmp_path}/mlflow.db"


def test_every_refusal_is_one_line() -> None:
    with pytest.raises(SluiceError) as caught:
        Postgres("nonsense")
    assert "\n" not in str(caught.value)
