"""Export: other trainers read the same tokens, with the page of each document."""

import io
import json
import struct
import tarfile
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from tasks.core.digest import sha256_of_file
from tasks.core.errors import InputError
from tasks.core.store import Store
from tasks.formats.tokens.shard import SPLITS, ShardSet
from tasks.formats.tokens.token_files import MegatronFile, bin_type, write_megatron_index
from tasks.run.export import FORMATS, export
from tests.corpora import Made, corpus, tokens_in
from tests.taken_down import take_down

Documents = list[tuple[str, list[int]]]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Made]:
    folder = tmp_path_factory.mktemp("exported")
    return folder, tokens_in(folder, corpus(60))


def documents_of(made: Made, source: str, split: str) -> Documents:
    shards = ShardSet.open(made.shards)
    return [
        (uid.tobytes().hex(), shard.slice(row, 0, int(shard.lengths[row])).tolist())
        for shard in map(shards.shard, shards.names(source, split))
        for row, uid in enumerate(shard.uids)
    ]


def groups(made: Made) -> list[tuple[str, str]]:
    shards = ShardSet.open(made.shards)
    return [(source, split) for source in shards.sources for split in SPLITS if shards.names(source, split)]


def test_megatron_files_follow_their_layout(made: tuple, tmp_path: Path) -> None:
    out = export(Store(str(made[0])), "test", "dev", "megatron", str(tmp_path / "out"))
    for source, split in groups(made[1]):
        index, tokens = (out / f"{source}-{split}.idx").read_bytes(), (out / f"{source}-{split}.bin").read_bytes()
        magic, version, code, count, bounds = struct.unpack_from("<9sQBQQ", index)
        assert (magic, version, code, bounds) == (b"MMIDIDX\0\0", 1, 8, count + 1)
        lengths = struct.unpack_from(f"<{count}i", index, 34)
        offsets = struct.unpack_from(f"<{count}q", index, 34 + 4 * count)
        firsts = struct.unpack_from(f"<{bounds}q", index, 34 + 12 * count)
        assert len(index) == 34 + 12 * count + 8 * bounds
        assert firsts == tuple(range(bounds))
        ids = pq.read_table(out / f"{source}-{split}.documents.parquet").column("id").to_pylist()
        read = [np.frombuffer(tokens, "<u2", n, at).tolist() for n, at in zip(lengths, offsets, strict=True)]
        assert list(zip(ids, read, strict=True)) == documents_of(made[1], source, split)
        file = MegatronFile.open(str(out / f"{source}-{split}.idx"))
        again = [file.tokens[a : a + n].tolist() for a, n in zip(file.begin, file.length, strict=True)]
        assert again == read


def test_webdataset_has_tokens_and_page_of_each_document(made: tuple, tmp_path: Path) -> None:
    out = export(Store(str(made[0])), "test", "dev", "webdataset", str(tmp_path / "out"))
    urls = {row["id"]: row["url"] for row in corpus(60)}
    for source, split in groups(made[1]):
        read = []
        for path in sorted(out.glob(f"{source}-{split}-*.tar")):
            with tarfile.open(path) as tar:
                members = tar.getnames()
                for array, about in zip(members[::2], members[1::2], strict=True):
                    key = array.removesuffix(".npy")
                    assert about == f"{key}.json"
                    assert json.load(tar.extractfile(about))["url"] == urls[key]
                    read.append((key, np.load(io.BytesIO(tar.extractfile(array).read())).tolist()))
        assert read == documents_of(made[1], source, split)


def test_a_dataset_folder_has_a_row_per_document_and_a_card_that_names_the_splits(made: tuple, tmp_path: Path) -> None:
    out = export(Store(str(made[0])), "test", "dev", "huggingface", str(tmp_path / "out"))
    for split in SPLITS:
        expected = [row for source, of in groups(made[1]) if of == split for row in documents_of(made[1], source, of)]
        tables = [pq.read_table(path) for path in sorted((out / "data").glob(f"{split}-*.parquet"))]
        rows = [row for table in tables for row in table.to_pylist()]
        assert sorted((row["id"], row["input_ids"]) for row in rows) == sorted(expected)
        assert f"  - split: {split}\n    path: data/{split}-*.parquet\n" in (out / "README.md").read_text()


@pytest.mark.parametrize("kind", FORMATS)
def test_an_export_names_its_inputs_and_is_reproducible(made: tuple, tmp_path: Path, kind: str) -> None:
    store = Store(str(made[0]))
    one, two = (export(store, "test", "dev", kind, str(tmp_path / name)) for name in ("one", "two"))
    about = json.loads((one / "export.json").read_text())
    assert about == json.loads((two / "export.json").read_text())
    assert about["artifact"] == "test/shards@dev"
    assert about["fingerprint"] == made[1].shards.record.fingerprint
    described = {"export.json", "tokenizer.json", "README.md"}
    files = {str(path.relative_to(one)) for path in one.rglob("*") if path.is_file()}
    assert files - described == set(about["files"])
    for name, entry in about["files"].items():
        assert entry["sha256"] == sha256_of_file(two / name)


@pytest.mark.parametrize("kind", FORMATS)
def test_documents_taken_down_are_not_exported(tmp_path: Path, kind: str) -> None:
    rows = corpus(30)
    made = tokens_in(tmp_path / "store", rows)
    takedown = take_down(tmp_path / "store", "t1", domains="h1.org", documents=rows[0]["id"], reason="asked")
    out = export(Store(str(tmp_path / "store")), "test", "dev", kind, str(tmp_path / "out"))
    about = json.loads((out / "export.json").read_text())
    assert about["takedowns"] == [str(takedown.address)]
    gone = {row["id"] for row in rows if "//h1.org/" in row["url"]} | {rows[0]["id"]}
    files = about["files"] if kind != "megatron" else [name for name in about["files"] if name.endswith(".idx")]
    assert sum(about["files"][name]["documents"] for name in files) == len(rows) - len(gone)
    assert len(documents_of(made, "web", "train")) > 0
    # No id or URL of such a document is in any file; Parquet must be decoded, because it is compressed.
    tables = [str(pq.read_table(path).to_pylist()) for path in out.rglob("*.parquet")]
    texts = [*tables, *(path.read_bytes().decode("latin-1") for path in out.rglob("*") if path.is_file())]
    assert not [doc_id for doc_id in gone for text in texts if doc_id in text]
    assert not [text for text in texts if "h1.org" in text]


def test_an_export_never_writes_into_an_existing_folder(made: tuple, tmp_path: Path) -> None:
    store = Store(str(made[0]))
    with pytest.raises(InputError, match=r"exists already\. Name a folder that does not exist"):
        export(store, "test", "dev", "megatron", str(tmp_path))
    with pytest.raises(InputError, match="nothing of test@none"):
        export(store, "test", "none", "megatron", str(tmp_path / "out"))
    assert list(tmp_path.iterdir()) == []


def test_a_broken_megatron_index_is_refused(tmp_path: Path) -> None:
    index = tmp_path / "a.idx"
    lengths = np.array([3, 5], dtype=np.int64)
    with open(index, "wb") as file:
        write_megatron_index(file, lengths, bin_type(300))
    (tmp_path / "a.bin").write_bytes(bytes(16))
    whole = index.read_bytes()
    assert MegatronFile.open(str(index)).length.tolist() == [3, 5]
    for broken in (whole[:20], whole[:-8], b"X" + whole[1:], whole[:17] + b"\x07" + whole[18:], b""):
        index.write_bytes(broken)
        with pytest.raises(InputError, match="no readable Megatron index"):
            MegatronFile.open(str(index))
    index.write_bytes(whole)
    (tmp_path / "a.bin").write_bytes(bytes(14))
    with pytest.raises(InputError, match=r"beyond the 7 of its \.bin"):
        MegatronFile.open(str(index))
