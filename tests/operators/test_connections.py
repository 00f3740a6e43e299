"""Recipes whose store or stream has its credentials in an Airflow connection, in real DAG runs."""

import io
import json
import logging
import os
from collections.abc import Iterable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from datetime import timedelta
from typing import Any
from urllib.parse import parse_qs

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from google.auth import jwt

from operators.connections import use_store, use_stream
from tasks.core.artifact import Artifact, ArtifactId
from tasks.core.errors import RecipeError
from tasks.core.store import Store
from tasks.run.recipe import find_recipe
from tests.airflow_home import states
from tests.kafka import Broker, Guarded
from tests.s3_server import SECRET, FaultyServer, S3Server
from tests.stores.conftest import azure_server, google_server
from tests.stores.servers import ACCOUNT, KEY, Azure, Google

__all__ = ["azure_server", "google_server"]

PREFIXES = ("AWS_", "AZURE_", "GOOGLE_", "SLUICE_GCS_KEY", "SLUICE_KAFKA")
ON_S3 = """
[place]
store = "s3://sluice/airflow"
store_conn_id = "lake"
"""


def environment() -> dict[str, str]:
    """The variables of this process that clients of stores and brokers read."""
    return {name: value for name, value in os.environ.items() if name.startswith(PREFIXES)}


@pytest.fixture(autouse=True)
def no_identity(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """This process has no credentials, and what a test sets ends with it."""
    held = environment()
    for name in held:
        del os.environ[name]
    yield
    for name in environment():
        del os.environ[name]
    os.environ.update(held)


@pytest.fixture
def connect(monkeypatch: pytest.MonkeyPatch):
    """Defines the Airflow connection "lake"."""
    return lambda **fields: monkeypatch.setenv("AIRFLOW_CONN_LAKE", json.dumps(fields))


@pytest.fixture
def connection(s3_server: S3Server, connect, monkeypatch: pytest.MonkeyPatch, tmp_path) -> S3Server:
    """The S3 server, configured only in Airflow's connection "lake"."""
    monkeypatch.setenv("SLUICE_CACHE", str(tmp_path / "cache"))
    extra = {"endpoint_url": s3_server.url, "region_name": "us-east-1"}
    connect(conn_type="aws", login="sluice", password=SECRET, extra=extra)
    return s3_server


def shown_by(run: Any, said: str, store: Store) -> list[str]:
    """Everything that a run has written: its output, its XComs and the files of its store."""
    shown = [said] + [json.dumps(one.xcom_pull(task_ids=one.task_id)) for one in run.get_task_instances()]
    return shown + [store.read(path).decode("latin-1") for path in store.list("")]


def copied_to_s3(artifact: Artifact, s3: S3Server, prefix: str) -> None:
    for path in artifact.store.list(""):
        s3.client().put_object(Bucket="sluice", Key=f"{prefix}/{path}", Body=artifact.store.read(path))


@pytest.fixture
def said(caplog) -> Iterator[Any]:
    """Returns what has been printed and logged so far, at the level DEBUG."""
    caplog.set_level(logging.DEBUG)
    printed = io.StringIO()
    with redirect_stdout(printed), redirect_stderr(printed):
        yield lambda: printed.getvalue() + caplog.text


def test_a_dag_uses_s3_through_its_connection_without_leaking_the_secret(
    recipes, dag_bag, documents, connection, tmp_path, said
):
    recipes("s3flow")
    local = documents("s3flow")
    here = dag_bag().dags["s3flow.tokens"].test()
    assert str(here.state) == "success"
    copied_to_s3(local, connection, "airflow")
    for kind in ("tokenizer", "shards", "plan"):
        connection.client().delete_object(Bucket="sluice", Key=f"airflow/s3flow/{kind}/dev/.artifact.json")
    recipes("s3flow", ON_S3)
    run = dag_bag().dags["s3flow.tokens"].test()
    assert str(run.state) == "success"
    plan = ArtifactId("s3flow/plan", "dev")
    there = Artifact.open_at(Store("s3://sluice/airflow"), plan)
    assert there.record.content == Artifact.open_at(Store(str(tmp_path / "store")), plan).record.content
    shown = shown_by(run, said(), there.store)
    assert any("s3flow/plan" in text for text in shown)
    assert not [text for text in shown if SECRET in text]


def test_a_task_whose_credentials_expire_is_tried_again_with_those_that_the_connection_has_then(
    recipes, dag_bag, s3_server, connect, monkeypatch
):
    monkeypatch.setattr("tasks.core.store.PROBE_LIMIT_S", 0.0)
    refused = []

    def log_in(session: str) -> None:
        extra = {"endpoint_url": server.url, "region_name": "us-east-1", "aws_session_token": session}
        connect(conn_type="aws", login="sluice", password=SECRET, extra=extra)

    def store(environ: dict[str, Any], start: Any) -> Iterable[bytes]:
        if environ.get("HTTP_X_AMZ_SECURITY_TOKEN") == "second":
            return s3_server.faults.app(environ, start)
        refused.append(environ["HTTP_X_AMZ_SECURITY_TOKEN"])
        log_in("second")
        start("400 Bad Request", [("Content-Type", "application/xml")])
        return [b"<Error><Code>ExpiredToken</Code><Message>it has expired</Message></Error>"]

    recipes("brief", ON_S3)
    dag = dag_bag().dags["brief.takedown"]
    for task in dag.tasks:
        task.retry_delay = timedelta(0)
    with FaultyServer(store) as server:
        log_in("first")
        run = dag.test(run_conf={"takedown.domains": "example.org"})
    assert states(run) == {"takedown": "success"}
    assert [one.try_number for one in run.get_task_instances()] == [2]
    assert set(refused) == {"first"}


def on_azure(server: Azure, kind: str) -> dict[str, Any]:
    """Returns the fields of a connection to Azurite."""
    host = f"{server.url}/{ACCOUNT}"
    token = server.environment["AZURE_STORAGE_CONNECTION_STRING"].partition("SharedAccessSignature=")[2]
    string = f"BlobEndpoint={host};AccountName={ACCOUNT};AccountKey={KEY}"
    return {
        "key": {"conn_type": "wasb", "host": host, "login": ACCOUNT, "password": KEY},
        "sas": {"conn_type": "adls", "host": host, "extra": {"sas_token": f"?{token}"}},
        "string": {"conn_type": "wasb", "extra": {"connection_string": string}},
    }[kind]


@pytest.mark.oracle("adlfs")
@pytest.mark.parametrize("kind", ["key", "sas", "string"])
def test_a_task_uses_azure_through_its_connection_without_leaking_the_secret(
    kind, recipes, dag_bag, azure_server, connect, said
):
    fields = on_azure(azure_server, kind)
    connect(**fields)
    recipes("blue", f'[place]\nstore = "abfs://sluice/{kind}"\nstore_conn_id = "lake"\n')
    run = dag_bag().dags["blue.takedown"].test(run_conf={"takedown.domains": "example.org"})
    assert str(run.state) == "success"
    shown = shown_by(run, said(), Store(f"abfs://sluice/{kind}"))
    assert any("blue/takedown@" in text for text in shown)
    signature = parse_qs(azure_server.environment["AZURE_STORAGE_CONNECTION_STRING"])["sig"][0]
    assert not [text for text in shown if KEY in text or signature in text]


class TokensOfGoogle:
    """Google's token server for one service account, and a store that accepts its token alone."""

    TOKEN = "granted-9b1f"

    def __init__(self, google: Google) -> None:
        self.store = google.layer
        private = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        self.public = private.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
        form = serialization.PrivateFormat.PKCS8
        pem = private.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()).decode()
        self.key = {"type": "service_account", "client_email": "sluice@example.iam", "private_key": pem}

    def __call__(self, environ: dict[str, Any], start: Any) -> Iterable[bytes]:
        if environ["PATH_INFO"] == "/token":
            body = environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"])).decode()
            claims = jwt.decode(parse_qs(body)["assertion"][0], certs=self.public)
            assert claims["iss"] == self.key["client_email"]
            start("200 OK", [("Content-Type", "application/json")])
            return [json.dumps({"access_token": self.TOKEN, "expires_in": 3600}).encode()]
        if environ.get("HTTP_AUTHORIZATION") == f"Bearer {self.TOKEN}":
            return self.store(environ, start)
        start("403 Forbidden", [])
        return [b'{"error": {"code": 403, "message": "no token"}}']


@pytest.mark.oracle("gcsfs")
@pytest.mark.parametrize("field", ["keyfile_dict", "key_path"])
def test_a_task_uses_google_through_its_connection_without_leaking_the_secret(
    field, recipes, dag_bag, google_server, connect, said, monkeypatch, tmp_path
):
    google = TokensOfGoogle(google_server)
    with FaultyServer(google) as server:
        for name, value in {**google_server.environment, "STORAGE_EMULATOR_HOST": server.url}.items():
            monkeypatch.setenv(name, value)
        key = json.dumps({**google.key, "token_uri": f"{server.url}/token"})
        (tmp_path / "key.json").write_text(key)
        value = key if field == "keyfile_dict" else str(tmp_path / "key.json")
        connect(conn_type="google_cloud_platform", extra={field: value})
        recipes("green", f'[place]\nstore = "gs://sluice/{field}"\nstore_conn_id = "lake"\n')
        run = dag_bag().dags["green.takedown"].test(run_conf={"takedown.domains": "example.org"})
        assert str(run.state) == "success"
        shown = shown_by(run, said(), Store(f"gs://sluice/{field}"))
    assert any("green/takedown@" in text for text in shown)
    secret = google.key["private_key"].splitlines()[5]
    assert not [text for text in shown if secret in text or google.TOKEN in text]


def test_a_task_reads_a_stream_through_its_connection_without_leaking_the_password(
    recipes, dag_bag, connect, said, tmp_path
):
    broker = Broker()
    broker.send({"text": "a message", "url": "https://news.example/1"})
    recipes(
        "wire",
        text=f"""
name = "wire"
[[extract.streams]]
name = "news"
topic = "articles"
[place]
store = "{tmp_path}/store"
stream_conn_id = "lake"
""",
    )
    with Guarded(broker, "reader", "s3cret-word") as guard:
        settings = {"bootstrap.servers": guard.address, "security.protocol": "SASL_PLAINTEXT"}
        settings |= {"sasl.mechanism": "PLAIN", "sasl.username": "reader", "sasl.password": "s3cret-word"}
        connect(conn_type="kafka", extra={**settings, "group.id": "another"})
        run = dag_bag().dags["wire.corpus"].partial_subset("stream").test()
    assert states(run) == {"stream": "success"}
    messages = Artifact.open_at(Store(f"{tmp_path}/store"), ArtifactId("wire/messages", "dev"))
    assert (messages.record.rows_out, guard.refused) == (1, 0)
    shown = shown_by(run, said(), messages.store)
    assert not [text for text in shown if "s3cret-word" in text]


def test_a_missing_connection_is_reported_at_once(recipes, connection):
    recipes("lost", ON_S3.replace("lake", "sea"))
    with pytest.raises(RecipeError, match=r'connection "sea" of lost cannot be used.*Admin > Connections'):
        use_store(find_recipe("lost"))


def test_the_identity_of_the_connection_replaces_an_inherited_one(recipes, connection, monkeypatch):
    recipes("other", ON_S3)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "somebody")
    monkeypatch.setenv("AWS_SESSION_TOKEN", "of-somebody-else")
    use_store(find_recipe("other"))
    assert os.environ["AWS_ACCESS_KEY_ID"] == "sluice"
    assert "AWS_SESSION_TOKEN" not in os.environ
    assert os.environ["AWS_ENDPOINT_URL_S3"] == connection.url


def test_each_try_reads_the_credentials_that_the_connection_has_then(recipes, connect):
    recipes("renewed", ON_S3)
    seen = []
    for number in (1, 2):
        connect(conn_type="aws", login=f"key-{number}", password=SECRET, extra={"aws_session_token": f"token-{number}"})
        use_store(find_recipe("renewed"))
        seen.append((os.environ["AWS_ACCESS_KEY_ID"], os.environ["AWS_SESSION_TOKEN"]))
    assert seen == [("key-1", "token-1"), ("key-2", "token-2")]


AZURE = "abfss://sluice@lake.dfs.core.windows.net/store"
PRINCIPAL = {"TENANT_ID": "t", "CLIENT_ID": "app", "CLIENT_SECRET": "s"}
KEYFILE = json.dumps({"type": "service_account", "private_key": "-"})


@pytest.mark.parametrize(
    ("store", "fields", "expected"),
    [
        (AZURE, {"conn_type": "wasb", "login": "lake", "password": "k"}, {"ACCOUNT_NAME": "lake", "ACCOUNT_KEY": "k"}),
        (AZURE, {"conn_type": "adls", "host": "lake", "password": "k"}, {"ACCOUNT_NAME": "lake", "ACCOUNT_KEY": "k"}),
        (
            AZURE,
            {"conn_type": "wasb", "login": "lake", "extra": {"extra__wasb__shared_access_key": "k"}},
            {"ACCOUNT_NAME": "lake", "ACCOUNT_KEY": "k"},
        ),
        (
            AZURE,
            {"conn_type": "wasb", "login": "lake", "extra": {"sas_token": "?sv=1&sig=x"}},
            {"ACCOUNT_NAME": "lake", "SAS_TOKEN": "sv=1&sig=x"},
        ),
        (
            AZURE,
            {"conn_type": "wasb", "extra": {"sas_token": "https://lake.blob.core.windows.net/?sv=1&sig=x"}},
            {"ACCOUNT_NAME": "lake", "SAS_TOKEN": "sv=1&sig=x"},
        ),
        (
            AZURE,
            {"conn_type": "wasb", "host": "https://lake.blob.core.windows.net", "login": "app", "password": "s"}
            | {"extra": {"tenant_id": "t"}},
            {"ACCOUNT_NAME": "lake", **PRINCIPAL},
        ),
        (
            AZURE,
            {"conn_type": "azure_data_lake", "login": "app", "password": "s"}
            | {"extra": {"tenant": "t", "account_name": "lake"}},
            {"ACCOUNT_NAME": "lake", **PRINCIPAL},
        ),
        (
            "abfs://sluice/store",
            {"conn_type": "wasb", "host": "lake.private.example", "login": "lake", "password": "k"},
            {"CONNECTION_STRING": "BlobEndpoint=https://lake.private.example;AccountName=lake;AccountKey=k"},
        ),
        (AZURE, {"conn_type": "adls", "host": "lake"}, {"ACCOUNT_NAME": "lake"}),
        ("gs://sluice", {"conn_type": "google_cloud_platform", "extra": {"project": "p"}}, {}),
    ],
)
def test_the_fields_of_a_connection_become_the_environment_of_the_stores_client(
    store, fields, expected, recipes, connect, monkeypatch
):
    monkeypatch.setenv("AZURE_STORAGE_SAS_TOKEN", "of somebody else")
    connect(**fields)
    recipes("mapped", f'[place]\nstore = "{store}"\nstore_conn_id = "lake"\n')
    use_store(find_recipe("mapped"))
    found = {name.removeprefix("AZURE_STORAGE_"): value for name, value in environment().items()}
    assert found == expected | ({} if store == AZURE or "abfs" in store else {"SAS_TOKEN": "of somebody else"})


@pytest.mark.oracle("adlfs")
def test_a_service_principal_and_a_managed_identity_reach_the_client(recipes, connect):
    from tasks.core.remote import connect as connect_to

    recipes("mapped", f'[place]\nstore = "{AZURE}"\nstore_conn_id = "lake"\n')
    extra = {"tenant_id": "11111111-1111-1111-1111-111111111111"}
    connect(conn_type="adls", host="lake", login="app", password="s", extra=extra)
    use_store(find_recipe("mapped"))
    client, _ = connect_to(AZURE)
    assert (client.account_name, type(client.sync_credential).__name__) == ("lake", "ClientSecretCredential")
    connect(conn_type="adls", host="lake", extra={"managed_identity_client_id": "id-1"})
    use_store(find_recipe("mapped"))
    client, _ = connect_to(AZURE)
    assert (client.account_name, type(client.sync_credential).__name__) == ("lake", "DefaultAzureCredential")
    assert os.environ["AZURE_CLIENT_ID"] == "id-1"


@pytest.mark.parametrize(
    ("store", "fields", "problem"),
    [
        ("s3://sluice", {"conn_type": "wasb"}, r'its type is "wasb", and not aws.*type aws'),
        ("gs://sluice", {"conn_type": "aws"}, r'its type is "aws", and not google_cloud_platform'),
        (AZURE, {"conn_type": "aws"}, r'its type is "aws", and not wasb or adls or azure_data_lake'),
        ("/data/store", {"conn_type": "aws"}, r"no connection is read for the store /data/store"),
        (
            AZURE,
            {"conn_type": "adls", "host": "sea", "password": SECRET},
            r"its account is sea, and that of the store lake",
        ),
        (
            AZURE,
            {"conn_type": "wasb", "extra": {"connection_string": f"AccountName=sea;AccountKey={SECRET}"}},
            r"its account is sea, and that of the store lake",
        ),
        (AZURE, {"conn_type": "adls", "host": "lake", "extra": {"tenant_id": "t"}}, r"a tenant, and no client id"),
        (
            "abfs://sluice",
            {"conn_type": "wasb", "host": "lake.private.example", "login": "app", "password": SECRET}
            | {"extra": {"tenant_id": "t"}},
            r"https://lake.private.example is no host of Azure, and so needs a key or a SAS token",
        ),
        (
            "gs://sluice",
            {"conn_type": "google_cloud_platform", "extra": {"keyfile_dict": f"{{'private_key': '{SECRET}'}}"}},
            r"keyfile_dict is not the JSON of a service account's key",
        ),
        (
            "gs://sluice",
            {"conn_type": "google_cloud_platform", "extra": {"impersonation_chain": "a@example.iam"}},
            r"its field impersonation_chain is not supported",
        ),
    ],
)
def test_a_connection_that_does_not_fit_the_store_is_refused_in_one_line(store, fields, problem, recipes, connect):
    connect(**fields)
    recipes("unfit", f'[place]\nstore = "{store}"\nstore_conn_id = "lake"\n')
    with pytest.raises(RecipeError, match=problem) as raised:
        use_store(find_recipe("unfit"))
    assert "\n" not in str(raised.value)
    assert SECRET not in str(raised.value)


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"conn_type": "aws"}, r'its type is "aws", and not kafka'),
        ({"conn_type": "kafka", "extra": {"sasl.password": SECRET}}, r'its extra has no "bootstrap.servers"'),
    ],
)
def test_a_connection_without_a_broker_is_refused_in_one_line(fields, problem, recipes, connect):
    connect(**fields)
    recipes("mute", '[place]\nstream_conn_id = "lake"\n')
    with pytest.raises(RecipeError, match=problem) as raised:
        use_stream(find_recipe("mute"))
    assert SECRET not in str(raised.value)


PEM = "-----BEGIN PRIVATE KEY-----\nplanted-pem-77aa\n-----END PRIVATE KEY-----\n"


@pytest.mark.parametrize(
    ("place", "fields", "secrets"),
    [
        (
            f'store = "{AZURE}"\nstore_conn_id = "lake"',
            {"conn_type": "wasb", "login": "lake", "extra": {"sas_token": "?sv=1&sig=planted%2Fsig"}},
            ("sv=1&sig=planted%2Fsig", "planted/sig"),
        ),
        (
            f'store = "{AZURE}"\nstore_conn_id = "lake"',
            {"conn_type": "wasb", "extra": {"connection_string": "AccountName=lake;AccountKey=planted-3b=="}},
            ("planted-3b==",),
        ),
        (
            f'store = "{AZURE}"\nstore_conn_id = "lake"',
            {"conn_type": "wasb", "login": "lake", "extra": {"shared_access_key": "planted-7d"}},
            ("planted-7d",),
        ),
        (
            'store = "gs://sluice"\nstore_conn_id = "lake"',
            {"conn_type": "google_cloud_platform"} | {"extra": {"keyfile_dict": json.dumps({"private_key": PEM})}},
            (PEM,),
        ),
        (
            'stream_conn_id = "lake"',
            {"conn_type": "kafka", "extra": {"bootstrap.servers": "b:1", "ssl.key.pem": PEM.replace("77aa", "99bb")}},
            (PEM.replace("77aa", "99bb"),),
        ),
    ],
)
def test_airflow_masks_the_secrets_of_a_connection_in_logs(place, fields, secrets, recipes, connect):
    from airflow.sdk._shared.secrets_masker import redact

    connect(**fields)
    recipes("masked", f"[place]\n{place}\n")
    use_store(find_recipe("masked"))
    use_stream(find_recipe("masked"))
    assert [redact(f"GET {secret} failed") for secret in secrets] == ["GET *** failed" for _ in secrets]
