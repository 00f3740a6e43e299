"""Defaults of learning rate, batch and precision by the size of a model."""

import pytest

from tasks.run.recipe import Recipe, find_recipe
from tasks.trainer.config import OptimConfig, TrainConfig
from tasks.trainer.defaults import RECIPE, default_batch, doubts, origins
from tasks.trainer.model.config import ModelConfig
from tasks.trainer.model.shape import SIZES, ModelShape
from tasks.trainer.sizes import DEFAULTS

BILLION = SIZES["1.3b"].model


def test_every_size_has_defaults_and_larger_models_get_lower_rates_and_larger_batches() -> None:
    shapes = {name: ModelShape.of(size.model, size.vocab_size) for name, size in SIZES.items()}
    assert {one.size: one.weights for one in DEFAULTS} == {
        name: shape.layers * shape.layer_matrices for name, shape in shapes.items()
    }
    rates, batches = [one.lr for one in DEFAULTS], [one.batch_tokens for one in DEFAULTS]
    assert rates == sorted(rates, reverse=True)
    assert batches == sorted(batches)


def test_settings_that_are_left_out_are_those_of_the_size_and_set_ones_stay() -> None:
    run = TrainConfig(model=BILLION)
    assert (run.optim.lr, run.precision) == (9.2e-4, "bf16")
    assert TrainConfig.model_validate_json(run.model_dump_json()) == run
    own = TrainConfig(model=BILLION, optim=OptimConfig(lr=4e-3), precision="fp32")
    assert (own.optim.lr, own.precision) == (4e-3, "fp32")
    assert (TrainConfig().optim.lr, TrainConfig().precision) == (4e-3, "fp32")


def test_plan_and_record_say_where_the_values_come_from() -> None:
    run = TrainConfig(model=BILLION, optim=OptimConfig(lr=1e-3))
    run = run.model_copy(update={"batch_size": default_batch(run, 2048)})
    found = origins(run, 2048)
    assert found["batch_size"] == {"value": 512, "from": "default of 1.3b (DeepSeek)"}
    assert found["lr"] == {"value": 1e-3, "from": RECIPE}


def test_a_recipe_that_grows_by_an_override_gets_the_defaults_of_its_new_size() -> None:
    plain = Recipe.from_text('{"name": "r", "train": {"steps": 100}}')
    assert (plain.of(TrainConfig).batch_size, plain.of(TrainConfig).optim.lr) == (8, 4e-3)
    shape = {f"train.model.{name}": value for name, value in BILLION.model_dump(exclude_defaults=True).items()}
    grown = plain.override({**shape, "pack.seq_len": 2048}).of(TrainConfig)
    assert (grown.batch_size, grown.optim.lr, grown.precision) == (512, 9.2e-4, "bf16")
    set_rate = find_recipe("demo")
    assert set_rate.override(shape).of(TrainConfig).optim.lr == set_rate.of(TrainConfig).optim.lr == 6e-3


@pytest.mark.parametrize(
    ("settings", "gpu", "words"),
    [
        ({"optim": OptimConfig(lr=4e-3)}, True, ["likely to diverge"]),
        ({"precision": "fp32"}, True, ["several times as slow"]),
        ({"precision": "fp32"}, False, []),
        ({}, True, []),
    ],
)
def test_what_is_likely_to_go_wrong_is_warned_of(settings: dict[str, object], gpu: bool, words: list[str]) -> None:
    found = [*doubts(TrainConfig(model=BILLION, **settings), gpu)]
    assert [word for word in words if word in "".join(found)] == words
    assert len(found) == len(words)


def test_a_small_model_is_not_warned_of_its_measured_rate() -> None:
    assert not [*doubts(TrainConfig(model=ModelConfig(layers=3, dim=96, heads=3, kv_heads=3)), gpu=False)]
