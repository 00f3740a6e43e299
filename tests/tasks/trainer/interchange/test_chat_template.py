"""Chat templates of imported models: the tokens of `apply_chat_template`, and special tokens that no row can forge."""

import json
from typing import Any

import pytest
from tokenizers import Tokenizer

from tasks.core.errors import InputError
from tasks.trainer.interchange.chat_template import ChatTemplate
from tests.late import transformers
from tests.tasks.trainer.interchange.chat_templates import FAMILIES, record, tokenizer_json

TALK = [
    {"role": "system", "content": "Be kind.\n"},
    {"role": "user", "content": " two  spaces\n\n"},
    {"role": "assistant", "content": "water über 数据 😀 {{ braces }}"},
    {"role": "user", "content": "<b>last</b> [one]"},
    {"role": "assistant", "content": "<think>\nhm\n</think>\n\nstone\n", "name": None},
]
TOOLS = [
    {"type": "function", "function": {"name": name, "description": "<it> & 'that'", "parameters": {"type": "object"}}}
    for name in ("look", "go")
]
CALL = {"id": "abcdef123", "type": "function", "function": {"name": "look", "arguments": {"at": "sea 'ü' <b>"}}}
TOOL_TALK = [
    {"role": "user", "content": "a?"},
    {"role": "assistant", "content": "b", "reasoning": "because", "tool_calls": None},
    {"role": "user", "content": "c?"},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "content": '{"x": 1}', "tool_call_id": "abcdef123"},
    {"role": "assistant", "content": "d"},
]
WITH_TOOLS = [name for name, family in FAMILIES.items() if family.tools]


def theirs(name: str) -> Any:
    """Returns the tokenizer of a family as `transformers` has it."""
    tokenizer = Tokenizer.from_str(tokenizer_json(name))
    family = FAMILIES[name]
    return transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, chat_template=family.jinja, **family.tokens)


def variables(name: str) -> dict[str, str]:
    """Returns the date as a variable of the template: `transformers` reads the clock."""
    return {"date_string": "26 Nov 2026"} if "strftime_now" in FAMILIES[name].jinja else {}


def encoded(ours: ChatTemplate, messages: Any, *, prompt: bool = False, **data: Any) -> list[int] | None:
    try:
        return ours.encode(ours.render(ours.read(messages, **data), prompt=prompt).text)[0]
    except ValueError:
        return None


def applied(tokenizer: Any, messages: Any, **settings: Any) -> list[int] | None:
    import jinja2

    try:
        ids: list[int] = tokenizer.apply_chat_template(messages, **settings)["input_ids"]
        return ids
    except (jinja2.TemplateError, TypeError):
        return None


@pytest.mark.parametrize("name", FAMILIES)
def test_every_beginning_of_a_conversation_has_the_tokens_of_transformers(name: str) -> None:
    ours, other = ChatTemplate(record(name), tokenizer_json(name)), theirs(name)
    seen = []
    for talk in (TALK, TALK[1:]):
        for count in range(1, len(talk) + 1):
            for prompt in (False, True):
                found = encoded(ours, talk[:count], prompt=prompt)
                settings = {"add_generation_prompt": prompt, **variables(name)}
                assert found == applied(other, talk[:count], **settings)
                seen.append(found)
    assert sum(found is not None for found in seen) >= 14
    eos = other.convert_tokens_to_ids(FAMILIES[name].tokens["eos_token"])
    assert any(eos in found for found in seen if found), "the template ends a turn with a special token"


@pytest.mark.parametrize("name", WITH_TOOLS)
def test_tools_calls_and_results_have_the_tokens_of_transformers(name: str) -> None:
    ours, other = ChatTemplate(record(name), tokenizer_json(name)), theirs(name)
    for count in range(1, len(TOOL_TALK) + 1):
        for prompt in (False, True):
            for tools in (TOOLS, TOOLS[:1], None):
                found = encoded(ours, TOOL_TALK[:count], prompt=prompt, tools=tools)
                settings = {"add_generation_prompt": prompt, **variables(name)}
                assert found == applied(other, TOOL_TALK[:count], tools=tools, **settings)
                assert found, (count, prompt)
    assert encoded(ours, TOOL_TALK, tools=json.dumps(TOOLS)) == encoded(ours, TOOL_TALK, tools=TOOLS)


def test_variables_of_a_row_reach_the_template() -> None:
    ours, other = ChatTemplate(record("Qwen 3"), tokenizer_json("Qwen 3")), theirs("Qwen 3")
    found = encoded(ours, TALK[:2], prompt=True, variables={"enable_thinking": False})
    assert found == applied(other, TALK[:2], add_generation_prompt=True, enable_thinking=False)
    assert found != encoded(ours, TALK[:2], prompt=True)
    with pytest.raises(ValueError, match="chat_template_kwargs is no object"):
        ours.read(TALK, variables="x")


@pytest.mark.parametrize("name", FAMILIES)
def test_special_tokens_in_data_are_plain_text(name: str) -> None:
    ours, other = ChatTemplate(record(name), tokenizer_json(name)), theirs(name)
    ids = {token: other.convert_tokens_to_ids(token) for token in FAMILIES[name].special}
    eos = FAMILIES[name].tokens["eos_token"]
    forged = f"a {eos}{eos}\n{' '.join(ids)} b"
    talk = [{"role": "user", "content": forged}, {"role": "assistant", "content": f"c{eos}"}]
    tools = (
        [{"type": "function", "function": {"name": eos, "parameters": {eos: [eos]}}}] if FAMILIES[name].tools else None
    )
    plain = [{"role": "user", "content": "a b"}, {"role": "assistant", "content": "c"}]
    found = encoded(ours, talk, tools=tools) or []
    honest = encoded(ours, plain, tools=tools and [{"type": "function", "function": {"name": "x"}}]) or []
    assert [found.count(number) for number in ids.values()] == [honest.count(number) for number in ids.values()]
    text = ours.reveal(ours.render(ours.read(talk, tools)).text)
    assert "".join(other.decode(found).split()) == "".join(text.split()), "nothing of the row is lost"
    assert encoded(ours, talk) == applied(other, talk, sanitize_control_tokens=True, **variables(name))
    ids_of_text, spans = ours.encode(ours.render(ours.read(talk)).text)
    assert len(ids_of_text) == len(spans)
    assert spans[-1, 1] <= len(text)


def test_tokens_that_overlap_in_data_are_plain_text() -> None:
    tokenizer = Tokenizer.from_str(tokenizer_json("SmolLM2"))
    tokenizer.add_special_tokens(["ab", "ba"])
    ours = ChatTemplate({"jinja": "{{ 'ba' + messages[0].content }}", "tokens": {}}, tokenizer.to_str())
    ids, spans = ours.encode(ours.render(ours.read([{"role": "user", "content": "abaab ba"}])).text)
    assert [ids.count(tokenizer.token_to_id(token)) for token in ("ab", "ba")] == [0, 1]
    assert spans[:, 0].tolist() == [0, 2, 3, 4, 5, 6, 7, 8, 9]


def test_an_unfit_row_is_refused_with_the_reason() -> None:
    ours = ChatTemplate(record("Mistral v0.3"), tokenizer_json("Mistral v0.3"))
    hello = {"role": "user", "content": "a"}
    for messages, said in (
        ([hello, {"role": "<|im_end|>", "content": "a"}], "a message has no role of system"),
        ([{"role": "user", "content": ["a"]}], "the content of a message is not a text"),
        ([{"role": "user", "content": "\U0010ffff\U0010fe00"}], "reserved"),
    ):
        with pytest.raises(ValueError, match=said):
            ours.read(messages)
    with pytest.raises(ValueError, match="tools is no list of objects"):
        ours.read([hello], ["x"])
    with pytest.raises(ValueError, match="the chat template refuses it: Only user, assistant and tool roles"):
        ours.render(ours.read([hello, {"role": "developer", "content": "a"}]))
    with pytest.raises(ValueError, match="the chat template refuses it: Tool call IDs have 9 characters!"):
        ours.render(ours.read([hello, {"role": "assistant", "tool_calls": [{"function": {}}]}]))


def test_a_template_without_a_date_is_the_same_on_every_day() -> None:
    day = ChatTemplate(record("Llama 3.1"), tokenizer_json("Llama 3.1"))
    assert "Today: 26 Nov 2026\n" in day.render(day.read(TALK)).text
    none = ChatTemplate({**record("Llama 3.1"), "date": ""}, tokenizer_json("Llama 3.1"))
    with pytest.raises(InputError, match=r"the date of the day .* set \[examples\] date|Set \[examples\] date"):
        none.render(none.read(TALK))
    other = ChatTemplate({**record("SmolLM2"), "date": ""}, tokenizer_json("SmolLM2"))
    assert other.render(other.read(TALK)).text


@pytest.mark.parametrize(
    "text",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{% set n = namespace(__x=1) %}",
        "{% set n = namespace() %}{% set n.__x = 1 %}",
        "{{ dict.__init__.__globals__ }}",
        "{{ raise_exception.__globals__.x }}",
        "{{ messages[0].content.format.__globals__.x }}",
        "{% for a in range(10000000) %}{% endfor %}",
    ],
)
def test_a_template_cannot_leave_the_sandbox(text: str) -> None:
    ours = ChatTemplate({"jinja": text, "tokens": {}}, tokenizer_json("SmolLM2"))
    with pytest.raises(ValueError, match="the chat template refuses it"):
        ours.render(ours.read([{"role": "user", "content": "a"}]))


def test_a_template_that_is_none_is_refused() -> None:
    with pytest.raises(InputError, match=r"is not a Jinja template \(line 2: "):
        ChatTemplate({"jinja": "a\n{% if %}", "tokens": {}}, tokenizer_json("SmolLM2"))


def test_what_a_template_marks_is_what_transformers_marks() -> None:
    text = (
        "{% for m in messages %}{% if m.role == 'assistant' %}{{ '<|im_start|>assistant\\n' }}{% generation %}"
        "{{ m.content + '<|im_end|>' }}{% endgeneration %}{% else %}{{ m.content }}{% continue %}{% endif %}{{ '\\n' }}"
        "{% endfor %}"
    )
    ours = ChatTemplate({"jinja": text, "tokens": {}}, tokenizer_json("SmolLM2"))
    rendered = ours.render(ours.read(TALK))
    other = theirs("SmolLM2")
    found = other.apply_chat_template(TALK, chat_template=text, return_assistant_tokens_mask=True)
    ids, spans = ours.encode(rendered.text)
    assert ids == found["input_ids"]
    assert rendered.generated is not None
    inside = [any(begin <= first and last <= end for begin, end in rendered.generated) for first, last in spans]
    assert inside == [bool(flag) for flag in found["assistant_masks"]]
    assert 0 < sum(inside) < len(inside)
