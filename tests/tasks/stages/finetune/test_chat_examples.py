"""The stage `examples` with the chat template of an imported model: a row is learned, or refused with the reason."""

import json
from pathlib import Path
from typing import Any

import pytest

from tasks.core.artifact import Artifact, ArtifactId
from tasks.core.commit import commit
from tasks.core.config import Config
from tasks.core.errors import InputError
from tasks.core.stage import Output, Report
from tasks.core.store import Store
from tasks.formats.documents.examples import HELDOUT, Examples
from tasks.stages.finetune import ExamplesConfig, examples
from tasks.stages.finetune.rows import Dialogue
from tasks.stages.finetune.templates import imported_record
from tasks.trainer.interchange.chat_template import ChatTemplate
from tests.conftest import run_stage_in
from tests.corpora import kept_document
from tests.tasks.stages.chunks.made import chunked
from tests.tasks.trainer.interchange.chat_templates import DAY, FAMILIES, record, tokenizer_json

STAGE = "tasks.stages.finetune.examples"


def tokenizer_of(folder: Path, name: str, jinja: str = "") -> Artifact:
    """Returns the artifact that an import makes of the tokenizer of a family."""
    output = Output(Store(str(folder)), ArtifactId("test/tokenizer", "dev"), "by-hand")
    with output.part("tokenizer.json", conserved=False) as part:
        named = json.dumps(dict(FAMILIES[name].tokens))
        contents = (tokenizer_json(name), named, jinja or FAMILIES[name].jinja)
        for path, content in zip(
            ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"), contents, strict=True
        ):
            with part.file(path) as file:
                file.write(content.encode())
    return commit(output, "by hand", 1, Config(), [], Report())


def made(folder: Path, name: str, rows: list[Any], **settings: Any) -> Artifact:
    (folder / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    common = {"files": (str(folder / "rows.jsonl"),), "seq_len": 200, "heldout_share": 0}
    config = ExamplesConfig.model_validate({**common, **settings})
    inputs = {"tokenizer": tokenizer_of(folder, name)}
    return run_stage_in(folder / "store", STAGE, config, inputs, kind="examples", max_bad_share=0.9)


def test_a_row_that_the_template_refuses_is_named_with_its_message(tmp_path: Path) -> None:
    good = {"prompt": "a", "response": "b"}
    tool = {"messages": [{"role": "user", "content": "a"}, {"role": "developer", "content": "b"}]}
    long = {"prompt": "a", "response": "b" * 300}
    artifact = made(tmp_path, "Mistral v0.3", [good, tool, {"prompt": "a", "response": " "}, long, good])
    assert artifact.record.rejected == {"poison": 1, "empty_answer": 1, "too_long": 1, "duplicate": 1}
    (path,) = artifact.files("quarantine/")
    (line,) = map(json.loads, artifact.read(path).splitlines())
    assert line["id"] == "rows.jsonl:2"
    assert "the chat template refuses it: Only user, assistant and tool roles are supported" in json.dumps(line)


def test_rows_with_equal_prompts_are_on_one_side(tmp_path: Path) -> None:
    rows = [{"prompt": f"a{n % 20}", "response": f"b{n}"} for n in range(60)]
    artifact = made(tmp_path, "Qwen 3", rows, heldout_share=0.3)
    sides = [Examples(artifact, folder) for folder in ("examples", HELDOUT)]
    prompts = [{(one["line"] - 1) % 20 for n in range(side.sequences) for one in side.sources(n)} for side in sides]
    assert prompts[0].isdisjoint(prompts[1])
    assert len(prompts[0] | prompts[1]) == 20


def test_a_template_that_writes_the_date_needs_one(tmp_path: Path) -> None:
    good = [{"prompt": "a", "response": "b"}]
    with pytest.raises(InputError, match=r"the date of the day .*\[examples\] date"):
        made(tmp_path, "Llama 3.1", good)
    (tmp_path / "dated").mkdir()
    artifact = made(tmp_path / "dated", "Llama 3.1", good, date=DAY)
    summary = Examples(artifact).summary
    assert (summary["template"]["date"], summary["template"]["stop"]) == (DAY, ["<|eot_id|>"])
    unchanged = imported_record(tokenizer_of(tmp_path / "unchanged", "Llama 3.1"))
    assert unchanged is not None
    assert (unchanged["date"], unchanged["stop"]) == ("", ["<|eot_id|>"]), "an export needs no date"
    for day in ("26 Nov 2026", "2026-02-30"):
        with pytest.raises(ValueError, match="date"):
            ExamplesConfig(date=day)


def test_a_preference_has_one_text_for_each_answer(tmp_path: Path) -> None:
    talk = [{"role": "user", "content": "a?"}, {"role": "assistant", "content": "A"}, {"role": "user", "content": "b?"}]
    yes, no = ({"role": "assistant", "content": text} for text in ("yes", "no"))
    artifact = made(tmp_path, "Llama 2", [{"chosen": [*talk, yes], "rejected": [*talk, no]}], kind="preferences")
    example = Examples(artifact)[0]
    template = ChatTemplate(record("Llama 2"), tokenizer_json("Llama 2"))
    texts = [template.encode(template.render(template.read([*talk, answer])).text)[0] for answer in (yes, no)]
    assert example.lengths == [len(text) for text in texts]
    assert example.tokens.tolist() == [token for text in texts for token in text]


def test_the_first_token_of_a_text_is_not_learned(tmp_path: Path) -> None:
    marked = "{% generation %}{{ messages[0].content }}<|im_end|>{% endgeneration %}"
    tokenizer = tokenizer_of(tmp_path, "SmolLM2", marked)
    encoder = examples.ExampleEncoder(tokenizer.folder, {**record("SmolLM2"), "jinja": marked})
    found = encoder.example(encoder.template.texts(Dialogue([{"role": "assistant", "content": "!!!"}])))
    assert found["learned"] == [False, *[True] * (len(found["tokens"]) - 1)]


def test_a_chunk_that_the_template_refuses_is_named(tmp_path: Path) -> None:
    text = "\n\n".join(f"## Part {n}\n\n{'Doors of the museum open at nine. ' * 12}" for n in range(3))
    chunks = chunked(tmp_path / "chunks", [kept_document("https://m.org/a", text, title="House")], parts=1)
    config = ExamplesConfig.model_validate({"chunks": {}, "seq_len": 400, "heldout_share": 0})
    for jinja, refused in (("{{ raise_exception('no parts') if 'Part 1' in messages[0].content }}", 1), ("", 0)):
        text = f"{jinja}{FAMILIES['SmolLM2'].jinja}"
        tokenizer = tokenizer_of(tmp_path / f"tokenizer-{refused}", "SmolLM2", text)
        inputs = {"chunks": chunks, "tokenizer": tokenizer}
        found = run_stage_in(tmp_path / f"{refused}", STAGE, config, inputs, kind="examples", max_bad_share=0.9)
        assert found.record.rejected == ({"poison": 1} if refused else {})
        assert found.record.rows_out == found.record.rows_in - refused > 0
        assert Examples(found)[0].origin["document"]


def test_a_chunk_without_a_title_is_an_answer_to_an_empty_question(tmp_path: Path) -> None:
    encoder = examples.ExampleEncoder(tokenizer_of(tmp_path, "Llama 2").folder, {**record("Llama 2"), "stop": []})
    (segments,) = encoder.template.texts(encoder.template.answer("", "water"))
    assert segments[:2] == [("<s>[INST]  [/INST]", False), (" water </s>", True)]
