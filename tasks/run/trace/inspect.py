"""Inspection of tokens: a shard, a sequence with the documents in it, or the batch of a step.

Reads `shards`, `tokenizer` and, for a sequence or a step, `plan` and `checkpoint`; of documents only those shown.
"""

import re
from dataclasses import asdict, dataclass

import numpy as np

from tasks.core.errors import InputError
from tasks.core.store import Store
from tasks.formats.tokens.plan import Plan
from tasks.formats.tokens.shard import TokenFormat
from tasks.run.result import Json
from tasks.run.trace.graph import LineageReader

_SEQUENCE = re.compile(r"([\w.-]+):(\d+)")
_STEP = re.compile(r"step:(\d+)")
_SHOWN = 5
_EXCERPT_TOKENS = 24
_WIDTH = 96


@dataclass(frozen=True)
class Stretch:
    """A run of consecutive tokens of one document, with the first token ids and the whole text.

    `start` is its first token, counted in the document; `pos` the same, counted in the sequence, or None outside of a
    sequence.
    """

    id: str
    url: str
    shard: str
    row: int
    start: int
    length: int
    tokens: list[int]
    text: str
    pos: int | None = None

    def to_json(self) -> Json:
        """Returns the fields as JSON values, without `pos` if it is None."""
        fields = asdict(self)
        if self.pos is None:
            del fields["pos"]
        return fields

    def lines(self) -> list[str]:
        """Returns the stretch as lines of text."""
        position = "" if self.pos is None else f"at {self.pos:,}: "
        text = " ".join(self.text.split())
        last = self.start + self.length - 1
        return [
            "",
            f"  {position}{self.url or self.id}  tokens {self.start:,} .. {last:,} of row {self.row:,}",
            f"    {' '.join(map(str, self.tokens))}{' ..' if self.length > len(self.tokens) else ''}",
            f"    {text if len(text) <= _WIDTH else text[: _WIDTH - 3] + '...'}",
        ]


@dataclass(frozen=True)
class ShardView:
    """Contents of a shard; `length_quantiles` are tokens per document: minimum, quartiles, maximum."""

    shard: str
    format: TokenFormat
    documents: int
    tokens: int
    bytes_of_text: int
    length_quantiles: list[int]
    first_documents: list[Stretch]

    def to_json(self) -> Json:
        """Returns the fields, and those of the format, as JSON values."""
        fields = {"kind": "shard", **vars(self), **vars(self.format)}
        del fields["format"]
        return {**fields, "first_documents": [document.to_json() for document in self.first_documents]}

    def text(self) -> str:
        """Returns the view as text."""
        lines = [
            f"shard {self.shard}: {self.documents:,} documents, {self.tokens:,} tokens of a vocabulary of "
            f"{self.format.vocab_size:,}, {self.bytes_of_text / max(1, self.tokens):.2f} bytes per token",
            f"  tokens per document (min, quartiles, max): {', '.join(f'{n:,}' for n in self.length_quantiles)}",
            f"  end-of-text {self.format.eos_id}, tokenizer {self.format.tokenizer_sha256[:12]}",
        ]
        return "\n".join(lines + [line for document in self.first_documents for line in document.lines()])


@dataclass(frozen=True)
class SequenceView:
    """A sequence of a plan, and the parts of documents in it."""

    source: str
    sequence: int
    seq_len: int
    padding: int
    slices: list[Stretch]

    def to_json(self) -> Json:
        """Returns the fields as JSON values."""
        return {"kind": "sequence", **vars(self), "slices": [part.to_json() for part in self.slices]}

    def text(self) -> str:
        """Returns the view as text."""
        padding = f", {self.padding:,} of them padding" if self.padding else ""
        head = f"{self.source} sequence {self.sequence:,}: {self.seq_len:,} tokens{padding}"
        return "\n".join([head, *(line for part in self.slices for line in part.lines())])


@dataclass(frozen=True)
class BatchRow:
    """A sequence of a batch, with the numbers of documents, of tokens without padding, and of padding tokens."""

    source: str
    sequence: int
    epoch: int
    documents: int
    tokens: int
    padding: int


@dataclass(frozen=True)
class BatchView:
    """The batch of a step."""

    step: int
    seq_len: int
    sequences: list[BatchRow]

    def to_json(self) -> Json:
        """Returns the fields as JSON values."""
        return {"kind": "batch", **asdict(self)}

    def text(self) -> str:
        """Returns the view as a table."""
        head = f"{'source':<16} {'sequence':>12} {'epoch':>5} {'documents':>9} {'tokens':>8} {'padding':>8}"
        lines = [f"step {self.step:,}: {len(self.sequences)} sequences of {self.seq_len:,} tokens", "", head]
        for row in self.sequences:
            sequence = f"{row.source:<16} {row.sequence:>12,} {row.epoch:>5}"
            lines.append(f"{sequence} {row.documents:>9,} {row.tokens:>8,} {row.padding:>8,}")
        return "\n".join(lines)


def inspect(store: Store, recipe: str, version: str, query: str) -> ShardView | SequenceView | BatchView:
    """Returns the contents of a shard, a sequence or a batch.

    Args:
        store: store of the artifacts.
        recipe: name of the recipe.
        version: version of the model, or of the last artifact that exists.
        query: name of a shard ("web-train-00000-000"), a sequence ("web:17") or a step ("step:120").

    Raises:
        InputError: the shard, sequence or step does not exist.
    """
    reader = LineageReader.follow(store, recipe, version)
    if "shards" not in reader.artifacts:
        raise InputError(f"{recipe}@{version} has no token shards", "run the stage encode first")
    if match := _STEP.fullmatch(query):
        return _batch(reader, int(match[1]))
    if match := _SEQUENCE.fullmatch(query):
        return _sequence(reader, match[1], int(match[2]))
    return _shard(reader, query)


def _shard(reader: LineageReader, name: str) -> ShardView:
    shard = reader.shards.shard(name)
    lengths = shard.lengths
    quantiles = np.quantile(lengths, [0, 0.25, 0.5, 0.75, 1]).astype(int).tolist() if shard.rows else []
    return ShardView(
        shard=name,
        format=shard.format,
        documents=shard.rows,
        tokens=shard.n_tokens,
        bytes_of_text=int(shard.n_bytes.sum()),
        length_quantiles=quantiles,
        first_documents=[_stretch(reader, name, row, 0, int(lengths[row])) for row in range(min(_SHOWN, shard.rows))],
    )


def _sequence(reader: LineageReader, source: str, seq_id: int) -> SequenceView:
    plan = _plan(reader)
    try:
        rows = plan.slices(source, seq_id).tolist()
    except IndexError as error:
        raise InputError(str(error), "choose one of these") from None
    slices, pos = [], 0
    for number, row, offset, length in rows:
        name = plan.shards[number]
        start = offset - reader.shards.shard(name).token_offset(row)
        slices.append(_stretch(reader, name, row, start, length, pos))
        pos += length
    return SequenceView(source, seq_id, plan.seq_len, plan.seq_len - pos, slices)


def _batch(reader: LineageReader, step: int) -> BatchView:
    run, order, plan = reader.readings.run, reader.readings.order, _plan(reader)
    if run is None or order is None:
        raise InputError(f"nothing was trained of {reader.recipe} at this version", "run the stage train first")
    if step >= run["steps"]:
        raise InputError(f"the run has no step {step}", f"its steps are 0 to {run['steps'] - 1}")
    sequences = []
    for source, seq_id, epoch in order.batch(step):
        slices = plan.slices(source, seq_id)
        documents, tokens = len(set(slices[["shard", "row"]].tolist())), int(slices["length"].sum())
        sequences.append(BatchRow(source, seq_id, epoch, documents, tokens, plan.seq_len - tokens))
    return BatchView(step, plan.seq_len, sequences)


def _plan(reader: LineageReader) -> Plan:
    if reader.plan is None:
        raise InputError(f"nothing was packed of {reader.recipe} at this version", "run the stage pack first")
    return reader.plan


def _stretch(reader: LineageReader, name: str, row: int, start: int, length: int, pos: int | None = None) -> Stretch:
    shard = reader.shards.shard(name)
    uid, tokens = shard.uid(row), shard.slice(row, start, length).tolist()
    text = reader.tokenizer.decode(tokens, skip_special_tokens=False)
    return Stretch(uid.hex(), reader.url(name, row), name, row, start, length, tokens[:_EXCERPT_TOKENS], text, pos)
