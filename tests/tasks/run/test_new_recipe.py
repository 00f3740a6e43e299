"""`init` writes a recipe that runs, from what is in a folder, in a file or at a URL."""

import gzip
import json
import random
import re
import threading
import tomllib
import zipfile
from collections import Counter
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tasks.core.artifact import Artifact, ArtifactId
from tasks.core.errors import InputError, RecipeError
from tasks.core.store import Store
from tasks.run.new_recipe import look_at, new_recipe
from tasks.run.runner import open_store, run_stage
from tasks.run.shell import main
from tasks.run.tracking import TrackingContext
from tasks.stages.crawl.config import CrawlConfig
from tasks.stages.extract.config import ExtractConfig, FileSource
from tasks.trainer.config import TrainConfig
from tests.tasks.stages.extract.conftest import page, record
from tests.tasks.stages.extract.made_pdf import lines, pdf

WORDS = (
    *("the", "boat", "of", "this", "town", "is", "old", "and", "we", "have", "it", "with", "that", "to", "be"),
    *("harbour", "morning", "wind", "nobody", "expected", "letters", "bread", "stone", "window", "answer", "river"),
)

_SETTINGS = ("train.steps=2", "train.milestones=1", "tokenizer.vocab_size=300", "pack.seq_len=16", "place.mlflow=")
SMALL = [word for setting in _SETTINGS for word in ("--set", setting)]
"""Options of a command for a model that is trained in seconds."""


@pytest.fixture(autouse=True)
def recipes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "recipes"
    folder.mkdir()
    monkeypatch.setenv("SLUICE_RECIPES", str(folder))
    monkeypatch.setenv("SLUICE_STORE", str(tmp_path / "store"))
    return folder


def article(seed: int) -> str:
    """English prose of 20 sentences."""
    draw = random.Random(seed)
    return "\n".join(" ".join(draw.choices(WORDS, k=12)).capitalize() + f" {seed}." for _ in range(20))


def module(seed: int) -> str:
    """Python source of 40 assignments."""
    draw = random.Random(seed)
    return "\n".join(f"{draw.choice(WORDS)}_{line} = {draw.choice(WORDS)}.{draw.choice(WORDS)}" for line in range(40))


def handbook(folder: Path) -> Path:
    """A folder with Markdown, Python, packed JSON lines with unusual fields, and files that no source reads."""
    (folder / "chapters").mkdir(parents=True)
    for number in range(6):
        (folder / "chapters" / f"{number}.md").write_text(article(number))
        (folder / f"module_{number}.py").write_text(module(number))
    rows = [{"id": number, "body": article(10 + number), "link": f"https://a.example/{number}"} for number in range(6)]
    (folder / "articles.jsonl.gz").write_bytes(gzip.compress("\n".join(map(json.dumps, rows)).encode()))
    (folder / "cover.png").write_bytes(b"not read")
    (folder / "README").write_text("not read")
    return folder


def archives(folder: Path) -> Path:
    """A folder with a Parquet file, captures of a crawl, and a PDF file, of six documents each; the PDF file is one."""
    folder.mkdir()
    texts = [article(20 + number) for number in range(12)]
    pq.write_table(pa.table({"content": texts[:6], "year": [2026] * 6}), folder / "news.parquet")
    pages = [record(f"https://b.example/{number}", page(text)) for number, text in enumerate(texts[6:])]
    (folder / "crawl.warc.gz").write_bytes(b"".join(pages))
    (folder / "paper.pdf").write_bytes(pdf([lines(60, 760, article(40).splitlines())]))
    return folder


def sources(what: Path) -> dict[str, FileSource]:
    return {source.name: source for source in new_recipe(str(what)).recipe.of(ExtractConfig).files}


def test_each_suffix_of_a_folder_becomes_a_source_and_other_files_are_listed(tmp_path: Path, recipes: Path) -> None:
    made = new_recipe(str(handbook(tmp_path / "My Handbook")))
    assert made.path == recipes / "my-handbook.toml"
    found = {source.name: source for source in made.recipe.of(ExtractConfig).files}
    assert {name: source.kind for name, source in found.items()} == {"md": "text", "py": "text", "jsonl-gz": "jsonl"}
    assert (found["jsonl-gz"].text_field, found["jsonl-gz"].url_field) == ("body", "link")
    assert made.unread == {"no suffix": 1, ".png": 1}
    assert "# Not read: 1 no suffix, 1 .png." in made.path.read_text()
    assert any(line.startswith("6 .md files, 7") and "languages en 100%" in line for line in made.found)


def test_books_documents_and_saved_pages_become_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, size in (("a.epub", 9_000_000), ("b.docx", 60_000), ("c.htm", 9_000)):
        (tmp_path / name).write_bytes(bytes(size))
    monkeypatch.setattr("tasks.run.new_recipe.missing_extra", lambda kind: "office" if kind == "docx" else "")
    made = new_recipe(str(tmp_path), "library")
    found = {source.name: source for source in made.recipe.of(ExtractConfig).files}
    assert {name: (one.kind, one.max_file_bytes) for name, one in found.items()} == {
        "epub": ("epub", 100_000_000),
        "htm": ("html", 4_000_000),
    }
    assert made.unread == {".docx (needs sluice[office])": 1}


def test_markup_gets_a_limit_that_its_tables_and_listings_pass(tmp_path: Path) -> None:
    (tmp_path / "guide.md").write_text(article(1))
    (tmp_path / "story.txt").write_text(article(2))
    limits = tomllib.loads(new_recipe(str(tmp_path)).path.read_text())["consolidate"]["limits"]
    assert limits == {"md": {"gopher_quality": {"min_letters": 0.5}}}


def test_the_printed_commands_go_from_files_to_a_model_and_back(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = handbook(tmp_path / "handbook")
    archives(folder / "archives")
    assert main(["init", str(folder)]) == 0
    printed = re.findall("sluice (.*)", capsys.readouterr().out)
    cycle, trace = (command.split() for command in printed)
    assert main([*cycle, *SMALL]) == 0
    documents, model = (
        Artifact.open_at(Store(str(tmp_path / "store")), ArtifactId(f"handbook/{kind}", "dev"))
        for kind in ("documents", "model")
    )
    assert documents.record.rejected == {}
    kept = pa.concat_tables([documents.table(path) for path in documents.files("kept/")])
    counts = Counter(kept["source"].to_pylist())
    assert counts == {"md": 6, "py": 6, "jsonl-gz": 6, "parquet": 6, "warc-gz": 6, "pdf": 1}
    assert model.files("model/")
    capsys.readouterr()
    assert main(trace) == 0
    step = capsys.readouterr().out
    assert re.search("step 0 of 2: [0-9]+ sequences", step)
    [text, *_] = re.findall("^    (.+)", step, re.M)
    assert main(["explain", "--recipe", "handbook", "--min-tokens", "2", text]) == 0
    assert "steps 0" in capsys.readouterr().out


def test_the_recipe_of_a_site_goes_from_its_pages_to_a_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "site").mkdir()
    for number in range(12):
        (tmp_path / "site" / f"{number}.html").write_bytes(page(article(number)))
    links = " ".join(f'<a href="{number}.html">{number}</a>' for number in range(12))
    (tmp_path / "site" / "index.html").write_bytes(page(links))
    handler = partial(SimpleHTTPRequestHandler, directory=str(tmp_path / "site"))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        address = f"http://localhost:{server.server_port}"
        assert main(["init", f"{address}/"]) == 0
        quick = ("--set", "crawl.delay_s=0.05", "--set", "crawl.latency_factor=0")
        assert main(["cycle", "--recipe", "localhost", *SMALL, *quick]) == 0
        server.shutdown()
    capsys.readouterr()
    for number in range(12):
        assert main(["trace", "--recipe", "localhost", f"{address}/{number}.html"]) == 0
    # The port is part of the ids, by whose hashes some pages are held out.
    assert re.search(r"kept +[\d,]+ tokens in web-train", capsys.readouterr().out)


def test_documents_and_tokens_are_estimated_from_texts_and_not_from_the_size_of_their_files(tmp_path: Path) -> None:
    read = {group.kind: group for group in look_at(str(archives(tmp_path / "archives")))[0]}
    size = len(article(20).encode())
    assert {kind: group.documents for kind, group in read.items()} == {"parquet": 6, "warc": 6, "pdf": 1}
    assert read["parquet"].text_bytes == pytest.approx(6 * size, rel=0.1)
    assert read["warc"].text_bytes == pytest.approx(6 * size, rel=0.1)
    assert "6 documents; languages en 100%" in read["warc"].summary()
    packed = zipfile.ZipFile(tmp_path / "site.wacz", "w")
    with packed:
        for name in ("archive/a.warc.gz", "archive/b.warc.gz"):
            packed.write(tmp_path / "archives" / "crawl.warc.gz", name)
    ((site,), _) = look_at(str(tmp_path / "site.wacz"))
    assert (site.kind, site.documents, site.path) == ("warc", 12, str(tmp_path / "site.wacz"))
    rows = [json.dumps({"id": "x" * size, "text": article(number)}) for number in range(300)]
    (tmp_path / "rows.jsonl").write_text("\n".join(rows))
    ((group,), _) = look_at(str(tmp_path / "rows.jsonl"))
    assert group.documents == pytest.approx(300, rel=0.02)
    assert group.text_bytes == pytest.approx(300 * size, rel=0.1)


def test_a_parquet_file_with_values_that_python_lacks_has_a_recipe(tmp_path: Path) -> None:
    columns = [pa.array([b"What happened at sea. " * 20] * 2), pa.array([1, None], pa.timestamp("ns"))]
    pq.write_table(pa.table([*columns, columns[1]], names=["story", "at", "at"]), tmp_path / "news.parquet")
    assert sources(tmp_path / "news.parquet")["parquet"].text_field == "story"


def test_the_longest_field_of_a_parquet_file_without_usual_names_has_the_texts(tmp_path: Path) -> None:
    table = pa.table({"headline": ["Boats", "Wind"], "story": [article(1), article(2)], "words": [240, 240]})
    pq.write_table(table, tmp_path / "news.parquet")
    found = sources(tmp_path / "news.parquet")["parquet"]
    assert (found.path, found.text_field) == (str(tmp_path / "news.parquet"), "story")


def test_too_few_documents_to_measure_a_model_are_reported(tmp_path: Path) -> None:
    for number in range(9):
        (tmp_path / f"{number}.txt").write_text(article(number))
    said = "few documents: a model needs about 10, since some are held out to measure it"
    assert said in new_recipe(str(tmp_path), "few").text()
    (tmp_path / "9.txt").write_text(article(9))
    assert said not in new_recipe(str(tmp_path), "enough").text()


def test_rows_without_long_strings_leave_the_field_to_the_reader(tmp_path: Path) -> None:
    (tmp_path / "counts.jsonl").write_text('{"word": "boat", "count": 3}\n' * 5)
    text = new_recipe(str(tmp_path / "counts.jsonl")).path.read_text()
    assert "no field has long strings: name the one with the texts" in text


@pytest.mark.parametrize(("texts", "steps"), [(1, 100), (300, 227), (2_000, 600)])
def test_a_small_corpus_is_read_four_times_and_a_large_one_in_part(tmp_path: Path, texts: int, steps: int) -> None:
    (tmp_path / "all.txt").write_text("x" * 1_550 * texts)
    assert new_recipe(str(tmp_path / "all.txt")).recipe.of(TrainConfig).steps == steps


def test_names_with_special_characters_match_themselves_alone(tmp_path: Path) -> None:
    folder = tmp_path / 'a[1] "b"'
    folder.mkdir()
    (folder / "x.txt").write_text(article(1))
    (tmp_path / "a1.txt").write_text(article(2))
    assert main(["init", str(folder), "--name", "special"]) == 0
    recipe = new_recipe(str(folder), "again").recipe
    run_stage(recipe, "extract", version="1", tracking=TrackingContext("", "again"))
    assert Artifact.open_at(open_store(recipe), ArtifactId("again/extracted", "1")).record.rows_out == 1


def test_suffixes_that_differ_in_case_are_one_source(tmp_path: Path) -> None:
    folder = tmp_path / "mixed"
    folder.mkdir()
    for number, name in enumerate(("a.txt", "b.TXT", "c.Txt")):
        (folder / name).write_text(article(number))
    recipe = new_recipe(str(folder)).recipe
    run_stage(recipe, "extract", version="1", tracking=TrackingContext("", recipe.name))
    assert Artifact.open_at(open_store(recipe), ArtifactId("mixed/extracted", "1")).record.rows_out == 3


def test_a_site_becomes_a_polite_crawl_that_continues_from_version_to_version() -> None:
    recipe = new_recipe("https://docs.example.org/guide/", contact="mailto:me@example.org").recipe
    crawl = recipe.of(CrawlConfig)
    assert recipe.name == "docs-example-org"
    assert (crawl.seeds, crawl.contact) == (("https://docs.example.org/guide/",), "mailto:me@example.org")
    assert (crawl.delay_s, crawl.recrawl, crawl.allow_loopback) == (1.0, True, False)
    assert recipe.parts == ("crawl", "corpus", "tokens", "pretrain")


def test_errors_name_the_cause_and_the_remedy_and_leave_no_file(tmp_path: Path, recipes: Path) -> None:
    with pytest.raises(RecipeError, match=r"a crawl needs a contact.*--contact"):
        new_recipe("https://example.org/")
    with pytest.raises(InputError, match=r"there is no .*nowhere"):
        new_recipe(str(tmp_path / "nowhere"))
    (tmp_path / "pages").mkdir()
    (tmp_path / "pages" / "a.png").write_text("<p>")
    with pytest.raises(InputError, match=r"has no file to read, but 1 \.png"):
        new_recipe(str(tmp_path / "pages"))
    (tmp_path / "notes.txt").write_text("words")
    with pytest.raises(RecipeError, match="lower-case letters"):
        new_recipe(str(tmp_path / "notes.txt"), "Not A Name")
    assert list(recipes.iterdir()) == []


def test_a_recipe_that_exists_is_not_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "notes.txt").write_text("words")
    assert main(["init", str(tmp_path / "notes.txt")]) == 0
    assert "trigger notes.corpus" in capsys.readouterr().out
    assert main(["init", str(tmp_path / "notes.txt")]) == 2
    assert "Choose another --name" in capsys.readouterr().err
