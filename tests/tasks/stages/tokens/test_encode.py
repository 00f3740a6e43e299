"""Encoding: every document once, losslessly, in the same bytes with any number of workers."""

import importlib
import pickle
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from tasks.core.artifact import Artifact, ArtifactId
from tasks.core.engine import Engine
from tasks.core.errors import InputError
from tasks.core.part import make_run
from tasks.core.stage import Inputs, Output
from tasks.formats.tokens.index import DocumentIndex
from tasks.formats.tokens.shard import (
    HELDOUT,
    SPLITS,
    Shard,
    ShardBuffer,
    ShardSet,
    TokenFormat,
    part_number,
    write_shard,
)
from tasks.stages.tokens import EncodeConfig, PackConfig, TokenizerConfig, encode
from tasks.stages.tokens.bpe import load
from tasks.stages.tokens.encode import run
from tests.conftest import run_stage_in
from tests.corpora import corpus, documents_in, kept_document, tokens_in
from tests.shards import buffer_of


def contents(artifact: Artifact) -> dict[str, str]:
    return {entry.path: entry.sha256 for part in artifact.parts for entry in part.files}


def rows_of(shards: ShardSet) -> dict[str, tuple[str, str, list[int], int]]:
    found = {}
    for source in shards.sources:
        for split in SPLITS:
            for name in shards.names(source, split):
                shard = shards.shard(name)
                for row, length in enumerate(shard.lengths):
                    tokens = shard.slice(row, 0, int(length)).tolist()
                    found[shard.uid(row).hex()] = (source, split, tokens, int(shard.n_bytes[row]))
    return found


def test_every_kept_document_is_in_one_shard_and_decodes_to_its_text(tmp_path: Path) -> None:
    made = tokens_in(tmp_path, encode=EncodeConfig(heldout_share=0.1))
    shards, tokenizer = ShardSet.open(made.shards), load(made.tokenizer)
    documents = [row for path in made.documents.files("kept/") for row in made.documents.table(path).to_pylist()]
    rows = rows_of(shards)
    assert len(rows) == len(documents) == sum(part.rows_out for part in made.shards.parts)
    for document in documents:
        source, _, tokens, n_bytes = rows[document["id"]]
        assert source == document["source"]
        assert tokens[-1] == shards.format.eos_id == 0
        assert tokenizer.decode(tokens[:-1]) == document["text"]
        assert n_bytes == len(document["text"].encode())
    assert sum(shards.n_documents(source, HELDOUT) for source in shards.sources) >= 12


def test_the_index_finds_every_document_by_url_and_by_id(tmp_path: Path) -> None:
    rows = corpus()
    rows.append({**rows[0], "id": "ff" * 16, "text": "the page had another content before"})
    made = tokens_in(tmp_path, rows)
    shards, index = ShardSet.open(made.shards), DocumentIndex(made.shards)
    for row in rows:
        entries = index.by_url(row["url"])
        assert row["id"] in [entry.uid.hex() for entry in entries]
        assert len(entries) == (2 if row["url"] == rows[0]["url"] else 1)
        entry = index.by_uid(bytes.fromhex(row["id"]))
        assert entry in entries
        assert entry == index.by_uid(entry.uid)
        assert shards.shard(entry.shard).uid(entry.row) == entry.uid
        assert entry.uid.hex() in made.documents.table(f"kept/{entry.part}.parquet").column("id").to_pylist()
    assert index.by_url("https://nowhere.org/") == []
    assert index.by_uid(b"\xff" * 15 + b"\xfe") is None


def test_bytes_do_not_depend_on_the_number_of_workers(tmp_path: Path) -> None:
    made = tokens_in(tmp_path)
    inputs = {"documents": made.documents, "tokenizer": made.tokenizer}
    other = run_stage_in(tmp_path, "tasks.stages.tokens.encode", EncodeConfig(), inputs, workers=2, kind="other")
    assert contents(other) == contents(made.shards)


class Backwards(Engine):
    """Processes items in reverse order, each through pickle, as if on another machine."""

    def map(self, fn: Callable, items: Sequence) -> Iterator:
        for index in reversed(range(len(items))):
            there, item = pickle.loads(pickle.dumps((fn, items[index])))
            yield index, there(item)


def test_bytes_do_not_depend_on_the_order_in_which_parts_arrive(tmp_path: Path) -> None:
    made = tokens_in(tmp_path)
    stages = [
        ("tasks.stages.tokens.bpe", TokenizerConfig(vocab_size=300), {"documents": made.documents}, made.tokenizer),
        (
            "tasks.stages.tokens.encode",
            EncodeConfig(),
            {"documents": made.documents, "tokenizer": made.tokenizer},
            made.shards,
        ),
        ("tasks.stages.tokens.pack", PackConfig(seq_len=32), {"shards": made.shards}, made.plan),
    ]
    for module, config, inputs, expected in stages:
        output = Output(made.shards.store, ArtifactId(f"test/backwards-{module}", "dev"), "print")
        importlib.import_module(module).run(config, Inputs(inputs), output, Backwards())
        assert {e.path: e.sha256 for part in output.committed.values() for e in part.files} == contents(expected)


def test_the_split_of_a_document_does_not_depend_on_the_corpus(tmp_path: Path) -> None:
    rows = [kept_document(f"https://a.org/{index}", f"text number {index} of many") for index in range(400)]
    encode = EncodeConfig(heldout_share=0.1, heldout_min=0)
    all_rows = rows_of(ShardSet.open(tokens_in(tmp_path, rows, parts=3, encode=encode).shards))
    some_rows = rows_of(ShardSet.open(tokens_in(tmp_path / "elsewhere", rows[::2], parts=1, encode=encode).shards))
    assert all(all_rows[uid][1] == split for uid, (_, split, _, _) in some_rows.items())
    held = sum(split == HELDOUT for _, split, _, _ in all_rows.values())
    assert 20 <= held <= 60  # binomial(400, 0.1): 40 +- 3.3 sigma


def test_a_small_source_still_has_held_out_documents(tmp_path: Path) -> None:
    shards = ShardSet.open(tokens_in(tmp_path, encode=EncodeConfig(heldout_share=0.0, heldout_min=4)).shards)
    assert {source: shards.n_documents(source, HELDOUT) for source in shards.sources} == {
        "web": 4, "code": 4, "my-books": 4,
    }  # fmt: skip
    uid, tokens, n_bytes = next(shards.heldout("web"))
    assert len(uid) == 16
    assert len(tokens) > 1
    assert n_bytes > 0


def test_a_full_shard_is_closed_and_the_next_one_is_opened(tmp_path: Path) -> None:
    made = tokens_in(tmp_path, encode=EncodeConfig(shard_tokens=500))
    shards = ShardSet.open(made.shards)
    names = shards.names("web")
    assert len(names) > 3
    for name in names:
        assert shards.shard(name).lengths[:-1].sum() < 500
    assert len(rows_of(shards)) == 120


def test_bytes_do_not_depend_on_how_many_documents_are_encoded_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = tokens_in(tmp_path, encode=EncodeConfig(shard_tokens=2000))
    monkeypatch.setattr(encode, "_PIECE_BYTES", 3000)
    inputs = {"documents": made.documents, "tokenizer": made.tokenizer}
    other = run_stage_in(tmp_path, "tasks.stages.tokens.encode", EncodeConfig(shard_tokens=2000), inputs, kind="other")
    assert contents(other) == contents(made.shards)


def test_a_shard_of_a_slice_has_the_bytes_of_a_shard_of_its_own(tmp_path: Path) -> None:
    tokens = [np.full(3 * row, row, np.uint16) for row in range(7)]
    uids = [row.to_bytes(16, "big") for row in range(7)]
    fmt, written = TokenFormat(300, 0, "x"), []
    whole = buffer_of("a", "train", uids, tokens, list(range(7)), {"kind": list("abcabca")})
    part = ShardBuffer(
        "a", "train", whole.uids[2:5], whole.tokens[2:5], whole.n_bytes[2:5], {"kind": whole.labels["kind"][2:5]}
    )
    own = buffer_of("a", "train", uids[2:5], tokens[2:5], [2, 3, 4], {"kind": list("cab")})
    for number, buffer in enumerate((part, own)):
        with (tmp_path / f"{number}.arrow").open("wb") as file:
            write_shard(file, buffer, fmt)
        written.append((tmp_path / f"{number}.arrow").read_bytes())
    assert written[0] == written[1]


def test_tokens_take_two_bytes_and_slices_copy_nothing(tmp_path: Path) -> None:
    shards = ShardSet.open(tokens_in(tmp_path).shards)
    shard = shards.shard(shards.names("web")[0])
    piece = shard.slice(0, 1, 3)
    assert piece.dtype == np.uint16
    assert not piece.flags.owndata
    assert piece.tolist() == shard.slice(0, 0, 4)[1:].tolist()
    with pytest.raises(IndexError, match="row 0 has"):
        shard.slice(0, 0, 10**6)
    with pytest.raises(IndexError, match="the shard has the rows"):
        shard.slice(10**6, 0, 1)


def test_a_shard_of_many_batches_is_read_at_any_row(tmp_path: Path) -> None:
    count, path = 20_000, tmp_path / "a-train-00000-000.arrow"
    tokens = [np.array([row % 300, 0], dtype=np.uint16) for row in range(count)]
    uids = [row.to_bytes(16, "big") for row in range(count)]
    with path.open("wb") as file:
        buffer = buffer_of("a", "train", uids, tokens, [row % 7 for row in range(count)])
        write_shard(file, buffer, TokenFormat(300, 0, "x"))
    shard = Shard(str(path))
    assert shard.rows == count == len(shard.lengths) == len(shard.uids)
    for row in (0, 8191, 8192, 16_383, 16_384, count - 1):
        assert shard.uid(row) == uids[row] == shard.uids[row].tobytes()
        assert shard.slice(row, 0, 2).tolist() == [row % 300, 0]
        assert shard.n_bytes[row] == row % 7


def test_a_shard_set_can_be_pickled(tmp_path: Path) -> None:
    shards = ShardSet.open(tokens_in(tmp_path).shards)
    shards.n_tokens("web")
    assert rows_of(pickle.loads(pickle.dumps(shards))) == rows_of(shards)


def test_a_part_without_kept_documents_is_skipped(tmp_path: Path) -> None:
    rows = [row for row in corpus() if int(row["id"], 16) % 3 != 1]
    made = tokens_in(tmp_path, rows, parts=3)
    assert list(made.shards.parts)[1].rows_out == 0
    index = DocumentIndex(made.shards)
    for row in rows:
        assert len(index.by_url(row["url"])) == 1
        entry = index.by_uid(bytes.fromhex(row["id"]))
        assert entry is not None
        assert part_number(entry.shard) != 1


def test_a_truncated_shard_is_refused_with_its_path(tmp_path: Path) -> None:
    shards = tokens_in(tmp_path).shards
    path = shards.local(shards.files("shards/")[0])
    cut = tmp_path / "cut.arrow"
    cut.write_bytes(Path(path).read_bytes()[:-40])
    with pytest.raises(InputError, match=r"cut\.arrow is not a readable token shard"):
        Shard(str(cut))


def test_zero_kept_documents_are_an_error_with_the_address(tmp_path: Path, run_stage: Callable) -> None:
    with pytest.raises(InputError, match="test/documents@dev has no kept document"):
        run_stage("tasks.stages.tokens.bpe", TokenizerConfig(), {"documents": documents_in(tmp_path, [])})


def test_a_vocabulary_above_two_bytes_is_stored_in_four(tmp_path: Path) -> None:
    fmt = TokenFormat(70_000, 0, "x")
    with open(tmp_path / "a-train-00000-000.arrow", "wb") as file:
        write_shard(file, buffer_of("a", "train", [b"u" * 16], [np.array([69_999, 0])], [5]), fmt)
    shard = Shard(str(tmp_path / "a-train-00000-000.arrow"))
    assert shard.slice(0, 0, 2).tolist() == [69_999, 0]
    assert shard.slice(0, 0, 2).dtype == np.uint32


class Dies(Engine):
    """Makes one part, then is killed."""

    def map(self, fn: Callable, items: Sequence) -> Iterator:
        if not isinstance(fn, partial) or fn.func is not make_run:  # looking at documents is not making parts
            yield from super().map(fn, items)
            return
        yield 0, fn(items[0])
        raise KeyboardInterrupt


def test_a_killed_run_resumes_at_the_next_part_and_ends_with_the_same_bytes(tmp_path: Path) -> None:
    made = tokens_in(tmp_path)
    inputs = Inputs({"documents": made.documents, "tokenizer": made.tokenizer})
    where = (made.shards.store, ArtifactId("test/killed", "dev"), "print")
    with pytest.raises(KeyboardInterrupt):
        run(EncodeConfig(), inputs, Output(*where), Dies())
    again = Output(*where)
    assert len(again.committed) == 1
    run(EncodeConfig(), inputs, again, Engine())
    assert {e.path: e.sha256 for part in again.committed.values() for e in part.files} == contents(made.shards)
