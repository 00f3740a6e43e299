"""Builds the specification of a fine-tuning.

Reads the records of the artifacts `examples` and `base`, the summary of the examples and the base's `model.json`.
"""

import json
from pathlib import Path

from tasks.core.errors import InputError
from tasks.core.stage import Inputs
from tasks.formats.documents.examples import SOURCE, SUMMARY
from tasks.trainer.config import ShardsSpec, TrainSpec, TuningSpec
from tasks.trainer.model.initial import base_weights
from tasks.trainer.tuning.config import FinetuneConfig

KINDS = {"sft": "instructions", "dpo": "preferences"}
"""The kind of examples that each loss reads."""


def tuning_spec(config: FinetuneConfig, inputs: Inputs, out: Path, check_every: int, keep_every: int) -> TrainSpec:
    """Returns the specification of the run.

    Args:
        config: settings.
        inputs: `examples` and `base`.
        out: folder of the run.
        check_every: see `TrainSpec`.
        keep_every: see `TrainSpec`.

    Raises:
        InputError: there is no such base, its tokenizer is another one, or the examples are of the other kind.
    """
    if "base" not in inputs:
        raise InputError(f"[finetune] base: no version of {config.base} is complete", "train one, or name another")
    examples = inputs["examples"]
    summary = json.loads(examples.read(SUMMARY))
    if summary["kind"] != KINDS[config.loss]:
        raise InputError(
            f'[finetune] loss = "{config.loss}" reads {KINDS[config.loss]}, and {examples.address} has '
            f"{summary['kind']}",
            "set [finetune] loss, or [examples] kind and files",
        )
    model, initial = base_weights(inputs["base"], summary["tokenizer_sha256"])
    return TrainSpec(
        run=config.training(model),
        weights={SOURCE: 1.0},
        shards=ShardsSpec(store=examples.store.root, artifact=str(examples.address), content=examples.record.content),
        initial=initial,
        tuning=TuningSpec(
            loss=config.loss,
            beta=config.beta,
            lora=config.lora,
            vocab_size=summary["vocab_size"],
            eos_id=summary["eos_id"],
            seq_len=summary["seq_len"],
        ),
        plan="",
        out=str(out),
        check_every=check_every,
        keep_every=keep_every,
    )
