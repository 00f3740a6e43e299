"""Credentials from Airflow connections: those of a recipe's store and of its Kafka broker, for the task's process.

`[place] store_conn_id` and `stream_conn_id` name connections of the types of Airflow's providers, by the fields that
these document; no provider but Amazon's is needed. Stages do not depend on Airflow, so the fields become environment
variables, from which they and their subprocesses read credentials like any client of the store. Airflow forks one
process per task, so nothing outlives the task; the values never reach a pod, an artifact or an XCom, and Airflow masks
them in logs. A connection is read anew by each try: if credentials expire, the store raises a TransientError, and the
next try resumes at the first missing part with those that the connection has then.
"""

import json
import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tasks.core.errors import RecipeError
from tasks.run.place import expand_env
from tasks.run.recipe import Recipe

Settings = Mapping[str, str | None]
"""Environment variables; those without a value are left as they are."""

_INHERITED = {
    "s3": ("AWS_SESSION_TOKEN", "AWS_SECURITY_TOKEN", "AWS_PROFILE"),
    "gs": ("SLUICE_GCS_KEY", "GOOGLE_APPLICATION_CREDENTIALS"),
    "abfs": tuple(
        f"AZURE_STORAGE_{name}"
        for name in (
            *("ACCOUNT_NAME", "ACCOUNT_KEY", "SAS_TOKEN", "CONNECTION_STRING"),
            *("CLIENT_ID", "CLIENT_SECRET", "TENANT_ID", "ANON"),
        )
    ),
}
"""Settings of another identity that the process may have inherited, by kind of store."""

_AZURE_HOSTS = (".blob.core.windows.net", ".dfs.core.windows.net")

_UNREAD = {
    "gs": ("key_secret_name", "impersonation_chain", "idp_issuer_url", "is_anonymous"),
    "abfs": ("client_secret_auth_config",),
}
"""Fields of the providers that would choose another identity, and are refused."""


class Unusable(Exception):
    """A connection lacks a field, or has one that is not understood; the text names the field and no value."""


def use_store(recipe: Recipe) -> None:
    """Makes the connection of `[place] store_conn_id` this process's identity at the store; without one, does nothing.

    Raises:
        RecipeError: the connection does not exist, is of a type for another store, or cannot be used.
    """
    if not recipe.place.store_conn_id:
        return
    # Imported here, because DAG files import this module and must not import fsspec.
    from tasks.core.remote import AZURE, GCS, S3, protocol_of

    root = expand_env(recipe.place.store)
    protocols = {"s3": S3, "gs": GCS, "abfs": AZURE}
    kind = next((kind for kind, some in protocols.items() if protocol_of(root) in some), None)
    if kind is None:
        raise RecipeError(f"no connection is read for the store {root} of {recipe.name}", "empty [place] store_conn_id")
    types, read = _STORES[kind]
    settings = _read(recipe, "store_conn_id", types, partial(read, root=root))
    for name in _INHERITED[kind]:
        os.environ.pop(name, None)
    _adopt(settings)


def use_stream(recipe: Recipe) -> None:
    """Makes the connection of `[place] stream_conn_id` the settings of the Kafka client; without one, does nothing.

    Raises:
        RecipeError: the connection does not exist, is not of the type "kafka", or names no broker.
    """
    if recipe.place.stream_conn_id:
        _adopt(_read(recipe, "stream_conn_id", ("kafka",), _kafka))


def _read(recipe: Recipe, field: str, types: Sequence[str], settings_of: Callable[[Any], Settings]) -> Settings:
    from airflow.sdk import BaseHook
    from airflow.sdk.exceptions import AirflowException

    conn_id = expand_env(getattr(recipe.place, field))
    kinds = " or ".join(types)
    try:
        connection = BaseHook.get_connection(conn_id)
        if connection.conn_type not in types:
            raise Unusable(f'its type is "{connection.conn_type}", and not {kinds}')
        settings = settings_of(connection)
    except (AirflowException, Unusable) as error:
        raise RecipeError(
            f'the connection "{conn_id}" of {recipe.name} cannot be used ({" ".join(str(error).split())})',
            f"correct it under Admin > Connections (type {kinds}), or [place] {field}",
        ) from None
    return settings


def _adopt(settings: Settings) -> None:
    os.environ.update({name: value for name, value in settings.items() if value})


def _field(connection: Any, *names: str) -> str:
    """Returns the first field of `extra` that is set, by its name or as older providers wrote it; "" if none is."""
    extra, prefix = connection.extra_dejson, f"extra__{connection.conn_type}__"
    values = (extra.get(key) for name in names for key in (name, prefix + name))
    return next((value if isinstance(value, str) else json.dumps(value) for value in values if value), "")


def _refuse_unread(connection: Any, kind: str) -> None:
    if found := [name for name in _UNREAD[kind] if _field(connection, name)]:
        raise Unusable(f"its field {found[0]} is not supported")


def _aws(connection: Any, root: str) -> Settings:
    from airflow.providers.amazon.aws.hooks.base_aws import AwsGenericHook

    hook = AwsGenericHook(aws_conn_id=connection.conn_id, client_type="s3")
    config = hook.conn_config
    settings = {
        "AWS_DEFAULT_REGION": config.region_name,
        "AWS_ENDPOINT_URL_S3": config.get_service_endpoint_url(service_name="s3"),
    }
    if not (config.aws_access_key_id or config.role_arn):
        # The machine's own role: clients refresh its credentials themselves, so they are not copied.
        return settings
    credentials = hook.get_credentials()
    keys = {"AWS_ACCESS_KEY_ID": credentials.access_key, "AWS_SECRET_ACCESS_KEY": credentials.secret_key}
    return {**settings, **keys, "AWS_SESSION_TOKEN": credentials.token}


def _google(connection: Any, root: str) -> Settings:
    """Returns the key of a service account, or the file of one; neither: the machine's own identity."""
    _refuse_unread(connection, "gs")
    text = _field(connection, "keyfile_dict")
    if not text:
        path = _field(connection, "key_path", "credential_config_file")
        return {"GOOGLE_APPLICATION_CREDENTIALS": path or os.environ.get("GOOGLE_APPLICATION_CREDENTIALS")}
    try:
        key = json.loads(text)["private_key"]
    except (ValueError, KeyError, TypeError):  # the text may have a key, so it is in no message
        raise Unusable("its field keyfile_dict is not the JSON of a service account's key") from None
    _mask(key)
    return {"SLUICE_GCS_KEY": text}


def _azure(connection: Any, root: str) -> Settings:
    """Returns, in the order of the provider: connection string, service principal, key or SAS token, own identity."""
    _refuse_unread(connection, "abfs")
    if text := _field(connection, "connection_string"):
        parts = dict(part.partition("=")[::2] for part in text.split(";"))
        _check_account(parts.get("AccountName", ""), root)
        _mask(parts.get("AccountKey", ""), parts.get("SharedAccessSignature", ""))
        return _storage(connection_string=text)
    account, endpoint = _azure_account(connection)
    _check_account(account, root)
    if tenant := _field(connection, "tenant_id", "tenant"):
        if not (connection.login and connection.password):
            raise Unusable("it has a tenant, and no client id (login) or no secret (password)")
        _check_host(endpoint)
        principal = {"client_id": connection.login, "client_secret": connection.password}
        return _storage(account_name=account, tenant_id=tenant, **principal)
    key, token = _azure_secret(connection)
    _mask(key, token, *parse_qs(token).get("sig", ()))
    if not (key or token):
        _check_host(endpoint)
        names = {"AZURE_CLIENT_ID": "managed_identity_client_id", "AZURE_TENANT_ID": "workload_identity_tenant_id"}
        own = {variable: _field(connection, name) for variable, name in names.items()}
        return {**_storage(account_name=account), **own}
    if endpoint:
        secret = f"AccountName={account};AccountKey={key}" if key else f"SharedAccessSignature={token}"
        return _storage(connection_string=f"BlobEndpoint={endpoint};{secret}")
    return _storage(account_name=account, account_key=key, sas_token=token)


def _azure_secret(connection: Any) -> tuple[str, str]:
    """Returns the account's key and "", or "" and a SAS token, which may be the query of a URL; or "" twice."""
    if key := _field(connection, "shared_access_key"):
        return key, ""
    if token := _field(connection, "sas_token").rpartition("?")[2]:
        return "", token
    return connection.password or _field(connection, "account_key"), ""


def _azure_account(connection: Any) -> tuple[str, str]:
    """Returns the storage account, and the URL of its blobs if that is not Azure's; "" for what is not said.

    The account is the field account_name, or the host (a name, or the beginning of a URL), or the login, which of a
    service principal is its client id.
    """
    account, sas = _field(connection, "account_name"), _field(connection, "sas_token")
    login = "" if _field(connection, "tenant_id", "tenant") else connection.login or ""
    host = sas.partition("?")[0] if "://" in sas else connection.host or ""
    if "." not in host and ":" not in host:
        return account or (host if connection.conn_type == "adls" else login or host), ""
    url = host if "://" in host else f"https://{host}"
    name = urlsplit(url).hostname or ""
    if name.endswith(_AZURE_HOSTS):
        return account or name.partition(".")[0], ""
    return account or login or name.partition(".")[0], url.rstrip("/")


def _check_account(account: str, root: str) -> None:
    named = (urlsplit(root).hostname or "").partition(".")[0] if "@" in root else ""
    if account and named and named != account:
        raise Unusable(f"its account is {account}, and that of the store {named}")


def _check_host(endpoint: str) -> None:
    if endpoint:
        raise Unusable(f"{endpoint} is no host of Azure, and so needs a key or a SAS token")


def _storage(**settings: str) -> Settings:
    return {f"AZURE_STORAGE_{name.upper()}": value for name, value in settings.items()}


_STORES: Mapping[str, tuple[Sequence[str], Callable[..., Settings]]] = {
    "s3": (("aws",), _aws),
    "gs": (("google_cloud_platform",), _google),
    "abfs": (("wasb", "adls", "azure_data_lake"), _azure),
}
"""Types of connections by kind of store, and the function that reads them."""


def _kafka(connection: Any) -> Settings:
    from tasks.stages.extract.stream import KAFKA

    settings = connection.extra_dejson
    if not settings.get("bootstrap.servers"):
        raise Unusable('its extra has no "bootstrap.servers"')
    _mask(settings.get("ssl.key.pem") or "")
    return {KAFKA: json.dumps(settings)}


def _mask(*secrets: str) -> None:
    """Masks values in logs that Airflow does not recognize by the names of their fields."""
    from airflow.sdk.log import mask_secret

    for secret in filter(None, secrets):
        mask_secret(secret)
