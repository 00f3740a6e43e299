"""OpenLineage events of real DAG runs, as Airflow's provider sends them to a receiver on loopback."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from operators.lineage import _schema_of
from tasks.core import commit as committing
from tasks.core import manifest
from tasks.core.artifact import ArtifactId
from tasks.core.commit import commit
from tasks.core.config import Config
from tasks.core.ledger import Ledger
from tasks.core.stage import Output, Report
from tasks.core.store import Store
from tasks.core.version_index import dependencies
from tests.airflow_home import states
from tests.tasks.stages.crawl.site import Site

RECIPE = """
name = "{name}"
[crawl]
seeds = ["{seed}"]
allow_loopback = true
delay_s = 0.0
latency_factor = 0.0
partitions = 2
[consolidate]
filters = []
[tokenizer]
vocab_size = 300
[pack]
seq_len = 64
"""


class Receiver:
    """An HTTP server that keeps the events that it is sent."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        events = self.events

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                events.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_arguments: Any) -> None:
                pass

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever)


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Receiver]:
    from airflow.listeners.listener import get_listener_manager
    from airflow.providers.openlineage.plugins.listener import get_openlineage_listener
    from airflow.sdk.listener import get_listener_manager as of_tasks

    made = Receiver()
    made.thread.start()
    transport = {"type": "http", "url": f"http://127.0.0.1:{made.server.server_port}", "endpoint": "lineage"}
    monkeypatch.setenv("AIRFLOW__OPENLINEAGE__TRANSPORT", json.dumps(transport))
    # Events are sent by forked processes, for which Airflow waits at most this long.
    monkeypatch.setenv("AIRFLOW__OPENLINEAGE__EXECUTION_TIMEOUT", "300")
    # Both are made once per process, by an earlier test without a transport and so without the provider's listener.
    managers, listener = (get_listener_manager(), of_tasks()), get_openlineage_listener()
    for manager in managers:
        manager.add_listener(listener)
    yield made
    for manager in managers:
        manager.pm.unregister(listener)
    made.server.shutdown()
    made.thread.join()
    made.server.server_close()


def _addresses(datasets: list[dict[str, Any]], store: Store) -> list[str]:
    """Returns the artifacts of datasets, name@version."""
    assert {one["namespace"] for one in datasets} <= {"file"}
    names = [(one["name"].removeprefix(f"{store.root}/"), one["facets"]["version"]) for one in datasets]
    return [f"{name}@{version['datasetVersion']}" for name, version in names]


def _edges(event: dict[str, Any], store: Store) -> list[tuple[str, str]]:
    inputs, outputs = (_addresses(event[side], store) for side in ("inputs", "outputs"))
    return [(read, made) for read in inputs for made in outputs]


def _task(address: str) -> str:
    return "open/attributes@v1" if "/measured/" in address else address


@pytest.mark.oracle("openlineage")
def test_the_events_have_the_edges_of_the_ledger_and_its_counts(recipes, dag_bag, receiver: Receiver, tmp_path: Path):
    text = " ".join(f"Page {number} says what the others do not say about the number {number}." for number in range(30))
    with Site({"/": f"<a href=/b>b</a><p>{text}</p>", "/b": f"<p>Another. {text[::2]}</p>"}) as site:
        recipes("open", text=RECIPE.format(name="open", seed=site.url()))
        for part in ("crawl", "corpus", "tokens"):
            run = dag_bag().dags[f"open.{part}"].test(run_conf={"version": "v1"})
            assert set(states(run).values()) == {"success"}
    store = Store(str(tmp_path / "store"))
    records = {str(one.address): one.record for one in Ledger(store)}
    complete = [one for one in receiver.events if one["eventType"] == "COMPLETE" and one["outputs"]]
    # The measurements and the attributes that list them are made by one task.
    edges = {(read, _task(made)) for event in complete for read, made in _edges(event, store)}
    made_from = {(read, _task(made)) for made in records for read in dependencies(records[made])}
    assert edges == {(read, made) for read, made in made_from if "@" in read and _task(read) != made}
    for event in complete:
        addresses = _addresses(event["outputs"], store)
        address, output = addresses[0], event["outputs"][0]
        assert all("/measured/" in other and records.pop(other) for other in addresses[1:])
        record, facets = records.pop(address), event["run"]["facets"]
        assert output["outputFacets"]["outputStatistics"]["rowCount"] == record.rows_out
        assert facets["sluice_stage"]["rejected"] == record.rejected
        assert facets["sluice_stage"]["fingerprint"] == record.fingerprint
        assert facets["parent"]["job"]["name"] == event["job"]["name"].rpartition(".")[0]
        if address == "open/documents@v1":
            columns = output["facets"]["columnLineage"]["fields"]
            assert columns["url"]["inputFields"][0]["transformations"][0]["subtype"] == "IDENTITY"
            assert columns["text"]["inputFields"][0]["transformations"][0]["masking"]
            assert {one["name"] for one in output["facets"]["schema"]["fields"]} >= columns.keys() | {"tier"}
    assert not records


def test_the_schema_of_rows_is_read_from_one_manifest_and_its_loss_stops_no_event(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(committing, "PARTS_IN_MANIFEST", 1)
    output = Output(Store(str(tmp_path)), ArtifactId("open/rows", "v1"), "1" * 64)
    for number in range(3):
        with output.part(f"part-{number}", conserved=False) as part:
            part.count_in(2)
            part.count_out(2)
            part.write_table(f"rows/{part.name}.parquet", pa.table({"a": [1, 2]}))
            part.write(f"keys/{part.name}.bin", bytes(10_000), rows=2)
    artifact = commit(output, "toy", 1, Config(), (), Report())
    paths = [f"{artifact.path}/{one.path}" for one in artifact.record.manifests]
    for first, schema in ((1, pa.schema({"a": pa.int64()})), (0, None)):
        manifest._GROUPS._groups.clear()
        artifact.store.remove_files(paths[first:])
        assert _schema_of(artifact) == schema
