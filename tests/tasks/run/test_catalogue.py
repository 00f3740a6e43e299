"""The catalogue: declarations of packages, in an order that follows from them."""

import random
from dataclasses import replace

import pytest

from tasks.core.stage_spec import Input
from tasks.run.catalogue import STAGES, _in_order, upstream


def test_a_stage_comes_after_its_inputs_and_predecessors() -> None:
    names = list(STAGES)
    for name in names:
        assert all(names.index(before) < names.index(name) for before in upstream(name)), name
    assert upstream("train") == ("estimate",)


@pytest.mark.parametrize("seed", range(5))
def test_the_order_does_not_depend_on_that_of_the_packages(seed: int) -> None:
    declared = list(STAGES.values())
    random.Random(seed).shuffle(declared)
    assert _in_order(declared) == list(STAGES.values())


def test_an_input_without_a_producer_is_refused_by_name() -> None:
    wrong = replace(STAGES["spans"], inputs={"shards": Input("shard")})
    with pytest.raises(ValueError, match='the stage spans reads "shard", which no stage writes'):
        _in_order([*(stage for stage in STAGES.values() if stage.name != "spans"), wrong])


def test_stages_of_one_section_share_its_settings() -> None:
    by_section = {(stage.section, stage.config) for stage in STAGES.values()}
    assert len(by_section) == len({section for section, _ in by_section})
