"""Gives these tests a separate Airflow home, the API server with its users, and a small recipe of hostile texts."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tasks.core.artifact import ArtifactId, InputRef
from tasks.core.commit import commit
from tasks.core.config import Config
from tasks.core.stage import Output, Report
from tasks.core.store import Store
from tests.airflow_home import airflow_db, dag_bag, recipes

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
              "bytes": [900, 100]}  # fmt: skip
    with output.part("part-00000-of-00001", conserved=False) as part:
        part.count_in(2)
        part.table("kept", pa.table(kept))
        part.table("rejected", pa.table(lost), out=False)
    with output.part("funnel", conserved=False) as part, part.file("funnel.parquet") as file:
        pq.write_table(pa.table(funnel), file)
    refs = [InputRef(role="extracted", address="shown/extracted@v1", fingerprint="1" * 64, content="2" * 64)]
    return commit(output, "consolidate", 1, Config(), refs, Report(note=HOSTILE))
