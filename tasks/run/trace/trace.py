"""Trace: from a page to every training step and checkpoint that saw it, and from a step to its pages.

Reads committed artifacts only, those of them that exist: extracted, attributes, contamination, paragraphs, documents,
chunks, shards, plan and checkpoint.
Which versions belong together is read from the records, from the checkpoint upwards, and not inferred from equal names.

    URL -> documents (WARC file and offset, kept or why not) -> shard rows -> sequences -> steps -> checkpoints
    domain -> its kept documents -> steps
    step -> sequences -> slices -> documents -> URLs, with the text of each slice

The models that were fine-tuned from it, or with chunks of a page, are looked through, too (`tuned_trace`).
Of a model that began from the weights of another, the same is looked up in the run of that one, and so on (`before`).

Kept documents are found in the document index, sequences by binary search in the plan, steps by inverting the order. Of
a remote store, only the blocks with these are fetched, and the columns that are shown of the captures. Only captures
that gave no document are looked for in the URL column of all parts.
"""

import re
from collections.abc import Callable, Sequence
from typing import Any

from tasks.core.errors import InputError
from tasks.core.store import Store
from tasks.formats.documents.tombstones import Tombstones
from tasks.formats.tokens.index import Entry
from tasks.formats.tokens.marks import first_blank
from tasks.formats.tokens.shard import parse_shard_name
from tasks.formats.web.canonical_url import canonical
from tasks.formats.web.domain import host_name, is_public_suffix
from tasks.run.trace.graph import CAPTURE, Chain, many, pages_read
from tasks.run.trace.text import render
from tasks.run.trace.tuned import TUNED_STEP, is_in, trace_tuned, tuned_step, tunings_of

__all__ = ["Chain", "render", "trace", "trace_document", "trace_domain", "trace_step", "trace_url"]

Found = dict[str, Any]

_ID = re.compile(r"[0-9a-f]{32}")
_STEP = re.compile(r"(?:step:)?(\d+)")
_DOMAIN = "domain:"
_EXCERPT_TOKENS = 48
MOST_SEQUENCES = 32
"""Sequences of a step whose pages are shown, unless all are wanted."""
MOST_DOCUMENTS = 100
"""Documents of a domain that are shown, unless all are wanted."""


def trace(store: Store, recipe: str, version: str, what: str, everything: bool = False) -> Found:
    """Traces a URL, a document id (32 hex digits), a domain ("domain:example.org") or a step ("step:120", "tuned:42").

    Args:
        store: store of the artifacts.
        recipe: name of the recipe.
        version: version of the model, or of what has been made.
        what: see above.
        everything: whether all documents of a domain and the pages of all sequences of a step are shown.

    Returns:
        see `trace_url`, `trace_document`, `trace_domain`, `trace_step` and `trace_tuned`; `requests`: how many were
        made of a remote store; `before`: the runs that the model comes from, nearest first, [{checkpoint, problem, run,
        and what their steps read of it: documents, of a domain `count`}], where `problem` is why that is not known, or
        ""; and of a page or domain `tuned`: see `tasks.run.trace.tuned.tunings_of`.

    Raises:
        InputError: nothing of the recipe has been made, or there is no such step or domain.
    """
    before = store.requests
    if match := _STEP.fullmatch(what):
        found = trace_step(store, recipe, version, int(match[1]), None if everything else MOST_SEQUENCES)
    elif what.startswith(TUNED_STEP):
        found = trace_tuned(store, recipe, version, tuned_step(what))
    elif _ID.fullmatch(what):
        found = trace_document(store, recipe, version, what)
    elif what.startswith(_DOMAIN):
        name = what.removeprefix(_DOMAIN)
        found = trace_domain(store, recipe, version, name, None if everything else MOST_DOCUMENTS)
    else:
        found = trace_url(store, recipe, version, what)
    return {**found, "requests": store.requests - before}


def trace_url(store: Store, recipe: str, version: str, url: str) -> Found:
    """Traces every capture of a URL.

    Returns:
        {asked, kind: "url", artifacts, measured: {annotator: {group, fingerprint}}, run, documents: [see `_kept` and
        `_not_kept`], captures_without_document: [{record_id, url, reason}]}.
    """
    chain = Chain.follow(store, recipe, version)
    urls = sorted({url, canonical(url) or url})

    def kept(of: Chain) -> list[Found]:
        return [_kept(of, entry) for spelling in urls for entry in of.entries_of(spelling)]

    found = kept(chain)
    seen = {document["id"] for document in found}
    found += [row for row in _not_kept(chain, "url", urls) if row["id"] not in seen]
    lost = chain.rows("extracted", "rejected/", "url", urls, ["record_id", "url", "reason"])
    captures = {"captures_without_document": [row for _, row in lost]}
    before = _before(chain, lambda of: {"documents": kept(of)})
    tuned = tunings_of(chain, is_in("url", urls))
    return {**_head(chain, url, "url"), "documents": found, **captures, "before": before, "tuned": tuned}


def trace_document(store: Store, recipe: str, version: str, doc_id: str) -> Found:
    """Traces one document; the result has the same shape as that of `trace_url`."""
    chain = Chain.follow(store, recipe, version)

    def kept(of: Chain) -> list[Found]:
        entry = of.index.by_uid(bytes.fromhex(doc_id)) if of.index else None
        return [_kept(of, entry)] if entry else []

    found = kept(chain) or list(_not_kept(chain, "id", [doc_id]))
    before = _before(chain, lambda of: {"documents": kept(of)})
    tuned = tunings_of(chain, is_in("id", [doc_id]))
    head = _head(chain, doc_id, "document")
    return {**head, "documents": found, "captures_without_document": [], "before": before, "tuned": tuned}


def trace_domain(store: Store, recipe: str, version: str, name: str, most: int | None = MOST_DOCUMENTS) -> Found:
    """Traces the kept documents of a host and of all hosts below it.

    Returns:
        {asked, kind: "domain", artifacts, measured, run, count, documents: [as `trace_url`, without their captures]}
        with the first `most` documents in the order of the shards, or all; `count` is that of all.

    Raises:
        InputError: it is no name of a host or is a public suffix, or nothing was encoded.
    """
    domain = _host(name)
    chain = Chain.follow(store, recipe, version)
    if chain.index is None:
        raise InputError(f"nothing of {recipe}@{version} was encoded", "run the stage encode first")

    def kept(of: Chain) -> Found:
        count, entries = of.index.by_domain(domain, most) if of.index else (0, [])
        return {"count": count, "documents": many(lambda entry: _in_shards(of, entry), entries)}

    more = {"before": _before(chain, kept), "tuned": tunings_of(chain, Tombstones(domains=frozenset([domain])).mask)}
    return {**_head(chain, f"{_DOMAIN}{domain}", "domain"), **kept(chain), **more}


def trace_step(store: Store, recipe: str, version: str, step: int, most: int | None = MOST_SEQUENCES) -> Found:
    """Returns the sequences of a step (from 0) with the pages they are made of.

    Returns:
        {asked, kind: "step", artifacts, measured, run, step, skipped, first_checkpoint, sequences: [{source, sequence,
        epoch, slices: [{id, url, start, length, pos, text}]}]}; `skipped` is why the step did not change the model, or
        ""; `text` is the beginning of what the model read: nothing of a slice that is `withheld`, because it was taken
        down before, or because it or its shard had spoilt steps. `pages` are those of the file that it stands on, of a
        document that has some. The first `most` sequences have slices, or all.

    Raises:
        InputError: nothing was trained, or the run had fewer steps.
    """
    chain = Chain.follow(store, recipe, version)
    run, order = chain.readings.run, chain.readings.order
    if run is None or order is None:
        raise InputError(f"nothing was trained as {recipe}@{version}", "run the stage train first")
    if step >= run["steps"]:
        raise InputError(f"the run had the steps 0 .. {run['steps'] - 1}, not {step}", "name one of these")
    sequences: list[Found] = [
        {"source": source, "sequence": seq, "epoch": epoch} for source, seq, epoch in order.batch(step)
    ]
    shown = sequences[:most]
    for one, slices in zip(shown, _pieces(chain, shown, step), strict=True):
        one["slices"] = slices
    return {
        **_head(chain, f"step:{step}", "step"),
        "step": step,
        "skipped": chain.readings.why_skipped(step),
        "first_checkpoint": _first_checkpoint(run, step),
        "sequences": sequences,
        "before": _before(chain, lambda of: {}),
    }


def _before(chain: Chain, look_up: Callable[[Chain], Found]) -> list[Found]:
    """Returns what `look_up` finds in the runs that the model comes from."""
    found = []
    for one in chain.before():
        known = {"run": one.chain.readings.settings, **look_up(one.chain)} if one.chain else {}
        found.append({"checkpoint": one.checkpoint, "problem": one.problem, **known})
    return found


def _head(chain: Chain, asked: str, kind: str) -> Found:
    return {
        "asked": asked,
        "kind": kind,
        "recipe": chain.recipe,
        "artifacts": {kind: str(artifact.address) for kind, artifact in chain.artifacts.items()},
        "measured": chain.measured,
        "run": chain.readings.settings,
    }


def _kept(chain: Chain, entry: Entry) -> Found:
    """Returns a kept document: its capture, where its tokens lie, and every step and checkpoint that saw it."""
    capture = chain.row("documents", "kept/", entry.part, entry.uid.hex())
    return {**_in_shards(chain, entry), **capture, **_contents(chain, entry.part, entry.uid.hex())}


def _contents(chain: Chain, part: str, doc_id: str) -> Found:
    """Returns what is known of a document's contents, of each kind if there is any.

    `items` are evaluation items, `repeats` repeated paragraphs, `chunks` its chunks.
    """
    found = {
        "items": chain.items_in(part, doc_id),
        "repeats": chain.repeats_in(part, doc_id),
        "chunks": chain.chunks_of(part, doc_id),
    }
    return {name: rows for name, rows in found.items() if rows}


def _in_shards(chain: Chain, entry: Entry) -> Found:
    """Returns a kept document without its capture."""
    source, split = parse_shard_name(entry.shard)
    return {
        "id": entry.uid.hex(),
        "url": entry.url,
        "source": source,
        "fate": "kept",
        "split": split,
        "shard": entry.shard,
        "row": entry.row,
        "n_tokens": entry.n_tokens,
        **_readings(chain, entry),
    }


def _readings(chain: Chain, entry: Entry) -> Found:
    """Returns the sequences of a document, the steps that read them and the checkpoints that came after."""
    reading = chain.readings.of(entry.shard, entry.row)
    found: Found = {"sequences": reading.sequences, "steps": reading.steps, "checkpoints": reading.checkpoints}
    if chain.readings.run is None:
        return found
    found["skipped_steps"] = reading.skipped_steps
    return found if reading.withheld_from is None else {**found, "withheld_from": reading.withheld_from}


def _not_kept(chain: Chain, column: str, values: Sequence[str]) -> list[Found]:
    """Returns documents that were rejected, or that nothing has judged yet."""
    if "documents" not in chain.artifacts:
        rows = chain.rows("extracted", "documents/", column, values, CAPTURE)
        return [{**row, "fate": "extracted"} for _, row in rows]
    columns = ["id", "url", "source", "reason", "reasons", "duplicate_of"]
    return [
        {
            **chain.row("extracted", "documents/", part, row["id"]),
            **row,
            **_contents(chain, part, row["id"]),
            "fate": "rejected",
        }
        for part, row in chain.rows("documents", "rejected/", column, values, columns)
    ]


def _first_checkpoint(run: Found, step: int) -> int | None:
    return min((count for count in run["checkpoint_steps"] if count > step), default=None)


def _pieces(chain: Chain, sequences: Sequence[Found], step: int) -> list[list[Found]]:
    """Returns the slices of sequences of a step, with the page and the beginning of the text that it read of each."""
    plan, index = chain.plan, chain.index
    assert plan is not None
    assert index is not None
    slices = [one.tolist() for one in many(lambda one: plan.slices(one["source"], one["sequence"]), sequences)]
    flat = [(plan.shards[number], *rest) for one in slices for number, *rest in one]
    entries = index.at([(shard, row) for shard, row, *_ in flat])
    blanks = [first_blank(chain.readings.marks, shard, row) for shard, row, *_ in flat]
    withheld = [blank is not None and step >= blank for blank in blanks]
    ranges = [
        (shard, offset, 0 if gone else min(length, _EXCERPT_TOKENS))
        for (shard, _, offset, length), gone in zip(flat, withheld, strict=True)
    ]
    texts = map(chain.tokenizer.decode, (one.tolist() for one in index.tokens(ranges, plan.format.dtype)))
    stretches = zip(entries, flat, strict=True)
    pages = many(lambda one: pages_read(chain, one[0], one[1][2] - one[0].offset, one[1][3]), stretches)
    found = zip(entries, withheld, texts, pages, strict=True)
    pieces = []
    for one in slices:
        pos, inside = 0, list[Found]()
        for _, _, offset, length in one:
            entry, gone, text, numbers = next(found)
            place = {
                "start": offset - entry.offset,
                "length": length,
                "pos": pos,
                **({"withheld": True} if gone else {}),
                **({"pages": numbers} if numbers else {}),
            }
            inside.append({"id": entry.uid.hex(), "url": entry.url, **place, "text": text})
            pos += length
        pieces.append(inside)
    return pieces


def _host(name: str) -> str:
    """Returns a host's name in canonical form; raises InputError."""
    host = host_name(f"http://{name.strip()}/") if not set("/?#@") & set(name) else None
    if not host:
        raise InputError(f'"{name}" is no name of a host', "write it as domain:example.org")
    if is_public_suffix(host):
        raise InputError(f"{host} is a public suffix, under which anyone can register", "name a domain below it")
    return host
