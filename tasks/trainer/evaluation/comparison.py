"""Paired comparison of two models on the same held-out documents, task items, and fine-tuning examples.

A model is a registered model, or the last weights of a training or fine-tuning with the tokenizer of its data.

The models can have different tokenizers, because documents are compared by their text: each model encodes a document
with its own tokenizer and predicts every token, including end-of-text (`bpb`), and both bit counts are divided by the
UTF-8 bytes of the same text. Tasks are compared by the metric for models of their size (`scoring.decisive`).

Writes `documents/<label>.<source>.parquet` {id, bytes, bits}, `examples/<label>.parquet` {example, bytes, bits,
rejected_bits} and the items of tasks (`scoring`), each as one part. Parts that are committed already are not scored
again, and a model without parts to score is not loaded.

Fine-tuned models are compared on held-out text that no example was made from, in a context of both models.
"""

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from statistics import fmean
from typing import Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer

from tasks.core import parquet
from tasks.core.artifact import Artifact, ArtifactId
from tasks.core.errors import InputError
from tasks.core.stage import Output
from tasks.formats.documents.examples import PREFERENCES, Examples, LearnedText
from tasks.formats.tokens.exposure import origin_of
from tasks.formats.tokens.shard import HELDOUT as SPLIT
from tasks.formats.tokens.shard import ShardSet
from tasks.trainer.checkpoints.checkpoint import MODEL
from tasks.trainer.data.heldout import HeldoutDocument, heldout_by_source
from tasks.trainer.evaluation import paired
from tasks.trainer.evaluation.bpb import document_bits, use_threads
from tasks.trainer.evaluation.config import EvaluateConfig, TaskConfig
from tasks.trainer.evaluation.items import TOKENIZER, finite, matching_tokenizer
from tasks.trainer.evaluation.paired import PairedDifference
from tasks.trainer.evaluation.scoring import decisive, score_task
from tasks.trainer.inference import Scorer, row_batches
from tasks.trainer.model import model_file
from tasks.trainer.model.model_file import weights_to_use

_MODEL_FOLDER = "model/"
"""Folder with the files of a registered model in its artifact."""
DOCUMENTS = "documents"
BPB = "bpb"
LOWER_IS_BETTER = frozenset({BPB})
"""The decisive metrics for which a lower value is better."""
EXAMPLES = "examples"
RESPONSES, PAIRS = "responses", "preferences"
SCHEMA = pa.schema(
    [
        pa.field("example", pa.int64(), nullable=False),  # number in the artifact
        pa.field("bytes", pa.int64(), nullable=False),  # UTF-8 bytes of the learned (for a preference, chosen) text
        pa.field("bits", pa.float64(), nullable=False),
        pa.field("rejected_bits", pa.float64()),  # bits of the rejected answer; null for an instruction
    ]
)


class HeldoutText(NamedTuple):
    """A held-out document."""

    uid: bytes
    text: str


@dataclass(frozen=True)
class Comparison:
    """Comparison of two models on one source of documents, one task, or the examples of a fine-tuning.

    Attributes:
        kind: kind of the items.
        name: name of the source or task.
        metric: `bpb`, or another of `scoring.ITEM_METRICS`, for which higher is better.
        items: number of documents, items or examples.
        first: value of the first model.
        second: value of the second model.
        difference: how much better the second model is.
    """

    kind: Literal["source", "task", "examples"]
    name: str
    metric: str
    items: int
    first: float
    second: float
    difference: PairedDifference

    def row(self, confidence: float) -> dict[str, Any]:
        """Returns the comparison as a JSON object; infinite bounds of the interval are null."""
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
            "interval": list(self.difference.bounds(confidence)),
        }


def row_cells(row: Mapping[str, Any]) -> list[str]:
    """Returns the cells of `Comparison.row` in a table: name, metric, items, both values, difference and interval."""
    values = [f"{row[name]:.4f}" for name in ("first", "second")]
    named = f"{row['kind']} {row['name']}"
    return [named, row["metric"], f"{row['items']:,}", *values, f"{row['difference']:+.4f}", interval_cell(row)]


def interval_cell(row: Mapping[str, Any]) -> str:
    """Returns the interval of `Comparison.row` as text; "none" if it is infinite."""
    low, high = row["interval"]
    return "none" if low is None else f"{low:+.4f} .. {high:+.4f}"


def row_metrics(row: Mapping[str, Any], name: str) -> dict[str, float]:
    """Returns the difference of `Comparison.row` and the ends of its interval as metrics below `name`."""
    low, high = row["interval"]
    values = {"difference": row["difference"], "low": low, "high": high}
    return {f"{name}/{key}": value for key, value in values.items() if value is not None}


@dataclass(frozen=True)
class Contender:
    """The local files of a model and its tokenizer, not loaded yet.

    Attributes:
        label: role in the comparison, such as "champion"; part of the file names.
        name: artifact id, for people.
        description: its `model.json`.
        weights: its `model.safetensors`, with checkpoint names or those of the Llama layout.
        tokenizer: content of its `tokenizer.json`.
        context: maximum number of tokens of a text that it is given.
    """

    label: str
    name: str
    description: Path
    weights: Path
    tokenizer: str
    context: int

    @classmethod
    def of_artifact(cls, label: str, artifact: Artifact, tokenizer: Artifact | None = None) -> "Contender":
        """Returns the model of an artifact.

        Args:
            label: see the attributes.
            artifact: a registered model (`model`), or the `checkpoint` or `finetuned` of a training.
            tokenizer: the tokenizer of its training data; a registered model contains its own.

        Raises:
            InputError: the artifact has no whole model, or was trained with another tokenizer.
        """
        if f"{_MODEL_FOLDER}{MODEL}" in artifact.files(_MODEL_FOLDER):
            files = (Path(artifact.local(f"{_MODEL_FOLDER}{name}")) for name in (model_file.FILE, MODEL, TOKENIZER))
            description, file, own = files
            context = json.loads(description.read_text())["seq_len"]
            return cls(label, str(artifact.address), description, file, own.read_text(), context)
        described, weights = weights_to_use(artifact, label)
        if tokenizer is None:
            raise InputError(f"{artifact.address} contains no tokenizer", "give the one it was trained with")
        text = matching_tokenizer(tokenizer, described)
        description = Path(artifact.local(model_file.FILE))
        return cls(label, str(artifact.address), description, Path(weights.file), text, described["seq_len"])

    @property
    def parameters(self) -> int:
        """Number of weights."""
        return int(json.loads(self.description.read_text())["parameters"]["total"])

    def load(self, batch_tokens: int) -> Scorer:
        """Loads the model; `batch_tokens` as in `Scorer`. Raises InputError if the files do not match."""
        model, described = model_file.load_model(self.description, self.weights)
        described["seq_len"] = self.context
        return Scorer.of(model, described, Tokenizer.from_str(self.tokenizer), batch_tokens)


def in_equal_context(first: Contender, second: Contender) -> tuple[Contender, Contender]:
    """Returns two models with the context of the one that reads fewer tokens."""
    context = min(first.context, second.context)
    return replace(first, context=context), replace(second, context=context)


def texts_of(shards: ShardSet, tokenizer: str, max_tokens: int) -> dict[str, list[HeldoutText]]:
    """Returns the held-out documents, as text, of every source that has any.

    Args:
        shards: token shards.
        tokenizer: content of the `tokenizer.json` that they were encoded with.
        max_tokens: maximum number of tokens per source, in whole documents (at least one).

    Raises:
        InputError: no document is held out.
    """
    found = heldout_by_source(shards, max_tokens)
    return {source: decode_texts(documents, tokenizer) for source, documents in found.items()}


def decode_texts(documents: Iterable[HeldoutDocument], tokenizer: str) -> list[HeldoutText]:
    """Returns documents as text; `tokenizer` is the content of their `tokenizer.json`."""
    decoder = Tokenizer.from_str(tokenizer)
    return [
        HeldoutText(document.uid, decoder.decode(document.tokens[:-1].tolist(), skip_special_tokens=False))
        for document in documents
    ]


def compare(
    first: Contender,
    second: Contender,
    texts: Mapping[str, Sequence[HeldoutText]],
    config: EvaluateConfig,
    output: Output,
) -> list[Comparison]:
    """Compares two models on the texts of each source, and on the tasks of `config`.

    Args:
        first: the baseline.
        second: the model that may be better; with another label.
        texts: documents that neither model was trained on, by source (`texts_of`); {}: only tasks.
        config: tasks, batches and threads.
        output: receives the parts.

    Returns:
        Sources, then tasks, in the given order.

    Raises:
        InputError: a model cannot be loaded, a task cannot be read, or an item cannot be scored by one of the models.
    """
    use_threads(config.threads)
    of_texts, of_tasks = [], []
    for contender in (first, second):
        load = lru_cache(1)(partial(contender.load, config.task_batch_tokens))
        bits = partial(_bits, contender, load, config.batch_windows, output)
        of_texts.append({source: bits(source, documents) for source, documents in texts.items()})
        of_tasks.append({task.name: score_task(task, contender.label, load, output) for task in config.tasks})
    sources = [_by_bytes("source", source, *(tables[source] for tables in of_texts)) for source in texts]
    size = min(first.parameters, second.parameters)
    return [*sources, *(_of_task(task, size, of_tasks[0][task.name], of_tasks[1][task.name]) for task in config.tasks)]


def compare_responses(
    first: Contender, second: Contender, examples: Examples, batch_tokens: int, output: Output
) -> list[Comparison]:
    """Compares two models on examples of a fine-tuning that neither was trained on.

    Each learned token is predicted from all preceding tokens of its example, by both models in the same context
    (`in_equal_context`). Longer examples are omitted.

    Args:
        first: the baseline.
        second: the model that may be better; with another label.
        examples: held-out examples, in the tokens of both models.
        batch_tokens: tokens per forward pass, including padding.
        output: receives the parts.

    Returns:
        Bits per byte of the responses, or of the chosen answers; for preferences also the share of pairs in which the
        chosen answer is the more likely one. Empty if no example fits.
    """
    tables = [_score_examples(contender, examples, batch_tokens, output) for contender in (first, second)]
    if not tables[0].num_rows:
        return []
    responses = _by_bytes("examples", RESPONSES, *tables)
    if tables[0]["rejected_bits"].null_count:
        return [responses]
    prefers_chosen = [table["rejected_bits"].to_numpy() > table["bits"].to_numpy() for table in tables]
    differences = (prefers_chosen[1].astype(float) - prefers_chosen[0].astype(float)).tolist()
    shares = [float(values.mean()) for values in prefers_chosen]
    return [
        responses,
        Comparison("examples", PAIRS, "acc", len(differences), shares[0], shares[1], paired.of_items(differences)),
    ]


def _bits(
    contender: Contender,
    load: Callable[[], Scorer],
    batch_windows: int,
    output: Output,
    source: str,
    texts: Sequence[HeldoutText],
) -> pa.Table:
    """Returns a table with a row per document: id, bytes, bits."""
    name = f"{contender.label}.{source}"
    output.progress(0, len(texts), f"{source}, {contender.label}")
    if name not in output.committed:
        table = score_texts(contender, load(), texts, batch_windows)
        with output.part(name) as part:
            part.count_in(table.num_rows)
            part.table(DOCUMENTS, table)
    output.progress(len(texts), len(texts), f"{source}, {contender.label}")
    return parquet.read(output.store.local(f"{output.address.path}/{DOCUMENTS}/{name}.parquet"))


def score_texts(contender: Contender, scorer: Scorer, texts: Sequence[HeldoutText], batch_windows: int) -> pa.Table:
    """Returns a row {id, bytes, bits} per document; raises InputError if its bits are not finite.

    Args:
        contender: the model.
        scorer: the same, loaded.
        texts: the documents.
        batch_windows: windows of context per forward pass.
    """
    documents = list(encode_texts(texts, contender.tokenizer, scorer.eos_id))
    bits = document_bits(scorer.model, documents, scorer.eos_id, scorer.context, batch_windows)
    size = [document.n_bytes for document in documents]
    return pa.table({"id": [document.uid.hex() for document in documents], "bytes": size, "bits": bits})


def encode_texts(texts: Iterable[HeldoutText], tokenizer: str, eos_id: int) -> Iterable[HeldoutDocument]:
    """Yields documents encoded as in the shards, where special tokens in a text are encoded as plain text."""
    encoder = Tokenizer.from_str(tokenizer)
    encoder.encode_special_tokens = True
    for document in texts:
        ids = encoder.encode(document.text, add_special_tokens=False).ids
        yield HeldoutDocument(document.uid, np.array([*ids, eos_id]), len(document.text.encode()))


def _by_bytes(kind: Literal["source", "examples"], name: str, first: pa.Table, second: pa.Table) -> Comparison:
    """Compares the bits per byte of two tables with columns `bits` and `bytes`."""
    bits = [np.array(table["bits"].to_pylist()) for table in (first, second)]
    size = first["bytes"].to_pylist()
    before, after = (math.fsum(values) / math.fsum(size) for values in bits)
    difference = paired.of_sized((bits[0] - bits[1]).tolist(), size)
    return Comparison(kind, name, BPB, len(size), before, after, difference)


def _of_task(
    task: TaskConfig, parameters: int, first: Mapping[str, Sequence[Any]], second: Mapping[str, Sequence[Any]]
) -> Comparison:
    metric = decisive(task.kind, parameters)
    sign = -1 if metric in LOWER_IS_BETTER else 1
    differences = [sign * (after - before) for before, after in zip(first[metric], second[metric], strict=True)]
    values = fmean(first[metric]), fmean(second[metric])
    return Comparison("task", task.name, metric, len(differences), *values, paired.of_items(differences))


def _score_examples(contender: Contender, examples: Examples, batch_tokens: int, output: Output) -> pa.Table:
    name = f"examples.{contender.label}"
    if name not in output.committed:
        scorer = contender.load(batch_tokens)
        rows = list(_fitting(examples, contender.context, Tokenizer.from_str(contender.tokenizer), scorer.eos_id))
        output.progress(0, len(rows), f"held-out examples, {contender.label}")
        bits = iter(response_bits(scorer, [text for _, _, texts in rows for text in texts]))
        pairs = examples.summary["kind"] == PREFERENCES
        scores = []
        for number, size, texts in rows:
            first, *more = [next(bits) for _ in texts]
            of_text = (first, *more) if pairs else (math.fsum((first, *more)), None)
            scores.append(dict(zip(SCHEMA.names, (number, size, *of_text), strict=True)))
        table = pa.Table.from_pylist(scores, schema=SCHEMA)
        with output.part(name) as part:
            part.count_in(table.num_rows)
            part.table(EXAMPLES, table)
    return parquet.read(output.store.local(f"{output.address.path}/{EXAMPLES}/{name}.parquet"))


def _fitting(
    examples: Examples, context: int, tokenizer: Tokenizer, eos_id: int
) -> Iterator[tuple[int, int, list[LearnedText]]]:
    """Yields number, bytes and texts of the examples that fit into the context and have learned text."""
    special = {eos_id, *(id_ for id_, token in tokenizer.get_added_tokens_decoder().items() if token.special)}
    counted = 1 if examples.summary["kind"] == PREFERENCES else None
    for sequence in range(examples.sequences):
        for number in examples.numbers(sequence):
            texts = examples.texts(examples[number], eos_id)
            learned = [token for text in texts[:counted] for token in text.tokens[text.learned].tolist()]
            ids = [token for token in learned if token not in special]
            size = len(tokenizer.decode(ids, skip_special_tokens=False).encode())
            if size and max(len(text.tokens) for text in texts) <= context:
                yield number, size, texts


@torch.no_grad()
def response_bits(scorer: Scorer, texts: Sequence[LearnedText]) -> list[float]:
    """Returns the sum of -log2 p over the learned tokens of each text; raises InputError if one is not finite."""
    bits = [0.0] * len(texts)
    for batch in row_batches([len(text.tokens) for text in texts], scorer.batch_tokens):
        length = max(len(texts[number].tokens) for number in batch)
        # Padding is at the end of a row, which causal attention ignores.
        inputs = np.full((len(batch), length), scorer.eos_id, dtype=np.int64)
        for row, number in enumerate(batch):
            text = texts[number]
            inputs[row, : len(text.tokens)] = [text.before, *text.tokens[:-1]]
        hidden = scorer.model.hidden(torch.from_numpy(inputs), torch.zeros(inputs.shape, dtype=torch.int64))
        for row, number in enumerate(batch):
            text = texts[number]
            places = torch.from_numpy(np.flatnonzero(text.learned))
            logits = scorer.model.logits(hidden[row, places]).float()
            labels = torch.from_numpy(text.tokens[text.learned].astype(np.int64))
            loss = F.cross_entropy(logits, labels, reduction="none").double().sum()
            bits[number] = finite(float(loss) / math.log(2), "a response")
    return bits


def learned_documents(examples: Artifact) -> set[str]:
    """Returns the ids of the documents with learned chunks."""
    ids: set[str] = set()

    def collect(rows: pa.Table) -> "np.ndarray[Any, np.dtype[np.bool_]]":
        ids.update(rows.column("id").to_pylist())
        return np.zeros(rows.num_rows, np.bool_)

    Examples(examples).where(collect)
    return ids


def unlearned_texts(
    tuned: Artifact, tokenizer: Artifact, max_tokens: int, learned: set[str]
) -> tuple[dict[str, list[HeldoutText]], int]:
    """Returns the held-out documents without learned ones, by source, and the number of learned ones.

    They are those of the pretraining that a fine-tuned model, or its base, began from; none if its shards are gone.
    """
    shards = _shards(tuned)
    if shards is None or not any(shards.n_documents(source, SPLIT) for source in shards.sources):
        return {}, 0
    all_texts = texts_of(shards, tokenizer.read(TOKENIZER).decode(), max_tokens)
    texts = {
        source: [document for document in documents if document.uid.hex() not in learned]
        for source, documents in all_texts.items()
    }
    left_out = sum(map(len, all_texts.values())) - sum(map(len, texts.values()))
    return {source: documents for source, documents in texts.items() if documents}, left_out


def _shards(model: Artifact) -> ShardSet | None:
    """Opens the shards of the original pretraining; None if they, or a model in between, are missing."""
    checkpoint: Artifact | None = model
    while checkpoint:
        ref = next((ref for ref in checkpoint.record.inputs if ref.role == "shards"), None)
        if ref:
            artifact = Artifact.find(checkpoint.store, ArtifactId.parse(ref.address))
            unchanged = artifact is not None and artifact.record.content == ref.content
            return ShardSet.open(artifact) if artifact and unchanged else None
        checkpoint = origin_of(checkpoint)
    return None
