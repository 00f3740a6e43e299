"""The private names of torch that the product uses: another version of torch that lacks one fails here, by its name."""

import ast
import inspect
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch

ROOT = Path(__file__).parents[3]
ANY = object()

CALLS: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
    "torch.distributed._symmetric_memory.enable_symm_mem_for_group": ((ANY,), {}),
    "torch.distributed.distributed_c10d._set_pg_timeout": ((ANY, ANY), {}),
    "torch.distributed.fsdp._fully_shard._fsdp_collectives.DefaultReduceScatter.allocate": (
        (ANY, ANY),
        {"dtype": ANY, "device": ANY},
    ),
    "torch.distributed.pipelining._backward.stage_backward": ((ANY, ANY, ANY), {}),
    "torch.distributed.pipelining.PipelineStage.backward_maybe_with_nosync": ((ANY, ANY, ANY), {"last_backward": ANY}),
    "torch.distributed.tensor._utils._compute_local_shape_and_global_offset": ((ANY, ANY, ANY, ANY), {}),
    "torch.distributed.tensor._utils.compute_local_shape_and_global_offset": ((ANY, ANY, ANY), {}),
    "torch._ops.OperatorBase.name": ((ANY,), {}),
}
"""The calls of functions in Python, or what a method that is overridden is called with."""

OPERATORS = {
    "torch._foreach_norm": "_foreach_norm(Tensor[] self, Scalar ord=2, ScalarType? dtype=None)",
    "torch._fused_adamw_": (
        "_fused_adamw_(Tensor(a!)[] self, Tensor(b!)[] grads, Tensor(c!)[] exp_avgs, Tensor(d!)[] exp_avg_sqs, "
        "Tensor(e!)[] max_exp_avg_sqs, Tensor[] state_steps, *, float lr, float beta1, float beta2, "
        "float weight_decay, float eps, bool amsgrad, bool maximize, Tensor? grad_scale=None"
    ),
    "torch._scaled_mm": (
        "_scaled_mm(Tensor self, Tensor mat2, Tensor scale_a, Tensor scale_b, Tensor? bias=None, "
        "Tensor? scale_result=None, ScalarType? out_dtype=None, bool use_fast_accum=False)"
    ),
}
"""The beginnings of the schemas of operators."""

VALUES = (
    "torch._C._distributed_c10d._dump_fr_trace",
    "torch._dynamo.config.recompile_limit",
    "torch._inductor.config._micro_pipeline_tp",
    "torch.distributed.distributed_c10d._world.pg_map",
    "torch.distributed.pipelining.stage._PipelineStageBase",
)
"""Settings, values and classes."""


def private_names() -> dict[str, str]:
    """Returns the dotted names below torch with a private part in `tasks`, each with a file."""
    return {
        name: str(path.relative_to(ROOT))
        for path in (ROOT / "tasks").rglob("*.py")
        for name in _names(ast.parse(path.read_text()))
        if any(part.startswith("_") for part in name.split("."))
    }


def _names(tree: ast.Module) -> Iterator[str]:
    imported = {"torch": "torch"}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "torch":
            imported |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
        if isinstance(node, ast.Import):
            imported |= {alias.asname: alias.name for alias in node.names if alias.asname}
    yield from (name for name in imported.values() if name.startswith("torch."))
    yield from (
        f"{imported[root]}.{rest}"
        for root, _, rest in (ast.unparse(node).partition(".") for node in ast.walk(tree) if _is_chain(node))
        if imported.get(root, "").partition(".")[0] == "torch"
    )


def _is_chain(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and (isinstance(node.value, ast.Name) or _is_chain(node.value))


def resolved(name: str) -> Any:
    """Returns what a dotted name means; raises AttributeError if torch lacks it."""
    found: Any = torch
    parts = name.split(".")[1:]
    for at, part in enumerate(parts, 2):
        if not hasattr(found, part) and inspect.ismodule(found):
            import_module(".".join(["torch", *parts][:at]))
        found = getattr(found, part)
    return found


def test_this_file_has_all_private_names() -> None:
    known = [f"{name}." for name in (*CALLS, *OPERATORS, *VALUES)]
    used = private_names()
    missing = {name: used[name] for name in used if not any(one.startswith(f"{name}.") for one in known)}
    assert not missing, "name how it is used in CALLS, OPERATORS or VALUES"


@pytest.mark.parametrize("name", CALLS)
def test_a_private_function_can_be_called_as_it_is(name: str) -> None:
    positional, named = CALLS[name]
    inspect.signature(resolved(name)).bind(*positional, **named)


@pytest.mark.parametrize("name", OPERATORS)
def test_a_private_operator_has_its_arguments(name: str) -> None:
    assert callable(resolved(name))
    operator = getattr(torch.ops.aten, name.rpartition(".")[2])
    schemas = [str(getattr(operator, overload)._schema).removeprefix("aten::") for overload in operator.overloads()]
    schemas = [schema.replace(".Scalar(", "(") for schema in schemas]
    assert any(schema.startswith(OPERATORS[name]) for schema in schemas), schemas


@pytest.mark.parametrize("name", VALUES)
def test_a_private_value_exists(name: str) -> None:
    resolved(name)
