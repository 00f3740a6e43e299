"""Chat templates and preferences compared with trl: its copies of published templates, and the tokens of its pairs."""

import re
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tokenizers import Tokenizer

from tasks.stages.finetune.encoding import prompt_of
from tasks.stages.finetune.rows import instruction, preference
from tasks.stages.finetune.templates import ImportedTemplate
from tasks.trainer.interchange.chat_template import ChatTemplate
from tests.late import transformers
from tests.tasks.trainer.interchange.chat_templates import DAY, record, tokenizer_json, write_chat_folder
from tests.tasks.trainer.interchange.test_chat_template import TALK, TOOL_TALK, TOOLS, applied, encoded, theirs

pytestmark = pytest.mark.oracle("trl")

SPECIAL = re.compile(r"<\|[^|<>\s]+\|>|<｜[^｜]+｜>|<(?:start|end)_of_turn>")
NAMES = (
    *("cohere", "deepseekv3", "gemma3", "glm4moe", "gptoss", "lfm2", "llama3", "llama3_1", "llama3_2", "phi3"),
    *("qwen2_5", "qwen2_5_training", "qwen3", "qwen3_training", "qwen3_instruct_2507"),
)
LEARNED = ("cohere", "gemma3", "lfm2", "llama3", "qwen2_5", "qwen3_instruct_2507")
"""Templates of which trl has a copy that marks the responses, and renders the same."""
PLAIN = [
    TALK[1],
    {"role": "assistant", "content": "water über"},
    TALK[3],
    {"role": "assistant", "content": "stone"},
]
ASKED = PLAIN[:3]
GOOD, BAD = [PLAIN[3]], [{"role": "assistant", "content": "no"}, PLAIN[2], PLAIN[1]]


def published(name: str) -> tuple[ChatTemplate, Any]:
    """Returns a template that trl ships, with a small tokenizer that has its special tokens; ours, and that of trl."""
    import trl

    text = (Path(trl.__file__).parent / "chat_templates" / f"{name}.jinja").read_text()
    tokenizer = Tokenizer.from_str(tokenizer_json("SmolLM2"))
    tokenizer.add_special_tokens([*sorted(set(SPECIAL.findall(text))), "<bos>", "<eos>"])
    tokens = {"bos_token": "<bos>", "eos_token": "<eos>"}
    ours = ChatTemplate({"jinja": text, "tokens": tokens, "date": DAY}, tokenizer.to_str())
    return ours, transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, chat_template=text, **tokens)


@pytest.mark.parametrize("name", NAMES)
def test_published_templates_give_the_tokens_of_transformers(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(now=lambda: datetime.fromisoformat(DAY))
    monkeypatch.setattr("transformers.utils.chat_template_utils.datetime", clock)
    ours, other = published(name)
    for talk, tools in ((TALK, None), (PLAIN, None), (TOOL_TALK, TOOLS)):
        for count in range(1, len(talk) + 1):
            for prompt in (False, True):
                found = encoded(ours, talk[:count], prompt=prompt, tools=tools)
                expected = applied(other, talk[:count], tools=tools, add_generation_prompt=prompt)
                assert found == expected, (count, prompt)


@pytest.mark.parametrize("name", LEARNED)
def test_the_learned_text_is_the_one_that_trl_marks(name: str) -> None:
    found, marked = (
        [
            "".join(text for text, flag in segments if flag)
            for segments in ImportedTemplate(published(one)[0]).texts(row)
        ]
        for row in instruction({"messages": PLAIN})
        for one in (name, f"{name}_training")
    )
    # Some marks contain the line breaks around a turn.
    assert ["".join(text.split()) for text in found] == ["".join(text.split()) for text in marked]
    assert found[0]


@pytest.mark.parametrize("name", ["Qwen 2.5", "Llama 2"])
def test_pairs_have_the_tokens_of_trl(tmp_path: Path, name: str) -> None:
    import trl
    from datasets import Dataset

    rows = [
        {"prompt": ASKED, "chosen": GOOD, "rejected": BAD},
        {"chosen": [*ASKED, *GOOD], "rejected": [*ASKED, *BAD]},
        {"prompt": ASKED[:1], "chosen": PLAIN[1:2], "rejected": GOOD},
    ]
    folder = write_chat_folder(tmp_path / "model", name)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    other = theirs(name)
    other.pad_token = other.eos_token
    args = trl.DPOConfig(str(tmp_path), use_cpu=True, bf16=False, report_to=[], gradient_checkpointing=False)
    template = ImportedTemplate(ChatTemplate(record(name), tokenizer_json(name)))
    for row in rows:
        trainer = trl.DPOTrainer(model, None, args, train_dataset=Dataset.from_list([row]), processing_class=other)
        made = trainer.train_dataset[0]
        texts = [text for dialogue in preference(row) for text in template.texts(dialogue)]
        tokens = [template.template.encode("".join(text for text, _ in segments))[0] for segments in texts]
        assert tokens == [[*made["prompt_ids"], *made[f"{answer}_ids"]] for answer in ("chosen", "rejected")]
        assert template.template.encode(prompt_of(texts))[0] == made["prompt_ids"]
