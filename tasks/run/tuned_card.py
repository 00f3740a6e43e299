"""The card of a fine-tuned model, made of the records it comes from: its base, its examples, how it was tuned.

Reads records, `run.json` and `model.json`.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from tasks.core.artifact import Artifact
from tasks.formats.chunks import KIND as CHUNKS
from tasks.formats.example_readings import KIND, ROLE
from tasks.formats.model_card import model_card
from tasks.formats.tokens.origin import origin_refs
from tasks.run.card_parts import HEADER, taken_down

Artifacts = Mapping[str, Artifact]
REGISTERED = "tuned_model"
"""Kind of the artifacts that are registered fine-tuned models."""


def tuned_card(artifacts: Artifacts, takedowns: Sequence[Artifact]) -> str:
    """Returns the card in Markdown, with the metadata that the Hugging Face hub reads.

    Args:
        artifacts: the fine-tuned model and all that it was made from, by kind (`tasks.run.lineage.chain`).
        takedowns: the takedowns in force.
    """
    model = artifacts[KIND]
    run, described = (json.loads(model.read(name)) for name in ("run.json", "model.json"))
    sections = {
        "Base": [f"- `{ref.address}` {ref.fingerprint[:16]}" for ref in origin_refs(model)],
        "Examples": _examples(artifacts[ROLE]) if ROLE in artifacts else [],
        "Tuning": _tuning(model, run),
        "Scores": _scores(artifacts),
        "Template": ["```json", json.dumps(run["template"], indent=1, ensure_ascii=False), "```"],
        "Takedowns": taken_down(model, takedowns),
        "Made from": [f"- {kind}: `{one.address}` {one.record.fingerprint[:16]}" for kind, one in artifacts.items()],
    }
    about = [
        f"A decoder of {described['parameters']['total']:,} parameters in the Llama layout, fine-tuned by Sluice from "
        f"`{run['base']}`. It has seen sequences of at most {run['seq_len']:,} tokens, and answers the messages of its "
        "chat template: `apply_chat_template` gives the tokens that it was trained on."
    ]
    filled = {name: rows for name, rows in sections.items() if rows}
    return HEADER + model_card(f"Fine-tuned model of {model.address}", about, filled)


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
    shown = {name: settings[name] for name in ("steps", "batch_size", "seed", "precision")}
    method = "direct preference optimisation" if run["loss"] == "dpo" else "cross-entropy of the responses"
    lines = [f"- {method}", f"- {_values(shown)}", f"- optimizer: {_values(settings['optim'])}"]
    if lora := run["lora"]:
        how = "in 4 bits (NF4), and the weights here are rounded so" if lora["base"] == "nf4" else "in fp32"
        lines.append(f"- adapters: {_values(lora)}; the base was kept {how}")
    else:
        lines.append("- all weights were trained")
    return lines


def _scores(artifacts: Artifacts) -> list[str]:
    """Returns the table of base and model, without its heading, where they were compared."""
    if "tuned_scores" not in artifacts:
        return []
    return artifacts["tuned_scores"].read("comparison.md").decode().strip().split("\n")[2:]


def _values(settings: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} = {json.dumps(value)}" for name, value in sorted(settings.items()))
