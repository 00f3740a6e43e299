"""From a row of JSON to texts and tokens, and which of them are learned.

Pure functions, but for reading the tokenizer.
"""

import json
from collections.abc import Iterable, Mapping
from itertools import takewhile
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer
from tokenizers.processors import TemplateProcessing

from tasks.core.artifact import ArtifactFolder
from tasks.stages.finetune import Template

ROLES = ("system", "user", "assistant")

Segments = list[tuple[str, bool]]
"""Pieces of one text in order, each with whether its tokens are learned."""

FILE = "tokenizer.json"


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


def prompt_of(texts: list[Segments]) -> str:
    """Returns the text of the first one before what is learned: rows that are asked the same have the same."""
    return "".join(text for text, _ in takewhile(lambda segment: not segment[1], texts[0]))


def segments(messages: Iterable[tuple[str, str]], template: Template, *, learned: bool) -> Iterable[tuple[str, bool]]:
    """Yields the segments of messages (role, content); what is learned is responses, if anything is."""
    for role, content in messages:
        turn = getattr(template, role)
        yield turn.before, False
        yield content + turn.after, learned and role == "assistant"


class ExampleEncoder:
    """Encodes examples as `apply_chat_template` of the exported model does.

    A text is tokenised as a whole. A token is learned if all its characters are: one that reaches over the end of a
    prompt is not. Special tokens in a text are plain characters.

    Args:
        folder: files of an artifact `tokenizer`.
    """

    def __init__(self, folder: ArtifactFolder) -> None:
        self._tokenizer = Tokenizer.from_str(folder.read(FILE).decode())
        self._tokenizer.encode_special_tokens = True
        self._tokenizer.post_processor = TemplateProcessing(single="$A", special_tokens=[])  # one may move offsets
        self.eos_id = eos_id(folder, self._tokenizer)

    def example(self, texts: list[Segments]) -> dict[str, Any]:
        """Returns lengths, tokens and learned (`tasks.formats.documents.examples`), and per text if any is learned.

        End-of-text is learned where the last segment of its text is.
        """
        found: dict[str, Any] = {"lengths": [], "tokens": [], "learned": [], "any_learned": []}
        for segments in texts:
            encoding = self._tokenizer.encode("".join(text for text, _ in segments), add_special_tokens=False)
            learned = _learned(segments, np.array(encoding.offsets, np.int64).reshape(-1, 2)).tolist()
            found["any_learned"].append(any(learned))
            found["lengths"].append(len(learned) + 1)
            found["tokens"] += [*encoding.ids, self.eos_id]
            found["learned"] += [*learned, bool(segments) and segments[-1][1]]
        return found


def _learned(segments: Segments, offsets: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Returns which tokens are learned, shape (tokens,).

    Args:
        segments: of the text.
        offsets: first and last code point (exclusive) of each token, shape (tokens, 2).
    """
    flags = np.repeat([flag for _, flag in segments], [len(text) for text, _ in segments])
    before = np.concatenate([[0], np.cumsum(flags)])
    size = offsets[:, 1] - offsets[:, 0]
    found: NDArray[np.bool_] = (size > 0) & (before[offsets[:, 1]] - before[offsets[:, 0]] == size)
    return found


def eos_id(folder: ArtifactFolder, loaded: Tokenizer) -> int:
    """Returns the end-of-text token that the tokenizer's settings name."""
    found: int = loaded.get_vocab()[json.loads(folder.read("tokenizer_config.json"))["eos_token"]]
    return found
