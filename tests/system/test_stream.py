"""A stream through the real scheduler, with the broker and its password in an Airflow connection."""

import json

import pytest

from tasks.demo.home import CHECKOUT
from tests.kafka import Broker, Guarded

pytestmark = pytest.mark.soak


def connection(guard: Guarded, password: str) -> dict[str, str]:
    settings = {"bootstrap.servers": guard.address, "security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN"}
    extra = {**settings, "sasl.username": "reader", "sasl.password": password}
    return {"connection_id": "wire_kafka", "conn_type": "kafka", "extra": json.dumps(extra)}


def test_each_run_reads_what_is_new_with_the_password_that_the_connection_has_then(stack) -> None:
    pages = [
        {"text": path.read_text(), "url": f"https://docs.example/{path.name}"}
        for path in sorted((CHECKOUT / "docs").glob("*.md"))
    ]
    broker = Broker()
    for version, password, sent in (("1", "first-pass-4f", pages[:9]), ("2", "second-pass-7c", pages[9:])):
        broker.send(*sent)
        with Guarded(broker, "reader", password) as guard:
            method, path = ("POST", "/connections") if version == "1" else ("PATCH", "/connections/wire_kafka")
            stack.airflow.call(method, path, json=connection(guard, password))
            assert stack.run("wire.corpus", {"version": version})["state"] == "success"
        messages = stack.artifact("wire/messages", version).record
        assert (messages.rows_out, guard.refused) == (len(sent), 0)
    (asset,) = stack.airflow.pages("/assets", "assets", name_pattern="wire/streams")
    (state,) = stack.airflow.call("GET", f"/assets/{asset['id']}/state-store")["asset_state_store"]
    assert (state["key"], state["value"]["version"]) == ("news/articles", "2")
    assert state["value"]["next_offsets"] == {"0": len(pages), "1": 0, "2": 0, "3": 0}
    texts = [path.read_bytes() for path in stack.home.root.rglob("*") if path.is_file()]
    assert any(b"wire/messages@2" in text for text in texts)
    assert not [text for text in texts if b"first-pass-4f" in text or b"second-pass-7c" in text]
