"""The annotator and the filter of perplexity: the model of a document, and dropped documents."""

import json
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from pydantic import ValidationError

from tasks.core.artifact import Artifact
from tasks.core.errors import InputError
from tasks.filters.base import fields
from tasks.filters.batch import DocumentBatch
from tasks.filters.perplexity import Perplexity, PerplexityMeasures
from tasks.stages.perplexity import PerplexityConfig, ReferenceText
from tests.tasks.filters.ngram.test_arpa import SMALL, at
from tests.tasks.stages.perplexity.learning import babble


@pytest.fixture
def trained(tmp_path: Path, run_stage: Callable[..., Artifact]) -> Callable[..., Artifact]:
    """Trains models of the languages given, each on the same babble."""

    def train(*languages: str) -> Artifact:
        references = []
        for number, language in enumerate(languages):
            path = tmp_path / f"{language}.jsonl"
            path.write_text("".join(json.dumps({"text": text}) + "\n" for text in babble(seed=number)))
            references.append(ReferenceText(name=language, kind="jsonl", path=str(path), language=language))
        config = PerplexityConfig(references=tuple(references), order=3)
        return run_stage("tasks.stages.perplexity.stage", config)

    return train


def measured(annotator: PerplexityMeasures, texts: list[str], languages: list[str] | None = None) -> dict:
    column = annotator.annotate(DocumentBatch(texts, languages=languages))
    assert column.type == annotator.type()
    return fields(column)


def test_each_document_gets_perplexity_words_and_the_bucket_of_the_model(trained: Callable) -> None:
    artifact = trained("und")
    annotator = PerplexityMeasures()
    annotator.prepare({"perplexity": artifact})
    texts = [*babble(), "zebra yak xenon", ""]
    found = measured(annotator, texts)
    head, middle = json.loads(artifact.read("und/about.json"))["cuts"]
    wanted = np.where(found["perplexity"] <= head, "head", np.where(found["perplexity"] <= middle, "middle", "tail"))
    assert (found["bucket"] == wanted).all()
    assert set(found["bucket"][:-2]) == {"head", "middle", "tail"}
    assert found["perplexity"][-1] == np.inf
    assert found["unknown_share"].tolist()[-2:] == [1.0, 0.0]
    assert found["words"].tolist() == [len(text.split()) for text in texts]
    each = -found["log10_prob"][:-1] / (found["words"][:-1] + 1)
    assert found["perplexity"][:-1] == pytest.approx(10**each, rel=1e-3)


def test_a_document_is_scored_by_the_model_of_its_language_or_the_one_for_any(trained: Callable) -> None:
    several = PerplexityMeasures()
    several.prepare({"perplexity": trained("en", "und")})
    texts = ["wba waa wca"] * 3
    found = measured(several, texts, ["en", "de", "und"])["perplexity"]
    assert found[0] != found[1] == found[2]


def test_a_document_without_a_model_has_no_score_and_passes(trained: Callable) -> None:
    annotator = PerplexityMeasures()
    annotator.prepare({"perplexity": trained("en")})
    found = measured(annotator, ["wba waa", "zebra " * 10], ["en", "de"])
    assert np.isnan(found["perplexity"][1])
    assert (found["words"][1], found["bucket"][1]) == (0, "")
    strict = Perplexity(max_perplexity=1.5, max_unknown_share=0, drop_buckets=("head", "middle", "tail"))
    assert not any(mask[1] for _, mask in strict.reasons(found))


def test_a_recipe_can_name_an_arpa_file_and_cut_points(tmp_path: Path) -> None:
    path = at(tmp_path, SMALL)
    annotator = PerplexityMeasures(file=path, cuts=(2.0, 30.0))
    annotator.prepare({})
    found = measured(annotator, ["blue sky", "Sky blue?", "red"], ["en", "de", "und"])
    assert found["log10_prob"][0] == pytest.approx(-0.4 - 0.1 - 0.11)
    assert found["bucket"].tolist() == ["head", "middle", "tail"]
    assert found["unknown_share"].tolist() == pytest.approx([0, 1 / 3, 1])
    plain = PerplexityMeasures(file=path)
    plain.prepare({})
    assert measured(plain, ["blue sky"])["bucket"].tolist() == [""]


def test_measurements_do_not_depend_on_the_batch(trained: Callable) -> None:
    annotator = PerplexityMeasures()
    annotator.prepare({"perplexity": trained("und")})
    texts = babble(50, seed=5)
    whole = annotator.annotate(DocumentBatch(texts)).to_pylist()
    assert [row for text in texts for row in annotator.annotate(DocumentBatch([text])).to_pylist()] == whole


def test_reasons_name_the_limit_that_a_document_breaks() -> None:
    found = {
        "perplexity": np.float32([100, 5000, np.inf]),
        "unknown_share": np.float32([0.1, 0.1, 0.0]),
        "bucket": np.array(["head", "middle", "tail"], object),
    }
    rule = Perplexity(max_perplexity=1000, max_unknown_share=0.05, drop_buckets=("tail", "middle"))
    assert [(reason, mask.tolist()) for reason, mask in rule.reasons(found)] == [
        ("perplexity_high", [False, True, True]),
        ("perplexity_unknown_words", [True, True, False]),
        ("perplexity_tail", [False, False, True]),
        ("perplexity_middle", [False, True, False]),
    ]
    assert list(Perplexity().reasons(found)) == []


def test_without_a_model_the_error_says_how_to_get_one(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="Run the stage train_perplexity first, or set its `file`"):
        PerplexityMeasures().prepare({})
    with pytest.raises(InputError, match="no model at"):
        PerplexityMeasures(file=str(tmp_path / "model.bin")).prepare({})


def test_a_binary_file_without_kenlm_is_refused_with_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "kenlm", None)
    (tmp_path / "model.bin").write_bytes(b"mmap lm http://kheafield.com/code format version")
    with pytest.raises(InputError, match=r"sluice\[kenlm\]"):
        PerplexityMeasures(file=str(tmp_path / "model.bin")).prepare({})


def test_invalid_cut_points_and_paths_are_refused() -> None:
    for wrong in ({"cuts": (30.0, 2.0)}, {"cuts": (0.5, 2.0)}, {"file": "model.arpa"}):
        with pytest.raises(ValidationError):
            PerplexityMeasures(**wrong)  # type: ignore[arg-type]
