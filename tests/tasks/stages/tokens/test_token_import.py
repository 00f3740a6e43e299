"""External token files: the shards have the same tokens, ids and pages; another tokenizer is refused."""

import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tasks.core.artifact import Artifact
from tasks.core.errors import InputError
from tasks.core.store import Store
from tasks.formats.tokens.index import DocumentIndex
from tasks.formats.tokens.shard import SPLITS, ShardSet
from tasks.formats.tokens.token_files import bin_type, write_megatron_index
from tasks.run.export import export
from tasks.stages.tokens import EncodeConfig, TokenFiles, TokenizerConfig
from tasks.stages.tokens.encode import external
from tests.corpora import Made, corpus, documents_in, kept_document, tokens_in

ENCODE = "tasks.stages.tokens.encode"
Content = dict[str, tuple[str, list[int], int]]


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Made]:
    """An external corpus, and the folder of its exports."""
    folder = tmp_path_factory.mktemp("elsewhere")
    made = tokens_in(folder / "store", corpus(60))
    for kind in ("megatron", "huggingface"):
        export(Store(str(folder / "store")), "test", "dev", kind, str(folder / kind))
    return folder, made


@pytest.fixture
def ours(tmp_path: Path, theirs: tuple[Path, Made]) -> dict[str, Artifact]:
    """Other documents, and the same tokenizer."""
    rows = [kept_document(f"https://ours.org/{number}", f"{number} water and light " * 20) for number in range(9)]
    return {"documents": documents_in(tmp_path, rows), "tokenizer": theirs[1].tokenizer}


def content(shards: Artifact, source: str) -> Content:
    """Document id -> (URL, tokens, bytes of text) of a source, in both splits."""
    files, index = ShardSet.open(shards), DocumentIndex(shards)
    found = {}
    for name in (name for split in SPLITS for name in files.names(source, split)):
        shard, urls = files.shard(name), index.urls(name).to_pylist()
        for row, uid in enumerate(shard.uids):
            tokens = shard.slice(row, 0, int(shard.lengths[row])).tolist()
            found[uid.tobytes().hex()] = (urls[row], tokens, int(shard.n_bytes[row]))
    return found


def importing(path: Path, pattern: str, **more: str) -> EncodeConfig:
    return EncodeConfig(token_files=(TokenFiles(name="theirs", path=str(path / pattern), **more),))


@pytest.mark.parametrize(("kind", "pattern"), [("megatron", "web-*.idx"), ("huggingface", "data/*-web-*.parquet")])
def test_exported_tokens_are_imported_with_ids_pages_and_tokens(
    ours: dict, theirs: tuple, run_stage: Callable, kind: str, pattern: str
) -> None:
    config = importing(theirs[0] / kind, pattern)
    shards = run_stage(ENCODE, config, ours, version=kind)
    assert content(shards, "theirs") == content(theirs[1].shards, "web")
    assert len(content(shards, "web")) == 9
    entry = DocumentIndex(shards).by_uid(bytes.fromhex(next(iter(content(shards, "theirs")))))
    assert entry is not None
    assert entry.shard.startswith("theirs-")
    files = {path.name for path in (theirs[0] / kind).glob(pattern)}
    files |= {name.replace(".idx", ".bin") for name in files}
    assert {Path(path).name for path in external(config)["tokens:theirs"]} == files  # they count in the fingerprint


def test_unnamed_documents_are_named_by_file_and_index_and_end_with_end_of_text(
    ours: dict, theirs: tuple, run_stage: Callable, tmp_path: Path
) -> None:
    web = list(content(theirs[1].shards, "web").values())
    plain = [tokens[:-1] for _, tokens, _ in web]
    pq.write_table(pa.table({"ids": pa.array(plain, pa.list_(pa.int32()))}), tmp_path / "a.parquet")
    shards = run_stage(ENCODE, importing(tmp_path, "*.parquet", column="ids"), ours, version="plain")
    found = {url: tokens for url, tokens, _ in content(shards, "theirs").values()}
    assert found == {f"file://theirs/a.parquet#{row}": tokens for row, (_, tokens, _) in enumerate(web)}
    with pytest.raises(InputError, match='no column "input_ids" but ids'):
        run_stage(ENCODE, importing(tmp_path, "*.parquet"), ours, version="other")


def test_tokens_of_another_tokenizer_or_beyond_the_vocabulary_are_refused(
    ours: dict, theirs: tuple, run_stage: Callable, tmp_path: Path
) -> None:
    draw = random.Random(1)
    foreign = [
        kept_document(f"https://x.org/{n}", " ".join("".join(draw.choices("aeiouxyz", k=5)) for _ in range(99)))
        for n in range(9)
    ]
    inputs = {"documents": documents_in(tmp_path / "x", foreign)}
    trained = run_stage("tasks.stages.tokens.bpe", TokenizerConfig(vocab_size=300), inputs)
    config = importing(theirs[0] / "megatron", "web-*.idx")
    with pytest.raises(InputError, match=r"was made with another tokenizer: of its first .* Import its tokenizer"):
        run_stage(ENCODE, config, {**ours, "tokenizer": trained}, version="foreign")
    lengths = np.array([2], dtype=np.int64)
    (tmp_path / "b.bin").write_bytes(np.array([5, 300], "<u2").tobytes())
    with open(tmp_path / "b.idx", "wb") as file:
        write_megatron_index(file, lengths, bin_type(300))
    with pytest.raises(InputError, match="has the token 300, outside the vocabulary of 300"):
        run_stage(ENCODE, importing(tmp_path, "b.idx"), ours, version="beyond")


@pytest.mark.parametrize("missing", [1, 8, 16, 40])
def test_a_truncated_index_is_refused(ours: dict, run_stage: Callable, tmp_path: Path, missing: int) -> None:
    (tmp_path / "c.bin").write_bytes(np.arange(5, 11).astype("<u2").tobytes())
    with open(tmp_path / "c.idx", "wb") as file:
        write_megatron_index(file, np.array([2, 3, 1], dtype=np.int64), bin_type(300))
    whole = (tmp_path / "c.idx").read_bytes()
    (tmp_path / "c.idx").write_bytes(whole[:-missing])
    with pytest.raises(InputError, match=f"{len(whole)} bytes are needed, {len(whole) - missing} are there"):
        run_stage(ENCODE, importing(tmp_path, "c.idx"), ours, version=f"truncated-{missing}")


def test_only_token_files_are_read(ours: dict, run_stage: Callable, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("water")
    with pytest.raises(InputError, match=r"a\.txt is not a token file. Name files that end in \.idx, \.parquet"):
        run_stage(ENCODE, importing(tmp_path, "*.txt"), ours, version="text")
    with pytest.raises(InputError, match="matches no file below"):
        run_stage(ENCODE, importing(tmp_path, "*.idx"), ours, version="none")
