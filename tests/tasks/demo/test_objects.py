"""The stack's files on S3: locations and credentials."""

import json
from pathlib import Path

import pytest

from tasks.core.errors import InputError
from tasks.demo.home import Home
from tasks.demo.supervise import services

NAMES = ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY", "SESSION_TOKEN", "DEFAULT_REGION", "PROFILE", "ENDPOINT_URL_S3")


@pytest.fixture
def clean(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Only AWS settings of the test; variables set by the code are removed afterwards."""
    for name in (*NAMES, "RETRY_MODE", "MAX_ATTEMPTS"):
        monkeypatch.setenv(f"AWS_{name}", "x")
        monkeypatch.delenv(f"AWS_{name}")
    monkeypatch.delenv("AIRFLOW_CONN_AWS_DEFAULT", raising=False)
    monkeypatch.setenv("SLUICE_HOME", str(tmp_path))
    monkeypatch.setenv("SLUICE_STORE", "s3://lab/lake/")
    return monkeypatch


def test_store_files_logs_and_xcoms_have_separate_prefixes(clean: pytest.MonkeyPatch) -> None:
    home = Home.here()
    environment = home.environment()
    assert environment["SLUICE_STORE"] == home.store == "s3://lab/lake"
    assert environment["AIRFLOW__LOGGING__REMOTE_BASE_LOG_FOLDER"] == "s3://lab/lake-logs"
    assert environment["AIRFLOW__COMMON_IO__XCOM_OBJECTSTORAGE_PATH"] == "s3://aws_default@lab/lake-xcom"
    assert environment["AIRFLOW_CONN_AWS_DEFAULT"] == "aws://"
    assert environment["AWS_MAX_ATTEMPTS"] == "10"
    mlflow = next(service for service in services(home) if service.name == "mlflow")
    assert mlflow.command[mlflow.command.index("--artifacts-destination") + 1] == "s3://lab/lake-mlflow"


@pytest.mark.parametrize(
    "connection",
    [
        json.dumps(
            {
                "conn_type": "aws",
                "login": "key",
                "password": "hush/+",
                "extra": {"region_name": "eu-west-1", "endpoint_url": "http://s3"},
            }
        ),
        json.dumps({"conn_type": "aws", "login": "key", "password": "hush/+", "extra": json.dumps(
            {"region_name": "eu-west-1", "service_config": {"s3": {"endpoint_url": "http://s3"}}})}),
        "aws://key:hush%2F%2B@/?region_name=eu-west-1&endpoint_url=http%3A%2F%2Fs3",
        "aws://key:hush%2F%2B@/?__extra__=%7B%22region_name%22%3A%22eu-west-1%22%2C%22endpoint_url%22%3A%22http%3A%2F%2Fs3%22%7D",
    ],
)  # fmt: skip
def test_an_airflow_connection_provides_all_credentials(clean: pytest.MonkeyPatch, connection: str) -> None:
    clean.setenv("AIRFLOW_CONN_AWS_DEFAULT", connection)
    home = Home.here()
    environment = home.environment()
    held = {name: environment.get(f"AWS_{name}") for name in NAMES}
    assert held == {
        "ACCESS_KEY_ID": "key",
        "SECRET_ACCESS_KEY": "hush/+",
        "SESSION_TOKEN": None,
        "DEFAULT_REGION": "eu-west-1",
        "PROFILE": None,
        "ENDPOINT_URL_S3": "http://s3",
    }
    assert environment["AIRFLOW_CONN_AWS_DEFAULT"] == connection
    home.prepare()
    home.write_environment()
    assert "hush" not in (home.run / "env").read_text()


def test_the_stack_retries_more_than_aws_clients_by_default(clean: pytest.MonkeyPatch) -> None:
    clean.setenv("AWS_MAX_ATTEMPTS", "3")
    environment = Home.here().environment()
    assert (environment["AWS_RETRY_MODE"], environment["AWS_MAX_ATTEMPTS"]) == ("adaptive", "3")


@pytest.mark.parametrize("url", ["s3://lab", "gs://lab/lake", "s3:///lake"])
def test_an_unsupported_store_is_refused(clean: pytest.MonkeyPatch, url: str) -> None:
    clean.setenv("SLUICE_STORE", url)
    with pytest.raises(InputError, match=r"SLUICE_STORE=.*s3://bucket/prefix"):
        Home.here()


def test_the_folder_of_another_stack_is_refused(clean: pytest.MonkeyPatch, tmp_path: Path) -> None:
    clean.setenv("SLUICE_STORE", "/elsewhere/store")
    home = Home.here()
    assert home.store == str(tmp_path / "store")
    assert "AIRFLOW__LOGGING__REMOTE_LOGGING" not in home.environment()
