"""Labels: columns of the documents, stored next to the tokens as names."""

import json
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from tasks.core.engine import Engine
from tasks.core.errors import InputError
from tasks.formats.documents.words import WORDS
from tasks.formats.tokens.labels import label
from tasks.formats.tokens.plan import Plan
from tasks.formats.tokens.shard import (
    SPLITS,
    TRAIN,
    Shard,
    ShardSet,
    TokenFormat,
    count_labels,
    label_values,
    read_label,
    write_shard,
)
from tasks.stages.tokens import EncodeConfig
from tasks.stages.tokens.fertility import FERTILITY, fertility_table
from tests.conftest import run_stage_in
from tests.corpora import corpus, documents_in, kept_document, tokens_in
from tests.shards import buffer_of


def labels_of(shards: ShardSet, name: str) -> dict[str, str]:
    found = {}
    for source in shards.sources:
        for split in SPLITS:
            for shard in map(shards.shard, shards.names(source, split)):
                column = shard.column(name)
                assert len(column) == shard.rows
                found |= {shard.uid(row).hex(): value for row, value in enumerate(column.to_pylist())}
    return found


def test_every_document_keeps_the_values_of_the_configured_columns(tmp_path: Path) -> None:
    times = [datetime(2026, month, 9, tzinfo=UTC) for month in (3, 11)]
    rows = [
        {
            **row,
            "tier": ("gold", "silver")[index % 2],
            "fetched_at": times[index % 3 % 2],
            "metadata": json.dumps({"topic": "News & media"}) if index % 5 else None,
        }
        for index, row in enumerate(corpus(60))
    ]
    columns = ("tier", "language", "fetched_at", "metadata.topic")
    shards = ShardSet.open(tokens_in(tmp_path, rows, encode=EncodeConfig(columns=columns)).shards)
    found = {name: labels_of(shards, name) for name in (*columns, "source")}
    for index, row in enumerate(rows):
        assert [found[name][row["id"]] for name in (*columns, "source")] == [
            row["tier"],
            row["language"],
            ("2026-03", "2026-11")[index % 3 % 2],
            "News%20%26%20media" if index % 5 else "unknown",
            row["source"],
        ]


def test_tier_and_language_are_kept_by_default_and_other_columns_are_refused_by_name(tmp_path: Path) -> None:
    shards = ShardSet.open(tokens_in(tmp_path, corpus(12)).shards)
    assert set(labels_of(shards, "tier").values()) == {"silver"}
    assert set(labels_of(shards, "language").values()) == {"en", "de"}
    with pytest.raises(InputError, match=r'no column "langage": did you mean "language"\?.*\[encode\] columns'):
        shards.shard(shards.names("web")[0]).column("langage")


def test_a_missing_column_is_refused_before_any_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = tokens_in(tmp_path, corpus(12))
    monkeypatch.setattr(Engine, "map", None)
    config, inputs = EncodeConfig(columns=("topic",)), {"documents": made.documents, "tokenizer": made.tokenizer}
    with pytest.raises(InputError, match=r"\[encode\] columns: .* have no column topic.*one of .*language"):
        run_stage_in(tmp_path, "tasks.stages.tokens.encode", config, inputs, kind="shards", version="other")


def test_labels_of_many_batches_are_read_as_one_column(tmp_path: Path) -> None:
    count, path = 20_000, tmp_path / "a-train-00000-000.arrow"
    values = [f"v{row % 7}" if row < 9000 else "late" for row in range(count)]
    uids, tokens = [row.to_bytes(16, "big") for row in range(count)], [np.zeros(1, np.uint16)] * count
    with path.open("wb") as file:
        buffer = buffer_of("a", "train", uids, tokens, [1] * count, {"kind": values})
        write_shard(file, buffer, TokenFormat(9, 0, ""))
    column = Shard(str(path)).column("kind")
    assert column.to_pylist() == values
    assert len(column.dictionary) == 8
    assert column.indices.type == pa.int32()


@pytest.mark.parametrize(
    ("value", "name"),
    [
        ("docs.python.org", "docs.python.org"),
        ("a/b", "a%2Fb"),
        ("..", "%2E."),
        (".hidden", "%2Ehidden"),
        ("50% off", "50%25%20off"),
        ("Æther~", "%C3%86ther%7E"),
        ("", "unknown"),
        (3, "3"),
        (False, "false"),
    ],
)
def test_a_value_is_converted_to_a_name(value: object, name: str) -> None:
    assert label(value, "kind") == name


@pytest.mark.parametrize("value", [1.5, ["a"], {"a": 1}, "x" * 101])
def test_a_value_that_gives_no_name_is_refused_with_its_column(value: object) -> None:
    with pytest.raises(InputError, match=r"\[encode\] columns: kind has "):
        label(value, "kind")


def test_a_field_of_metadata_is_read_from_every_row() -> None:
    rows = pa.array(['{"topic": "a"}', None, '{"other": 1}', '{"topic": "b"}'])
    assert label_values(rows, "metadata.topic").to_pylist() == ["a", "unknown", "unknown", "b"]


def test_fertility_of_the_shards_is_by_language_and_by_source(tmp_path: Path) -> None:
    rows = [*corpus(60), kept_document("https://x.org/1", "ohne Sprache", language="")]
    made = tokens_in(tmp_path, rows)
    fit = json.loads(made.shards.read(FERTILITY))
    assert fit["language"].keys() == {"en", "de", "unknown"}
    assert fit["source"].keys() == {"web", "code", "my-books"}
    assert fit["all"]["documents"] == 61, "parts as small as these are measured whole"
    stored = sum(
        int(shard.lengths.sum()) - shard.rows
        for shard in map(Shard, map(made.shards.local, made.shards.files("shards/")))
    )
    assert fit["all"]["tokens"] == stored
    row = fit["source"]["code"]
    metrics = made.shards.record.metrics
    assert metrics["tokens_per_word/source/code"] == row["tokens_per_word"] > 1
    assert metrics["bytes_per_token/language/de"] == fit["language"]["de"]["bytes_per_token"] > 1
    assert not any(name.startswith("fertility/") for name in metrics)


def test_fertility_names_the_segmentation_of_every_part(tmp_path: Path) -> None:
    made = tokens_in(tmp_path, corpus(60))
    assert json.loads(made.shards.read(FERTILITY))["segmentation"] == [WORDS]
    taken_over = [json.loads(made.shards.read(path)) for path in made.shards.files("fertility/")]
    taken_over[0]["segmentation"] = "icu 70.1, rules 0"
    assert fertility_table([*taken_over, {}])["segmentation"] == sorted({WORDS, "icu 70.1, rules 0"})
    assert fertility_table([{}])["segmentation"] == []


def test_fertility_of_a_large_part_is_measured_on_a_sample(tmp_path: Path) -> None:
    rows = [kept_document(f"https://a.org/{index}", f"{index} water " * 1000) for index in range(100)]
    documents_in(tmp_path, rows, parts=1)
    fit = json.loads(tokens_in(tmp_path).shards.read(FERTILITY))
    assert 128 * 1024 // 10_000 <= fit["all"]["documents"] <= 128 * 1024 // 7_000 + 2


def test_sequences_are_grouped_by_source_and_language_together(tmp_path: Path) -> None:
    rows = [kept_document(f"https://a.org/{number}", f"a+b {number} " * 40) for number in range(9)]
    rows += [kept_document(f"https://b.org/{number}", f"数据 {number} " * 40, language="ja") for number in range(9)]
    rows += [kept_document(f"https://c.org/{number}", f"c {number} " * 40, "code") for number in range(9)]
    made = tokens_in(tmp_path, rows, by="source+language")
    plan, shards = Plan.open(made.plan), ShardSet.open(made.shards)
    assert plan.sources == ("code+en", "web+en", "web+ja")
    assert plan.summary["by"] == "source+language"
    joint = labels_of(shards, "source+language")
    assert joint == {row["id"]: f"{row['source']}+{row['language']}" for row in rows}
    for component in plan.sources:
        pieces = [plan.slices(component, number) for number in range(plan.sequences[component])]
        for piece in np.concatenate(pieces):
            uid = shards.shard(plan.shards[piece["shard"]]).uid(int(piece["row"]))
            assert joint[uid.hex()] == component


def test_one_value_and_the_tokens_of_joint_columns_are_read_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "web-train-00000-000.arrow"
    languages, tiers = ["en", "ja", "en", "ja"], ["gold", "gold", "silver", "gold"]
    uids, tokens = [row.to_bytes(16, "big") for row in range(4)], [np.zeros(row + 1, np.uint16) for row in range(4)]
    with path.open("wb") as file:
        labels = {"tier": tiers, "language": languages}
        write_shard(file, buffer_of("web", TRAIN, uids, tokens, [1] * 4, labels), TokenFormat(9, 0, ""))
    column = Shard(str(path)).column("tier+language")
    assert column.to_pylist() == ["gold+en", "gold+ja", "silver+en", "gold+ja"]
    assert column.dictionary.to_pylist() == ["gold+en", "gold+ja", "silver+en"]
    with path.open("rb") as file:
        assert [read_label(file, row, "source+language") for row in range(4)] == [
            "web+en",
            "web+ja",
            "web+en",
            "web+ja",
        ]
        counts = count_labels(file, "tier+language")
    assert counts["gold+ja", "language", "ja"] == 6
    assert counts["silver+en", "source", "web"] == 3
