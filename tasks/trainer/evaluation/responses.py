"""Two models on held-out examples of a fine-tuning: bits per byte of the responses, and which answer is likelier.

Every token to learn is predicted from all of its example before it, by both models in the same context; an example
that is longer than that is left out. Writes `examples/<label>.parquet` {example, bytes, bits, rejected_bits}, a part
each: what is there already is not scored again.
"""

import math
from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from tokenizers import Tokenizer

from tasks.core import parquet
from tasks.core.stage import Output
from tasks.formats.documents.examples import Example, Examples
from tasks.trainer.evaluation import paired
from tasks.trainer.evaluation.comparison import BPB, Compared, Contender
from tasks.trainer.inference import Scorer, batches

EXAMPLES = "examples"
RESPONSES, PAIRS = "responses", "preferences"
LearnedText = tuple[NDArray[np.uint32], NDArray[np.bool_]]
"""Tokens, end-of-text last, and which of them are learned."""

SCHEMA = pa.schema(
    [
        pa.field("example", pa.int64(), nullable=False),  # number in the artifact
        pa.field("bytes", pa.int64(), nullable=False),  # UTF-8 bytes of what is to be learned; of a preference, chosen
        pa.field("bits", pa.float64(), nullable=False),
        pa.field("rejected_bits", pa.float64()),  # of the rejected answer; null for an instruction
    ]
)


def compare_responses(
    first: Contender, second: Contender, examples: Examples, context: int, batch_tokens: int, output: Output
) -> list[Compared]:
    """Compares two models on examples that neither has learned.

    Args:
        first: the model to compare with.
        second: the model that may be better; with another label.
        examples: held-out examples, in the tokens of both.
        context: tokens of a text that both read at most.
        batch_tokens: tokens per forward pass, padding included.
        output: receives the parts.

    Returns:
        the bits per byte of the responses, or of the chosen answers; of preferences also the share of pairs in which
        the chosen answer is the likelier one. Nothing where no example fits.
    """
    tables = [_scored(one, examples, context, batch_tokens, output) for one in (first, second)]
    if not tables[0].num_rows:
        return []
    size = tables[0]["bytes"].to_pylist()
    bits = [np.array(table["bits"].to_pylist()) for table in tables]
    before, after = (math.fsum(some) / math.fsum(size) for some in bits)
    difference = paired.of_sized((bits[0] - bits[1]).tolist(), size)
    found = [Compared("examples", RESPONSES, BPB, len(size), before, after, difference)]
    if tables[0]["rejected_bits"].null_count:
        return found
    right = [np.array(table["rejected_bits"].to_pylist()) > some for table, some in zip(tables, bits, strict=True)]
    apart = (right[1].astype(float) - right[0].astype(float)).tolist()
    shares = [float(some.mean()) for some in right]
    return [*found, Compared("examples", PAIRS, "acc", len(apart), shares[0], shares[1], paired.of_items(apart))]


def _scored(contender: Contender, examples: Examples, context: int, batch_tokens: int, output: Output) -> pa.Table:
    name = f"examples.{contender.label}"
    if name not in output.committed:
        scorer = contender.load(batch_tokens)
        rows = list(_fitting(examples, context, Tokenizer.from_str(contender.tokenizer), scorer.eos_id))
        output.progress(0, len(rows), f"held-out examples, {contender.label}")
        texts = [text for _, _, some in rows for text in some]
        bits = iter(response_bits(scorer, texts))
        found = [(number, size, [next(bits) for _ in some]) for number, size, some in rows]
        table = pa.Table.from_pylist(
            [
                {"example": number, "bytes": size, "bits": each[0], "rejected_bits": each[1] if len(each) > 1 else None}
                for number, size, each in found
            ],
            schema=SCHEMA,
        )
        with output.part(name) as part:
            part.count_in(table.num_rows)
            part.table(EXAMPLES, table)
    return parquet.read(output.store.local(f"{output.address.path}/{EXAMPLES}/{name}.parquet"))


def _fitting(
    examples: Examples, context: int, tokenizer: Tokenizer, eos_id: int
) -> Iterator[tuple[int, int, list[LearnedText]]]:
    """Yields number, bytes and texts of the examples that fit into the context and have a text to learn."""
    for sequence in range(examples.sequences):
        for number in examples.numbers(sequence):
            texts = _texts(examples[number])
            tokens, learned = texts[0]
            ids = [token for token in tokens[learned].tolist() if token != eos_id]
            size = len(tokenizer.decode(ids, skip_special_tokens=False).encode())
            if size and max(len(some) for some, _ in texts) <= context:
                yield number, size, texts


def _texts(example: Example) -> list[LearnedText]:
    ends = np.cumsum(example.lengths)[:-1]
    parts = zip(np.split(example.tokens, ends), np.split(example.learned, ends), strict=True)
    return list(parts)


@torch.no_grad()
def response_bits(scorer: Scorer, texts: Sequence[LearnedText]) -> list[float]:
    """Returns the bits that a model needs for the tokens to learn of each text."""
    found = [0.0] * len(texts)
    for batch in batches([len(tokens) for tokens, _ in texts], scorer.batch_tokens):
        length = max(len(texts[number][0]) for number in batch)
        # What pads a row stands behind it, where causal attention does not look.
        inputs = np.full((len(batch), length), scorer.eos_id, dtype=np.int64)
        for row, number in enumerate(batch):
            tokens = texts[number][0]
            inputs[row, 1 : len(tokens)] = tokens[:-1]
        hidden = scorer.model.hidden(torch.from_numpy(inputs), torch.zeros(inputs.shape, dtype=torch.int64))
        for row, number in enumerate(batch):
            tokens, learned = texts[number]
            places = torch.from_numpy(np.flatnonzero(learned))
            logits = F.linear(hidden[row, places], scorer.model.head_weight).float()
            labels = torch.from_numpy(tokens[learned].astype(np.int64))
            lost = F.cross_entropy(logits, labels, reduction="none").double().sum()
            found[number] = float(lost) / math.log(2)
    return found
