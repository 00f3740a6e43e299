"""Inspection of tokens: a shard, a sequence with its documents told apart, or the batch of a step.

Reads `shards`, `tokenizer` and, for a sequence or a step, `plan` and `checkpoint`; only the documents that are shown.
"""

import re
from typing import Any

import numpy as np

from tasks.core.errors import InputError
from tasks.core.store import Store
from tasks.run.trace.graph import Chain

Found = dict[str, Any]

_SEQUENCE = re.compile(r"([\w.-]+):(\d+)")
_STEP = re.compile(r"step:(\d+)")
_SHOWN = 5
_EXCERPT_TOKENS = 24
_WIDTH = 96


def inspect(store: Store, recipe: str, version: str, what: str) -> Found:
    """Returns what a shard, a sequence or a batch contains.

    Args:
        store: store of the artifacts.
        recipe: name of the recipe.
        version: version at which the chain of artifacts starts.
        what: name of a shard ("web-train-00000-000"), a sequence ("web:17") or a step ("step:120").

    Raises:
        InputError: there is no such thing, or it has not been made.
    """
    chain = Chain.follow(store, recipe, version)
    if "shards" not in chain.artifacts:
        raise InputError(f"{recipe}@{version} has no token shards", "run the stage encode first")
    if match := _STEP.fullmatch(what):
        return _batch(chain, int(match[1]))
    if match := _SEQUENCE.fullmatch(what):
        return _sequence(chain, match[1], int(match[2]))
    return _shard(chain, what)


def _shard(chain: Chain, name: str) -> Found:
    shard = chain.shards.shard(name)
    lengths = shard.lengths
    quantiles = np.quantile(lengths, [0, 0.25, 0.5, 0.75, 1]).astype(int).tolist() if shard.rows else []
    documents = [_document(chain, name, row, 0, int(lengths[row])) for row in range(min(_SHOWN, shard.rows))]
    return {
        "kind": "shard",
        "shard": name,
        **shard.format.__dict__,
        "documents": shard.rows,
        "tokens": shard.n_tokens,
        "bytes_of_text": int(shard.n_bytes.sum()),
        "length_quantiles": quantiles,
        "first_documents": documents,
    }


def _sequence(chain: Chain, source: str, seq_id: int) -> Found:
    plan = _plan(chain)
    try:
        rows = plan.slices(source, seq_id).tolist()
    except IndexError as error:
        raise InputError(str(error), "name one of these") from None
    slices, pos = [], 0
    for number, row, offset, length in rows:
        name = plan.shards[number]
        start = offset - chain.shards.shard(name).token_offset(row)
        slices.append({"pos": pos, **_document(chain, name, row, start, length)})
        pos += length
    about = {"source": source, "sequence": seq_id, "seq_len": plan.seq_len, "padding": plan.seq_len - pos}
    return {"kind": "sequence", **about, "slices": slices}


def _batch(chain: Chain, step: int) -> Found:
    run, order, plan = chain.readings.run, chain.readings.order, _plan(chain)
    if run is None or order is None:
        raise InputError(f"nothing was trained of {chain.recipe} at this version", "run the stage train first")
    if step >= run["steps"]:
        raise InputError(f"the run had the steps 0 .. {run['steps'] - 1}, not {step}", "name one of these")
    sequences = []
    for source, seq_id, epoch in order.batch(step):
        slices = plan.slices(source, seq_id)
        tokens = int(slices["length"].sum())
        about = {
            "documents": len(set(slices[["shard", "row"]].tolist())),
            "tokens": tokens,
            "padding": plan.seq_len - tokens,
        }
        sequences.append({"source": source, "sequence": seq_id, "epoch": epoch, **about})
    return {"kind": "batch", "step": step, "seq_len": plan.seq_len, "sequences": sequences}


def _plan(chain: Chain) -> Any:
    if chain.plan is None:
        raise InputError(f"nothing was packed of {chain.recipe} at this version", "run the stage pack first")
    return chain.plan


def _document(chain: Chain, name: str, row: int, start: int, length: int) -> Found:
    """Returns a run of tokens of one document: where it is from, its first token ids, and all of its text."""
    shard = chain.shards.shard(name)
    uid, tokens = shard.uid(row), shard.slice(row, start, length).tolist()
    place = {"id": uid.hex(), "url": chain.url(name, row), "shard": name, "row": row}
    text = chain.tokenizer.decode(tokens, skip_special_tokens=False)
    return {**place, "start": start, "length": length, "tokens": tokens[:_EXCERPT_TOKENS], "text": text}


def render(found: Found) -> str:
    """Returns the result of `inspect` as text."""
    return "\n".join(
        {"shard": _render_shard, "sequence": _render_sequence, "batch": _render_batch}[found["kind"]](found)
    )


def _render_shard(found: Found) -> list[str]:
    lines = [
        f"shard {found['shard']}: {found['documents']:,} documents, {found['tokens']:,} tokens of a vocabulary of "
        f"{found['vocab_size']:,}, {found['bytes_of_text'] / max(1, found['tokens']):.2f} bytes per token",
        f"  tokens per document (least, quartiles, most): {', '.join(f'{n:,}' for n in found['length_quantiles'])}",
        f"  end-of-text {found['eos_id']}, tokenizer {found['tokenizer_sha256'][:12]}",
    ]
    return lines + [line for document in found["first_documents"] for line in _render_document(document)]


def _render_sequence(found: Found) -> list[str]:
    padding = f", {found['padding']:,} of them padding" if found["padding"] else ""
    head = f"{found['source']} sequence {found['sequence']:,}: {found['seq_len']:,} tokens{padding}"
    return [head] + [line for piece in found["slices"] for line in _render_document(piece)]


def _render_document(found: Found) -> list[str]:
    place = f"at {found['pos']:,}: " if "pos" in found else ""
    last = found["start"] + found["length"] - 1
    text = " ".join(found["text"].split())
    return [
        "",
        f"  {place}{found['url'] or found['id']}  tokens {found['start']:,} .. {last:,} of row {found['row']:,}",
        f"    {' '.join(map(str, found['tokens']))}{' ..' if found['length'] > len(found['tokens']) else ''}",
        f"    {text if len(text) <= _WIDTH else text[: _WIDTH - 3] + '...'}",
    ]


def _render_batch(found: Found) -> list[str]:
    head = f"{'source':<16} {'sequence':>12} {'epoch':>5} {'documents':>9} {'tokens':>8} {'padding':>8}"
    lines = [f"step {found['step']:,}: {len(found['sequences'])} sequences of {found['seq_len']:,} tokens", "", head]
    for row in found["sequences"]:
        place = f"{row['source']:<16} {row['sequence']:>12,} {row['epoch']:>5}"
        lines.append(f"{place} {row['documents']:>9,} {row['tokens']:>8,} {row['padding']:>8,}")
    return lines
