"""An imported model is tuned, compared, served and exported in its own chat template, as `transformers` uses it."""

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from tasks.core.artifact import Artifact, ArtifactId
from tasks.core.errors import InputError
from tasks.core.store import Store
from tasks.formats.documents.examples import HELDOUT, Examples
from tasks.run.export import export_model
from tasks.run.shell import main
from tasks.trainer.evaluation.comparison import response_bits
from tasks.trainer.inference import Scorer
from tasks.trainer.model.model_file import load_model
from tasks.trainer.serve import TextModel
from tests.late import transformers
from tests.tasks.trainer.in_process import training_in_process
from tests.tasks.trainer.interchange.chat_templates import FAMILIES, write_chat_folder

NAMES = {"Qwen 3": "qwen", "Llama 2": "llama"}
RECIPE = """
name = "{name}"

[examples]
files = ["{folder}/{name}.jsonl"]
seq_len = 256
heldout_share = 0.2

[finetune]
base = "{name}/checkpoint@1"
steps = 60
batch_size = 2
microbatch = 2
milestones = 1

[finetune.optim]
lr = 1e-2
weight_decay = 0.0
warmup_steps = 2
schedule = "cosine"

[place]
store = "{folder}/store"
mlflow = ""
"""
QUESTIONS = ("river", "stone", "sea", "wind", "fire")


def rows(thinks: bool) -> list[dict[str, Any]]:
    thought = {"reasoning_content": "water"} if thinks else {}
    return [
        {
            "messages": [
                {"role": "user", "content": f"{QUESTIONS[n % 5]} {n % 7}"},
                {"role": "assistant", "content": f"{QUESTIONS[n % 5]}!", **thought},
                {"role": "user", "content": "more"},
                {"role": "assistant", "content": "no more"},
            ]
        }
        for n in range(30)
    ]


@dataclass(frozen=True)
class Tuned:
    """A family, its model folder, and the store with the artifacts of version 1."""

    family: str
    folder: Path

    @property
    def name(self) -> str:
        return NAMES[self.family]

    @property
    def store(self) -> Store:
        return Store(str(self.folder / "store"))

    def run(self, *arguments: str, version: str = "1") -> int:
        return main([*arguments, "--recipe", str(self.folder / f"{self.name}.toml"), "--version", version])

    def artifact(self, kind: str, version: str = "1") -> Artifact:
        return Artifact.open_at(self.store, ArtifactId(f"{self.name}/{kind}", version))

    def export(self, out: Path) -> Path:
        return export_model(self.store, self.name, "1", "model", str(out), tuned=True)

    def served(self) -> TextModel:
        return TextModel(Path(self.artifact("tuned_model").local("model/model.json")).parent)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("chats")


@pytest.fixture(scope="module", params=NAMES)
def tuned(request: pytest.FixtureRequest, root: Path) -> Tuned:
    made = Tuned(request.param, root)
    (root / f"{made.name}.toml").write_text(RECIPE.format(folder=root, name=made.name))
    lines = (f"{json.dumps(row)}\n" for row in rows(made.family == "Qwen 3"))
    (root / f"{made.name}.jsonl").write_text("".join(lines))
    write_chat_folder(root / made.name, made.family, file=made.family == "Llama 2", stops=made.family == "Qwen 3")
    assert made.run("import-model", str(root / made.name)) == 0
    with training_in_process():
        for stage in ("examples", "finetune", "evaluate_tuned", "register_tuned"):
            assert made.run(stage) == 0
    return made


def test_the_examples_are_the_tokens_of_the_imported_template(tuned: Tuned) -> None:
    theirs = transformers.AutoTokenizer.from_pretrained(tuned.folder / tuned.name)
    found = Examples(tuned.artifact("examples"))
    every = rows(tuned.family == "Qwen 3")
    for number in range(3):
        example = found[number]
        messages = every[example.origin["line"] - 1]["messages"]
        ends = np.cumsum(example.lengths)[:-1]
        *first, last = [part.tolist() for part in np.split(example.tokens, ends)]
        assert last == theirs.apply_chat_template(messages)["input_ids"]
        own = [theirs.apply_chat_template(messages[:2])["input_ids"]] if tuned.family == "Qwen 3" else []
        assert first == own, "Qwen 3 removes the thinking of the first response from the whole"
        learned = theirs.decode(example.tokens[example.learned])
        eos = FAMILIES[tuned.family].tokens["eos_token"]
        assert learned.count(eos) == 2
        assert learned.endswith(f"no more{eos}") or learned.endswith(f"no more {eos}")


def test_a_text_begins_with_its_own_first_token_in_training_and_scores(tuned: Tuned) -> None:
    found = Examples(tuned.artifact("examples"))
    eos_id = found.summary["eos_id"]
    example = found[0]
    (*_, text) = found.texts(example, eos_id)
    tokens = example.tokens[-example.lengths[-1] :].astype(int).tolist()
    assert [text.before, *text.tokens[:-1]] == tokens
    assert (text.tokens[-1], bool(text.learned[-1])) == (eos_id, False)
    checkpoint = tuned.artifact("checkpoint")
    weights = Path(checkpoint.local("checkpoints/step-00000000/model.safetensors"))
    model, described = load_model(Path(checkpoint.local("model.json")), weights)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tuned.folder / tuned.name)
    with torch.no_grad():
        logp = torch.log_softmax(theirs(torch.tensor([tokens])).logits[0].double(), dim=-1)
    places = np.flatnonzero(example.learned[-len(tokens) :])
    expected = -sum(float(logp[at - 1, tokens[at]]) for at in places) / math.log(2)
    scorer = Scorer(model, None, described["eos_id"], 256, 1000)  # type: ignore[arg-type]
    assert response_bits(scorer, [text])[0] == pytest.approx(expected, rel=1e-4)
    scores = tuned.artifact("tuned_scores")
    (row,) = json.loads(scores.read("comparison.json"))["rows"]
    assert row["second"] < row["first"]
    held = Examples(tuned.artifact("examples"), HELDOUT)
    bits = scores.table("examples/examples.base.parquet").to_pylist()
    assert len(bits) == int(held.firsts[-1]) > 3
    for one in bits:
        assert one["rejected_bits"] is None
        assert one["bits"] == pytest.approx(
            sum(response_bits(scorer, held.texts(held[one["example"]], eos_id))), rel=1e-4
        )


def test_the_export_has_the_template_and_all_tokens_that_stop(tuned: Tuned, tmp_path: Path) -> None:
    out, source = tuned.export(tmp_path / "out"), tuned.folder / tuned.name
    theirs, original = (transformers.AutoTokenizer.from_pretrained(folder) for folder in (out, source))
    assert theirs.chat_template == FAMILIES[tuned.family].jinja
    assert (out / "tokenizer.json").read_bytes() == (source / "tokenizer.json").read_bytes()
    assert (theirs.bos_token, theirs.eos_token) == (original.bos_token, original.eos_token)
    stops, before = (json.loads((folder / "generation_config.json").read_text()) for folder in (out, source))
    assert stops["eos_token_id"] == before["eos_token_id"]
    assert isinstance(before["eos_token_id"], list) == (tuned.family == "Qwen 3")
    base = export_model(tuned.store, tuned.name, "1", "model", str(tmp_path / "base"))
    assert transformers.AutoTokenizer.from_pretrained(base).chat_template == theirs.chat_template


def test_messages_are_answered_as_by_transformers(tuned: Tuned, tmp_path: Path) -> None:
    out = tuned.export(tmp_path / "out")
    model, tokenizer = (
        getattr(transformers, f"Auto{kind}").from_pretrained(out) for kind in ("ModelForCausalLM", "Tokenizer")
    )
    served = tuned.served()
    for messages in ([{"role": "user", "content": "sea 3"}], rows(False)[0]["messages"][:3]):
        prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_tensors="pt")["input_ids"]
        generated = model.generate(prompt, max_new_tokens=40, do_sample=False)[0, prompt.shape[1] :]
        assert len(generated) < 40, "it stops at the end of its turn"
        expected = tokenizer.decode(generated, skip_special_tokens=True)
        mine = served.predict([messages, {"messages": messages}], {"max_tokens": 40})
        assert mine == [expected, expected]
        assert expected
    with pytest.raises(InputError, match="a message cannot be read"):
        served.predict([[{"role": "nobody", "content": "x"}]])


def test_a_template_in_the_recipe_replaces_the_imported_one(tuned: Tuned) -> None:
    assert tuned.run("examples", "--set", "examples.template.user.before=Q: ", version="own") == 0
    summary = Examples(tuned.artifact("examples", "own")).summary
    assert summary["template"]["user"]["before"] == "Q: "
    assert Examples(tuned.artifact("examples")).summary["template"]["jinja"] == FAMILIES[tuned.family].jinja
    assert load_file(tuned.folder / tuned.name / "model.safetensors")
