"""A parse of the dag-processor makes only the DAGs of recipes that have changed, and shows what a full parse would."""

import os
import tempfile
from pathlib import Path

import pytest

from tasks.run.recipe import Recipe

ROOT = Path(__file__).parents[2]
EVERY_DAG = """
[place.retention]
[place.lake]
format = "delta"
root = "/lake"
[place.dask.kubernetes]
image = "worker:1"
[place.train]
where = "kubernetes"
[place.kubernetes]
image = "${TRAINER_IMAGE}"
nodes = 2
"""
ARMS = """
[[canary.settings]]
name = "strict"
set = {"dedup.jaccard" = 0.7}
[[canary.settings]]
name = "loose"
set = {"dedup.jaccard" = 0.9}
"""
FILES = """
[[extract.files]]
name = "texts"
kind = "jsonl"
path = "/texts/*.jsonl"
"""
MONTHLY = """
[cycle]
[crawl]
recrawl = true
[dedup_index]
enabled = true
[encode]
accumulate = true
[promote]
enabled = true
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The folder of the kept DAGs, still empty."""
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    return temporary / f"sluice-dags-{os.geteuid()}"


@pytest.fixture
def reads(monkeypatch):
    """The names of the recipe files that were read and checked."""
    load, names = Recipe.load.__func__, []

    def counted(cls, path):
        names.append(Path(path).name)
        return load(cls, path)

    monkeypatch.setattr(Recipe, "load", classmethod(counted))
    return names


def serialized(bag):
    from airflow.serialization.serialized_objects import DagSerialization

    assert bag.import_errors == {}
    return {name: DagSerialization.to_dict(dag) for name, dag in bag.dags.items()}


def test_a_kept_dag_is_the_one_that_would_be_made(folder, reads, recipes, dag_bag, monkeypatch):
    monkeypatch.setenv("TRAINER_IMAGE", "trainer:1")
    for path in (ROOT / "dags" / "recipes").rglob("*.toml"):
        text = path.read_text(encoding="utf-8").replace('"../', f'"{path.parents[1]}/')
        recipes(path.stem, text=text.replace('template = "k8s/', f'template = "{ROOT}/k8s/'))
    recipes("pods", ARMS + EVERY_DAG)
    recipes("watched", text=f'name = "watched"\n{FILES}[place]\nwatch_s = 60\n')
    recipes("months", text=f'name = "months"\n[train]\n{MONTHLY}')
    made = serialized(dag_bag())
    assert {"manuals.finetune", "watched.corpus", "pods.lake", "pods.retention", "months.cycle"} <= set(made)
    assert reads
    reads.clear()
    assert serialized(dag_bag()) == made
    assert reads == []


def test_a_change_shows_at_the_next_parse(folder, reads, recipes, dag_bag):
    base = recipes("base", "[train]\nsteps = 111\n")
    recipes("near", text='extends = "base.toml"\nname = "near"\n')
    recipes("far")
    dag_bag()
    about = base.stat()
    base.write_text(base.read_text().replace("111", "222"))
    os.utime(base, ns=(about.st_atime_ns, about.st_mtime_ns))
    reads.clear()
    dags = dag_bag().dags
    assert {*reads} == {"base.toml", "near.toml"}
    shown = {name: '"steps": 222' in dags[f"{name}.pretrain"].doc_md for name in ("base", "near", "far")}
    assert shown == {"base": True, "near": True, "far": False}
    base.write_text(base.read_text() + "[dedup]\njacard = 1\n")
    for _ in range(2):
        bag = dag_bag()
        assert {name.partition(".")[0] for name in bag.dags} == {"far"}
        [error] = bag.import_errors.values()
        assert "base.toml: unknown key dedup.jacard" in error
        assert "near.toml: unknown key dedup.jacard" in error


def test_a_variable_that_is_gone_is_reported(folder, recipes, dag_bag, monkeypatch):
    monkeypatch.setenv("TRAINER_IMAGE", "secret-of-the-registry")
    recipes("pods", EVERY_DAG)
    assert dag_bag().import_errors == {}
    kept = [path for path in folder.iterdir()]
    assert {path.stat().st_mode & 0o777 for path in kept} == {0o600}
    assert not [path for path in kept if b"secret-of-the-registry" in path.read_bytes()]
    monkeypatch.delenv("TRAINER_IMAGE")
    [error] = dag_bag().import_errors.values()
    assert "TRAINER_IMAGE" in error


def test_damaged_files_and_the_folder_of_others_are_not_used(folder, reads, recipes, dag_bag):
    recipes("one")
    made = serialized(dag_bag())
    for number, path in enumerate(sorted(folder.iterdir())):
        content = path.read_bytes()
        path.write_bytes([b"", content[: len(content) // 2], content[:-1] + b"x"][number % 3])
    reads.clear()
    assert serialized(dag_bag()) == made
    assert reads
    reads.clear()
    assert serialized(dag_bag()) == made
    assert reads == []
    folder.chmod(0o770)
    for _ in range(2):
        reads.clear()
        assert serialized(dag_bag()) == made
        assert reads


def test_a_task_makes_its_dag_from_the_recipe(folder, reads, recipes, dag_bag, monkeypatch):
    recipes("one")
    dag_bag()
    reads.clear()
    monkeypatch.setenv("_AIRFLOW_PARSING_CONTEXT_DAG_ID", "one.corpus")
    assert "one.corpus" in dag_bag().dags
    assert reads == ["one.toml"]
