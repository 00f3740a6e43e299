"""`evaluate-model`: scores of a model from elsewhere, or of another one in the store, on what a recipe evaluates with.

Reads the model, `[[evaluate.tasks]]` of the recipe, and the held-out text of its version, if that has tokens. Writes
the artifact `<recipe>/model_scores/<model>`: a row per item and document as the stage `evaluate`, `scores.json` {model,
sources {source: {bpb, documents, bytes}}, tasks}, with tasks as in the scores of `evaluate`, and `tasks.md`.

Held-out text is compared by its bytes, so that models with different tokenizers are comparable. A model from elsewhere
is scored with the tokens that its own tokenizer puts before a text, as lm-eval does; one of Sluice with end-of-text.
"""

import json
import math
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from tasks.core.artifact import Artifact, ArtifactId, InputRef, fingerprint
from tasks.core.commit import commit
from tasks.core.errors import InputError, RecipeError
from tasks.core.pages import table
from tasks.core.stage import Output, Report
from tasks.core.store import Store, probe
from tasks.formats.tokens.exposure import origin_of, tokenizer_of, unrecorded
from tasks.formats.tokens.readings import is_tuned
from tasks.formats.tokens.shard import ShardSet
from tasks.run.inputs import check_recorded, named_artifact
from tasks.run.outside import external_refs
from tasks.run.recipe import Recipe
from tasks.stages.evaluate import stage
from tasks.stages.evaluate.reports import task_metrics, task_table
from tasks.trainer.evaluation.bpb import use_threads
from tasks.trainer.evaluation.comparison import DOCUMENTS, Contender, score_texts, texts_of
from tasks.trainer.evaluation.config import EvaluateConfig
from tasks.trainer.evaluation.items import TOKENIZER
from tasks.trainer.evaluation.scoring import decisive, score_tasks
from tasks.trainer.inference import Scorer
from tasks.trainer.interchange.model_folder import around

COMMAND, VERSION = "evaluate-model", 2
"""Stage and version in the records, and in the fingerprints."""
KIND = "model_scores"
"""Kind of the artifacts, each with the name of its model as member."""
_SCORES, _TABLE = "scores.json", "tasks.md"


@dataclass(frozen=True)
class ModelScores:
    """The artifact, and the scores as a table for people."""

    artifact: Artifact
    table: str


def evaluate_model(store: Store, recipe: Recipe, version: str, model: str) -> ModelScores:
    """Scores a model, unless it has been with the same settings and inputs; a killed evaluation is continued.

    Args:
        store: store of the artifacts.
        recipe: the recipe, whose section [evaluate] applies.
        version: of the scores, and of the held-out text.
        model: id of an artifact with a whole model, or the address of one from elsewhere, which is imported.

    Raises:
        RecipeError: the recipe has no tasks, and the version no tokens.
        InputError: the model, its tokenizer or a task cannot be read.
        DriftError: this version has scores of the same model by other settings or inputs.
        SluiceError: see `tasks.run.import_model.imported_model`.
    """
    config = recipe.of(EvaluateConfig)
    probe(store.root)
    shards = Artifact.find(store, ArtifactId(f"{recipe.name}/shards", version))
    if not config.tasks and shards is None:
        cause = f"the recipe {recipe.name} has no tasks, and its version {version} no held-out text"
        raise RecipeError(cause, "add [[evaluate.tasks]], or name a version with tokens")
    checkpoint = named_artifact(store, "the model to evaluate", model)
    tokenizer = tokenizer_of(checkpoint)
    if tokenizer is None:
        raise InputError(f"the tokenizer of {checkpoint.address} is gone", "restore it, or import the model again")
    address = ArtifactId(f"{recipe.name}/{KIND}/{_label(checkpoint.address)}", version)
    external = external_refs(stage.HOOKS, config, store, address)
    refs = [checkpoint.ref("model"), tokenizer.ref("tokenizer"), *external]
    refs += [shards.ref("shards")] if shards else []
    identity = fingerprint(COMMAND, VERSION, "", config, refs)
    if found := Artifact.find(store, address):
        check_recorded(found, identity)
        return ModelScores(found, found.read(_TABLE).decode())
    output = Output(store, address, identity)
    return _score(config, checkpoint, tokenizer, shards, output, refs)


def _score(
    config: EvaluateConfig,
    checkpoint: Artifact,
    tokenizer: Artifact,
    shards: Artifact | None,
    output: Output,
    refs: list[InputRef],
) -> ModelScores:
    use_threads(config.threads)
    contender = Contender.of_artifact("model", checkpoint, tokenizer)
    load = lru_cache(1)(lambda: _scorer(contender, checkpoint, config))
    sources = _sources(config, contender, load, shards, output) if shards else {}
    tasks = [
        {**score, "decision_metric": decisive(score["kind"], contender.parameters), "contamination": None}
        for score in score_tasks(config.tasks, [0], lambda _: load(), output)
    ]
    table = _table(str(checkpoint.address), sources, tasks)
    scores = {"model": str(checkpoint.address), "sources": sources, "tasks": tasks}
    if "scores" not in output.committed:
        with output.part("scores", conserved=False) as part:
            for name, text in ((_SCORES, json.dumps(scores, indent=1, sort_keys=True) + "\n"), (_TABLE, table)):
                part.write(name, text.encode())
    metrics = {f"bpb/{source}": score["bpb"] for source, score in sources.items()} | dict(task_metrics(tasks))
    report = Report(metrics=metrics, note=f"scores of {checkpoint.address}")
    return ModelScores(commit(output, COMMAND, VERSION, config, refs, report), table)


def _label(address: ArtifactId) -> str:
    return re.sub(r"[^A-Za-z0-9._-]", "-", str(address))


def _scorer(contender: Contender, checkpoint: Artifact, config: EvaluateConfig) -> Scorer:
    """Loads the model; what precedes a text is what did so before its fine-tunings, if there were any."""
    scorer = contender.load(config.task_batch_tokens)
    root = checkpoint
    while is_tuned(root) and (origin := origin_of(root)):
        root = origin
    return replace(scorer, start=around(scorer.tokenizer)[0]) if unrecorded(root) else scorer


def _sources(
    config: EvaluateConfig, contender: Contender, load: Callable[[], Scorer], shards: Artifact, output: Output
) -> dict[str, Any]:
    """Returns the bits per byte of the held-out text of each source."""
    theirs = shards.open_input("tokenizer").read(TOKENIZER).decode()
    texts = texts_of(ShardSet.open(shards), theirs, config.max_tokens)
    for source, documents in texts.items():
        if source not in output.committed:
            scored = score_texts(contender, load(), documents, config.batch_windows)
            with output.part(source) as part:
                part.count_in(scored.num_rows)
                part.table(DOCUMENTS, scored)
                part.metric("bits", math.fsum(scored["bits"].to_pylist()))
                part.metric("bytes", sum(scored["bytes"].to_pylist()))
    records = {source: output.committed[source] for source in texts}
    return {
        source: {
            "bpb": record.metrics["bits"] / record.metrics["bytes"],
            "documents": record.rows_out,
            "bytes": int(record.metrics["bytes"]),
        }
        for source, record in records.items()
    }


def _table(model: str, sources: dict[str, Any], tasks: list[dict[str, Any]]) -> str:
    blocks = [f"# {model}\n"]
    if sources:
        rows = [[name, f"{row['documents']:,}", f"{row['bpb']:.4f}"] for name, row in sources.items()]
        blocks.append("\n".join([*table(["held-out text", "documents", "bits per byte"], rows), ""]))
    if tasks:
        blocks.append(f"#{task_table(tasks)}")
    return "\n".join(blocks)
