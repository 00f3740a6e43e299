"""What is learned of a conversation in the chat template of an imported model, for each family of templates."""

from typing import Any

import pytest

from tasks.stages.finetune.encoding import prompt_of
from tasks.stages.finetune.rows import instruction, preference
from tasks.stages.finetune.templates import ImportedTemplate, Segments
from tasks.trainer.interchange.chat_template import ChatTemplate
from tests.tasks.trainer.interchange.chat_templates import FAMILIES, record, tokenizer_json
from tests.tasks.trainer.interchange.test_chat_template import CALL, TOOLS

TURNS = [
    {"role": "user", "content": "a?"},
    {"role": "assistant", "content": " A \n"},
    {"role": "user", "content": "b?"},
    {"role": "assistant", "content": "B"},
]
ENDS = {
    "SmolLM2": (" A \n<|im_end|>", "B<|im_end|>"),
    "Llama 2": (" A </s>", " B </s>"),
    "Llama 3.1": ("A<|eot_id|>", "B<|eot_id|>"),
    "Mistral v0.3": (" A</s>", " B</s>"),
    "Qwen 2.5": (" A \n<|im_end|>", "B<|im_end|>"),
    "Qwen 3": ("<think>\n\n</think>\n\n A \n<|im_end|>", "<think>\n\n</think>\n\nB<|im_end|>"),
}


def template(name: str, **changed: Any) -> ImportedTemplate:
    return ImportedTemplate(ChatTemplate({**record(name), **changed}, tokenizer_json(name)))


def texts(name: str, messages: Any, **row: Any) -> list[Segments]:
    return template(name).texts(instruction({"messages": messages, **row})[0])


def learned(segments: Segments) -> list[str]:
    return [text for text, flag in segments if flag]


def rendered(name: str, messages: Any, *, prompt: bool = False, **data: Any) -> str:
    ours = template(name).template
    return ours.render(ours.read(messages, **data), prompt=prompt).text


@pytest.mark.parametrize("name", FAMILIES)
def test_a_response_is_learned_with_the_token_that_ends_its_turn(name: str) -> None:
    found = texts(name, TURNS)
    assert [text for segments in found for text in learned(segments)] == list(ENDS[name])
    assert "".join(text for text, _ in found[-1]) == rendered(name, TURNS)
    assert template(name).ends() == [FAMILIES[name].tokens["eos_token"]]


@pytest.mark.parametrize("name", FAMILIES)
def test_a_response_follows_exactly_the_prompt_that_generation_will_see(name: str) -> None:
    seen = []
    for segments in texts(name, TURNS):
        before = ""
        for text, flag in segments:
            if flag:
                seen.append(before)
            before += text
    assert seen == [rendered(name, TURNS[:1], prompt=True), rendered(name, TURNS[:3], prompt=True)]
    assert prompt_of(texts(name, TURNS)) == seen[0]


def test_thinking_that_later_turns_remove_is_learned_in_a_text_of_its_own() -> None:
    thought = {"role": "assistant", "content": "<think>\none\n</think>\n\nA"}
    first, whole = texts("Qwen 3", [TURNS[0], thought, TURNS[2], {**TURNS[3], "reasoning_content": "two"}])
    assert learned(first) == ["<think>\none\n</think>\n\nA<|im_end|>"]
    assert learned(whole) == ["<think>\ntwo\n</think>\n\nB<|im_end|>"]
    assert "one" not in "".join(text for text, _ in whole)
    (only,) = texts("Qwen 3", [TURNS[0], thought, TURNS[2]])
    assert learned(only) == learned(first), "nothing follows that is learned"


def test_tools_that_move_with_the_last_question_are_before_it_in_each_text() -> None:
    first, whole = texts("Mistral v0.3", TURNS, tools=TOOLS)
    for segments, question in ((first, "a?"), (whole, "b?")):
        assert f"[/AVAILABLE_TOOLS][INST] {question}[/INST]" in "".join(text for text, _ in segments)
    assert learned(first) + learned(whole) == [" A</s>", " B</s>"]


def test_a_response_follows_a_prompt_that_is_written_otherwise_when_answered() -> None:
    system = {"role": "system", "content": "kind"}
    found = texts("Mistral v0.3", [system, *TURNS])
    assert ["".join(text for text, _ in segments) for segments in found] == [
        "<s>[INST] kind\n\na?[/INST] A</s>",
        "<s>[INST] a?[/INST] A</s>[INST] kind\n\nb?[/INST] B</s>",
    ]
    assert [learned(segments) for segments in found] == [[" A</s>"], [" B</s>"]]
    for one in preference({"prompt": [system, *TURNS[:1]], "chosen": "yes", "rejected": "no [/INST]a?[/INST]"}):
        (segments,) = template("Mistral v0.3").texts(one)
        assert segments[0] == ("<s>[INST] kind\n\na?[/INST]", False)


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("Llama 3.1", '{"name": "look", "parameters": {"at": "sea \'ü\' <b>"}}<|eot_id|>'),
        ("Mistral v0.3", '[TOOL_CALLS] [{"name": "look", "arguments": {"at": "sea \'ü\' <b>"}}]</s>'),
        ("Qwen 2.5", '\n<tool_call>\n{"name": "look", "arguments": {"at": "sea \'ü\' <b>"}}\n</tool_call><|im_end|>'),
        ("Qwen 3", '\n<tool_call>\n{"name": "look", "arguments": {"at": "sea \'ü\' <b>"}}\n</tool_call><|im_end|>'),
    ],
)
def test_a_call_of_a_tool_is_learned_and_its_result_is_not(name: str, call: str) -> None:
    talk = [
        {"role": "user", "content": "a?"},
        {"role": "assistant", "tool_calls": [CALL]},
        {"role": "tool", "content": "7", "tool_call_id": "abcdef123"},
        {"role": "assistant", "content": "seven"},
    ]
    said = [text for segments in texts(name, talk, tools=TOOLS) for text in learned(segments)]
    assert said[0].endswith(call.lstrip("\n"))
    assert "seven" in said[-1]
    assert len(said) == 2


def test_a_row_that_the_template_refuses_says_why() -> None:
    with pytest.raises(ValueError, match="the chat template refuses it: Roles must be user, assistant"):
        texts("Llama 2", [TURNS[0], *TURNS])
    thinks = "{{ messages[0].content }}{% if add_generation_prompt %}<think>{% elif messages[1] %}b{% endif %}"
    with pytest.raises(ValueError, match="does not begin message 2 with the prompt for it"):
        template("Qwen 3", jinja=thinks).texts(instruction({"messages": TURNS[:2]})[0])
    parts = "{% for m in messages %}{% for part in m.content %}{{ part.text }}{% endfor %}</s>{% endfor %}"
    with pytest.raises(ValueError, match="leaves out the content of message 2"):
        template("Mistral v0.3", jinja=parts).texts(instruction({"messages": TURNS[:2]})[0])
    chosen, _ = preference({"prompt": "x", "chosen": TURNS[1:], "rejected": "y"})
    with pytest.raises(ValueError, match="renders message 2 otherwise when others follow"):
        template("Qwen 3").texts(chosen)


def test_what_a_template_marks_is_learned_and_nothing_else() -> None:
    marked = (
        "{% for m in messages %}{% if m.role == 'assistant' %}{{ '<|im_start|>' }}{% generation %}{{ m.content }}"
        "<|im_end|>{% endgeneration %}{% else %}{{ m.content }}{% endif %}{{ '\\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>' }}{% endif %}"
    )
    found = template("SmolLM2", jinja=marked)
    (segments,) = found.texts(instruction({"messages": TURNS})[0])
    assert learned(segments) == [" A \n<|im_end|>", "B<|im_end|>"]
    pair = preference({"prompt": TURNS[:3], "chosen": [TURNS[3]], "rejected": [TURNS[1]]})
    assert [learned(found.texts(one)[0]) for one in pair] == [["B<|im_end|>"], [" A \n<|im_end|>"]]


def test_a_turn_that_ends_without_a_special_token_is_learned_to_its_end() -> None:
    plain = (
        "{% for m in messages %}{{ m.role + ': ' + m.content + '\\n' }}{% endfor %}"
        "{{ 'assistant: ' if add_generation_prompt }}"
    )
    found = template("SmolLM2", jinja=plain)
    (segments,) = found.texts(instruction({"messages": TURNS})[0])
    assert learned(segments) == [" A \n\n", "B\n"]
    assert found.ends() == []
