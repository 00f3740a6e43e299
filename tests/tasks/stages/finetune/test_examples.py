"""The stage `examples`: the learned tokens, and that every row is accounted for."""

import gzip
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pydantic import ValidationError
from tokenizers import Tokenizer

from tasks.core.errors import InputError
from tasks.core.store import Store
from tasks.formats.documents.document import is_heldout
from tasks.formats.documents.examples import HELDOUT, Examples
from tasks.stages.finetune import ExamplesConfig
from tasks.stages.finetune import examples as stage
from tests.conftest import file_refs, run_stage_in
from tests.corpora import Made
from tests.s3_server import S3Server
from tests.tasks.stages.finetune.conftest import Make


def texts_of(made: Made, found: Examples) -> tuple[str, str]:
    """The unlearned and the learned tokens of the first example, as text."""
    tokenizer = Tokenizer.from_str(made.tokenizer.read("tokenizer.json").decode())
    row = found[0]
    asked, learned = (row.tokens[row.learned == flag].tolist() for flag in (False, True))
    return tokenizer.decode(asked, skip_special_tokens=False), tokenizer.decode(learned, skip_special_tokens=False)


def test_the_response_and_the_end_of_text_are_learned_and_the_prompt_is_not(made: Made, examples: Make) -> None:
    found = Examples(examples([{"prompt": "Say <|endoftext|>.", "response": "No."}]))
    prompt, response = texts_of(made, found)
    assert prompt == "### Instruction:\nSay <|endoftext|>.\n\n### Response:\n"
    assert response == "No.\n<|endoftext|>"
    # In the prompt it is plain text.
    assert found[0].tokens.tolist().count(found.summary["eos_id"]) == 1


def test_every_response_of_a_conversation_is_learned(made: Made, examples: Make) -> None:
    said = (("system", "Be kind."), ("user", "a?"), ("assistant", "A"), ("user", "b?"), ("assistant", "B"))
    found = Examples(examples([{"messages": [{"role": role, "content": text} for role, text in said]}], seq_len=200))
    prompt, response = texts_of(made, found)
    assert response == "A\nB\n<|endoftext|>"
    assert all(text in prompt for text in ("Be kind.", "a?", "b?"))


def test_both_answers_of_a_preference_follow_the_prompt(made: Made, examples: Make) -> None:
    rows = [{"prompt": "a?", "chosen": "yes", "rejected": "never"}]
    found = Examples(examples(rows, kind="preferences", seq_len=200))
    prompt, answers = texts_of(made, found)
    assert answers == "yes\n<|endoftext|>never\n<|endoftext|>"
    assert prompt.count("a?") == len(found[0].lengths) == 2


def test_a_malicious_row_is_named_and_affects_no_other(examples: Make) -> None:
    good = {"prompt": "a", "response": "b"}
    half = json.dumps({"prompt": "a \ud800", "response": "b"})  # half of a surrogate pair, as JSON's escapes can have
    named = json.dumps({**good, "id": "\udfff"})
    nested = f'{{"prompt": "a", "response": "b", "more": {"[" * 100_000}{"]" * 100_000}}}'
    roles = [{"conversations": [{"from": wrong, "value": "a"}]} for wrong in (["human"], {}, None)]
    artifact = examples([good, half, named, nested, *roles, *({**good, "id": n} for n in range(6))])
    assert artifact.record.rows_out == 7
    (path,) = artifact.files("quarantine/")
    assert [json.loads(line)["id"] for line in artifact.read(path).splitlines()] == [
        f"rows.jsonl:{n}" for n in range(2, 8)
    ]


def test_an_unusable_row_is_named_or_counted(examples: Make) -> None:
    good = {"prompt": "a", "response": "b"}
    long, half = {**good, "response": "b" * 500}, {"messages": [{"role": "user"}]}
    artifact = examples([good, "{", {"prompt": "a"}, long, {**good, "id": 5}, half, "", {**good, "id": 8}])
    assert artifact.record.rows_in == 7
    assert artifact.record.rows_out == 3
    assert artifact.record.rejected == {"poison": 3, "too_long": 1}
    (path,) = artifact.files("quarantine/")
    causes = [json.loads(line)["id"] for line in artifact.read(path).splitlines()]
    assert causes == ["rows.jsonl:2", "rows.jsonl:3", "rows.jsonl:6"]
    assert [Examples(artifact)[number].origin["line"] for number in range(3)] == [1, 5, 8]


TALK = [{"prompt": f"ask {n}?", "response": f"say {n}"} for n in range(3)]
LAYOUTS = {
    "prompt and completion": {"prompt": "ask 1?", "completion": "say 1"},
    "prompt and completion of messages": {
        "prompt": [{"role": "user", "content": "ask 1?"}],
        "completion": [{"role": "assistant", "content": "say 1"}],
    },
    "Alpaca": {"instruction": "ask", "input": "1?", "output": "say 1"},
    "ShareGPT": {"conversations": [{"from": "human", "value": "ask 1?"}, {"from": "gpt", "value": "say 1"}]},
    "nulls": {"messages": None, "instruction": "ask 1?", "input": None, "output": "say 1"},
    "mapped": {"question": "ask 1?", "answer": "say 1"},
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_usual_layouts_are_recognised_and_others_mapped(made: Made, examples: Make, layout: str) -> None:
    settings = {"fields": {"prompt": "question", "response": "answer"}} if layout == "mapped" else {}
    prompt, response = texts_of(made, Examples(examples([LAYOUTS[layout]], **settings)))
    assert response == "say 1\n<|endoftext|>"
    between = "\n\n" if layout == "Alpaca" else " "
    assert prompt == f"### Instruction:\nask{between}1?\n\n### Response:\n"


def test_the_system_text_of_a_row_comes_first(made: Made, examples: Make) -> None:
    found = Examples(examples([{"system": "Be kind.", "conversations": LAYOUTS["ShareGPT"]["conversations"]}]))
    assert texts_of(made, found)[0].startswith("Be kind.\n\n### Instruction:\nask 1?")


def test_an_unreadable_row_names_its_fields(examples: Make) -> None:
    artifact = examples([{"question": "a", "answer": "b"}, *TALK])
    (path,) = artifact.files("quarantine/")
    (cause,) = [json.loads(line)["error"] for line in artifact.read(path).splitlines()]
    assert cause.endswith("(fields of the row: answer, question)")
    with pytest.raises(ValidationError, match='no field "question": the fields are messages'):
        examples(TALK, fields={"question": "prompt"})


def packed(folder: Path, form: str) -> Path:
    """A file with the rows of TALK in some form."""
    lines, path = "".join(f"{json.dumps(row)}\n" for row in TALK).encode(), folder / f"rows.{form}"
    if form == "parquet":
        messages = [[{"role": "user", "content": row["prompt"]}, {"role": "assistant", "content": row["response"]}]
                    for row in TALK]  # fmt: skip
        times = pa.array([1, 2, None], pa.timestamp("ns"))
        pq.write_table(pa.table({"messages": messages, "at": times, "bytes": [b"\xff"] * 3}), path)
    elif form == "json":
        path.write_text(json.dumps(TALK, indent=1))
    elif form == "jsonl.zst":
        path.write_bytes(pa.compress(lines, "zstd", asbytes=True))
    else:
        path.write_bytes(gzip.compress(lines) if form == "jsonl.gz" else lines.decode().encode("utf-16"))
    return path


@pytest.mark.parametrize("form", ["jsonl.gz", "jsonl.zst", "json", "parquet", "utf16.jsonl"])
def test_packed_files_arrays_and_parquet_give_the_same_examples(made: Made, tmp_path: Path, form: str) -> None:
    config = ExamplesConfig(files=(str(packed(tmp_path, form)),), seq_len=96, heldout_share=0)
    made_of = run_stage_in(
        tmp_path / "store", stage.__name__, config, {"tokenizer": made.tokenizer}, kind="examples", version="dev"
    )
    found = Examples(made_of)
    decode = Tokenizer.from_str(made.tokenizer.read("tokenizer.json").decode()).decode
    assert [decode(found[n].tokens.tolist(), skip_special_tokens=True) for n in range(3)] == [
        f"### Instruction:\nask {n}?\n\n### Response:\nsay {n}\n" for n in range(3)
    ]
    assert found.source(found[2]) == {"file": f"rows.{form}", "line": 3, "id": ""}


def test_a_pattern_names_several_files_and_no_file_twice(made: Made, tmp_path: Path) -> None:
    paths = [packed(tmp_path, form) for form in ("jsonl.gz", "parquet")]
    config = ExamplesConfig(files=(f"{tmp_path}/rows.*",), seq_len=96, heldout_share=0)
    inputs = {"tokenizer": made.tokenizer}
    artifact = run_stage_in(tmp_path / "store", stage.__name__, config, inputs, kind="examples", version="dev")
    assert list(Examples(artifact).summary["files"].values()) == [path.name for path in paths]
    assert artifact.record.rows_out == 6
    twice = config.model_copy(update={"files": (f"{tmp_path}/rows.*", str(paths[0]))})
    with pytest.raises(InputError, match=r"two patterns match .*rows\.jsonl\.gz"):
        run_stage_in(tmp_path / "store", stage.__name__, twice, inputs, kind="examples", version="twice")


def test_a_row_with_an_empty_answer_is_rejected(examples: Make) -> None:
    good = {"prompt": "a", "response": "b"}
    talk = [("user", "a"), ("assistant", " \n"), ("user", "b"), ("assistant", "c")]
    blank = {"messages": [{"role": role, "content": text} for role, text in talk]}
    artifact = examples([good, {**good, "response": ""}, {"prompt": "", "response": "b"}, blank])
    assert artifact.record.rejected == {"empty_answer": 2}
    assert [Examples(artifact)[number].origin["line"] for number in range(2)] == [1, 3]


def test_only_the_rejected_answer_of_a_preference_may_be_empty(examples: Make) -> None:
    rows = [{"prompt": "a", "chosen": "b", "rejected": ""}, {"prompt": "a", "chosen": " ", "rejected": "b"}]
    artifact = examples(rows, kind="preferences")
    assert artifact.record.rejected == {"empty_answer": 1}
    assert Examples(artifact)[0].origin["line"] == 1


def test_preferences_between_equal_answers_are_rejected_and_are_no_poison(examples: Make) -> None:
    whole = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    rows = [
        {"prompt": "a", "chosen": "b", "rejected": "b"},
        {"prompt": "a", "chosen": "b", "rejected": whole[1:]},
        {"chosen": whole, "rejected": whole},
        {"messages": whole[:1], "chosen": "b", "rejected": "b", "id": "other"},
        {"prompt": "a", "chosen": "b", "rejected": "b b"},
        {"prompt": "a", "chosen": "", "rejected": ""},
    ]
    artifact = examples(rows, kind="preferences")
    assert artifact.record.rejected == {"equal_answers": 4, "empty_answer": 1}
    assert artifact.files("quarantine/") in ([], ())
    assert Examples(artifact)[0].origin["line"] == 5


def test_a_row_that_repeats_another_in_all_fields_is_rejected(examples: Make) -> None:
    good = {"prompt": "a", "response": "b"}
    artifact = examples([good, '{"response": "b",  "prompt": "a"}', {**good, "id": "other"}, good])
    assert artifact.record.rejected == {"duplicate": 2}
    assert [Examples(artifact)[number].origin["line"] for number in range(2)] == [1, 3]


def test_rows_without_tokens_to_learn_make_no_artifact(examples: Make) -> None:
    with pytest.raises(InputError, match="none of the 1 rows became an example to learn from"):
        examples([{"messages": [{"role": "user", "content": "a"}]}])


def test_a_token_across_the_end_of_the_prompt_is_not_learned(made: Made, examples: Make) -> None:
    tokenizer = Tokenizer.from_str(made.tokenizer.read("tokenizer.json").decode())
    both = next(token for token in tokenizer.get_vocab() if token.isascii() and token.isalpha() and len(token) > 1)
    template = {"assistant": {"before": f" {both[0]}", "after": ""}}
    found = Examples(examples([{"prompt": "a", "response": f"{both[1:]} z"}], template=template))
    asked, learned = texts_of(made, found)
    assert asked == f"### Instruction:\na\n\n {both}"
    assert learned == " z<|endoftext|>"


def test_rows_with_equal_prompts_are_on_one_side_of_a_deterministic_split(examples: Make) -> None:
    rows = [{"prompt": f"a{n % 30}", "response": f"b{n}"} for n in range(60)]
    artifact = examples(rows, heldout_share=0.3)
    sides = [Examples(artifact, folder) for folder in ("examples", HELDOUT)]
    lines = [{one["line"] for n in range(side.sequences) for one in side.sources(n)} for side in sides]
    assert sum(map(len, lines)) == len(lines[0] | lines[1]) == 60
    assert artifact.record.metrics["heldout"] == len(lines[1]) > 4
    assert {(line - 1) % 30 for line in lines[0]}.isdisjoint({(line - 1) % 30 for line in lines[1]})
    assert {(line - 1) % 30 for line in lines[1]} == {
        n for n in range(30) if is_heldout(f"### Instruction:\na{n}\n\n### Response:\n", 0.3)
    }


def test_a_file_on_an_object_store_gives_the_same_examples(made: Made, examples: Make, s3: S3Server) -> None:
    local = examples([{"prompt": f"a{n}", "response": f"b{n}"} for n in range(2000)])
    (file,) = local.record.config["files"]
    with Store("s3://sluice/rows").write("rows.jsonl") as remote:
        remote.write(Path(file).read_bytes())
    config = ExamplesConfig.model_validate({**local.record.config, "files": ["s3://sluice/rows/rows.jsonl"]})
    (digest,) = file_refs(stage, config)
    assert [digest] == list(file_refs(stage, ExamplesConfig.model_validate(local.record.config)))
    folder, inputs = local.store.root, {"tokenizer": made.tokenizer}
    there = run_stage_in(folder, stage.__name__, config, inputs, kind="examples", version="remote")
    assert there.record.content == local.record.content
