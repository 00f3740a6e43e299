"""Two models on the same held-out documents, items of tasks, and examples of a fine-tuning, paired one by one.

A model is the folder of a registered one (`model.json`, `model.safetensors`, `tokenizer.json`), or the last weights of
a training or fine-tuning with the tokenizer that its tokens were made with.

The models may have different tokenizers: a document is compared by its text. Each model encodes it with its own
tokenizer and predicts every token, end-of-text included (`bpb`); both bit counts are over the UTF-8 bytes of one text.
Tasks are compared by the metric that decides between models of their size (`scoring.decisive`).

Writes `documents/<label>.<source>.parquet` {id, bytes, bits}, `examples/<label>.parquet` {example, bytes, bits,
rejected_bits} and the items of tasks (`scoring`), a part each: what is there already is not scored again, and a model
of which nothing is left to score is not loaded.
"""

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from statistics import fmean
from typing import Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from tokenizers import Tokenizer

from tasks.core import parquet
from tasks.core.artifact import Artifact
from tasks.core.digest import sha256_of
from tasks.core.errors import InputError
from tasks.core.stage import Output
from tasks.formats.documents.examples import Example, Examples
from tasks.formats.tokens.shard import ShardSet
from tasks.trainer.checkpoints.checkpoint import MODEL
from tasks.trainer.data.heldout import HeldoutDocument, of_sources
from tasks.trainer.evaluation import paired
from tasks.trainer.evaluation.bpb import document_bits, use_threads
from tasks.trainer.evaluation.config import EvaluateConfig, TaskConfig
from tasks.trainer.evaluation.paired import PairedDifference
from tasks.trainer.evaluation.scoring import decisive, score_task
from tasks.trainer.inference import Scorer, row_batches
from tasks.trainer.model import model_file
from tasks.trainer.model.model_file import last_weights

TOKENIZER = "tokenizer.json"
_PACKED = "model/"
"""Folder of the files in the artifact of a registered model."""
DOCUMENTS = "documents"
BPB = "bpb"
LOWER_IS_BETTER = frozenset({BPB})
"""Of the metrics that decide."""
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


class HeldoutText(NamedTuple):
    """A held-out document."""

    uid: bytes
    text: str


@dataclass(frozen=True)
class Comparison:
    """Two models on one source of documents, on one task, or on the examples of a fine-tuning.

    Attributes:
        kind: what it is.
        name: of the source or task.
        metric: `bpb`, or another of `scoring.ITEM_METRICS`, of which more is better.
        items: number of documents or items.
        first: value of the first model.
        second: value of the second model.
        difference: how much better the second is.
    """

    kind: Literal["source", "task", "examples"]
    name: str
    metric: str
    items: int
    first: float
    second: float
    difference: PairedDifference

    def row(self, confidence: float) -> dict[str, Any]:
        """Returns it as JSON has it; an edge of the interval is null where there is none."""
        low, high = (edge if math.isfinite(edge) else None for edge in self.difference.interval(confidence))
        stderr = self.difference.stderr if math.isfinite(self.difference.variance) else None
        return {
            "kind": self.kind,
            "name": self.name,
            "metric": self.metric,
            "items": self.items,
            "first": self.first,
            "second": self.second,
            "difference": self.difference.value,
            "stderr": stderr,
            "interval": [low, high],
        }


@dataclass(frozen=True)
class Contender:
    """A model on this machine, with its tokenizer, that is not loaded yet.

    Attributes:
        label: what it is in this comparison, such as "champion"; names its files.
        name: which model it is, for people: an artifact id or a folder.
        description: its `model.json`.
        weights: its `model.safetensors`, in our names or those of the Llama layout.
        tokenizer: content of its `tokenizer.json`.
    """

    label: str
    name: str
    description: Path
    weights: Path
    tokenizer: str

    @classmethod
    def of_folder(cls, label: str, folder: Path) -> "Contender":
        """Returns the model of a folder with the three files; raises InputError where one is missing."""
        description, weights, tokenizer = (folder / name for name in (model_file.FILE, MODEL, TOKENIZER))
        if missing := [path.name for path in (description, weights, tokenizer) if not path.exists()]:
            raise InputError(f"{folder} holds no {', '.join(missing)}", "name the folder model/ of a registered model")
        return cls(label, str(folder), description, weights, tokenizer.read_text())

    @classmethod
    def of_artifact(cls, label: str, artifact: Artifact, tokenizer: Artifact | None = None) -> "Contender":
        """Returns the model of an artifact.

        Args:
            label: see the attributes.
            artifact: a registered model (`model`), or the `checkpoint` or `finetuned` of a training.
            tokenizer: the tokenizer that its tokens were made with; a registered model has its own.

        Raises:
            InputError: the artifact has no whole model, or was trained with another tokenizer.
        """
        if f"{_PACKED}{MODEL}" in artifact.files(_PACKED):
            local = {name: artifact.local(f"{_PACKED}{name}") for name in (model_file.FILE, MODEL)}
            own = artifact.read(f"{_PACKED}{TOKENIZER}").decode()
            return cls(label, str(artifact.address), Path(local[model_file.FILE]), Path(local[MODEL]), own)
        described, weights = last_weights(artifact, label)
        if tokenizer is None:
            raise InputError(f"{artifact.address} has no tokenizer of its own", "give the one it was trained with")
        text = matching_tokenizer(tokenizer, described)
        description = Path(artifact.local(model_file.FILE))
        return cls(label, str(artifact.address), description, Path(weights.file), text)

    @property
    def parameters(self) -> int:
        """Number of its weights."""
        return int(json.loads(self.description.read_text())["parameters"]["total"])

    def load(self, batch_tokens: int) -> Scorer:
        """Loads it; `batch_tokens` as in `Scorer`. Raises InputError where the files do not make a model."""
        model, described = model_file.load_model(self.description, self.weights)
        tokenizer = Tokenizer.from_str(self.tokenizer)
        return Scorer(model, tokenizer, described["eos_id"], described["seq_len"], batch_tokens)


def matching_tokenizer(tokenizer: Artifact, described: dict[str, Any]) -> str:
    """Returns the content of a tokenizer's file; raises InputError unless the model was trained with it.

    Args:
        tokenizer: artifact with the file.
        described: content of the model's `model.json`.
    """
    data = tokenizer.read(TOKENIZER)
    if sha256_of(data) != described["tokenizer_sha256"]:
        raise InputError(
            f"{tokenizer.address} is not the tokenizer the checkpoint was trained with",
            "evaluate with the tokenizer that the shards were encoded with",
        )
    return data.decode()


def texts_of(shards: ShardSet, tokenizer: str, max_tokens: int) -> dict[str, list[HeldoutText]]:
    """Returns the held-out documents of every source that has some.

    Args:
        shards: token shards.
        tokenizer: content of the `tokenizer.json` that they were encoded with.
        max_tokens: of a source at most, counted in its own tokens, in whole documents, at least one.

    Raises:
        InputError: no document is held out.
    """
    decoder = Tokenizer.from_str(tokenizer)
    return {
        source: [
            HeldoutText(one.uid, decoder.decode(one.tokens[:-1].tolist(), skip_special_tokens=False)) for one in some
        ]
        for source, some in of_sources(shards, max_tokens).items()
    }


def compare(
    first: Contender,
    second: Contender,
    texts: Mapping[str, Sequence[HeldoutText]],
    config: EvaluateConfig,
    output: Output,
) -> list[Comparison]:
    """Compares two models on the texts of each source, and on the tasks of `config`.

    Args:
        first: the model to compare with.
        second: the model that may be better; with another label.
        texts: documents that neither has learned from, by source (`texts_of`); {}: tasks alone.
        config: tasks, batches and threads.
        output: receives the parts.

    Returns:
        sources, then tasks, in the order given.

    Raises:
        InputError: a model cannot be loaded, a task cannot be read, or an item cannot be scored by one of the models.
    """
    use_threads(config.threads)
    of_texts, of_tasks = [], []
    for contender in (first, second):
        load = lru_cache(1)(partial(contender.load, config.task_batch_tokens))
        bits = partial(_bits, contender, load, config.batch_windows, output)
        of_texts.append({source: bits(source, some) for source, some in texts.items()})
        of_tasks.append({task.name: score_task(task, contender.label, load, output) for task in config.tasks})
    sources = [_of_source(source, of_texts[0][source], of_texts[1][source]) for source in texts]
    size = min(first.parameters, second.parameters)
    return [*sources, *(_of_task(task, size, of_tasks[0][task.name], of_tasks[1][task.name]) for task in config.tasks)]


def compare_responses(
    first: Contender, second: Contender, examples: Examples, context: int, batch_tokens: int, output: Output
) -> list[Comparison]:
    """Compares two models on examples of a fine-tuning that neither has learned.

    Every token to learn is predicted from all of its example before it, by both models in the same context; an example
    that is longer than that is left out.

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
    found = [Comparison("examples", RESPONSES, BPB, len(size), before, after, difference)]
    if tables[0]["rejected_bits"].null_count:
        return found
    right = [np.array(table["rejected_bits"].to_pylist()) > some for table, some in zip(tables, bits, strict=True)]
    apart = (right[1].astype(float) - right[0].astype(float)).tolist()
    shares = [float(some.mean()) for some in right]
    return [*found, Comparison("examples", PAIRS, "acc", len(apart), shares[0], shares[1], paired.of_items(apart))]


def _bits(
    contender: Contender,
    load: Callable[[], Scorer],
    batch_windows: int,
    output: Output,
    source: str,
    texts: Sequence[HeldoutText],
) -> pa.Table:
    """Returns a row per document: id, bytes, bits."""
    name = f"{contender.label}.{source}"
    output.progress(0, len(texts), f"{source}, {contender.label}")
    if name not in output.committed:
        scorer = load()
        documents = list(encoded(texts, contender.tokenizer, scorer.eos_id))
        bits = document_bits(scorer.model, documents, scorer.eos_id, scorer.context, batch_windows)
        columns = {"id": [one.uid.hex() for one in documents], "bytes": [one.n_bytes for one in documents]}
        with output.part(name) as part:
            part.count_in(len(documents))
            part.table(DOCUMENTS, pa.table({**columns, "bits": bits}))
    output.progress(len(texts), len(texts), f"{source}, {contender.label}")
    return parquet.read(output.store.local(f"{output.address.path}/{DOCUMENTS}/{name}.parquet"))


def encoded(texts: Iterable[HeldoutText], tokenizer: str, eos_id: int) -> Iterable[HeldoutDocument]:
    """Yields documents in the tokens of a tokenizer, as the shards have them: special tokens in a text are plain."""
    encoder = Tokenizer.from_str(tokenizer)
    encoder.encode_special_tokens = True
    for one in texts:
        ids = encoder.encode(one.text, add_special_tokens=False).ids
        yield HeldoutDocument(one.uid, np.array([*ids, eos_id]), len(one.text.encode()))


def _of_source(source: str, first: pa.Table, second: pa.Table) -> Comparison:
    bits = [np.array(table["bits"].to_pylist()) for table in (first, second)]
    size = first["bytes"].to_pylist()
    before, after = (math.fsum(some) / math.fsum(size) for some in bits)
    difference = paired.of_sized((bits[0] - bits[1]).tolist(), size)
    return Comparison("source", source, BPB, len(size), before, after, difference)


def _of_task(
    task: TaskConfig, parameters: int, first: Mapping[str, Sequence[Any]], second: Mapping[str, Sequence[Any]]
) -> Comparison:
    metric = decisive(task.kind, parameters)
    sign = -1 if metric in LOWER_IS_BETTER else 1
    apart = [sign * (after - before) for before, after in zip(first[metric], second[metric], strict=True)]
    values = fmean(first[metric]), fmean(second[metric])
    return Comparison("task", task.name, metric, len(apart), *values, paired.of_items(apart))


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
    for batch in row_batches([len(tokens) for tokens, _ in texts], scorer.batch_tokens):
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
