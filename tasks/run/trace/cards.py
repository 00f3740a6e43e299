"""Cards of trained, fine-tuned and imported models, made from the records of their lineage.

Reads records, `run.json`, `model.json`, `import.json` and `scores.json`, and the funnel of the documents.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from tasks.core.artifact import Artifact, ArtifactId
from tasks.core.pages import model_card, table
from tasks.formats.documents.chunks import KIND as CHUNKS
from tasks.formats.documents.tombstones import Tombstones
from tasks.formats.tokens.exposure import IMPORT, Exposure, checkpoint_exposure, origin_ref, origin_refs, unrecorded
from tasks.formats.tokens.order import Order
from tasks.formats.tokens.readings import EXAMPLES, TUNED
from tasks.stages.consolidate.funnel import STEPS, totals

Artifacts = Mapping[str, Artifact]
"""A model and the artifacts that it was made from, by kind (`tasks.run.lineage.chain`)."""


def card(artifacts: Artifacts, takedowns: Sequence[Artifact]) -> str:
    """Returns the card of a trained or registered fine-tuned model in Markdown, with metadata for the Hugging Face hub.

    Args:
        artifacts: the checkpoint, or a registered fine-tuned model, with its lineage.
        takedowns: the takedowns in force.
    """
    if REGISTERED in artifacts:
        return tuned_card(artifacts, takedowns)
    checkpoint = artifacts["checkpoint"]
    if unrecorded(checkpoint):
        return _imported_card(artifacts, takedowns)
    run, model = (json.loads(checkpoint.read(name)) for name in ("run.json", "model.json"))
    sections = {
        "Sources": _sources(artifacts, run),
        "Filters": filters_of(artifacts),
        "Funnel": _funnel(artifacts),
        "Training": _training(checkpoint, run, model),
        "Imported weights": _imported(checkpoint),
        "Scores": _scores(artifacts),
        "Takedowns and opt-outs": _left_out(artifacts, takedowns),
        "Made from": _made_from(artifacts),
    }
    tokens = Order.sequences_of(run) * run["seq_len"]
    about = [
        f"A decoder of {model['parameters']['total']:,} parameters in the Llama layout, trained by Sluice on "
        f"{tokens:,} tokens. It reads end-of-text before a text, and has seen sequences of at most "
        f"{run['seq_len']:,} tokens. It continues texts; it follows no instructions."
    ]
    if "merged_model" in artifacts:
        about.append(f"Its weights are the {artifacts['merged_model'].record.note}; the scores are those of the last.")
    text = model_card(f"Model of {checkpoint.address}", about, {name: rows for name, rows in sections.items() if rows})
    return HEADER + text


def _imported_card(artifacts: Artifacts, takedowns: Sequence[Artifact]) -> str:
    checkpoint = artifacts["checkpoint"]
    model = json.loads(checkpoint.read("model.json"))
    sections = {
        "Imported weights": _imported(checkpoint),
        "Scores": _scores(artifacts),
        "Takedowns": takedown_lines(checkpoint, takedowns),
        "Made from": _made_from(artifacts),
    }
    about = [
        f"A decoder of {model['parameters']['total']:,} parameters in the Llama layout. Sluice did not train it: it "
        "was imported, with the weights unchanged except for their precision, and its training is not on record."
    ]
    text = model_card(f"Model of {checkpoint.address}", about, {name: rows for name, rows in sections.items() if rows})
    return HEADER + text


def _imported(model: Artifact) -> list[str]:
    """Returns lines about the imported weights that a model is or derives from; [] if its history is on record."""
    ancestors = [Artifact.find(model.store, ArtifactId.parse(ref.address)) for ref in origin_refs(model)]
    for ancestor in (model, *ancestors):
        if ancestor and unrecorded(ancestor):
            origin = json.loads(ancestor.read(IMPORT))
            stated = (f"- {name}: {origin[name] or 'not stated'}" for name in ("name", "license", "revision"))
            files = (f"- {name}: sha256 `{digest}`" for name, digest in sorted(origin["sha256"].items()))
            return [f"- {unrecorded(ancestor)}", *stated, *files]
    return []


def _made_from(artifacts: Artifacts) -> list[str]:
    return [
        f"- {kind}: `{artifact.address}` {artifact.record.fingerprint[:16]}" for kind, artifact in artifacts.items()
    ]


def _sources(artifacts: Artifacts, run: Mapping[str, Any]) -> list[str]:
    anneal = run.get("anneal", {}).get("weights", {})
    head = ["source", "share of the batches", *(["in the last steps"] if anneal else []), "sequences there are"]
    weights = [run["weights"], *([anneal] if anneal else [])]
    rows = [
        [name, *(f"{shares.get(name, 0):.1%}" for shares in weights), f"{run['sequences'].get(name, 0):,}"]
        for name in sorted({*run["weights"], *anneal})
    ]
    decided = "The mixture was decided by canaries." if "mixture" in artifacts else "The mixture was set in the recipe."
    return [*table(head, rows), "", decided]


def filters_of(artifacts: Artifacts) -> list[str]:
    """Returns lines of the card: each filter of the documents with its limits, and other changes to the documents."""
    if "documents" not in artifacts:
        return []
    settings = artifacts["documents"].record.config
    limits = settings.get("limits", {})
    lines = [f"- {name}: {_settings(limits.get(name, {}))}" for name in settings.get("filters", ())]
    return [*lines, *_duplicates(artifacts), *_further(artifacts, settings)]


def _duplicates(artifacts: Artifacts) -> list[str]:
    if "duplicates" not in artifacts or not artifacts["documents"].record.config.get("dedup", True):
        return []
    settings = artifacts["duplicates"].record.config
    kinds = ["equal texts"] * bool(settings.get("exact")) + [
        f"texts of a Jaccard similarity of {settings['jaccard']} and more"
    ] * bool(settings.get("near"))
    return [f"- duplicates: one of {' and of '.join(kinds)} is kept"] if kinds else []


def _further(artifacts: Artifacts, settings: Mapping[str, Any]) -> list[str]:
    """Returns lines for changes to texts, and for the evaluation sets that were searched in them."""
    lines = ["- personal data that was found is masked"] if settings.get("mask_pii") else []
    if settings.get("drop_lines"):
        lines.append("- lines that the rules of C4 drop are cut")
    if settings.get("cut_repeated"):
        lines.append("- paragraphs that the corpus repeats are cut")
    if "contamination" in artifacts:
        names = [entry["name"] for entry in artifacts["contamination"].record.config.get("sets", ())]
        lines.append(f"- documents with items of these evaluation sets are left out: {', '.join(names) or 'none'}")
    return lines


def _settings(limits: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} = {json.dumps(value)}" for name, value in sorted(limits.items())) or "as it is"


def _funnel(artifacts: Artifacts) -> list[str]:
    documents = artifacts.get("documents")
    if documents is None or not documents.files("funnel.parquet"):
        return []
    rows = totals(documents.table("funnel.parquet"), ["step", "reason"])
    cells = [[row["step"], row["reason"], f"{row['documents']:,}"] for row in rows if row["step"] in STEPS]
    return table(["last step", "reason", "documents"], cells)


def _training(checkpoint: Artifact, run: Mapping[str, Any], model: Mapping[str, Any]) -> list[str]:
    settings = checkpoint.record.config
    shape = ", ".join(f"{name} = {json.dumps(value)}" for name, value in sorted(model["model"].items()))
    optimizer = ", ".join(f"{name} = {json.dumps(value)}" for name, value in sorted(settings.get("optim", {}).items()))
    grew = "".join(f", after {steps:,} of {size:,}" for steps, size in run.get("ramp", ()))
    lines = [
        f"- {run['steps']:,} steps of {run['batch_size']:,} sequences of {run['seq_len']:,} tokens{grew}, "
        f"seed {run['seed']}",
        f"- model: {shape}",
        f"- optimizer: {optimizer}",
        f"- precision: {settings.get('precision', 'fp32')}; the weights here are fp32",
    ]
    if began := origin_ref(checkpoint):
        lines.append(f"- the weights began as those of {began.address}")
    return lines


def _scores(artifacts: Artifacts) -> list[str]:
    if "scores" not in artifacts:
        return []
    scores = json.loads(artifacts["scores"].read("scores.json"))
    results = [*sorted(scores["sources"].items()), ("mean", scores)]
    rows = [[name, f"{result['bpb']:.4f}", f"{result['unigram_bpb']:.4f}"] for name, result in results]
    text = ["Bits per byte of held-out text:", "", *table(["source", "model", "unigram model"], rows)]
    return text + _task_scores(scores.get("tasks", ()))


def _task_scores(tasks: Sequence[Mapping[str, Any]]) -> list[str]:
    """Returns the table of the tasks of the last milestone: each metric with its standard error over items."""
    last = max((task["step"] for task in tasks), default=0)
    rows = [
        [
            task["task"],
            f"{task['shots']}",
            f"{task['items']:,}",
            ", ".join(
                f"{name} {metric['value']:.4f} ± {metric['stderr']:.4f}"
                for name, metric in sorted(task["metrics"].items())
            ),
            "not looked for" if task["contamination"] is None else f"{task['contamination']['items']:,}",
        ]
        for task in tasks
        if task["step"] == last
    ]
    head = ["task", "examples", "items", "metrics", "items in what was read"]
    return ["", "Tasks, each with the standard error over its items:", "", *table(head, rows)] if rows else []


def disallowed_fetches(warc: Artifact) -> dict[str, int]:
    """Returns the number of fetches of a crawl cycle that a page or its site disallowed, by reason."""
    counts = dict.fromkeys(("robots_denied", "noindex", "ai_optout"), 0)
    for ref in warc.record.inputs:
        segment = Artifact.find(warc.store, ArtifactId.parse(ref.address)) if ref.role == "segments" else None
        for reason in counts:
            counts[reason] += segment.record.rejected.get(reason, 0) if segment else 0
    return counts


def _left_out(artifacts: Artifacts, takedowns: Sequence[Artifact]) -> list[str]:
    lines = takedown_lines(artifacts["checkpoint"], takedowns)
    if "warc" in artifacts:
        settings = artifacts["warc"].record.config
        optouts = ", ".join(settings.get("ai_optouts", ())) or "none"
        lines.append(f"- robots.txt was obeyed; opt-outs from training that were honoured: {optouts}")
        counts = disallowed_fetches(artifacts["warc"])
        lines += [f"- {count:,} fetches ended with {reason}" for reason, count in counts.items() if count]
    return lines


HEADER = "---\nlibrary_name: transformers\npipeline_tag: text-generation\n---\n\n"
"""Metadata of a card for the Hugging Face hub."""


def takedown_lines(model: Artifact, takedowns: Sequence[Artifact]) -> list[str]:
    """Returns lines about takedowns with numbers only, because the card is public."""
    stones = Tombstones.read(takedowns)
    lines = [
        f"- {len(stones.urls):,} addresses, {len(stones.domains):,} domains and {len(stones.documents):,} documents "
        "are taken down today"
    ]
    exposure = checkpoint_exposure(model, stones) if stones else Exposure()
    if exposure.rows:
        lines.append(f"- the model has learned from {len(exposure.rows):,} documents that are taken down today")
    if exposure.problem:
        lines.append(f"- not known of all that it has learned from: {exposure.problem}")
    return lines + [f"- the training read the takedown {ref.address}" for ref in model.record.inputs
                    if "/takedown" in ref.address]  # fmt: skip


REGISTERED = "tuned_model"
"""Kind of registered fine-tuned models."""


def tuned_card(artifacts: Artifacts, takedowns: Sequence[Artifact]) -> str:
    """Returns the card of a fine-tuned model in Markdown, with metadata for the Hugging Face hub.

    Args:
        artifacts: the fine-tuned model with its lineage.
        takedowns: the takedowns in force.
    """
    model = artifacts[TUNED]
    run, model_json = (json.loads(model.read(name)) for name in ("run.json", "model.json"))
    sections = {
        "Base": [f"- `{ref.address}` {ref.fingerprint[:16]}" for ref in origin_refs(model)],
        "Imported weights": _imported(model),
        "Examples": _examples(artifacts[EXAMPLES]) if EXAMPLES in artifacts else [],
        "Tuning": _tuning(model, run),
        "Scores": _tuned_scores(artifacts),
        "Template": ["```json", json.dumps(run["template"], indent=1, ensure_ascii=False), "```"],
        "Takedowns": takedown_lines(model, takedowns),
        "Made from": _made_from(artifacts),
    }
    about = [
        f"A decoder of {model_json['parameters']['total']:,} parameters in the Llama layout, fine-tuned by Sluice from "
        f"`{run['base']}`. It has seen sequences of at most {run['seq_len']:,} tokens, and answers the messages of its "
        "chat template: `apply_chat_template` gives the tokens that it was trained on."
    ]
    nonempty = {name: rows for name, rows in sections.items() if rows}
    return HEADER + model_card(f"Fine-tuned model of {model.address}", about, nonempty)


def _examples(examples: Artifact) -> list[str]:
    record = examples.record
    metrics = record.metrics
    lines = [
        f"- {record.config['kind']}: {metrics['examples']:,.0f} examples of {metrics['tokens']:,.0f} tokens, of which "
        f"{metrics['learned_tokens']:,.0f} are learned; {metrics.get('heldout', 0):,.0f} examples are held out"
    ]
    chunks = (ref for ref in record.inputs if _is_chunks(ref.address))
    lines += [f"- of the chunks `{ref.address}` {ref.fingerprint[:16]}" for ref in chunks]
    files = json.loads(examples.read("examples.json"))["files"].values()
    lines += [f"- of the file {name}" for name in files]
    return [*lines, *(f"- {count:,} rows rejected: {reason}" for reason, count in record.rejected.items())]


def _is_chunks(address: str) -> bool:
    return address.partition("@")[0].partition("/")[2] == CHUNKS


def _tuning(model: Artifact, run: Mapping[str, Any]) -> list[str]:
    settings = model.record.config
    run_settings = {name: settings[name] for name in ("steps", "batch_size", "seed", "precision")}
    method = "direct preference optimisation" if run["loss"] == "dpo" else "cross-entropy of the responses"
    lines = [f"- {method}", f"- {_values(run_settings)}", f"- optimizer: {_values(settings['optim'])}"]
    if lora := run["lora"]:
        how = "in 4 bits (NF4), and the weights here are rounded so" if lora["base"] == "nf4" else "in fp32"
        lines.append(f"- adapters: {_values(lora)}; the base was kept {how}")
    else:
        lines.append("- all weights were trained")
    return lines


def _tuned_scores(artifacts: Artifacts) -> list[str]:
    """Returns the table that compares the model with its base, without heading; [] if they were not compared."""
    if "tuned_scores" not in artifacts:
        return []
    return artifacts["tuned_scores"].read("comparison.md").decode().strip().split("\n")[2:]


def _values(settings: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} = {json.dumps(value)}" for name, value in sorted(settings.items()))
