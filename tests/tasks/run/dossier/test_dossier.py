"""The dossier: every figure equals a recount of the documents, its traces can be repeated, and its hash signs it."""

import hashlib
import json
import random
import subprocess
import sys
from collections import Counter, defaultdict
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tasks.core.artifact import Artifact, ArtifactId
from tasks.core.commit import commit
from tasks.core.config import Config
from tasks.core.errors import InputError
from tasks.core.stage import Output, Report
from tasks.core.store import Store
from tasks.run import lineage, shell
from tasks.run.dossier.corpus import terms_of_use
from tasks.run.dossier.dossier import WrittenDossier, write_dossier
from tasks.run.dossier.summary import Statement
from tasks.run.lake import TableCheck
from tasks.run.recipe import Recipe
from tasks.run.trace.answer import PageTrace
from tasks.run.trace.trace import trace
from tests.conftest import run_stage_in
from tests.corpora import WORDS, kept_document, tokens_in
from tests.tasks.run.champions import recipe_in
from tests.tasks.trainer.small_run import small_config

START = datetime(2026, 3, 1, tzinfo=UTC)
HOSTILE = "<script>alert(1)</script>"
LICENCES = (None, "https://creativecommons.org/licenses/by/4.0/", HOSTILE)


def rows() -> list[dict[str, Any]]:
    """Documents of 41 crawled domains of unequal size, and of two sources of files."""
    draw = random.Random(3)
    made = []
    for index in range(160):
        web = index % 4 > 0
        host = f"www{index % 3}.site{min(index % 41, index % 23)}.org"
        text = " ".join(draw.choices(WORDS, k=draw.randint(5, 120)))
        url = f"https://{host}/{index}" if web else f"file://{'code' if index % 8 else 'my-books'}/{index}.py"
        source = "web" if web else ("code" if index % 8 else "my-books")
        about = {"fetched_at": START + timedelta(hours=index), "licence": LICENCES[index % 3]} if web else {}
        made.append(kept_document(url, text, source, ("en", "de", "")[index % 3], **about))
    return made


class Trained(NamedTuple):
    store: Store
    recipe: Recipe
    rows: list[dict[str, Any]]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """A model that was trained on the documents."""
    folder = tmp_path_factory.mktemp("dossier")
    made = rows()
    tokens = tokens_in(folder, made)
    mixture = {"web": 0.6, "code": 0.2, "my-books": 0.2}
    inputs = {"shards": tokens.shards, "plan": tokens.plan}
    config = small_config(mixture=mixture, steps=8, milestones=1, checkpoint_every=8)
    run_stage_in(folder, "tasks.stages.train.stage", config, inputs, kind="checkpoint")
    return Trained(Store(str(folder)), recipe_in(folder), made)


@pytest.fixture(scope="module")
def written(trained: Trained, tmp_path_factory: pytest.TempPathFactory) -> WrittenDossier:
    out = str(tmp_path_factory.mktemp("out") / "dossier")
    return write_dossier(trained.store, "test", "dev", out, Statement("Ann & Co", "mailto:ann@example.org"), traces=100)


def read(written: WrittenDossier, name: str) -> Any:
    return json.loads((written.folder / name).read_text())


def bytes_of(documents: list[dict[str, Any]]) -> int:
    return sum(len(row["text"].encode()) for row in documents)


def grouped(documents: list[dict[str, Any]], key: Any) -> dict[str, tuple[int, int]]:
    groups = defaultdict(list)
    for row in documents:
        groups[key(row)].append(row)
    return {name: (len(group), bytes_of(group)) for name, group in groups.items()}


def domain(row: dict[str, Any]) -> str:
    return ".".join(row["host"].split(".")[-2:])


def test_the_summary_equals_a_recount_of_the_documents(trained: Trained, written: WrittenDossier) -> None:
    summary = read(written, "summary.json")
    general, other = summary["general"], summary["sources"]["other"]
    assert (general["documents"], general["bytes"]) == (len(trained.rows), bytes_of(trained.rows))
    assert (general["provider"], general["size"]) == ("Ann & Co", "less than 1 billion tokens")
    shards = Artifact.open_at(trained.store, ArtifactId("test/shards", "dev"))
    assert general["tokens"] == shards.record.metrics["tokens"]
    fetched = [row["fetched_at"] for row in trained.rows if row["fetched_at"]]
    assert general["latest_acquisition"] == max(fetched).date().isoformat()
    languages = {row["language"]: (row["documents"], row["bytes"]) for row in general["languages"]}
    assert languages == grouped(trained.rows, lambda row: row["language"] or "unknown")
    files = [row for row in trained.rows if row["source"] != "web"]
    assert {row["name"]: (row["documents"], row["bytes"]) for row in other} == grouped(files, lambda row: row["source"])


def test_every_crawled_domain_is_listed_with_its_licences(trained: Trained, written: WrittenDossier) -> None:
    web = [row for row in trained.rows if row["source"] == "web"]
    listed = read(written, "domains.json")
    assert {row["domain"]: (row["documents"], row["bytes"]) for row in listed} == grouped(web, domain)
    assert [row["bytes"] for row in listed] == sorted((row["bytes"] for row in listed), reverse=True)
    for one in listed:
        stated = Counter(row["licence"] or "none stated" for row in web if domain(row) == one["domain"])
        assert one["licences"] == stated


def test_all_sampled_documents_and_all_domains_are_answered_by_trace(trained: Trained, written: WrittenDossier) -> None:
    traces = read(written, "traces.json")
    assert len({row["id"] for row in traces}) == 100
    for row in traces:
        found = trace(trained.store, "test", "dev", row["id"])
        assert isinstance(found, PageTrace)
        (document,) = (one for one in found.documents if one.id == row["id"])
        steps = document.reading.steps if document.reading else ()
        assert (document.url, len(steps), list(steps[:5])) == (row["url"], row["steps"], row["first_steps"])
    for row in read(written, "domains.json"):
        found = trace(trained.store, "test", "dev", f"domain:{row['domain']}")
        assert isinstance(found, PageTrace)
        assert found.count == row["documents"]


def test_the_page_needs_no_network_and_escapes_what_pages_state(written: WrittenDossier) -> None:
    page = (written.folder / "index.html").read_text()
    assert HOSTILE not in page
    assert "&lt;script&gt;" in page
    assert not [word for word in ("<script", "<link", "<img", "@import", "url(") if word in page]


def test_the_hash_signs_all_files_and_equal_arguments_give_equal_bytes(
    trained: Trained, written: WrittenDossier, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert subprocess.run(["sha256sum", "-c", "--strict", "SHA256SUMS"], cwd=written.folder, check=True)
    named = {line.split()[1] for line in (written.folder / "SHA256SUMS").read_text().splitlines()}
    assert named | {"SHA256SUMS"} == {path.name for path in written.folder.iterdir()}
    assert hashlib.sha256((written.folder / "SHA256SUMS").read_bytes()).hexdigest() == written.sha256
    command = ["dossier", "--recipe", trained.recipe.text, "--version", "dev", str(tmp_path / "again")]
    said = ["--provider", "Ann & Co", "--contact", "mailto:ann@example.org", "--traces", "100"]
    assert shell.main([*command, *said]) == 0
    assert written.sha256 in capsys.readouterr().out
    assert shell.main([*command, *said]) == 2
    with pytest.raises(InputError, match=r"nothing of test@2025"):
        write_dossier(trained.store, "test", "2025", str(tmp_path / "none"), Statement())


def test_tables_of_the_lake_are_in_the_check_of_takedowns(trained: Trained, tmp_path: Path) -> None:
    table = TableCheck("documents", "/lake/test/documents", 3, 2, 5, present=1, examples=["http://a.example/x"])
    made = write_dossier(trained.store, "test", "dev", str(tmp_path / "with"), Statement(), [table], traces=1)
    [check] = [one for one in read(made, "takedowns.json")["checked"] if one["kind"] == "lake"]
    assert (check["artifact"], check["examples"]) == ("/lake/test/documents", ["http://a.example/x"])
    assert "/lake/test/documents" in (made.folder / "index.html").read_text()


def test_a_small_firm_names_fewer_domains(trained: Trained, written: WrittenDossier, tmp_path: Path) -> None:
    small = write_dossier(trained.store, "test", "dev", str(tmp_path / "small"), Statement(small=True), traces=1)
    domains = read(written, "domains.json")
    crawled = [read(one, "summary.json")["sources"]["crawled"] for one in (written, small)]
    named = [[row["domain"] for row in one["largest_domains"]] for one in crawled]
    assert [len(one) for one in named] == [-(-len(domains) // 10), -(-len(domains) // 20)]
    assert named == [[row["domain"] for row in domains[: len(one)]] for one in named]
    assert {one["domains"] for one in crawled} == {len(domains)}


def test_terms_of_use_are_counted_by_domain(tmp_path: Path) -> None:
    terms = '{"robots.license": "https://a.org/l.xml"}'
    urls = pa.table(
        {
            "url": ["https://www.a.org/1", "https://a.org/2", "https://b.org/", "https://b.org/never"],
            "terms": [terms, terms, "", terms],
            "captured_at": pa.array([START, START, START, None], pa.timestamp("ms", tz="UTC")),
        }
    )
    store = Store(str(tmp_path))
    crawldb = Output(store, ArtifactId("test/crawldb/p0", "c1"), "by-hand")
    with crawldb.part("urls", conserved=False) as part, part.file("urls.parquet") as file:
        pq.write_table(urls, file)
    database = commit(crawldb, "update", 1, Config(), [], Report())
    output = Output(store, ArtifactId("test/warc", "c1"), "by-hand")
    with output.part("none", conserved=False):
        pass
    warc = commit(output, "publish", 1, Config(), [database.ref("crawldb")], Report())
    assert terms_of_use(warc) == {"a.org": {"robots.license: https://a.org/l.xml": 2}}


@pytest.mark.oracle("mlcroissant")
def test_mlcroissant_accepts_the_card_of_the_corpus(trained: Trained, written: WrittenDossier) -> None:
    import mlcroissant

    dataset = mlcroissant.Dataset(jsonld=str(written.folder / "croissant.json"))
    assert not dataset.metadata.ctx.issues.errors
    name = dataset.metadata.record_sets[0].name
    first = next(iter(dataset.records(record_set=name)))
    ids = {row["id"] for row in trained.rows}
    assert next(value for key, value in first.items() if key.endswith("/id")).decode() in ids
    assert lineage.chain(trained.store, "test", "dev")["documents"]


def test_nothing_of_a_dossier_is_left_after_a_kill(trained: Trained, tmp_path: Path) -> None:
    code = (
        "import os, sys, hashlib\n"
        "from tasks.core.store import Store\n"
        "from tasks.run.dossier import dossier\n"
        "from tasks.run.dossier.summary import Statement\n"
        "write = dossier.Path.write_text\n"
        "def die(path, *given, **more):\n"
        "    if path.name == 'index.html': os._exit(9)\n"
        "    return write(path, *given, **more)\n"
        "dossier.Path.write_text = die\n"
        "dossier.write_dossier(Store(sys.argv[1]), 'test', 'dev', sys.argv[2], Statement(), traces=1)\n"
    )
    out = tmp_path / "dossier"
    assert subprocess.run([sys.executable, "-c", code, trained.store.root, str(out)], check=False).returncode == 9
    assert not out.exists()
    write_dossier(trained.store, "test", "dev", str(out), Statement(), traces=1)
    assert subprocess.run(["sha256sum", "-c", "--quiet", "SHA256SUMS"], cwd=out, check=True)
