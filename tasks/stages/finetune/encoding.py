"""From texts to tokens, and which of them are learned. Pure functions, but for reading the tokenizer."""

import json
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer
from tokenizers.processors import TemplateProcessing

from tasks.core.artifact import ArtifactFolder
from tasks.stages.finetune.render import Segments

FILE = "tokenizer.json"


class Encoder:
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
        """Returns lengths, tokens and learned of `tasks.formats.documents.examples`, and for each text whether any is learned.

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
