"""The stage evaluate and the served model, with a really trained model."""

import json
import math
from pathlib import Path

import pandas as pd
import pytest

from tasks.core.artifact import Artifact
from tasks.core.errors import InputError
from tasks.formats.tokens.shard import HELDOUT, ShardSet
from tasks.trainer.evaluation.config import EvaluateConfig
from tasks.trainer.serve import _load_pyfunc
from tests.conftest import run_stage_in
from tests.corpora import Made, tokens_in


def evaluate(made: Made, trained: Artifact, folder: Path, tokenizer: Artifact | None = None) -> Artifact:
    inputs = {"checkpoint": trained, "shards": made.shards, "tokenizer": tokenizer or made.tokenizer}
    return run_stage_in(folder, "tasks.stages.evaluate.stage", EvaluateConfig(), inputs)  # type: ignore[arg-type]


def test_a_trained_model_beats_the_unigram_model_on_held_out_text(
    made: Made, trained: Artifact, tmp_path: Path
) -> None:
    scores = json.loads(evaluate(made, trained, tmp_path).read("scores.json"))
    assert scores["step"] == 150
    assert scores["gain"] > 0.25
    assert scores["gain"] == pytest.approx(1 - scores["bpb"] / scores["unigram_bpb"])
    assert scores["sources"].keys() == {"code", "my-books", "web"}
    means = [sum(one[name] for one in scores["sources"].values()) / 3 for name in ("bpb", "unigram_bpb")]
    assert [scores["bpb"], scores["unigram_bpb"]] == pytest.approx(means)


def test_every_held_out_document_is_scored_and_counted(made: Made, trained: Artifact, tmp_path: Path) -> None:
    scored, shards = evaluate(made, trained, tmp_path), ShardSet.open(made.shards)
    scores = json.loads(scored.read("scores.json"))
    for source in shards.sources:
        table = scored.table(f"documents/{source}.parquet")
        assert table["id"].to_pylist() == [uid.hex() for uid, _, _ in shards.heldout(source)]
        bits, size = math.fsum(table["bits"].to_pylist()), sum(table["bytes"].to_pylist())
        assert scores["sources"][source]["bpb"] == pytest.approx(bits / size)
        assert scores["sources"][source]["documents"] == shards.n_documents(source, HELDOUT)
    assert scored.record.rows_in == scored.record.rows_out > 0


def test_another_tokenizer_is_refused(made: Made, trained: Artifact, tmp_path: Path) -> None:
    other = tokens_in(tmp_path / "other").tokenizer
    with pytest.raises(InputError, match="is not the tokenizer the checkpoint was trained with"):
        evaluate(made, trained, tmp_path, other)


def test_the_served_model_accepts_prompts_in_every_input_format(model_folder: Path) -> None:
    served = _load_pyfunc(str(model_folder))
    prompts = ["water river", "return import the"]
    greedy = served.predict(prompts)
    assert greedy == served.predict(pd.DataFrame({"other": [1, 2], "prompt": prompts}))
    assert greedy == served.predict(pd.DataFrame({"text": prompts}))
    assert greedy[0] == served.predict(prompts[0])[0]
    assert all(text for text in greedy)
    warm = {"temperature": 1.0, "max_tokens": 20, "seed": 1}
    assert served.predict(prompts, warm) == served.predict(prompts, warm)
    assert served.predict(prompts, warm) != served.predict(prompts, {**warm, "seed": 2})


def test_a_folder_without_its_tokenizer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"has no tokenizer\.json"):
        _load_pyfunc(str(tmp_path))
