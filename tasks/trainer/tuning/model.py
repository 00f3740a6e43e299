"""The model of a fine-tuning: the base's weights, with what the method adds to them.

Reads the `model.safetensors` of the base.
"""

from pathlib import Path

from safetensors.torch import load_file, save

from tasks.core.errors import InputError
from tasks.trainer.checkpoints.checkpoint import MODEL, is_whole, name_of, verify
from tasks.trainer.config import TrainSpec
from tasks.trainer.model.initial import load_initial
from tasks.trainer.model.transformer import Transformer
from tasks.trainer.tuning.lora import attach, merged_weights
from tasks.trainer.tuning.preference import PreferenceTransformer


def build_tuned(spec: TrainSpec) -> Transformer:
    """Returns the model in fp32; it computes what the base does, but for the rounding of 4-bit weights.

    Its parameters, and its state, are what is trained: all weights, or the adapters alone.

    Raises:
        InputError: the base's weights cannot be read, or are not what the specification says.
    """
    tuning, config = spec.tuning, spec.run.model
    assert tuning is not None
    assert spec.initial is not None
    if tuning.loss == "dpo":
        model: Transformer = PreferenceTransformer(config, tuning.vocab_size, tuning.beta)
    else:
        model = Transformer(config, tuning.vocab_size)
    load_initial(lambda file: _load(model, file), spec.initial)
    if tuning.lora:
        attach(model, tuning.lora, spec.run.init_seed)
    if isinstance(model, PreferenceTransformer):
        model.keep_reference()
    return model


def _load(model: Transformer, file: Path) -> None:
    model.load_state_dict(load_file(file))


def merged_bytes(spec: TrainSpec) -> bytes:
    """Returns the safetensors file of the whole model after the last step, its adapters added to the base.

    Reads the last checkpoint in the run's folder.

    Raises:
        InputError: as `build_tuned`; or the checkpoint does not verify.
    """
    folder = Path(spec.out) / "checkpoints" / name_of(spec.run.steps)
    if not is_whole(folder):
        raise InputError(f"{folder} is no whole checkpoint", "run the stage again")
    verify(folder)
    model = build_tuned(spec)
    model.load_state_dict(load_file(folder / MODEL))
    content: bytes = save(merged_weights(model))
    return content
