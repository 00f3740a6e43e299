"""Converts JSON rows to texts and tokens, with a mask of the learned tokens.

Pure functions, except for reading the tokenizer.
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
"""Consecutive parts of one text, each with whether its tokens are learned."""

FILE = "tokenizer.json"


def instruction(row: Mapping[str, Any], template: Template) -> list[Segments]:
    """Returns the text of a row with `prompt` and `response`, or with `messages`; all responses are learned.

    Raises:
        ValueError: the row has neither, or has a malformed message.
    """
    if "messages" in row:
        return [list(segments(_messages(row["messages"], "messages", ""), template, learned=True))]
    messages = [
        *_messages(row.get("prompt"), "prompt", "user"),
        *_messages(row.get("response"), "response", "assistant"),
    ]
    return [list(segments(messages, template, learned=True))]


def preference(row: Mapping[str, Any], template: Template) -> list[Segments]:
    """Returns the chosen and the rejected text of a row; the part after the prompt is learned.

    Raises:
        ValueError: `prompt`, `chosen` or `rejected` is missing, or both answers are the same.
    """
    if row.get("chosen") == row.get("rejected"):
        raise ValueError("chosen and rejected are the same")
    prompt = list(segments(_messages(row.get("prompt"), "prompt", "user"), template, learned=False))
    answers = (_messages(row.get(name), name, "assistant") for name in ("chosen", "rejected"))
    return [[*prompt, *segments(answer, template, learned=True)] for answer in answers]


def _messages(value: Any, name: str, role: str) -> list[tuple[str, str]]:
    """Returns (role, content) of messages; a text is one message of `role`, unless `role` is empty."""
    if isinstance(value, str) and role:
        return [(role, value)]
    if not isinstance(value, list) or not value:
        raise ValueError(f"{name} is {'neither a text nor ' if role else 'no '}list of messages")
    messages = []
    for message in value:
        if (
            not isinstance(message, dict)
            or message.get("role") not in ROLES
            or not isinstance(message.get("content"), str)
        ):
            raise ValueError(f"{name} has a message without a role of {', '.join(ROLES)} and a text as content")
        messages.append((message["role"], message["content"]))
    return messages


def prompt_of(texts: list[Segments]) -> str:
    """Returns the part of the first text before its first learned segment, which identifies the prompt."""
    return "".join(text for text, _ in takewhile(lambda segment: not segment[1], texts[0]))


def has_empty_answer(texts: list[Segments], template: Template) -> bool:
    """Returns whether a learned response of the first text is blank; the rejected answer of a preference may be."""
    after = template.assistant.after
    return any(learned and not text.removesuffix(after).strip() for text, learned in texts[0])


def segments(messages: Iterable[tuple[str, str]], template: Template, *, learned: bool) -> Iterable[tuple[str, bool]]:
    """Yields the segments of messages (role, content); if `learned`, those of responses are learned."""
    for role, content in messages:
        turn = getattr(template, role)
        yield turn.before, False
        yield content + turn.after, learned and role == "assistant"


class ExampleEncoder:
    """Encodes examples as `apply_chat_template` of the exported model does.

    A text is tokenized as a whole. A token is learned if all its characters are, so a token that spans the end of a
    prompt is not. Special tokens in a text are encoded as plain text.

    Args:
        folder: files of an artifact `tokenizer`.
    """

    def __init__(self, folder: ArtifactFolder) -> None:
        self._tokenizer = Tokenizer.from_str(folder.read(FILE).decode())
        self._tokenizer.encode_special_tokens = True
        self._tokenizer.post_processor = TemplateProcessing(
            single="$A", special_tokens=[]
        )  # another one might shift offsets
        self.eos_id = eos_id(folder, self._tokenizer)

    def example(self, texts: list[Segments]) -> dict[str, Any]:
        """Returns lengths, tokens and learned (`tasks.formats.documents.examples`), and any_learned for each text.

        End-of-text is learned if the last segment of its text is.
        """
        example: dict[str, Any] = {"lengths": [], "tokens": [], "learned": [], "any_learned": []}
        for segments in texts:
            encoding = self._tokenizer.encode("".join(text for text, _ in segments), add_special_tokens=False)
            learned = _learned(segments, np.array(encoding.offsets, np.int64).reshape(-1, 2)).tolist()
            example["any_learned"].append(any(learned))
            example["lengths"].append(len(learned) + 1)
            example["tokens"] += [*encoding.ids, self.eos_id]
            example["learned"] += [*learned, bool(segments) and segments[-1][1]]
        return example


def _learned(segments: Segments, offsets: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Returns which tokens are learned, shape (tokens,).

    Args:
        segments: segments of the text.
        offsets: start and end (exclusive) of each token in code points, int64 of shape (tokens, 2).
    """
    flags = np.repeat([flag for _, flag in segments], [len(text) for text, _ in segments])
    before = np.concatenate([[0], np.cumsum(flags)])
    size = offsets[:, 1] - offsets[:, 0]
    mask: NDArray[np.bool_] = (size > 0) & (before[offsets[:, 1]] - before[offsets[:, 0]] == size)
    return mask


def eos_id(folder: ArtifactFolder, loaded: Tokenizer) -> int:
    """Returns the end-of-text token that the tokenizer's settings name."""
    token_id: int = loaded.get_vocab()[json.loads(folder.read("tokenizer_config.json"))["eos_token"]]
    return token_id
