"""Twelve surface features of a text, and a logistic regression over them.

With only a few hundred labeled texts, a dozen features generalize better than the hundred thousand weights of a bag of
words (`python -m benchmarks.classifiers scores`).

Sources: stop words, line ends and repeated lines as criteria of prose, Rae et al., arXiv 2112.11446, appendix A.1, and
Raffel et al., arXiv 1910.10683, section 2.2; the idea of such columns, RedPajama-V2, Weber et al., arXiv 2411.12372.
"""

import math
import statistics
from collections.abc import Iterable
from typing import TYPE_CHECKING

from tasks.core.config import Config
from tasks.core.errors import InputError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

CHARS = 5_000
"""Number of characters, from the beginning, that are read: more do not improve the accuracy, fewer reduce it."""

NAMES = (
    "log_words",  # natural logarithm of the words between spaces
    "stop_share",  # everyday English words among them
    "pronoun_share",  # first and second person
    "distinct_share",  # different words among the first 500
    "title_share",  # words that begin with a capital letter: menus, lists, headlines
    "upper_share",  # capital letters, of all characters
    "mark_share",  # ASCII punctuation, of all characters
    "ellipsis_share",  # "..." and "…" per word: teasers that end in the middle
    "log_prose",  # logarithm of 1 + characters in long lines that end as sentences do
    "log_line",  # logarithm of 1 + characters of the median line
    "log_line_words",  # logarithm of 1 + words per line
    "repeated_lines",  # share of repeated lines
)

# fmt: off
_EVERYDAY = frozenset({
    "a", "and", "are", "as", "at", "be", "by", "for", "from", "have", "in", "is", "it", "of", "on", "or", "that", "the",
    "this", "to", "was", "with",
})
# fmt: on
_PERSONAL = frozenset(("i", "i'm", "me", "my", "our", "we", "you", "your"))
_SENTENCE_ENDS = (".", "!", "?", '"', "”")
_UPPER = bytes(range(ord("A"), ord("Z") + 1))
_MARKS = bytes(code for code in range(33, 127) if not chr(code).isalnum())
_LONG_LINE = 150
_FIRST_WORDS = 500


def signals(text: str, chars: int = CHARS) -> tuple[float, ...]:
    """Returns the features listed in `NAMES`; lines are stripped, and blank lines ignored."""
    text = text[:chars]
    lowered = text.lower()
    words = lowered.split()
    lines = [line for raw in text.split("\n") if (line := raw.strip())]
    # Bytes are counted by deletion, some fifty times faster than a loop over characters.
    ascii_ = text.encode("ascii", "ignore")
    n_words, n_lines, size = max(1, len(words)), max(1, len(lines)), max(1, len(text))
    prose = sum(len(line) for line in lines if len(line) >= _LONG_LINE and line.endswith(_SENTENCE_ENDS))
    return (
        math.log(n_words),
        sum(map(_EVERYDAY.__contains__, words)) / n_words,
        sum(map(_PERSONAL.__contains__, words)) / n_words,
        len(set(words[:_FIRST_WORDS])) / min(n_words, _FIRST_WORDS),
        sum(map(str.istitle, text.split())) / n_words,
        (len(ascii_) - len(ascii_.translate(None, _UPPER))) / size,
        (len(ascii_) - len(ascii_.translate(None, _MARKS))) / size,
        (text.count("...") + text.count("…")) / n_words,
        math.log1p(prose),
        math.log1p(statistics.median_high(map(len, lines)) if lines else 0),
        math.log1p(len(words) / n_lines),
        1 - len(set(lines)) / n_lines,
    )


def matrix(texts: Iterable[str], chars: int = CHARS) -> "NDArray[np.float64]":
    """Returns the signals of several texts, float64 of shape (n_texts, len(NAMES))."""
    import numpy as np

    rows = [signals(text, chars) for text in texts]
    return np.array(rows, dtype=np.float64).reshape(-1, len(NAMES))


class Weights(Config):
    """A fitted regression: probability = 1 / (1 + exp(-(bias + sum of weight x (signal - mean) / spread)))."""

    bias: float
    terms: dict[str, tuple[float, float, float]]
    """Weight, mean and spread of each of `NAMES`."""

    def probabilities(self, features: "NDArray[np.float64]") -> "NDArray[np.float32]":
        """Returns the probability of the positive label for each row of `matrix`, rounded to six digits."""
        import numpy as np

        # Term by term: the order of summation in a matrix product differs between machines.
        logit = np.full(len(features), self.bias)
        for column, name in enumerate(NAMES):
            weight, mean, spread = self.terms[name]
            logit += weight * (features[:, column] - mean) / spread
        probabilities: NDArray[np.float32] = np.round(1 / (1 + np.exp(-logit)), _DIGITS).astype(np.float32)
        return probabilities


def fit(features: "NDArray[np.float64]", positive: "NDArray[np.bool_]", ridge: float) -> Weights:
    """Fits a logistic regression with a ridge penalty by Newton's method, on standardized features.

    Minimizes the sum of log losses + ridge / 2 x the sum of squared weights; the bias is not penalized. Source: Hastie,
    Tibshirani, Friedman, "The Elements of Statistical Learning", 2nd edition, section 4.4.1.

    Args:
        features: rows of `matrix`, shape (n_texts, len(NAMES)).
        positive: whether each text has the positive label, shape (n_texts,).
        ridge: strength of the penalty, > 0.

    Raises:
        InputError: all rows have the same label.
    """
    import numpy as np

    if positive.all() or not positive.any():
        raise InputError("a regression needs texts of both labels, and all have the same", "add texts of the other")
    mean, spread = features.mean(axis=0), features.std(axis=0)
    spread[spread < 10**-_DIGITS] = 1.0  # constant except for rounding errors
    rows = np.column_stack([np.ones(len(features)), (features - mean) / spread])
    penalty = np.diag([0.0] + [ridge] * features.shape[1])
    beta = np.zeros(rows.shape[1])
    for _ in range(_MAX_STEPS):
        # einsum, because the order of summation in a matrix product depends on the number of threads.
        probability = 1 / (1 + np.exp(-np.einsum("ij,j->i", rows, beta)))
        gradient = np.einsum("ij,i->j", rows, probability - positive) + penalty @ beta
        hessian = np.einsum("ij,i,ik->jk", rows, probability * (1 - probability), rows) + penalty
        step = np.linalg.solve(hessian, gradient)
        beta -= step
        if np.abs(step).max() < _TOLERANCE:
            break
    return _rounded(beta, mean, spread)


_MAX_STEPS = 50
_TOLERANCE = 1e-9
_DIGITS = 6


def _rounded(beta: "NDArray[np.float64]", mean: "NDArray[np.float64]", spread: "NDArray[np.float64]") -> Weights:
    import numpy as np

    # Rounded, because the last digits differ between machines.
    rows = np.round(np.column_stack([beta[1:], mean, spread]), _DIGITS).tolist()
    terms = {name: (weight, center, width) for name, (weight, center, width) in zip(NAMES, rows, strict=True)}
    return Weights(bias=round(float(beta[0]), _DIGITS), terms=terms)
