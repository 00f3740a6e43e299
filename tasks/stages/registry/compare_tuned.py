"""Stage `compare_tuned`: compares the new fine-tuned model of a recipe with the champion among its fine-tuned models.

Reads `tuned_model`, `finetuned`, `examples` and `tokenizer` of this version, the held-out documents of the shards that
its base was trained on, and the last decision. Both models score the same documents, task items and held-out examples
(`tasks.trainer.evaluation.comparison`), in the shorter of the two contexts. Documents that one of the models has
learned as chunks are excluded, and examples if the champion has another tokenizer. Writes the files of `compare`, which
also states the verdict.
"""

from functools import partial

from tasks.core.artifact import Artifact
from tasks.core.engine import Engine
from tasks.core.errors import InputError
from tasks.core.stage import Inputs, Output, Report
from tasks.formats.documents.examples import HELDOUT, Examples, has_heldout
from tasks.stages.registry import PromoteTunedConfig, verdict
from tasks.stages.registry.compare import HOOKS, decide
from tasks.stages.registry.promote import CHALLENGER, CHAMPION
from tasks.trainer.evaluation.comparison import (
    PAIRS,
    RESPONSES,
    Comparison,
    Contender,
    compare,
    compare_responses,
    in_equal_context,
    learned_documents,
    unlearned_texts,
)

__all__ = ["HOOKS", "VERSION", "run"]

VERSION = 2


def run(config: PromoteTunedConfig, inputs: Inputs, output: Output, engine: Engine) -> Report:
    """Writes the comparison; raises InputError if the champion is gone, or there is nothing to compare."""
    return decide(config, inputs, output, partial(_scored, config, inputs, output))


def _scored(
    config: PromoteTunedConfig, inputs: Inputs, output: Output, champion: Artifact, challenger: Artifact
) -> list[Comparison]:
    """Compares two fine-tuned models on held-out documents, tasks and held-out examples."""
    assert config.evaluate is not None, "the recipe fills it in where there is a whole model"
    settings, examples = config.evaluate, inputs["examples"]
    pair = (Contender.of_artifact(CHAMPION, champion), Contender.of_artifact(CHALLENGER, challenger))
    learned = learned_documents(examples) | _learned_by(champion)
    texts, _ = unlearned_texts(inputs["finetuned"], inputs["tokenizer"], settings.max_tokens, learned)
    names = [*texts, *(task.name for task in settings.tasks), RESPONSES, PAIRS]
    verdict.check_names(config.guarded, names)
    first, second = in_equal_context(*pair)
    rows = compare(first, second, texts, settings, output)
    if has_heldout(examples) and first.tokenizer == second.tokenizer:
        held_out = Examples(examples, HELDOUT)
        rows += compare_responses(first, second, held_out, settings.task_batch_tokens, output)
    if not rows:
        raise InputError(
            f"there is nothing to compare {challenger.address} with {champion.address} on",
            "raise examples.heldout_share, or name [[evaluate.tasks]]",
        )
    return rows


def _learned_by(model: Artifact) -> set[str]:
    """Returns the ids of the documents that a registered model has learned as chunks; none if its examples are gone."""
    for address in model.ids_of("examples"):
        if examples := Artifact.find(model.store, address):
            return learned_documents(examples)
    return set()
