"""The card of a trained model, made of the records it comes from: what was read and left out, how it was trained.

Reads records, `run.json`, `model.json` and `scores.json`, and the funnel of the documents.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from tasks.core.artifact import Artifact, ArtifactId
from tasks.formats.model_card import model_card, table
from tasks.run.card_parts import HEADER, taken_down
from tasks.run.tuned_card import REGISTERED, tuned_card
from tasks.stages.consolidate.funnel import STEPS, totals

Artifacts = Mapping[str, Artifact]


def card(artifacts: Artifacts, takedowns: Sequence[Artifact]) -> str:
    """Returns the card in Markdown, with the metadata that the Hugging Face hub reads.

    Args:
        artifacts: the checkpoint, or a registered fine-tuned model, and all that it was made from, by kind
            (`tasks.run.lineage.chain`).
        takedowns: the takedowns in force.
    """
    if REGISTERED in artifacts:
        return tuned_card(artifacts, takedowns)
    checkpoint = artifacts["checkpoint"]
    run, model = (json.loads(checkpoint.read(name)) for name in ("run.json", "model.json"))
    sections = {
        "Sources": _sources(artifacts, run),
        "Filters": _filters(artifacts),
        "Funnel": _funnel(artifacts),
        "Training": _training(checkpoint, run, model),
        "Scores": _scores(artifacts),
        "Takedowns and opt-outs": _left_out(artifacts, takedowns),
        "Made from": [f"- {kind}: `{one.address}` {one.record.fingerprint[:16]}" for kind, one in artifacts.items()],
    }
    tokens = run["steps"] * run["batch_size"] * run["seq_len"]
    about = [
        f"A decoder of {model['parameters']['total']:,} parameters in the Llama layout, trained by Sluice on "
        f"{tokens:,} tokens. It reads end-of-text before a text, and has seen sequences of at most "
        f"{run['seq_len']:,} tokens. It continues texts; it follows no instructions."
    ]
    text = model_card(f"Model of {checkpoint.address}", about, {name: rows for name, rows in sections.items() if rows})
    return HEADER + text


def _sources(artifacts: Artifacts, run: Mapping[str, Any]) -> list[str]:
    anneal = run.get("anneal", {}).get("weights", {})
    read = sorted({*run["weights"], *anneal})
    head = ["source", "share of the batches", *(["in the last steps"] if anneal else []), "sequences there are"]
    shares = [[run["weights"], *([anneal] if anneal else [])]] * len(read)
    rows = [
        [name, *(f"{of.get(name, 0):.1%}" for of in weights), f"{run['sequences'].get(name, 0):,}"]
        for name, weights in zip(read, shares, strict=True)
    ]
    decided = "The mixture was decided by canaries." if "mixture" in artifacts else "The mixture was set in the recipe."
    return [*table(head, rows), "", decided]


def _filters(artifacts: Artifacts) -> list[str]:
    if "documents" not in artifacts:
        return []
    settings = artifacts["documents"].record.config
    limits = settings.get("limits", {})
    return [f"- {name}: {_settings(limits.get(name, {}))}" for name in settings.get("filters", ())]


def _settings(limits: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} = {json.dumps(value)}" for name, value in sorted(limits.items())) or "as it is"


def _funnel(artifacts: Artifacts) -> list[str]:
    documents = artifacts.get("documents")
    if documents is None or "funnel.parquet" not in documents.files(""):
        return []
    rows = totals(documents.table("funnel.parquet"), ["step", "reason"])
    shown = [[row["step"], row["reason"], f"{row['documents']:,}"] for row in rows if row["step"] in STEPS]
    return table(["last step", "reason", "documents"], shown)


def _training(checkpoint: Artifact, run: Mapping[str, Any], model: Mapping[str, Any]) -> list[str]:
    settings = checkpoint.record.config
    shape = ", ".join(f"{name} = {json.dumps(value)}" for name, value in sorted(model["model"].items()))
    optimizer = ", ".join(f"{name} = {json.dumps(value)}" for name, value in sorted(settings.get("optim", {}).items()))
    lines = [
        f"- {run['steps']:,} steps of {run['batch_size']:,} sequences of {run['seq_len']:,} tokens, seed {run['seed']}",
        f"- model: {shape}",
        f"- optimizer: {optimizer}",
        f"- precision: {settings.get('precision', 'fp32')}; the weights here are fp32",
    ]
    if began := settings.get("init_from"):
        lines.append(f"- the weights began as those of {began}")
    return lines


def _scores(artifacts: Artifacts) -> list[str]:
    if "scores" not in artifacts:
        return []
    scores = json.loads(artifacts["scores"].read("scores.json"))
    rows = [[name, f"{of['bpb']:.4f}", f"{of['unigram_bpb']:.4f}"] for name, of in sorted(scores["sources"].items())]
    rows.append(["mean", f"{scores['bpb']:.4f}", f"{scores['unigram_bpb']:.4f}"])
    return ["Bits per byte of held-out text:", "", *table(["source", "model", "unigram model"], rows)]


def _refused(warc: Artifact) -> dict[str, int]:
    """Returns how many fetches of the crawl cycle ended because a page or its site does not want to be read."""
    counts = dict.fromkeys(("robots_denied", "noindex", "ai_optout"), 0)
    for ref in warc.record.inputs:
        found = Artifact.find(warc.store, ArtifactId.parse(ref.address)) if "/segment/" in ref.address else None
        for reason in counts:
            counts[reason] += found.record.rejected.get(reason, 0) if found else 0
    return counts


def _left_out(artifacts: Artifacts, takedowns: Sequence[Artifact]) -> list[str]:
    lines = taken_down(artifacts["checkpoint"], takedowns)
    if "warc" in artifacts:
        settings = artifacts["warc"].record.config
        honoured = ", ".join(settings.get("ai_optouts", ())) or "none"
        lines.append(f"- robots.txt was obeyed; opt-outs from training that were honoured: {honoured}")
        refused = _refused(artifacts["warc"])
        lines += [f"- {count:,} fetches ended with {reason}" for reason, count in refused.items() if count]
    return lines
