"""The dossier of a version as a download: the files of the shell, within the rights and the bounds of the page."""

import io
import shutil
import zipfile

import pytest

from tasks.run.dossier.dossier import write_dossier
from tasks.run.dossier.summary import Statement
from tests.airflow_home import RECIPE
from tests.conftest import run_stage_in
from tests.corpora import corpus, tokens_in
from tests.tasks.trainer.in_process import training_in_process
from tests.tasks.trainer.small_run import small_config

ADDRESS = "/sluice/dossier.zip?recipe=test&version=dev"


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A store with a model that was trained on a small corpus."""
    folder = tmp_path_factory.mktemp("dossier")
    made = tokens_in(folder, corpus(60))
    with training_in_process():
        run_stage_in(folder, "tasks.stages.train.stage", small_config(steps=4, checkpoint_every=4),
                     {"shards": made.shards, "plan": made.plan}, kind="checkpoint")  # fmt: skip
    return folder


@pytest.fixture
def store(trained, recipes, tmp_path):
    """The store of the recipe `test`."""
    recipes("test", text=RECIPE.format(name="test"))
    shutil.copytree(trained, tmp_path / "store")
    return tmp_path / "store"


def test_a_reader_downloads_the_files_that_the_shell_writes(get, store, tmp_path):
    from tasks.core.store import Store

    assert "Download the dossier" in get("/sluice/recipe/test?version=dev").text
    answer = get(f"{ADDRESS}&provider=Ann %26 Co&contact=--seed=3")
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "application/zip"
    assert answer.headers["content-disposition"] == 'attachment; filename="dossier-test-dev.zip"'
    written = write_dossier(Store(str(store)), "test", "dev", str(tmp_path / "out"), Statement("Ann & Co", "--seed=3"))
    with zipfile.ZipFile(io.BytesIO(answer.content)) as archive:
        found = {name: archive.read(name) for name in archive.namelist()}
    assert found == {f"dossier-test-dev/{path.name}": path.read_bytes() for path in written.folder.iterdir()}


def test_a_large_version_shows_the_command_and_one_without_a_model_says_so(get, store, monkeypatch):
    from sluice_ui import dossier

    monkeypatch.setattr(dossier, "MOST_BYTES", 10)
    page = get("/sluice/recipe/test?version=dev").text
    assert "sluice dossier --recipe test --version dev FOLDER" in page
    assert "Download the dossier" not in page
    assert get(ADDRESS).status_code == 404
    shutil.rmtree(store / "test" / "checkpoint")
    assert "this version has none yet" in get("/sluice/recipe/test?version=dev").text
    assert get("/sluice/dossier.zip?recipe=unknown&version=dev").status_code == 404


def test_one_dossier_is_made_at_a_time_and_within_its_time(get, store, monkeypatch):
    from sluice_ui import dossier

    with dossier._one_at_a_time:
        answer = get(ADDRESS)
    assert (answer.status_code, "making another dossier" in answer.text) == (503, True)
    monkeypatch.setattr(dossier, "TIMEOUT_S", 0.0)
    answer = get(ADDRESS)
    assert (answer.status_code, "takes longer than" in answer.text) == (503, True)
    assert not dossier._one_at_a_time.locked()
