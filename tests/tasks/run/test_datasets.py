"""A dataset of the hub is a file source: read at one commit per version, verified, and named by dataset and row."""

import gzip
import json
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tasks.core.artifact import Artifact, ArtifactId
from tasks.core.clients import hub as client
from tasks.core.engine import Engine
from tasks.core.errors import InputError, RecipeError, SluiceError, TransientError
from tasks.core.stage import Inputs, Output
from tasks.core.store import Store
from tasks.formats.documents.external_files import find
from tasks.run.dossier.corpus import Corpus, Count
from tasks.run.dossier.summary import _files
from tasks.run.new_recipe import look_at
from tasks.run.outside import external_refs
from tasks.run.recipe import Recipe, find_recipe
from tasks.run.result import StageResult
from tasks.run.runner import run_stage
from tasks.run.trace.text import render
from tasks.run.trace.trace import trace
from tasks.run.tracking import TrackingContext
from tasks.stages.extract import stage as extract
from tasks.stages.finetune import ExamplesConfig, examples
from tests.corpora import Made
from tests.tasks.trainer.conftest import made
from tests.tasks.trainer.interchange.hub_server import COMMIT, NAME, HubServer

__all__ = ["made"]

ROOT = f"hf://datasets/{NAME}"
NEXT = "89abcdef0123456789abcdef0123456789abcdef"
TOKEN = "hf_planted0123456789"
WORDS = "the river carries stones from the hills to the sea and the people at its banks tell of it "


def prose(name: str) -> str:
    """A text that is long enough for a document."""
    return f"In {name} {WORDS}" * 3


@dataclass(frozen=True)
class Bench:
    """A store, and a dataset on the hub that is the only source of a recipe."""

    folder: Path
    hub: HubServer

    def recipe(self, kind: str, path: str) -> Recipe:
        settings = {
            "name": "mine",
            "extract": {"files": [{"name": "tales", "kind": kind, "path": path}], "min_chars": 20},
            "makes": ["documents"],
            "crawl": {"enabled": False},
            "place": {"store": f"{self.folder}/store", "mlflow": "", "workers": 1},
        }
        return find_recipe(json.dumps(settings))

    def run(self, kind: str, path: str, version: str = "1", source_version: str | None = None) -> StageResult:
        tracking = TrackingContext("", "mine")
        return run_stage(
            self.recipe(kind, path), "extract", version=version, source_version=source_version, tracking=tracking
        )

    def extracted(self, version: str = "1") -> Artifact:
        return Artifact.open_at(Store(f"{self.folder}/store"), ArtifactId("mine/extracted", version))

    def urls(self, version: str = "1") -> list[str]:
        extracted = self.extracted(version)
        paths = extracted.files("documents/")
        return sorted(row["url"] for path in paths for row in extracted.table(path, ["url"]).to_pylist())

    def read_from(self, version: str = "1") -> str:
        return next(ref.address for ref in self.extracted(version).record.inputs if ref.role == "files:tales")


@pytest.fixture
def published(tmp_path: Path) -> Path:
    """The files of the dataset."""
    folder = tmp_path / "published"
    (folder / "data" / "more").mkdir(parents=True)
    (folder / "README.md").write_text("---\nlicense: cc-by-4.0\n---\n")
    for number in range(3):
        table = pa.table({"text": [prose(f"valley {number}-{row}") for row in range(4)]})
        pq.write_table(table, folder / "data" / f"train-{number}.parquet", row_group_size=2)
    rows = "".join(f"{json.dumps({'text': prose(f'town {row}'), 'url': f'https://a.example/{row}'})}\n" for row in "ab")
    (folder / "data" / "more" / "rows.jsonl.gz").write_bytes(gzip.compress(rows.encode()))
    (folder / "data" / "a tale.txt").write_text(prose("a tale"))
    return folder


@pytest.fixture
def bench(published: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    monkeypatch.setenv("SLUICE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    monkeypatch.setattr(client, "PAUSES_S", (0.0, 0.0))
    monkeypatch.setattr("huggingface_hub.file_download.time.sleep", lambda seconds: None)
    with HubServer(published) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        yield Bench(tmp_path, hub)


@pytest.mark.parametrize(
    ("kind", "pattern", "urls"),
    [
        (
            "parquet",
            "data/train-*.parquet",
            [f"file://tales/{NAME}/data/train-{file}.parquet#{row}" for file in range(3) for row in range(4)],
        ),
        ("jsonl", "**/*.jsonl.gz", ["https://a.example/a", "https://a.example/b"]),
        ("text", "data/*.txt", [f"file://tales/{NAME}/data/a%20tale.txt"]),
    ],
)
def test_a_url_names_dataset_file_and_row_and_the_record_the_commit(
    bench: Bench, kind: str, pattern: str, urls: list[str]
) -> None:
    bench.run(kind, f"{ROOT}@v1/{pattern}")
    assert bench.urls() == urls
    assert bench.read_from() == f"external:{ROOT}@{COMMIT}/{pattern}"
    assert all(COMMIT in one.path for one in bench.hub.requests if "/resolve/" in one.path or "/tree/" in one.path)
    answer = render(trace(bench.extracted().store, "mine", "1", urls[-1]))
    assert f"  from       {ROOT}@{COMMIT}/{pattern}" in answer.splitlines()


def test_the_dossier_names_the_dataset_with_its_commit_and_the_license_of_its_card(bench: Bench) -> None:
    bench.run("parquet", f"{ROOT}/data/*.parquet")
    corpus = Corpus(sources={"tales": Count(documents=12, bytes=9)})
    assert _files({"extracted": bench.extracted()}, corpus) == [
        {
            "name": "tales",
            "kind": "parquet",
            "path": f"{ROOT}@{COMMIT}/data/*.parquet",
            "license": "cc-by-4.0",
            "documents": 12,
            "bytes": 9,
        }
    ]


def test_a_version_reads_one_commit_and_the_next_version_the_newest(bench: Bench, published: Path) -> None:
    path = f"{ROOT}/data/*.parquet"
    bench.run("parquet", path)
    bench.hub.commit = NEXT
    pq.write_table(pa.table({"text": [prose("a new valley")]}), published / "data" / "train-3.parquet")
    bench.hub.requests.clear()
    assert bench.run("parquet", path).skipped
    assert bench.hub.requests == [], "a version that exists needs no network"
    bench.run("parquet", path, "2")
    assert (bench.read_from("1"), bench.read_from("2")) == (
        f"external:{ROOT}@{COMMIT}/data/*.parquet",
        f"external:{ROOT}@{NEXT}/data/*.parquet",
    )
    assert len(bench.urls("2")) == 13
    fetched = [one.path.rpartition("/")[2] for one in bench.hub.requests if one.path.startswith("/files/")]
    assert fetched == ["train-3.parquet"], "a file that two commits share is fetched once"


def test_a_version_that_was_killed_goes_on_with_its_commit(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    path = f"{ROOT}@main/data/*.parquet"
    with monkeypatch.context() as context:
        context.setattr(extract, "extract_part", lambda part, payload: (_ for _ in ()).throw(TransientError("killed")))
        with pytest.raises(TransientError, match="killed"):
            bench.run("parquet", path)
    bench.hub.commit = NEXT
    bench.run("parquet", path)
    assert bench.read_from() == f"external:{ROOT}@{COMMIT}/data/*.parquet"
    assert not [name for name in Store(f"{bench.folder}/store").list("mine/extracted/1") if "/.pins/" in name]


def test_a_commit_that_changes_no_file_of_the_source_is_the_same_input(bench: Bench, published: Path) -> None:
    path = f"{ROOT}/data/*.parquet"
    bench.run("parquet", path)
    bench.hub.commit = NEXT
    (published / "README.md").write_text("---\nlicense: mit\n---\n")
    result = bench.run("parquet", path, "2", source_version="1")
    assert result.adopted_from == "mine/extracted@1"
    assert bench.read_from("2") == f"external:{ROOT}@{NEXT}/data/*.parquet"


def test_the_token_is_sent_to_the_hub_alone_and_is_in_no_record(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        bench.run("parquet", f"{ROOT}@v1/data/*.parquet")
    storage = [one for one in bench.hub.requests if one.path.startswith("/files/")]
    assert storage
    assert {one.authorization for one in storage} == {""}, "large files come from another host"
    assert {one.authorization for one in bench.hub.requests if one not in storage} == {f"Bearer {TOKEN}"}
    bench.hub.refused = 500
    with pytest.raises(TransientError) as error:
        bench.run("parquet", f"{ROOT}@v1/data/*.parquet", "2")
    assert TOKEN not in f"{caplog.text}{error.value}"
    stored = (path for folder in ("store", "cache") for path in (bench.folder / folder).rglob("*") if path.is_file())
    assert not any(TOKEN.encode() in path.read_bytes() for path in stored)


@pytest.mark.parametrize(
    ("address", "refused", "said"),
    [
        (
            "hf://datasets/ink/other/*.parquet",
            0,
            r"the hub has no dataset .*ink/other@main, or it is private.*HF_TOKEN",
        ),
        (f"{ROOT}@v2/*.parquet", 0, r"ink/pot@v2: the dataset has no such revision. Name a branch, a tag or a commit"),
        (f"{ROOT}/data/*.parquet", 403, r"access to .* is gated. Accept its terms on the hub, and set HF_TOKEN"),
        (f"{ROOT}/data/*.parquet", 401, r"the hub refuses access to .*401.* Set HF_TOKEN"),
        (f"{ROOT}/none/*.parquet", 0, r'the pattern "hf://.*/none/\*.parquet" of us matches no file below'),
        (f"{ROOT}/data/*.arrow", 0, r"matches no file below"),
        (f"{ROOT}/data/*.parquet", 503, r"the hub did not answer for .*503"),
    ],
)
def test_what_the_hub_does_not_have_or_give_is_said(bench: Bench, address: str, refused: int, said: str) -> None:
    bench.hub.refused = refused
    with pytest.raises(SluiceError, match=said) as error:
        find(address, "us")
    assert error.value.permanent == (refused != 503)


def test_a_hub_that_is_busy_is_asked_again_when_it_says(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    paused = list[float]()
    monkeypatch.setattr(client.time, "sleep", paused.append)
    bench.hub.faults = [(429, {"Retry-After": "7"}), (503, {})]
    assert len(find(f"{ROOT}/data/*.parquet", "us")) == 3
    assert paused == [7.0, 0.0]


def test_a_download_that_is_cut_is_continued_and_a_wrong_one_refused(
    bench: Bench, published: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.DOWNLOAD_CHUNK_SIZE", 64)
    (file, *_) = find(f"{ROOT}/data/*.parquet", "us")
    cuts = iter([True])
    bench.hub.cut = lambda request: next(cuts, False)
    content = (published / "data" / file.name).read_bytes()
    assert Path(file.local()).read_bytes() == content
    first, second = (one for one in bench.hub.requests if one.path.startswith("/files/"))
    assert first.range == ""
    assert 0 < int(second.range.removeprefix("bytes=").removesuffix("-")) <= len(content) // 2
    (_, other, *_) = find(f"{ROOT}/data/*.parquet", "us")
    (published / "data" / other.name).write_bytes(bytes(other.bytes))
    with pytest.raises(TransientError, match=r"train-1.parquet arrived with .* and the hash .*that the hub states"):
        other.local()


@pytest.mark.parametrize("path", ["hf://ink/tales/*.parquet", "hf://datasets/ink/*.parquet", "hf://datasets/ink/tales"])
def test_an_address_without_a_file_of_a_dataset_is_refused_with_the_recipe(bench: Bench, path: str) -> None:
    with pytest.raises(RecipeError, match=r"does not name files of a dataset of the hub. Write hf://datasets/"):
        bench.recipe("parquet", path)


@pytest.mark.parametrize("path", ["hf://me:hf_secret@hub/ink/tales", "hf://datasets/me:hf_secret@ink/tales"])
def test_a_token_in_an_address_is_not_shown(bench: Bench, path: str) -> None:
    with pytest.raises(RecipeError) as raised:
        bench.recipe("parquet", path)
    assert "ink/tales does not name files" in str(raised.value)
    assert "hf_secret" not in str(raised.value)


def test_a_first_recipe_is_written_for_a_dataset(bench: Bench) -> None:
    groups, unread = look_at(f"{ROOT}@v1/")
    assert {group.path for group in groups} == {
        f"{ROOT}@v1/**/*.parquet",
        f"{ROOT}@v1/**/*.jsonl.gz",
        f"{ROOT}@v1/**/*.txt",
        f"{ROOT}@v1/**/*.md",
    }
    assert unread == {}


def test_a_damaged_file_names_its_commit(bench: Bench, published: Path) -> None:
    (published / "data" / "train-0.parquet").write_bytes(b"no Parquet")
    with pytest.raises(InputError, match=rf'{COMMIT}/data/train-0\.parquet of the file source "tales" cannot be read'):
        bench.run("parquet", f"{ROOT}@v1/data/*.parquet")


def test_examples_of_a_dataset_are_read_at_the_commit_of_the_version(
    bench: Bench, published: Path, made: Made, tmp_path: Path
) -> None:
    rows = pa.table({"instruction": ["a?", "b?"], "output": ["A", "B"]})
    pq.write_table(rows, published / "data" / "asked-0.parquet")
    config = ExamplesConfig(files=(f"{ROOT}/data/asked-*.parquet",), seq_len=96, heldout_share=0)
    own = ArtifactId("test/examples", "1")
    output = Output(Store(f"{tmp_path}/other"), own, "fingerprint")
    refs = list(external_refs(examples.HOOKS, config, output.store, own))
    assert [ref.address for ref in refs] == ["external:files", f"external:{ROOT}@{COMMIT}/data/asked-*.parquet"]
    bench.hub.commit = NEXT
    report = examples.run(config, Inputs({"tokenizer": made.tokenizer}, refs), output, Engine())
    assert report.metrics["examples"] == 2
    assert all(COMMIT in one.path for one in bench.hub.requests if "/tree/" in one.path)
