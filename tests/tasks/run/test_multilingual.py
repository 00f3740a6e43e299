"""The recipe `multilingual`: text of twelve languages to a model, with each language as a component of the mixture.

The text is what readers want of real pages in ten of the languages, and the Universal Declaration of Human Rights in
all: well over a hundred times as much English as Thai.
"""

import json
from collections import defaultdict
from pathlib import Path

import pyarrow as pa
import pytest

from tasks.core.artifact import Artifact, ArtifactId
from tasks.formats.documents.languages import language_name
from tasks.formats.tokens.mixture import repetitions
from tasks.run.recipe import Recipe, find_recipe
from tasks.run.runner import open_store, run_stage
from tasks.run.trace.text import render
from tasks.run.trace.trace import trace
from tasks.run.tracking import TrackingContext

STAGES = ("extract", "annotate", "dedup", "consolidate", "tokenizer", "encode", "pack", "train", "evaluate")
LANGUAGES = ("ar", "de", "en", "es", "fr", "he", "hi", "ja", "ko", "ru", "th", "zh")
CHARACTERS = 1200
"""Characters of a document at most; a page is several of them."""


def rows_of(path: Path) -> list[dict[str, str]]:
    lines = pa.input_stream(str(path), compression="zstd").read().decode().split("\n")
    return [json.loads(line) for line in lines if line]


def write_texts(shared_data: Path, folder: Path) -> None:
    """Writes a file of JSON lines for each language."""
    paragraphs: dict[str, list[str]] = defaultdict(list)
    for row in rows_of(shared_data / "langid" / "udhr_sentences.jsonl.zst"):
        paragraphs[row["lang"]].append(row["text"])
    for row in rows_of(shared_data / "extraction_kinds" / "pages.jsonl.zst"):
        if isinstance(row.get("gold"), str):
            paragraphs[row["lang"]] += row["gold"].split("\n")
    for language in LANGUAGES:
        texts, text = [], ""
        for paragraph in paragraphs[language]:
            text += f"{paragraph[:CHARACTERS]}\n"
            if len(text) > CHARACTERS / 4:
                texts.append(text)
                text = ""
        lines = (json.dumps({"text": text}, ensure_ascii=False) for text in texts)
        (folder / f"{language}.jsonl").write_text("\n".join(lines), encoding="utf-8")


@pytest.fixture(scope="module")
def made(shared_data: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Recipe, dict[str, Artifact]]:
    """The recipe, and the artifacts of all its stages by kind."""
    folder = tmp_path_factory.mktemp("multilingual")
    (folder / "texts").mkdir()
    write_texts(shared_data, folder / "texts")
    files = [{"name": "texts", "kind": "jsonl", "path": f"{folder}/texts/*.jsonl"}]
    recipe = find_recipe("multilingual").override({"extract.files": files, "place.store": str(folder / "store")})
    assert [stage for stage in STAGES if not any(stage in recipe.stages(dag) for dag in recipe.parts)] == []
    for stage in STAGES:
        run_stage(recipe, stage, version="1", tracking=TrackingContext("", recipe.name))
    kinds = ("documents", "tokenizer", "shards", "plan", "checkpoint", "scores")
    store = open_store(recipe)
    return recipe, {kind: Artifact.open_at(store, ArtifactId(f"{recipe.name}/{kind}", "1")) for kind in kinds}


@pytest.mark.soak
def test_every_language_is_kept_and_measured_by_the_tokenizer(made: tuple[Recipe, dict[str, Artifact]]) -> None:
    _, artifacts = made
    audit = artifacts["documents"].read("audit.html").decode()
    fertility = json.loads(artifacts["tokenizer"].read("fertility.json"))["language"]
    for language in LANGUAGES:
        assert f"<td>{language_name(language)}<td" in audit
        assert 1 < fertility[language]["bytes_per_token"] < 12
    shares = {language: row["documents"] for language, row in fertility.items()}
    assert shares["th"] >= 5, "alpha raises it: by its size it would have one or two"


@pytest.mark.soak
def test_small_languages_are_raised_and_none_is_read_more_often_than_the_cap(
    made: tuple[Recipe, dict[str, Artifact]],
) -> None:
    _, artifacts = made
    run = json.loads(artifacts["checkpoint"].read("run.json"))
    sequences, weights = run["sequences"], run["weights"]
    assert sequences.keys() == {*LANGUAGES}
    total = sum(sequences.values())
    assert weights["en"] < sequences["en"] / total
    for language in ("th", "hi", "ar", "he"):
        assert weights[language] > 2 * sequences[language] / total
    epochs = repetitions(weights, sequences, run["steps"] * run["batch_size"])
    assert max(epochs.values()) <= 4
    metrics = artifacts["checkpoint"].record.metrics
    assert {language: metrics[f"weight/{language}"] for language in LANGUAGES} == weights
    assert artifacts["scores"].record.metrics["bpb"] < 8
    by_share = sorted(LANGUAGES, key=lambda language: sequences[language])
    assert by_share.index("en") == len(by_share) - 1


@pytest.mark.soak
def test_a_thai_document_is_traced_to_the_steps_that_read_it(made: tuple[Recipe, dict[str, Artifact]]) -> None:
    recipe, artifacts = made
    documents = artifacts["documents"]
    rows = [row for path in documents.files("kept/") for row in documents.table(path, ["id", "language"]).to_pylist()]
    thai = [row["id"] for row in rows if row["language"] == "th"]
    told = [render(trace(open_store(recipe), recipe.name, "1", doc_id)) for doc_id in thai]
    assert any("seen by    step-" in one for one in told)
