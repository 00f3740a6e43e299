"""The document index: lookups agree with a scan of all documents, and make few requests for any corpus size."""

from pathlib import Path

import numpy as np
import pytest

from tasks.core.artifact import Artifact, ArtifactId
from tasks.core.commit import commit
from tasks.core.config import Config
from tasks.core.engine import open_engine
from tasks.core.errors import InputError
from tasks.core.removal import remove_files
from tasks.core.stage import Output, Report
from tasks.core.store import Store
from tasks.formats.documents import key_index
from tasks.formats.documents.key_index import DOMAIN, KeyIndex, MergedKeys, key_of
from tasks.formats.tokens.index import DocumentIndex
from tasks.formats.tokens.shard import ShardSet
from tests.corpora import Made, kept_document, tokens_in
from tests.s3_server import S3Server

HOSTS = (
    "example.org", "www.example.org", "docs.example.org:8443", "a.docs.example.org", "notexample.org", "example.co.uk",
    "b.example.co.uk", "127.0.0.1:8080",
)  # fmt: skip
ROWS = [
    *(kept_document(f"https://{host}/{index}", f"page {index} of {host}") for host in HOSTS for index in range(9)),
    kept_document("HTTPS://Docs.Example.Org/spelled", "another spelling of the host"),
    kept_document("file://dump/part.jsonl#7", "a row of a file"),
]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return tokens_in(tmp_path_factory.mktemp("indexed"), ROWS)


def keys_in(root: str, parts: list[list[tuple[int, int]]]) -> Artifact:
    """Commits an artifact that has the keys (key, row) of some parts."""
    output = Output(Store(root), ArtifactId("test/keys", "dev"), "by-hand")
    for number, words in enumerate(parts):
        with output.part(f"part-{number:05d}", conserved=False) as part:
            keys = np.array([key for key, _ in words], np.uint64)
            key_index.write_part_keys(part, keys, np.array([row for _, row in words], np.int64))
    with open_engine(workers=0) as engine:
        key_index.merge(output, engine, [output.committed[name] for name in sorted(output.committed)])
    return commit(output, "by hand", 1, Config(), [], Report())


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("example.org", {"example.org", "www.example.org", "docs.example.org:8443", "a.docs.example.org"}),
        ("docs.example.org", {"docs.example.org:8443", "a.docs.example.org"}),
        ("www.example.org", {"www.example.org"}),
        ("example.co.uk", {"example.co.uk", "b.example.co.uk"}),
        ("127.0.0.1", {"127.0.0.1:8080"}),
        ("other.org", set()),
    ],
)
def test_a_domain_has_the_documents_of_all_its_subdomains(made: Made, name: str, found: set) -> None:
    wanted = {row["url"] for row in ROWS if row["url"].split("/")[2] in found}
    if name in ("example.org", "docs.example.org"):
        wanted.add("HTTPS://Docs.Example.Org/spelled")
    index = DocumentIndex(made.shards)
    count, entries = index.by_domain(name)
    assert {entry.url for entry in entries} == wanted
    assert count == len(entries) == len(wanted)
    assert index.by_domain(name, 3) == (count, entries[:3])


def test_positions_tokens_and_urls_match_the_shards(made: Made) -> None:
    index, shards = DocumentIndex(made.shards), ShardSet.open(made.shards)
    urls = {row["id"]: row["url"] for row in ROWS}
    for name in shards.all_names:
        shard = shards.shard(name)
        entries = index.at([(name, row) for row in range(shard.rows)])
        assert [entry.uid for entry in entries] == [shard.uid(row) for row in range(shard.rows)]
        assert [entry.offset for entry in entries] == shard.token_offsets.tolist()
        assert [entry.n_tokens for entry in entries] == shard.lengths.tolist()
        read = index.tokens([(name, entry.offset, entry.n_tokens) for entry in entries], shard.format.dtype)
        assert [one.tolist() for one in read] == [
            shard.slice(name_row, 0, len(one)).tolist() for name_row, one in enumerate(read)
        ]
        assert index.urls(name).to_pylist() == [entry.url for entry in entries]
        assert [entry.url for entry in entries] == [urls[entry.uid.hex()] for entry in entries]
        assert {index.label(name, row, "source") for row in range(shard.rows)} <= {name.split("-")[0]}
    listed = [row for table in index.entries() for row in table.to_pylist()]
    assert len(listed) == len(ROWS)
    for row in listed:
        (entry,) = index.at([(row["shard"], row["row"])])
        assert (entry.uid, entry.url) == (row["doc_uid"], row["url"])


@pytest.mark.parametrize("range_keys", [1 << 22, 500])
def test_every_key_is_found_with_all_its_rows_for_any_number_of_ranges(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, range_keys: int
) -> None:
    monkeypatch.setattr(key_index, "_RANGE_KEYS", range_keys)
    draw = np.random.default_rng(3)
    words = [[f"site-{number}" for number in draw.zipf(1.3, 3000) % 700] for _ in range(3)]
    parts = [[(key_of(DOMAIN, word), row) for row, word in enumerate(part)] for part in words]
    artifact = keys_in(str(tmp_path), [*parts, []])
    assert len(artifact.files("index/")) == (1 if range_keys > 500 else 18)
    index = KeyIndex(artifact)
    for word in {word for part in words for word in part} | {"none"}:
        wanted = [(number, row) for number, part in enumerate(words) for row, one in enumerate(part) if one == word]
        assert index.find(DOMAIN, word) == (len(wanted), wanted)
        assert index.find(DOMAIN, word, 2) == (len(wanted), wanted[:2])


def test_a_lookup_makes_as_few_requests_in_a_large_index_as_in_a_small_one(s3: S3Server, tmp_path: Path) -> None:
    made = []
    for size in (1_000, 300_000):
        keys = np.random.default_rng(size).integers(0, 2**63, size, dtype=np.uint64) * np.uint64(2)
        keys[7] = key_of(DOMAIN, "wanted")
        parts = [list(zip(half.tolist(), range(len(half)), strict=True)) for half in np.array_split(keys, 2)]
        made.append(keys_in(f"s3://sluice/{tmp_path.name}-{size}", parts))
    for artifact in made:
        before, counted = s3.faults.requests, artifact.store.requests
        assert KeyIndex(artifact).find(DOMAIN, "wanted") == (1, [(0, 7)])
        assert s3.faults.requests - before == artifact.store.requests - counted <= 3


def test_an_index_of_an_earlier_format_is_refused(made: Made, tmp_path: Path) -> None:
    before = made.shards.limited_to(part for part in made.shards.parts if not part.name.startswith("words-"))
    with pytest.raises(InputError, match="no index of its rows"):
        DocumentIndex(before)


def test_keys_that_are_to_grow_are_missed_by_name(tmp_path: Path) -> None:
    artifact = keys_in(str(tmp_path), [[(number << 40, number) for number in range(50)]])
    merged, (path,) = MergedKeys.of(artifact), artifact.files("index/")
    whole = artifact.read(path)
    with artifact.store.write(f"{artifact.path}/{path}") as file:
        file.write(whole[:-1])
    with pytest.raises(InputError, match=rf"{path} is missing or has no bytes 0 \.\. {len(whole)}"):
        merged.between(0, 1 << 64)
    remove_files(artifact, "of a test", artifact.record.finished)
    with pytest.raises(InputError, match=r"test/keys@dev were removed on .*of a test"):
        merged.between(0, 1 << 64)


@pytest.mark.parametrize(("before", "after"), [(1 << 22, 1 << 22), (1 << 22, 300), (300, 300), (300, 700), (90, 80)])
def test_an_index_grows_by_new_parts_to_the_bytes_of_one_merge_of_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: int, after: int
) -> None:
    monkeypatch.setattr(key_index, "_REACHES", (4, 32))
    draw = np.random.default_rng(5)
    # Every seventh key is one of five, which displaces all others.
    words = [[f"w{row % 5 if row % 7 == 0 else draw.integers(10**9)}" for row in range(600)] for _ in range(5)]
    parts = [[(key_of(DOMAIN, word), row) for row, word in enumerate(part)] for part in words]
    monkeypatch.setattr(key_index, "_RANGE_KEYS", before)
    earlier = keys_in(str(tmp_path / "earlier"), parts[:3])
    monkeypatch.setattr(key_index, "_RANGE_KEYS", after)
    whole = keys_in(str(tmp_path / "whole"), parts)
    output = Output(Store(str(tmp_path / "grown")), ArtifactId("test/keys", "dev"), "by-hand")
    for name in ("part-00003", "part-00004"):  # the files of the others are not there
        with output.part(name, conserved=False) as part:
            part.write(path := f"keys/{name}.bin", whole.read(path), rows=600)
    records = [*(part for part in earlier.parts if part.name.startswith("part-")), *output.committed.values()]
    with open_engine(workers=0) as engine:
        key_index.merge(output, engine, records, MergedKeys.of(earlier))
    merged = output.folder
    assert [merged.read(path) for path in whole.files("index/")] == [whole.read(path) for path in whole.files("index/")]
