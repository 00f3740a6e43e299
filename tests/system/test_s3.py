"""The demo with its store on S3 and parts on a Dask cluster, with failing requests, writes the same bytes."""

import json
import os
import urllib.request
from pathlib import Path

import pytest

from tasks.core.artifact import TRACKING, Artifact, ArtifactId
from tasks.core.ledger import Ledger
from tasks.core.store import Store
from tasks.demo.drive import DagChain
from tasks.formats.warc.archive import INDEX
from tests.s3_server import SECRET

pytestmark = pytest.mark.soak

KINDS = ["extracted", "attributes", "duplicates", "documents", "tokenizer", "shards", "plan", "arms/round-1", "mixture"]
KINDS += ["checkpoint", "scores"]
ROOT = "s3://sluice/lake"


@pytest.fixture(scope="module")
def lake(stack, smoke) -> Store:
    """The store on S3 after the whole demo on the captures of `smoke`, which were made in a folder."""
    store, folder = Store(ROOT), stack.home.root / "store"
    for kind, recipe in (("warc", "lake"), ("segment", "smoke")):
        for path in sorted((folder / "smoke" / kind).rglob("*")):
            if path.is_file():
                with store.write(f"{recipe}/{path.relative_to(folder / 'smoke')}") as file:
                    file.write(path.read_bytes())
    chain = DagChain(stack.airflow, "lake")
    chain.dag_runs = chain.dag_runs[1:]
    chain.start({})
    for _ in chain.follow():
        pass
    return store


def artifact(store: Store, kind: str, version: str = "dev") -> Artifact:
    return Artifact.open_at(store, ArtifactId(f"lake/{kind}", version))


@pytest.mark.timeout(1500)
def test_the_demo_writes_the_same_bytes_on_s3_with_dask_as_in_a_folder(stack, lake) -> None:
    for kind in KINDS:
        there, here = artifact(lake, kind).record, stack.artifact(f"smoke/{kind}").record
        assert there.fingerprint == here.fingerprint, kind
        assert there.content == here.content, kind


def test_a_third_of_the_requests_failed_meanwhile(lake) -> None:
    with urllib.request.urlopen(os.environ["AWS_ENDPOINT_URL_S3"] + "/__faults") as answer:
        told = json.loads(answer.read())
    assert sum(told["faults"].values()) > 0.2 * told["requests"] > 100


def test_the_bucket_has_complete_artifacts_and_nothing_else(lake) -> None:
    named, found = set(), list(Ledger(lake, "lake"))
    assert len(found) > len(KINDS)
    for one in found:
        assert not one.verify(), one.address
        named |= {f"{one.address.path}/{path}" for path in (*one.files(), *one.record_paths)}
    beside = {path for path in lake.list("lake") if path.rpartition("/")[2] != TRACKING}
    assert beside == named


@pytest.mark.timeout(600)
def test_a_crawl_on_s3_captures_the_same_pages_as_one_in_a_folder(stack, lake) -> None:
    stack.pause("lake.corpus", True)
    assert stack.run("lake.crawl", {"version": "again"})["state"] == "success"
    there = captured(artifact(lake, "warc", "again"))
    assert there == captured(stack.artifact("smoke/warc"))
    assert there


def captured(warc: Artifact) -> set[tuple[str, str]]:
    lines = warc.read(INDEX).decode().splitlines()
    return {(line["url"], line["digest"]) for line in (json.loads(text[text.index("{") :]) for text in lines)}


def test_the_secret_is_in_no_log_and_no_artifact(stack, lake) -> None:
    for path in Path(stack.home.root).rglob("*"):
        # MLflow's and Airflow's databases, the logs of all services and tasks, the artifacts in the folder.
        if path.is_file() and "secrets" not in path.parts:
            assert SECRET.encode() not in path.read_bytes(), path
    for path in lake.list(""):
        assert SECRET.encode() not in lake.read(path), path
