"""Held-out text of a cycle whose arms are settings: the same text for every arm, none that an arm is trained on."""

from pathlib import Path

import pytest

from tasks.core.artifact import Artifact
from tasks.formats.documents.document import is_heldout
from tasks.formats.tokens.shard import ShardSet
from tasks.stages.canary.heldout import measured, trained_on
from tasks.stages.tokens import EncodeConfig, TokenizerConfig
from tests.conftest import run_stage_in
from tests.corpora import corpus, documents_in, tokens_in

SHARE = 0.3
ENCODE = EncodeConfig(heldout_share=SHARE, heldout_min=0)
ROWS = corpus(40)
HELD_OUT = [row["id"] for row in ROWS if is_heldout(row["id"], SHARE)]
TRAINED = [row["id"] for row in ROWS if not is_heldout(row["id"], SHARE)]


def rejected(id_: str, duplicate_of: str) -> dict:
    empty = {"url": "", "language": "", "prose_score": 0.0, "tier": "", "reasons": []}
    return {"id": id_, "source": "web", "reason": "duplicate_near", "duplicate_of": duplicate_of, **empty}


def variant(folder: Path, name: str, dropped: dict[str, str]) -> tuple[Artifact, Artifact]:
    """Returns documents and shards without the dropped documents, each a duplicate of another."""
    rows = [row for row in ROWS if row["id"] not in dropped]
    documents_in(folder, rows, 1, [rejected(*pair) for pair in dropped.items()], version=name)
    made = tokens_in(folder, encode=ENCODE, version=name)
    return made.documents, made.shards


@pytest.fixture
def current(tmp_path: Path) -> tuple[Artifact, Artifact]:
    """The current settings drop one document as the duplicate of a held-out one."""
    return variant(tmp_path, "current", {TRAINED[0]: HELD_OUT[0]})


def left_out(current: tuple[Artifact, Artifact], arm: tuple[Artifact, Artifact], max_tokens: int = 10**6) -> list[str]:
    documents, shards = zip(current, arm, strict=True)
    return trained_on(ShardSet.open(current[1]), max_tokens, shards, documents)


def test_a_document_is_left_out_if_an_arm_keeps_its_duplicate_for_training(
    current: tuple[Artifact, Artifact], tmp_path: Path
) -> None:
    assert left_out(current, current) == []
    assert left_out(current, variant(tmp_path, "looser", {})) == [HELD_OUT[0]]
    # The arm keeps the other one of two duplicates.
    other = variant(tmp_path, "other", {TRAINED[0]: HELD_OUT[0], HELD_OUT[1]: TRAINED[1]})
    assert left_out(current, other) == [HELD_OUT[1]]
    # Of two held-out duplicates neither is trained on.
    assert left_out(current, variant(tmp_path, "both", {TRAINED[0]: HELD_OUT[0], HELD_OUT[1]: HELD_OUT[2]})) == []


def test_an_arm_with_another_tokenizer_is_measured_on_the_same_bytes(
    current: tuple[Artifact, Artifact], tmp_path: Path
) -> None:
    documents, shards = current
    own, other = (
        run_stage_in(
            tmp_path,
            "tasks.stages.tokens.bpe",
            TokenizerConfig(vocab_size=size),
            {"documents": documents},
            kind=f"bpe{size}",
        )
        for size in (300, 270)
    )
    opened, without = ShardSet.open(shards), {bytes.fromhex(HELD_OUT[0])}
    same = measured(opened, 10**6, without, (own, own), 0)
    coarse = measured(opened, 10**6, without, (own, other), 7)
    assert same.keys() == coarse.keys() == {"web", "code", "my-books"}
    texts = {row["id"]: row["text"] for row in ROWS}
    for source, several in same.items():
        assert bytes.fromhex(HELD_OUT[0]) not in {document.uid for document in several}
        for one, again in zip(several, coarse[source], strict=True):
            assert (one.uid, one.n_bytes) == (again.uid, again.n_bytes)
            assert again.n_bytes == len(texts[one.uid.hex()].encode())
            assert len(again.tokens) > len(one.tokens)
            assert again.tokens[-1] == 7
