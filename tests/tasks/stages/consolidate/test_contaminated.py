"""Contract of contaminated documents among the other verdicts."""

import json
from pathlib import Path
from typing import Any

import pytest

from tasks.core.artifact import Artifact
from tasks.core.errors import InputError
from tasks.stages.consolidate.config import ConsolidateConfig
from tasks.stages.decontaminate import DecontaminateConfig, EvaluationSet
from tests.conftest import run_stage_in
from tests.tasks.stages.consolidate.test_stage import CONSOLIDATE, kept, prepare, prose, rejected, text
from tests.tasks.stages.dedup.made import document

ITEM = prose(1)[:20]
"""Twenty words, with 8 n-grams, of the text with seed 1."""


def looked_at(folder: Path, rows: list[dict[str, Any]], **options: Any) -> dict[str, Artifact]:
    inputs = prepare(folder, rows, **options)
    folder.mkdir(exist_ok=True)
    (folder / "quiz.jsonl").write_text(json.dumps({"query": " ".join(ITEM)}))
    one = EvaluationSet(name="quiz", path=f"{folder}/quiz.jsonl", fields=("query",))
    config = DecontaminateConfig(sets=(one,))
    contamination = run_stage_in(
        folder, "tasks.stages.decontaminate.stage", config, {"extracted": inputs["extracted"]}, kind="contamination"
    )
    return {**inputs, "contamination": contamination}


def consolidate(folder: Path, inputs: dict[str, Artifact], **settings: Any) -> Artifact:
    return run_stage_in(folder, CONSOLIDATE, ConsolidateConfig(**settings), inputs, version=f"v{len(settings)}")  # type: ignore[arg-type]


def test_a_contaminated_document_is_dropped_from_any_source_and_is_not_a_keeper(tmp_path: Path) -> None:
    rows = [
        document(text(1), "best", prose_score=0.9),
        document(text(1, edited=10), "near"),  # a near duplicate without an n-gram of the item
        document(f"{text(1)} {text(7)}", "book", source="books"),
        document(f"{text(1)} {text(8)}", "poor", poor=True),
        document(text(2), "clean"),
    ]
    made = consolidate(tmp_path, looked_at(tmp_path, rows), trusted=("books",))
    assert kept(made) == {rows[1]["id"], rows[4]["id"]}
    gone = rejected(made)
    assert made.record.metrics["promoted"] == 1  # dedup had taken "best" as the keeper of "near"
    assert gone[rows[0]["id"]]["reasons"][0] == gone[rows[2]["id"]]["reasons"][0] == "contaminated"
    assert gone[rows[3]["id"]]["reasons"] == ["gopher_quality_few_words", "contaminated"]
    assert {row["contaminated"]["item"] for row in gone.values()} == {"quiz.jsonl:1"}


def test_the_minimum_share_of_an_item_is_configurable_and_dropping_can_be_off(tmp_path: Path) -> None:
    rows = [
        document(text(1), "whole"),
        document(" ".join([*ITEM[:16], *prose(5)]), "half"),  # 4 of 8 n-grams
        document(" ".join([*ITEM[:15], *prose(6)]), "less"),
    ]
    inputs = looked_at(tmp_path, rows)
    assert set(rejected(consolidate(tmp_path, inputs, contaminated_share=0.5))) == {rows[0]["id"], rows[1]["id"]}
    assert len(kept(consolidate(tmp_path, inputs, contaminated="keep", dedup=True))) == 3
    with pytest.raises(InputError, match=r"none of 3 captures and files is left \(contaminated 3\)"):
        consolidate(tmp_path, inputs)


def test_a_contamination_artifact_of_other_documents_is_refused(tmp_path: Path) -> None:
    inputs = looked_at(tmp_path, [document(text(1), "one"), document(text(2), "two")])
    other = looked_at(tmp_path / "other", [document(text(1), "one"), document(text(3), "three")])
    with pytest.raises(InputError, match=r"test/contamination@dev, part-.*: the tables do not hold the same documents"):
        consolidate(tmp_path, {**inputs, "contamination": other["contamination"]})
