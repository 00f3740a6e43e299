"""The model of a checkpoint: its description `model.json`, and its weights for inference or for another run.

Reads `model.json` and `model.safetensors` from a folder or from a checkpoint artifact, and the records that lead to its
tokenizer. Imports torch only to load a model: stages that only describe a model do not need it.
"""

import json
import logging
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from tasks.core.artifact import Artifact
from tasks.core.config import changes
from tasks.core.digest import sha256_of_file
from tasks.core.errors import InputError
from tasks.formats.tokens.exposure import tokenizer_of
from tasks.formats.tokens.shard import TokenFormat
from tasks.trainer.checkpoints.checkpoint import MODEL, name_of
from tasks.trainer.config import InitialSpec, TrainConfig
from tasks.trainer.interchange.huggingface import STOP, names_in
from tasks.trainer.interchange.weights import Place, check_finite, renamed, tensors_in
from tasks.trainer.model.config import ModelConfig
from tasks.trainer.model.shape import ModelShape

if TYPE_CHECKING:
    from torch import Tensor

    from tasks.trainer.model.transformer import Transformer

FILE = "model.json"
Which = Literal["last", "best"]
log = logging.getLogger(__name__)
MERGED = f"merged/{MODEL}"
"""Weights of a fine-tuned model with its adapters merged, if it has any."""
AVERAGED = "averaged"
"""Folder with the mean of the weights of each milestone, if they are the ones to use (`[train.ema]`)."""
_NOT_IN_WEIGHTS = {
    *("rope_theta", "rope_scaling", "norm_eps", "window", "window_pattern", "window_rope_theta"),
    *(f"experts.{name}" for name in ("loss_weight", "bias_rate", "z_loss")),
}
"""Settings that affect no tensor; they may change when training continues, for example for a longer context."""


def describe(config: ModelConfig, tokens: TokenFormat, seq_len: int, stop: Iterable[int] = ()) -> dict[str, Any]:
    """Returns the content of `model.json`.

    Args:
        config: shape of the model.
        tokens: vocabulary and end-of-text token that it was trained with.
        seq_len: maximum number of tokens the model reads: those of a sequence of its pretraining.
        stop: further tokens that end a generated text.
    """
    more = sorted(set(stop) - {tokens.eos_id})
    return {
        **({STOP: more} if more else {}),
        "model": config.model_dump(mode="json"),
        "vocab_size": tokens.vocab_size,
        "eos_id": tokens.eos_id,
        "tokenizer_sha256": tokens.tokenizer_sha256,
        "seq_len": seq_len,
        "parameters": dict(ModelShape.of(config, tokens.vocab_size).weights),
    }


def stop_ids(described: Mapping[str, Any]) -> frozenset[int]:
    """Returns the tokens that end a generated text, by the content of `model.json`: end-of-text, and others."""
    return frozenset((described["eos_id"], *described.get(STOP, ())))


def load_model(description: Path, weights: Path) -> "tuple[Transformer, dict[str, Any]]":
    """Returns the model in fp32 and evaluation mode, and the content of its `model.json`.

    Args:
        description: path of a `model.json`.
        weights: path of a `model.safetensors`, with the tensor names of a checkpoint or of the Llama layout.

    Raises:
        InputError: a file is missing or corrupt, the two do not match, or a weight is not finite.
    """
    from safetensors.torch import load_file

    from tasks.trainer.model.transformer import Transformer  # imports torch, not needed to describe a model

    try:
        content = json.loads(description.read_text())
        model = Transformer(ModelConfig.model_validate(content["model"]), content["vocab_size"])
        model.load_state_dict(_in_our_layout(load_file(weights), model.state_dict(), model.config))
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        cause = f"{weights} and {description} do not match ({' '.join(str(error).split())})"
        raise InputError(cause, f"{MODEL} and {FILE} must come from the same checkpoint artifact") from None
    check_finite(tensor for _, tensor in tensors_in(weights))
    return model.eval(), content


def step_of(checkpoint: Artifact, which: Which, setting: str) -> int:
    """Returns the step of the last or of the best checkpoint of a run.

    Args:
        checkpoint: artifact of a training.
        which: of them.
        setting: name of the setting that selects it, for error messages.

    Raises:
        InputError: the run has no best checkpoint.
    """
    run = json.loads(checkpoint.read("run.json"))
    if which == "last":
        return int(max(run["checkpoint_steps"]))
    if "best" not in run:
        raise InputError(
            f'{setting} = "best": {checkpoint.address} has no best checkpoint',
            "train with [train.best], or take the last one",
        )
    return int(run["best"]["step"])


def weights_path(checkpoint: Artifact, step: int) -> str:
    """Returns the file with the weights of a checkpoint that are evaluated, registered and exported.

    It is that of the mean if the run has one of a milestone and `[train.ema] weights` selects it.
    """
    averaged, last = f"{AVERAGED}/{name_of(step)}/{MODEL}", f"checkpoints/{name_of(step)}/{MODEL}"
    return averaged if checkpoint.files(averaged) else last


def _in_our_layout(
    found: "dict[str, Tensor]", state: "Mapping[str, Tensor]", config: ModelConfig
) -> "dict[str, Tensor]":
    """Returns tensors under the names of `state`, if they have those of the Llama layout; raises KeyError for one."""
    import torch

    if not found.keys().isdisjoint(state):
        return found
    ours, taken, named = {}, set[str](), names_in(config)
    for name, weight in state.items():
        names = [one for one, _ in renamed(named(name), weight.shape)]
        parts = [found[one] for one in names]
        ours[name] = torch.stack(parts) if len(parts) > 1 else Place.of(named(name)).ours(parts[0])
        taken.update(names)
    return ours | {name: tensor for name, tensor in found.items() if name not in taken}


def last_weights(
    checkpoint: Artifact, setting: str, step: int | None = None, *, averaged: bool = False
) -> tuple[dict[str, Any], InitialSpec]:
    """Returns the content of `model.json` and the location of the full weights: merged, or of the last checkpoint.

    Args:
        checkpoint: artifact of a training or a fine-tuning.
        setting: name of the setting that selects it, for error messages.
        step: the checkpoint after this number of steps instead, which must be a milestone.
        averaged: whether to take the mean of the weights at `step` (`weights_path`).

    Raises:
        InputError: it has no model, or only adapters.
    """
    entries = {entry.path: entry for entry in checkpoint.entries()}
    last = MERGED if MERGED in entries else max((path for path in entries if path.endswith(f"/{MODEL}")), default="")
    last = last if step is None else f"{AVERAGED if averaged else 'checkpoints'}/{name_of(step)}/{MODEL}"
    if not last or FILE not in entries:
        raise InputError(f"{setting}: {checkpoint.address} has no model", "name the checkpoint of a training")
    described = json.loads(checkpoint.read(FILE))
    if described.get("adapters") and last != MERGED:
        raise InputError(
            f"{setting}: {checkpoint.address} has adapters without their base",
            "make it with finetune.lora.merge = true",
        )
    return described, InitialSpec(
        artifact=str(checkpoint.address), file=checkpoint.local(last), sha256=entries[last].sha256
    )


def initial_weights(
    config: TrainConfig, tokens: TokenFormat, checkpoint: Artifact, step: int | None = None
) -> InitialSpec:
    """Returns the location of the weights of an earlier run, after checking that a run can start from them.

    Args:
        config: settings of the new run.
        tokens: format of the tokens of the new run.
        checkpoint: artifact of the earlier run.
        step: one of its milestones; None: the last.

    Raises:
        InputError: the checkpoint lacks a file, has another tokenizer, or has a model whose weights have other shapes
            or another meaning. Other differences are allowed (`changed_settings`).
    """
    described, initial = last_weights(checkpoint, "[train] init_from", step)
    _check_tokenizer(checkpoint, described["tokenizer_sha256"], tokens.tokenizer_sha256)
    _check_shape(checkpoint, described["model"], config.model)
    return initial


def weights_to_use(checkpoint: Artifact, setting: str) -> tuple[dict[str, Any], InitialSpec]:
    """Returns `last_weights`, of the mean of the weights where `[train.ema] weights` selects it."""
    step = step_of(checkpoint, "last", setting) if checkpoint.files(AVERAGED) else None
    return last_weights(checkpoint, setting, step, averaged=step is not None)


def base_weights(checkpoint: Artifact, tokenizer_sha256: str) -> tuple[ModelConfig, InitialSpec]:
    """Returns the shape of the base model of a fine-tuning, and the location of its weights.

    Raises:
        InputError: the artifact has no whole model, or its tokenizer is not that of the examples.
    """
    described, initial = weights_to_use(checkpoint, "[finetune] base")
    if described["tokenizer_sha256"] != tokenizer_sha256:
        raise InputError(
            f"[finetune] base: {checkpoint.address} was trained with the tokenizer "
            f"{described['tokenizer_sha256'][:16]}, and the examples were made with {tokenizer_sha256[:16]}",
            "use the tokenizer of the base in [tokenizer], and make the examples again",
        )
    return ModelConfig.model_validate(described["model"]), initial


def load_initial(load: Callable[[Path], None], initial: InitialSpec) -> None:
    """Verifies the SHA-256 of the weights and calls `load` with their file.

    Raises:
        InputError: the file is missing, differs from its record, has other tensors than the model, or a weight that is
            not finite.
    """
    try:
        if sha256_of_file(initial.file) != initial.sha256:
            raise ValueError("it does not have the sha256 that its record states")
        check_finite(tensor for _, tensor in tensors_in(Path(initial.file)))
        load(Path(initial.file))
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        cause = f"{initial.file} of {initial.artifact} cannot be read ({' '.join(str(error).split())})"
        raise InputError(cause, "restore the file, or start from another checkpoint") from None
    log.info("the weights are those of %s", initial.artifact)


def changed_settings(checkpoint: Artifact, model: ModelConfig) -> str:
    """Returns the settings that differ from those of a checkpoint, such as "rope_theta 5e5 (was 1e4)"; "" if none."""
    changed = _changes(json.loads(checkpoint.read(FILE))["model"], model)
    return ", ".join(f"{field} {_format_value(new)} (was {_format_value(old)})" for field, old, new in changed)


def _changes(described: dict[str, Any], model: ModelConfig) -> list[tuple[str, Any, Any]]:
    """Returns (setting, value in the checkpoint, value in `model`) for each setting that differs."""
    # A setting that is newer than the checkpoint has its default there.
    checkpoint_model = ModelConfig.model_validate(described)
    changed = changes(_settings(checkpoint_model), _settings(model), "")
    # The inner width is rounded, so different settings can give the same model; so can the width of a head.
    same = {"ffn_multiple", "ffn_width"} if checkpoint_model.ffn_dim == model.ffn_dim else set()
    same |= {"head_width"} if checkpoint_model.head_dim == model.head_dim else set()
    return [change for change in changed if change[0] not in same]


def _settings(model: ModelConfig) -> dict[str, Any]:
    """Returns all settings of a model, also those that are left out of a file because they have their defaults."""
    stated = model.model_dump(mode="json")
    return {name: stated.get(name, setting.default) for name, setting in ModelConfig.model_fields.items()}


def _check_shape(checkpoint: Artifact, described: dict[str, Any], model: ModelConfig) -> None:
    """Raises InputError if tensors have other shapes or another meaning, such as with another number of heads."""
    changed = _changes(described, model)
    different = [change for change in changed if _NOT_IN_WEIGHTS.isdisjoint((change[0], change[0].partition(".")[0]))]
    if different:
        listed = ", ".join(
            f"{field} is {_format_value(new)} and was {_format_value(old)}" for field, old, new in different
        )
        settings = ", ".join(f"{field} = {_format_value(old)}" for field, old, _ in different)
        raise InputError(
            f"[train] init_from: {checkpoint.address} is another model: {listed}",
            f"set {settings} in [train.model], or leave out init_from",
        )


def _format_value(value: Any) -> str:
    return "none" if value is None else json.dumps(value)


def _check_tokenizer(checkpoint: Artifact, theirs: str, ours: str) -> None:
    if theirs == ours:
        return
    tokenizer = tokenizer_of(checkpoint)
    path = tokenizer.store.url(f"{tokenizer.path}/tokenizer.json") if tokenizer else ""
    remedy = f'set [tokenizer] file = "{path}"' if path else "import its tokenizer.json with [tokenizer] file"
    raise InputError(
        f"[train] init_from: {checkpoint.address} was trained with the tokenizer {theirs[:16]}, and the tokens of this "
        f"run were made with {ours[:16]}: the same weights would mean other tokens",
        f"{remedy} and make the tokens again, or leave out init_from",
    )
