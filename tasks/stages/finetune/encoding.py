"""Encodes the texts of a row as tokens, with a mask of the learned ones.

Pure functions, except for reading the tokenizer.
"""

import json
from collections.abc import Mapping
from itertools import takewhile
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer
from tokenizers.processors import TemplateProcessing

from tasks.core.artifact import ArtifactFolder
from tasks.stages.finetune.templates import ImportedTemplate, Segments, opened

FILE = "tokenizer.json"


def prompt_of(texts: list[Segments]) -> str:
    """Returns the part of the first text before its first learned segment, which identifies the prompt."""
    return "".join(text for text, _ in takewhile(lambda segment: not segment[1], texts[0]))


class ExampleEncoder:
    """Encodes examples as `apply_chat_template` of the exported model does.

    A text is tokenized as a whole. A token is learned if all its characters are, so a token that spans the end of a
    prompt is not. Special tokens in the data of a row are encoded as plain text.

    Args:
        folder: files of an artifact `tokenizer`.
        record: the template (`templates.template_record`). An imported one writes all special tokens of a text itself;
            otherwise end-of-text is appended.
    """

    def __init__(self, folder: ArtifactFolder, record: Mapping[str, Any]) -> None:
        content = folder.read(FILE).decode()
        self.template = opened(record, content)
        self._tokenizer = Tokenizer.from_str(content)
        self._tokenizer.encode_special_tokens = True
        self._tokenizer.post_processor = TemplateProcessing(
            single="$A", special_tokens=[]
        )  # another one might shift offsets
        self.eos_id = eos_id(folder, self._tokenizer)

    def example(self, texts: list[Segments]) -> dict[str, Any]:
        """Returns lengths, tokens and learned (`tasks.formats.documents.examples`), and any_learned for each text.

        An appended end-of-text is learned if the last segment of its text is.
        """
        example: dict[str, Any] = {"lengths": [], "tokens": [], "learned": [], "any_learned": []}
        for segments in texts:
            ids, learned = self._encode(segments)
            example["any_learned"].append(any(learned))
            if not isinstance(self.template, ImportedTemplate):
                ids, learned = [*ids, self.eos_id], [*learned, bool(segments) and segments[-1][1]]
            example["lengths"].append(len(ids))
            example["tokens"] += ids
            example["learned"] += learned
        return example

    def _encode(self, segments: Segments) -> tuple[list[int], list[bool]]:
        text = "".join(text for text, _ in segments)
        if isinstance(self.template, ImportedTemplate):
            ids, offsets = self.template.template.encode(text)
            # Nothing precedes the first token, so it cannot be predicted.
            return ids, [False, *_learned(segments, offsets)[1:].tolist()]
        encoding = self._tokenizer.encode(text, add_special_tokens=False)
        return list(encoding.ids), _learned(segments, np.array(encoding.offsets, np.int64).reshape(-1, 2)).tolist()


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
