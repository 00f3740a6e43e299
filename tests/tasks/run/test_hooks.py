"""A stage declares its hooks: no function of its module that looks like one is left out, or has another signature."""

import importlib
import inspect
from collections.abc import Callable
from dataclasses import fields
from types import ModuleType, SimpleNamespace
from typing import get_args, get_origin, get_type_hints

import pytest

from tasks.core.config import Config
from tasks.core.stage import Inputs, Output
from tasks.formats.hooks import External, Hooks
from tasks.run.catalogue import STAGES
from tasks.stages.tokens import EncodeConfig
from tasks.stages.train import TrainConfig

VALUES = {"external": {External, *get_args(External)}, "code": {str}}
"""What the mappings of a hook may have as values, by hook."""


def faults(module: ModuleType | SimpleNamespace, settings: type[Config]) -> list[str]:
    """Returns the names of hooks of another signature, and of functions that look like hooks and are none."""
    hooks = {one.name: hook for one in fields(Hooks) if (hook := getattr(Hooks.of(module), one.name))}
    wrong = [name for name, hook in hooks.items() if not _fits(name, get_type_hints(hook), settings)]
    functions = {name: one for name, one in vars(module).items() if inspect.isfunction(one) and name[0] != "_"}
    own = {name: one for name, one in functions.items() if one.__module__ == module.__name__}
    alone = [name for name, one in own.items() if one not in hooks.values() and _looks_like_one(one, settings)]
    elsewhere = [name for name, one in vars(module).items() if isinstance(one, Hooks) and name != "HOOKS"]
    return [*wrong, *alone, *elsewhere]


def _looks_like_one(function: Callable[..., object], settings: type[Config]) -> bool:
    hints = get_type_hints(function)
    made = hints["return"]
    return get_origin(made) is dict and get_args(made)[0] is str and _takes(hints, settings)


def _takes(hints: dict[str, type], settings: type[Config], *others: type) -> bool:
    first, *rest = [hint for name, hint in hints.items() if name != "return"] or [None]
    return isinstance(first, type) and issubclass(settings, first) and rest == list(others)


def _fits(name: str, hints: dict[str, type], settings: type[Config]) -> bool:
    if name == "join":
        return _takes(hints, settings, Inputs, Output) and hints["return"] is type(None)
    return _takes(hints, settings) and set(get_args(hints["return"])[1:]) <= VALUES[name]


@pytest.mark.parametrize("name", STAGES)
def test_a_stage_declares_its_hooks_with_their_signatures(name: str) -> None:
    spec = STAGES[name]
    assert faults(importlib.import_module(spec.module), spec.config) == []


def test_stages_have_every_hook() -> None:
    declared = [Hooks.of(importlib.import_module(spec.module)) for spec in STAGES.values()]
    assert all(any(getattr(hooks, one.name) for hooks in declared) for one in fields(Hooks))


def extern(config: TrainConfig) -> dict[str, list[str]]:
    return {}


def of_nothing() -> dict[str, list[str]]:
    return {}


def numbers(config: TrainConfig) -> dict[str, int]:
    return {}


def of_other_settings(config: EncodeConfig, inputs: Inputs, output: Output) -> None:
    pass


@pytest.mark.parametrize(
    ("content", "named"),
    [
        ({"extern": extern}, "extern"),
        ({"HOOK": Hooks(external=extern)}, "HOOK"),
        ({"HOOKS": Hooks(external=of_nothing)}, "external"),  # type: ignore[arg-type]
        ({"HOOKS": Hooks(external=numbers)}, "external"),  # type: ignore[arg-type]
        ({"HOOKS": Hooks(code=extern)}, "code"),  # type: ignore[arg-type]
        ({"HOOKS": Hooks(join=extern)}, "join"),  # type: ignore[arg-type]
        ({"HOOKS": Hooks(join=of_other_settings)}, "join"),
    ],
)
def test_a_hook_with_another_name_or_signature_is_found(content: dict[str, object], named: str) -> None:
    assert faults(SimpleNamespace(__name__=__name__, **content), TrainConfig) == [named]
    with pytest.raises(TypeError, match="extern"):
        Hooks(extern=extern)  # type: ignore[call-arg]
