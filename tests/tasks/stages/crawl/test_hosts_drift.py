"""Through the runner: a changed hosts file is not drift, applies to the next version, and is named in records."""

import json

import pytest

from tasks.core.artifact import Artifact, ArtifactId
from tasks.core.ledger import Ledger
from tasks.core.store import Store
from tasks.run.recipe import Recipe
from tasks.run.runner import run_stage
from tasks.run.tracking import TrackingContext
from tasks.stages.crawl.policy import HostsFile

RECIPE = """
name = "hosts-recipe"
[crawl]
seeds = ["http://a.localhost/", "http://b.localhost/"]
allow_loopback = true
partitions = 1
hosts_file = "{folder}/hosts.toml"
[canary]
seeds = [0, 1]
[place]
store = "{folder}/store"
"""


@pytest.fixture
def recipe(tmp_path):
    path = tmp_path / "hosts-recipe.toml"
    path.write_text(RECIPE.format(folder=tmp_path))
    (tmp_path / "hosts.toml").write_text("")
    return Recipe.load(path)


@pytest.fixture
def listed(recipe, tmp_path):
    """Runs a cycle up to its fetch list; returns the list, whether it existed already, and its URLs."""

    def run(version):
        for stage in ("inject", "rank"):
            run_stage(recipe, stage, version=version, tracking=TrackingContext("", "hosts"))
        made = run_stage(recipe, "generate", version=version, member="p0", tracking=TrackingContext("", "hosts"))
        artifact = Artifact.open_at(Store(str(tmp_path / "store")), ArtifactId.parse(made.address))
        return artifact, made.skipped, artifact.table("urls.parquet").column("url").to_pylist()

    return run


def test_a_changed_hosts_file_is_not_drift_and_applies_to_the_next_version(listed, tmp_path):
    first, skipped, urls = listed("v1")
    assert (skipped, len(urls)) == (False, 2)
    (tmp_path / "hosts.toml").write_text('deny = ["b.localhost"] # Mrs Doe has asked us on the 22nd\n')
    again, skipped, urls = listed("v1")
    assert (skipped, len(urls)) == (True, 2)
    assert again.record == first.record
    second, skipped, urls = listed("v2")
    assert (skipped, urls) == (False, ["http://a.localhost/"])
    assert second.record.config == first.record.config
    assert second.record.fingerprint != first.record.fingerprint


def test_records_name_the_hosts_file_and_the_fetch_list_has_a_copy_without_comments(listed, tmp_path):
    first, *_ = listed("v1")
    (tmp_path / "hosts.toml").write_text('deny = ["b.localhost"] # Mrs Doe has asked us on the 22nd\n')
    second, *_ = listed("v2")
    named = [{ref.role: ref for ref in one.record.inputs}["hosts_file"] for one in (first, second)]
    assert {ref.address for ref in named} == {"external:hosts_file"}
    assert named[0].content != named[1].content
    assert Ledger(second.store).ancestors(str(second.address))[0] in {ref.address for ref in second.record.inputs}
    held = second.read("policy.json")
    assert HostsFile.model_validate(json.loads(held)["file"]) == HostsFile(deny=("b.localhost",))
    assert b"Doe" not in held


def test_a_hosts_file_on_an_object_store_works_like_a_local_one(recipe, s3):
    folder = f"s3://{s3.buckets[0]}/operators"
    with Store(folder).write("hosts.toml") as file:
        file.write(b'deny = ["b.localhost"]')
    away = recipe.override({"crawl.hosts_file": f"{folder}/hosts.toml"})
    for stage, member in (("inject", ""), ("rank", ""), ("generate", "p0")):
        made = run_stage(away, stage, version="v1", member=member, tracking=TrackingContext("", "hosts"))
    artifact = Artifact.open_at(Store(away.place.store), ArtifactId.parse(made.address))
    assert artifact.table("urls.parquet").column("url").to_pylist() == ["http://a.localhost/"]
    assert "hosts_file" in {ref.role for ref in artifact.record.inputs}
