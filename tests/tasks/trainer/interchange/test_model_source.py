"""A model comes from a folder, a URL or the hub: whole and verified, named by its commit, and without its weights if
Sluice cannot compute it."""

import json
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from tasks.core.digest import sha256_of_file
from tasks.core.errors import InputError, SluiceError, TransientError
from tasks.core.store import Store
from tasks.trainer.interchange import model_source
from tasks.trainer.interchange.model_source import model_files
from tests.s3_server import S3Server
from tests.tasks.trainer.interchange.hub_server import COMMIT, NAME, HubServer
from tests.tasks.trainer.interchange.model_folders import change, write_folder

TOKEN = "hf_planted0123456789"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with weights in several files, and files that an import does not read."""
    folder = write_folder(tmp_path_factory.mktemp("source") / "model", family="qwen3", head_dim=8, shard_size="20KB")
    (folder / "README.md").write_text("---\nlicense: apache-2.0\n---\n")
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    (folder / "pytorch_model.bin").write_bytes(b"a pickle")
    (folder / "consolidated.safetensors").write_bytes(b"the same weights under other names")
    return folder


@pytest.fixture
def model(whole: Path, tmp_path: Path) -> Path:
    """A copy of it that a test may change."""
    folder = tmp_path / "published"
    folder.mkdir()
    for path in whole.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    return folder


@pytest.fixture
def hub(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("SLUICE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    with HubServer(model) as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        yield server


def wanted(folder: Path) -> dict[str, bytes]:
    """The files that an import reads."""
    names = ("config", "generation_config", "tokenizer", "tokenizer_config")
    paths = [*(folder / f"{name}.json" for name in names), folder / "README.md", folder / "chat_template.jinja"]
    paths += folder.glob("model*")
    return {path.name: path.read_bytes() for path in paths}


def test_a_folder_and_its_file_url_are_read_where_they_are(whole: Path) -> None:
    for source in (str(whole), f"file://{whole}"):
        with model_files(source) as files:
            assert (files.folder, files.address, files.revision) == (whole, str(whole), "")


@pytest.mark.parametrize("revision", ["", "@main", "@v1", f"@{COMMIT}"])
def test_a_revision_of_the_hub_is_resolved_to_a_commit_and_only_needed_files_are_fetched(
    hub: HubServer, model: Path, revision: str
) -> None:
    with model_files(f"hf://{NAME}{revision}") as files:
        assert {path.name: path.read_bytes() for path in files.folder.iterdir()} == wanted(model)
    assert (files.address, files.name, files.revision) == (f"hf://{NAME}@{COMMIT}", NAME, COMMIT)
    assert files.sha256 == {name: sha256_of_file(model / name) for name in wanted(model)}
    assert all(COMMIT in one.path for one in hub.requests if "/resolve/" in one.path)


def test_files_of_the_hub_are_fetched_once(hub: HubServer) -> None:
    for _ in range(2):
        with model_files(f"hf://{NAME}") as files:
            assert files.sha256
    assert len(hub.fetched("config.json")) == 1
    assert [one.path for one in hub.requests].count(f"/api/models/{NAME}") == 2


def test_the_token_is_sent_to_the_hub_and_is_nowhere_else(
    hub: HubServer, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    with caplog.at_level(logging.DEBUG), model_files(f"hf://{NAME}") as files:
        pass
    assert {one.authorization for one in hub.requests} == {f"Bearer {TOKEN}"}
    hub.refused = 500
    with pytest.raises(SluiceError) as error, model_files(f"hf://{NAME}@v1"):
        pass
    assert TOKEN not in f"{caplog.text}{error.value}{files}"
    assert not any(TOKEN.encode() in path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())


def test_a_model_that_sluice_cannot_compute_is_refused_before_its_weights_are_fetched(
    hub: HubServer, model: Path
) -> None:
    change(model / "config.json", hidden_act="gelu")
    for source in (f"hf://{NAME}", f"{hub.url}/files"):
        with pytest.raises(InputError, match='hidden_act = "gelu" is not supported'), model_files(source):
            pass
    assert not [one for one in hub.requests if one.path.endswith(".safetensors")]


def test_a_file_that_differs_from_its_hash_on_the_hub_is_refused_and_fetched_again(
    hub: HubServer, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (weights, *_) = sorted(model.glob("model-*"))
    for path in (weights, model / "README.md"):
        with model_files(f"hf://{NAME}") as files:
            cached = files.folder / path.name
        damaged = bytearray(path.read_bytes())
        damaged[-1] ^= 1
        cached.resolve().write_bytes(damaged)
        with (
            pytest.raises(TransientError, match=rf"{path.name} arrived with .* and the hash"),
            model_files(f"hf://{NAME}"),
        ):
            pass
        assert not cached.exists()
    with model_files(f"hf://{NAME}") as files:
        assert (files.folder / weights.name).read_bytes() == weights.read_bytes()


@pytest.mark.parametrize(
    ("source", "refused", "said"),
    [
        ("hf://pot", 0, r"hf://pot is not a model of the hub. Write hf://owner/name"),
        ("hf://me:hf_secret@huggingface.co/pot", 0, r"^hf://huggingface.co/pot is not a model of the hub"),
        ("hf://ink/other", 0, r"the hub has no model hf://ink/other, or it is private. .* set HF_TOKEN"),
        (f"hf://{NAME}@v2", 0, r"@v2: the model has no such revision"),
        (f"hf://{NAME}", 403, r"access to hf://ink/pot is gated. Accept its terms on the hub"),
        (f"hf://{NAME}", 404, r"hf://ink/pot"),
    ],
)
def test_what_the_hub_does_not_have_or_give_is_said(hub: HubServer, source: str, refused: int, said: str) -> None:
    hub.refused = refused
    with pytest.raises(SluiceError, match=said), model_files(source):
        pass


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model-00002-of"])
def test_a_source_that_lacks_a_file_is_refused_by_the_name_of_the_file(hub: HubServer, model: Path, name: str) -> None:
    (path,) = model.glob(f"{name}*")
    path.unlink()
    for source in (f"hf://{NAME}", f"{hub.url}/files"):
        with pytest.raises(InputError, match=f"has no {path.name}"), model_files(source):
            pass


def test_an_index_cannot_name_a_file_outside_of_the_folder(hub: HubServer, model: Path) -> None:
    (model / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "../../secret.safetensors"}}))
    for source in (f"hf://{NAME}", f"{hub.url}/files", str(model)):
        with pytest.raises(InputError, match=r"lists \.\./\.\./secret"), model_files(source) as files:
            model_source.indexed_files(files.folder)


def test_a_download_of_the_hub_that_is_cut_off_leaves_no_file_and_is_made_again(
    hub: HubServer, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.file_download.time.sleep", lambda seconds: None)  # between its attempts
    (first, second, *_) = sorted(path.name for path in model.glob("model-*"))
    hub.cut = lambda request: request.path.endswith(second)
    with pytest.raises(SluiceError), model_files(f"hf://{NAME}"):
        pass
    hub.cut = lambda request: False
    with model_files(f"hf://{NAME}") as files:
        assert {path.name: path.read_bytes() for path in files.folder.iterdir()} == wanted(model)
    assert len(hub.fetched(first)) == 1, "whole files are kept"


def test_a_url_is_copied_and_a_download_that_was_cut_off_is_continued(
    hub: HubServer, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_source, "_RANGE", 4000)
    (first, second, *_) = sorted(path.name for path in model.glob("model-*"))
    hub.cut = lambda request: request.path.endswith(second) and request.range == "bytes=8000-11999"
    with pytest.raises(TransientError, match=f"{second}.*received 2000 of 4000 bytes"), model_files(f"{hub.url}/files"):
        pass
    hub.cut = lambda request: False
    hub.requests.clear()
    with model_files(f"{hub.url}/files/") as files:
        assert {path.name: path.read_bytes() for path in files.folder.glob("[!.]*")} == wanted(model)
        assert files.address == f"{hub.url}/files"
    assert not hub.fetched(first)
    ranges = [one.range for one in hub.fetched(second)]
    assert "bytes=8000-11999" in ranges
    assert "bytes=0-3999" not in ranges
    assert not [path for path in (tmp_path / "cache").rglob("*") if path.is_file() and path.stat().st_size], "removed"


def test_a_file_that_changed_since_it_was_cut_off_is_fetched_from_its_beginning(
    hub: HubServer, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_source, "_RANGE", 4000)
    (first, *_) = sorted(path.name for path in model.glob("model-*"))
    hub.cut = lambda request: request.path.endswith(first) and request.range == "bytes=8000-11999"
    with pytest.raises(TransientError), model_files(f"{hub.url}/files"):
        pass
    changed = bytearray((model / first).read_bytes())
    changed[-1] ^= 1
    (model / first).write_bytes(changed)
    hub.cut = lambda request: False
    with model_files(f"{hub.url}/files") as files:
        assert (files.folder / first).read_bytes() == changed


def test_a_web_server_without_ranges_sends_whole_files(
    hub: HubServer, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_source, "_RANGE", 4000)
    hub.ranges = False
    with model_files(f"{hub.url}/files") as files:
        assert {path.name: path.read_bytes() for path in files.folder.glob("[!.]*")} == wanted(model)


def test_an_object_store_is_a_source(
    s3: S3Server, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLUICE_CACHE", str(tmp_path / "cache"))
    url = f"s3://sluice/{tmp_path.name}"
    store = Store(url)
    for name, content in wanted(model).items():
        with store.write(f"qwen/{name}") as file:
            file.write(content)
    with model_files(f"{url}/qwen") as files:
        assert {path.name: path.read_bytes() for path in files.folder.glob("[!.]*")} == wanted(model)
    with pytest.raises(InputError, match=r"other has no config\.json"), model_files(f"{url}/other"):
        pass


def test_an_address_with_credentials_is_refused_because_records_are_public(hub: HubServer) -> None:
    for url in ("https://me:secret@host/model", "https://host/model?token=secret"):
        with pytest.raises(InputError, match="the URL has credentials or a query") as error, model_files(url):
            pass
        assert "secret" not in str(error.value)


def test_a_server_that_does_not_answer_is_named(hub: HubServer) -> None:
    with (
        pytest.raises(SluiceError, match=r"/model has no config\.json, or does not answer \(.*onnect"),
        model_files("http://127.0.0.1:9/model"),
    ):
        pass
