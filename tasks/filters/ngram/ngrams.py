"""N-grams with their probabilities: the content of an ARPA file, the input of a model."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

UNKNOWN, BEGIN, END = "<unk>", "<s>", "</s>"


@dataclass(frozen=True)
class Level:
    """The n-grams of one order.

    Attributes:
        rows: int32 of shape (m, n): the words of each, as indices into the vocabulary.
        prob: float32 of shape (m,): log10 of the probability of the last word after the others.
        back: float32 of shape (m,): log10 of the back-off weight as a context; 0 where it is none.
    """

    rows: NDArray[np.int32]
    prob: NDArray[np.float32]
    back: NDArray[np.float32]


@dataclass(frozen=True)
class Ngrams:
    """A vocabulary and the n-grams of each order, from 1 up."""

    words: list[str]
    levels: list[Level]
