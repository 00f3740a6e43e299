"""From a row of JSON to texts, and which parts of them are learned."""

from collections.abc import Iterable, Mapping
from itertools import takewhile
from typing import Any

from tasks.stages.finetune.config import Template

ROLES = ("system", "user", "assistant")
Segments = list[tuple[str, bool]]
"""Pieces of one text in order, each with whether its tokens are learned."""


def instruction(row: Mapping[str, Any], template: Template) -> list[Segments]:
    """Returns the text of a row with `prompt` and `response`, or with `messages`: every response in it is learned.

    Raises:
        ValueError: the row has neither, or a message that is none.
    """
    if "messages" in row:
        return [list(segments(_messages(row["messages"], "messages", ""), template, learned=True))]
    said = [*_messages(row.get("prompt"), "prompt", "user"), *_messages(row.get("response"), "response", "assistant")]
    return [list(segments(said, template, learned=True))]


def preference(row: Mapping[str, Any], template: Template) -> list[Segments]:
    """Returns the chosen and the rejected text of a row; what is learned of each comes after the prompt.

    Raises:
        ValueError: `prompt`, `chosen` or `rejected` is missing, or both answers are the same.
    """
    if row.get("chosen") == row.get("rejected"):
        raise ValueError("chosen and rejected are the same")
    asked = list(segments(_messages(row.get("prompt"), "prompt", "user"), template, learned=False))
    answers = (_messages(row.get(name), name, "assistant") for name in ("chosen", "rejected"))
    return [[*asked, *segments(answer, template, learned=True)] for answer in answers]


def _messages(value: Any, name: str, role: str) -> list[tuple[str, str]]:
    """Returns (role, content) of messages, or of a text that is one message of `role` ("": must be messages)."""
    if isinstance(value, str) and role:
        return [(role, value)]
    if not isinstance(value, list) or not value:
        raise ValueError(f"{name} is {'neither a text nor ' if role else 'no '}list of messages")
    found = []
    for one in value:
        if not isinstance(one, dict) or one.get("role") not in ROLES or not isinstance(one.get("content"), str):
            raise ValueError(f"{name} has a message without a role of {', '.join(ROLES)} and a text as content")
        found.append((one["role"], one["content"]))
    return found


def asked(texts: list[Segments]) -> str:
    """Returns the text of the first one before what is learned: rows that are asked the same have the same."""
    return "".join(text for text, _ in takewhile(lambda segment: not segment[1], texts[0]))


def segments(messages: Iterable[tuple[str, str]], template: Template, *, learned: bool) -> Iterable[tuple[str, bool]]:
    """Yields the segments of messages (role, content); what is learned is responses, if anything is."""
    for role, content in messages:
        turn = getattr(template, role)
        yield turn.before, False
        yield content + turn.after, learned and role == "assistant"
