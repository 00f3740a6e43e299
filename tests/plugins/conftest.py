"""Gives these tests a separate Airflow home, the API server with its users, and a small recipe of hostile texts."""

import shutil

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tasks.core.artifact import ArtifactId, InputRef
from tasks.core.commit import commit
from tasks.core.config import Config
from tasks.core.stage import Output, Report
from tasks.core.store import Store
from tests.airflow_home import airflow_db, dag_bag, recipes
from tests.corpora import corpus as corpus_rows
from tests.corpora import documents_in, tokens_in
from tests.taken_down import take_down

__all__ = ["airflow_db", "dag_bag", "recipes"]

HOSTILE = '<script>alert("x")</script><img src=x onerror=alert(1)>'


@pytest.fixture(scope="session")
def client(airflow_db):
    """The API server's application with this repository's plugin, without a login."""
    from airflow.api_fastapi.app import create_app
    from starlette.testclient import TestClient

    with TestClient(create_app(apps="core"), base_url="http://127.0.0.1") as client:
        yield client


@pytest.fixture
def browse(client):
    """Sends a request as a user with a role of the simple auth manager, like a browser on a page of the server."""
    from airflow.api_fastapi.app import get_auth_manager
    from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser

    def browse(role, method, path, **more):
        user = SimpleAuthManagerUser(username=role, role=role)
        client.cookies.set("_token", get_auth_manager().generate_jwt(user))
        headers = {"Sec-Fetch-Site": "same-origin", **more.pop("headers", {})}
        try:
            return client.request(method, path, headers=headers, **more)
        finally:
            client.cookies.clear()

    return browse


@pytest.fixture
def get(browse):
    """Reads a page as a user who may read, and not change anything."""
    return lambda path: browse("viewer", "GET", path)


@pytest.fixture
def corpus(recipes, tmp_path):
    """A recipe `shown` with a small documents artifact whose every text is hostile."""
    recipes("shown")
    output = Output(Store(str(tmp_path / "store")), ArtifactId("shown/documents", "v1"), "0" * 64)
    kept = {"id": ["0" * 32], "title": [HOSTILE], "url": [f"http://site.localhost/0?{HOSTILE}"], "source": [HOSTILE],
            "prose_score": [0.5], "tier": ["silver"], "text": [HOSTILE * 40], "record_id": [""],
            "host": ["site.localhost"]}  # fmt: skip
    lost = {"id": ["1" * 32], "url": ["http://site.localhost/1"], "source": ["web"], "reason": [HOSTILE],
            "reasons": [[HOSTILE, "short"]]}  # fmt: skip
    funnel = {"source": ["web", "web"], "step": ["kept", "quality"], "reason": ["", HOSTILE], "documents": [3, 1],
              "bytes": [900, 100], "language": ["ja", HOSTILE]}  # fmt: skip
    with output.part("part-00000-of-00001", conserved=False) as part:
        part.count_in(2)
        part.table("kept", pa.table(kept))
        part.table("rejected", pa.table(lost), out=False)
    with output.part("funnel", conserved=False) as part, part.file("funnel.parquet") as file:
        pq.write_table(pa.table(funnel), file)
    refs = [InputRef(role="extracted", address="shown/extracted@v1", fingerprint="1" * 64, content="2" * 64)]
    return commit(output, "consolidate", 1, Config(), refs, Report(note=HOSTILE))


@pytest.fixture(scope="session")
def _versions(tmp_path_factory):
    """A store with two versions of documents and tokens of `test`, and a takedown after them."""
    folder = tmp_path_factory.mktemp("versions")
    rows = corpus_rows(60)
    short = {"reason": "short", "reasons": ["short"], "language": "en"}
    documents_in(folder, rows[:50], 3, [{**row, **short} for row in rows[50:]], version="v1")
    documents_in(folder, rows[10:], 3, [{**row, **short, "reason": HOSTILE} for row in rows[:4]], version="v2")
    for version in ("v1", "v2"):
        tokens_in(folder, version=version)
    take_down(folder, "t1", urls=f"{rows[20]['url']}\nhttps://nowhere.example/", reason=HOSTILE, requested_by=HOSTILE)
    return folder


@pytest.fixture
def versions(_versions, recipes, tmp_path):
    """Folder of a store of its own with what `_versions` has, and its recipe."""
    recipes("test")
    shutil.copytree(_versions, tmp_path / "store")
    return tmp_path / "store"
