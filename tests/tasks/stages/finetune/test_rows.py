"""Rows as dialogues: the formats of instructions and preferences, also with several rounds."""

from typing import Any

import pytest

from tasks.stages.finetune.rows import instruction, preference

ASKED = [{"role": "user", "content": "a?"}, {"role": "assistant", "content": "A"}, {"role": "user", "content": "b?"}]
GOOD, BAD = ({"role": "assistant", "content": text} for text in ("B", "C"))
MORE = [{"role": "user", "content": "c?"}, {"role": "assistant", "content": "D"}]


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": ASKED, "chosen": [GOOD], "rejected": [BAD]},
        {"prompt": ASKED, "chosen": "B", "rejected": "C"},
        {"messages": ASKED, "chosen": [GOOD], "rejected": "C"},
        {"chosen": [*ASKED, GOOD], "rejected": [*ASKED, BAD]},
    ],
)
def test_only_the_answers_after_the_shared_messages_are_learned(row: dict[str, Any]) -> None:
    chosen, rejected = preference(row)
    assert (chosen.messages, rejected.messages) == ([*ASKED, GOOD], [*ASKED, BAD])
    assert chosen.learned == rejected.learned == [3]


def test_an_answer_can_have_several_rounds() -> None:
    chosen, rejected = preference({"chosen": [*ASKED, GOOD, *MORE], "rejected": [*ASKED, BAD]})
    assert (chosen.learned, rejected.learned) == ([3, 5], [3])


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"chosen": "a", "rejected": "b"}, "there is no prompt"),
        ({"chosen": [GOOD], "rejected": [BAD]}, "there is no prompt, and chosen and rejected do not begin with equal"),
        ({"chosen": ASKED, "rejected": ASKED[:1]}, "there is no prompt"),
        ({"prompt": "a", "chosen": "b"}, "rejected is neither a text nor list of messages"),
        ({"prompt": "a"}, "chosen is neither a text nor list of messages"),
        ({"messages": "a", "chosen": "b", "rejected": "c"}, "messages is no list of messages"),
        ({"prompt": [], "chosen": "b", "rejected": "c"}, "prompt is neither a text nor list of messages"),
        ({"prompt": ["a"], "chosen": "b", "rejected": "c"}, "prompt has a message that is no object"),
    ],
)
def test_a_malformed_preference_is_named(row: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        preference(row)


def test_every_response_of_an_instruction_is_learned() -> None:
    (dialogue,) = instruction({"messages": [*ASKED, GOOD]})
    assert dialogue.learned == [1, 3]
    (dialogue,) = instruction({"prompt": ASKED[:1], "response": "A", "tools": [{}], "chat_template_kwargs": {"x": 1}})
    assert (dialogue.learned, dialogue.tools, dialogue.variables) == ([1], [{}], {"x": 1})


def test_an_answer_that_calls_a_tool_is_not_empty() -> None:
    called = {"role": "assistant", "content": None, "tool_calls": [{"function": {}}]}
    blank = {"role": "assistant", "content": " \n"}
    for message, empty in ((called, False), (blank, True), (GOOD, False)):
        (dialogue,) = instruction({"messages": [ASKED[0], message]})
        assert dialogue.has_empty_answer == empty
