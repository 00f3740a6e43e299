"""Real evaluation sets in real text: Wikipedia passages used by BoolQ are found, other domains are clean.

Run the soak tests after a change of how items are matched or counted as common.
"""

from pathlib import Path

import pytest

from tasks.core.artifact import Artifact
from tasks.formats.documents.document import CONTAMINATED
from tasks.formats.documents.external_files import find
from tasks.formats.documents.json_rows import parsed_rows
from tasks.stages.decontaminate import DecontaminateConfig, EvaluationSet
from tests.conftest import run_stage_in
from tests.tasks.stages.dedup.made import corpus, document, rows_of

FIELDS = {
    **dict.fromkeys(("arc_challenge", "arc_easy", "boolq", "hellaswag", "mmlu_dev", "mmlu_test"), "query"),
    **dict.fromkeys(("bigbench_conceptual_combinations", "openbook_qa", "piqa", "copa"), "query"),
    **dict.fromkeys(("bigbench_operators", "gsm8k", "simple_arithmetic_nospaces", "svamp"), "context"),
    "human_eval": "prompt",
    "winogrande": "context_options",
}
CLEAN = ("academic", "books", "code", "forum", "masc", "reviews", "techdocs", "web")
"""Domains without items. The others: MATH holds items of MMLU, and speeches of presidents that MMLU quotes."""


def config(data: Path, *names: str) -> DecontaminateConfig:
    path = f"{data}/evals/{{}}.jsonl.zst"
    return DecontaminateConfig(
        sets=tuple(EvaluationSet(name=name, path=path.format(name), fields=(FIELDS[name],)) for name in names)
    )


def domain(data: Path, name: str, most: int | None = None, characters: int | None = None) -> list[dict]:
    (file,) = find(f"{data}/text_domains/{name}.jsonl.zst", "this test")
    rows = [row for _, row in parsed_rows(file)][:most]
    return [document(row["text"][:characters], f"{name}/{row['id']}", source=name) for row in rows]


def looked_at(folder: Path, settings: DecontaminateConfig, rows: list[dict]) -> Artifact:
    inputs = {"extracted": corpus(folder, rows, parts=4)["extracted"]}
    return run_stage_in(folder, "tasks.stages.decontaminate.stage", settings, inputs)  # type: ignore[arg-type]


def flagged(made: Artifact) -> dict[str, int]:
    """Flagged documents by domain."""
    found: dict[str, set[str]] = {}
    for row in rows_of(made, "matches/"):
        found.setdefault(row["source"], set()).add(row["id"])
    return {name: len(ids) for name, ids in found.items()}


def test_passages_of_boolq_are_matched_to_their_items_and_other_domains_are_not(
    shared_data: Path, tmp_path: Path
) -> None:
    wiki = domain(shared_data, "wiki", 400)
    others = [row for name in CLEAN for row in domain(shared_data, name, 60, 5_000)]
    made = looked_at(tmp_path, config(shared_data, "boolq"), wiki + others)
    found = flagged(made)
    clean = sum(count for name, count in found.items() if name != "wiki")
    assert found["wiki"] == len(wiki)
    assert clean < 0.001 * len(others)
    (file,) = find(f"{shared_data}/evals/boolq.jsonl.zst", "this test")
    passages = {f"boolq.jsonl.zst:{number}": row["query"] for number, row in parsed_rows(file)}
    texts = {row["id"]: row["text"] for row in wiki}
    whole = [row | row[CONTAMINATED] for row in _beside(made) if row[CONTAMINATED]]
    whole = [row for row in whole if row["share"] > 0.5]  # the question after the passage is not in Wikipedia
    for row in whole:  # the named item is the one with this passage
        assert texts[row["id"]][row["begin"] : row["end"]][:40] in passages[row["item"]]
    assert len(whole) > 0.97 * len(wiki)
    print(f"boolq: {found['wiki']} of {len(wiki)} passages flagged, {len(whole)} with more than half of an item;")
    print(f"{clean} of {len(others)} documents of clean domains")


def _beside(made: Artifact) -> list[dict]:
    """Rows of all parts with the ids of their documents."""
    extracted = Artifact.find(made.store, made.address.__class__("test/extracted", "dev"))
    assert extracted
    ids = [row["id"] for row in rows_of(extracted, "documents/")]
    return [{"id": uid, **row} for uid, row in zip(ids, rows_of(made, "contamination/"), strict=True)]


@pytest.mark.soak
def test_all_sets_in_all_domains(shared_data: Path, tmp_path: Path) -> None:
    names = (*CLEAN, "math", "speech", "wiki")
    rows = {name: domain(shared_data, name) for name in names}
    made = looked_at(tmp_path, config(shared_data, *FIELDS), [row for name in names for row in rows[name]])
    found = {name: (flagged(made).get(name, 0), len(rows[name])) for name in names}
    print(f"flagged, of documents: {found}")
    print(made.record.note)
    for row in made.table("sets.parquet").to_pylist():
        print(row)
    assert found["wiki"][0] == found["wiki"][1]
    assert sum(found[name][0] for name in CLEAN) < 0.001 * sum(found[name][1] for name in CLEAN)
    math = {row["set"] for row in rows_of(made, "matches/") if row["source"] == "math" and row["share"] == 1}
    assert {"mmlu_test", "mmlu_dev"} <= math
