"""Reads rows of instructions and preferences as dialogues. Pure functions.

Rows have the fields of TRL (`messages`; `prompt`, and `completion` or `response`), of Alpaca (`instruction`, `input`,
`output`) or of ShareGPT (`conversations` of `from` and `value`). Other names are mapped to these before.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

Message = dict[str, Any]

FIELDS = ("messages", "prompt", "response", "chosen", "rejected", "id", "system", "tools")
"""Fields that a recipe can read from fields of other names."""
_ROLES = {"human": "user", "gpt": "assistant", "bing": "assistant", "chatgpt": "assistant", "model": "assistant"}
"""Roles of messages by ShareGPT's names for who they are from."""


@dataclass(frozen=True)
class Dialogue:
    """Messages of a row; the responses from number `first` on are learned.

    `tools` and `variables` are those of the row for the chat template of an imported model.
    """

    messages: list[Message]
    first: int = 0
    tools: Any = None
    variables: Any = None

    @property
    def learned(self) -> list[int]:
        """Numbers of the messages that are learned."""
        return [at for at, one in enumerate(self.messages) if at >= self.first and one.get("role") == "assistant"]

    @property
    def has_empty_answer(self) -> bool:
        """Whether a learned response is blank, and calls no tool."""
        answers = [self.messages[at] for at in self.learned]
        return any(not str(one.get("content") or "").strip() and not one.get("tool_calls") for one in answers)


def instruction(row: Mapping[str, Any]) -> list[Dialogue]:
    """Returns the dialogue of a row with `prompt` and `response`, or with `messages`; all responses are learned.

    Raises:
        ValueError: the row has neither, or has a malformed message.
    """
    row = _named(row)
    if "messages" in row:
        return [_dialogue(row, _messages(row["messages"], "messages", ""))]
    prompt = _messages(row.get("prompt"), "prompt", "user")
    return [_dialogue(row, [*prompt, *_messages(row.get("response"), "response", "assistant")])]


def preference(row: Mapping[str, Any]) -> list[Dialogue]:
    """Returns the chosen and the rejected dialogue of a row, of which the responses after the prompt are learned.

    The prompt is `prompt` or `messages`, before both answers. A row without has whole conversations, and their common
    messages are the prompt; of two equal conversations, all messages but the last. Equal answers are no error here.

    Raises:
        ValueError: `chosen` or `rejected` is missing or malformed, or there is no prompt.
    """
    row = _named(row)
    name = "messages" if "prompt" not in row and "messages" in row else "prompt"
    has_prompt = name in row
    if not has_prompt and isinstance(row.get("chosen"), str):
        raise ValueError("there is no prompt")
    role = "assistant" if has_prompt else ""
    chosen, rejected = (_messages(row.get(answer), answer, role) for answer in ("chosen", "rejected"))
    if has_prompt:
        prompt = _messages(row[name], name, "user" if name == "prompt" else "")
        return [_dialogue(row, [*prompt, *answer], len(prompt)) for answer in (chosen, rejected)]
    pairs = zip(chosen, rejected, strict=False)
    shared = next((at for at, (one, other) in enumerate(pairs) if one != other), min(len(chosen), len(rejected)))
    if chosen == rejected:
        shared -= 1
    if not 0 < shared < min(len(chosen), len(rejected)):
        raise ValueError(
            "there is no prompt, and chosen and rejected do not begin with equal messages that differ later"
        )
    return [_dialogue(row, answer, shared) for answer in (chosen, rejected)]


READERS = {"instructions": instruction, "preferences": preference}


def _named(row: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a row with the fields `messages`, or `prompt` and `response`, in place of those of other layouts."""
    named = {name: value for name, value in row.items() if value is not None}
    if "messages" not in named and "conversations" in named:
        named["messages"] = named["conversations"]
    if not named.keys() & {"messages", "prompt"} and "instruction" in named:
        texts = [named["instruction"], named.get("input") or ""]
        if not all(isinstance(text, str) for text in texts):
            raise ValueError("instruction and input are not both texts")
        named["prompt"] = "\n\n".join(filter(None, texts))
    if given := [name for name in ("response", "completion", "output") if name in named]:
        named["response"] = named[given[0]]
    return named


def _dialogue(row: Mapping[str, Any], messages: list[Message], first: int = 0) -> Dialogue:
    system = row.get("system")
    if isinstance(system, str) and system.strip() and messages[0].get("role") != "system":
        messages, first = [{"role": "system", "content": system}, *messages], first + 1 if first else 0
    return Dialogue(messages, first, row.get("tools"), row.get("chat_template_kwargs"))


def _messages(value: Any, name: str, role: str) -> list[Message]:
    """Returns messages; a text is one message of `role`, unless `role` is empty, and a single message is a list."""
    if isinstance(value, str) and role:
        return [{"role": role, "content": value}]
    if isinstance(value, dict):
        value = [value]
    if not isinstance(value, list) or not value:
        raise ValueError(f"{name} is {'neither a text nor ' if role else 'no '}list of messages")
    for message in value:
        if not isinstance(message, dict):
            raise ValueError(f"{name} has a message that is no object")
    return [_message(message) for message in value]


def _message(message: Message) -> Message:
    """Returns a message with `role` and `content`; ShareGPT's has `from` and `value`."""
    if "role" in message or "from" not in message:
        return message
    others = {name: value for name, value in message.items() if name not in ("from", "value")}
    role = message["from"]
    named = _ROLES.get(role, role) if isinstance(role, str) else role
    return {"role": named, "content": message.get("value"), **others}
