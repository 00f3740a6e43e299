"""A stack with its files on S3: SLUICE_STORE sets the location of the store, MLflow's files, task logs and large XComs.

With s3://bucket/prefix the store is at the prefix itself; `<prefix>-mlflow`, `<prefix>-logs` and `<prefix>-xcom` are
next to it, so that a listing of the store contains nothing else. Reads credentials from the AWS environment, or from
the Airflow connection `aws_default` in AIRFLOW_CONN_AWS_DEFAULT; they are written nowhere.
"""

import json
import os
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from tasks.core.errors import InputError

STORE_VARIABLE = "SLUICE_STORE"
AWS_CONNECTION = "AIRFLOW_CONN_AWS_DEFAULT"
CONN_ID = "aws_default"

LARGE_XCOM = 8192
"""Size in bytes from which an XCom is stored on S3. A stage's result has 1 to 2 KB, a long list of members more."""

_RETRIES = {"AWS_RETRY_MODE": "adaptive", "AWS_MAX_ATTEMPTS": "10"}
"""Retries of the S3 clients of MLflow, task logs and XComs. The defaults fail after about 20 s."""


def store_url(environment: Mapping[str, str]) -> str:
    """Returns the s3:// URL of the store, or "" where it is a folder of the stack.

    Raises:
        InputError: the URL has no bucket or prefix, or is of another kind of store.
    """
    url = environment.get(STORE_VARIABLE, "").rstrip("/")
    if "://" not in url:
        return ""
    found = urlsplit(url)
    if found.scheme != "s3" or not found.netloc or not found.path.strip("/"):
        raise InputError(
            f"{STORE_VARIABLE}={url} is not a store for a stack", "write s3://bucket/prefix, or leave it out"
        )
    return url


def apply_credentials(environment: Mapping[str, str]) -> None:
    """Sets the credentials of the connection `aws_default` and S3 retries for this process and its children."""
    for name, value in {**_RETRIES, **_from_connection(environment.get(AWS_CONNECTION, ""))}.items():
        if name not in _RETRIES or name not in environment:
            os.environ[name] = value


def airflow_settings(url: str, environment: Mapping[str, str]) -> dict[str, str]:
    """Returns the variables that put Airflow's task logs and large XComs beside the store at `url`."""
    settings = {
        "AIRFLOW__LOGGING__REMOTE_LOGGING": "True",
        "AIRFLOW__LOGGING__REMOTE_BASE_LOG_FOLDER": f"{url}-logs",
        "AIRFLOW__LOGGING__REMOTE_LOG_CONN_ID": CONN_ID,
        "AIRFLOW__CORE__XCOM_BACKEND": "airflow.providers.common.io.xcom.backend.XComObjectStorageBackend",
        "AIRFLOW__COMMON_IO__XCOM_OBJECTSTORAGE_PATH": f"s3://{CONN_ID}@{url.removeprefix('s3://')}-xcom",
        "AIRFLOW__COMMON_IO__XCOM_OBJECTSTORAGE_THRESHOLD": str(LARGE_XCOM),
    }
    # Without a connection of that name every task would log a warning. This one means: the AWS environment.
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
    named = {
        "AWS_ACCESS_KEY_ID": login or extra.get("aws_access_key_id"),
        "AWS_SECRET_ACCESS_KEY": password or extra.get("aws_secret_access_key"),
        "AWS_SESSION_TOKEN": extra.get("aws_session_token"),
        "AWS_DEFAULT_REGION": extra.get("region_name"),
        "AWS_PROFILE": extra.get("profile_name"),
        "AWS_ENDPOINT_URL_S3": endpoint,
    }
    return {name: str(value) for name, value in named.items() if value}


def _json_connection(text: str) -> tuple[str, str, dict[str, Any]]:
    connection = json.loads(text)
    extra = connection.get("extra") or {}
    return (
        connection.get("login") or "",
        connection.get("password") or "",
        json.loads(extra) if isinstance(extra, str) else extra,
    )


def _uri_connection(text: str) -> tuple[str, str, dict[str, Any]]:
    found = urlsplit(text)
    query = dict(parse_qsl(found.query))
    extra = json.loads(query["__extra__"]) if "__extra__" in query else query
    return unquote(found.username or ""), unquote(found.password or ""), extra
