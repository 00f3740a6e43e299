"""Figures of a profiled step: interval arithmetic on a trace made by hand in the form of a GPU's, and on a real one."""

from typing import Any

import pytest

from tasks.trainer.monitoring.step_trace import DATA, STEP, figures_of


def span(category: str, name: str, begin: float, end: float, tid: int = 7, **arguments: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": category, "name": name, "ts": begin, "dur": end - begin, "tid": tid, "args": arguments}


GEMM, REDUCE = "void cutlass::Kernel2<tile>(Params)", "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevComm*)"
GPU = [
    {"ph": "M", "name": "process_name", "ts": 0, "args": {"name": "python"}},
    span("user_annotation", STEP, 1000, 2000),
    span("gpu_user_annotation", STEP, 900, 2100),
    span("user_annotation", DATA, 1000, 1050),
    span("cuda_runtime", "cudaLaunchKernel", 1080, 1090, correlation=1),
    span("cuda_runtime", "cudaLaunchKernel", 1500, 1510, correlation=2),
    span("kernel", GEMM, 900, 1010),  # began in the step before
    span("kernel", GEMM, 1100, 1400, correlation=1),
    span("kernel", GEMM, 1600, 1700, correlation=2),
    span("kernel", REDUCE, 1300, 1450, tid=20),
    span("kernel", REDUCE, 1690, 1790, tid=20),
    span("gpu_memcpy", "Memcpy HtoD", 1780, 1800, tid=21),
    span("cuda_sync", "Stream Wait Event", 1000, 2000, tid=7),
    {"ph": "f", "id": 1, "cat": "ac2g", "name": "ac2g", "ts": 1100, "tid": 7},
]


def test_the_shares_of_a_step_are_those_of_its_intervals_on_the_device() -> None:
    found = figures_of(GPU)
    assert found.seconds == pytest.approx(1e-3)
    assert found.computing == pytest.approx((10 + 300 + 100) / 1000)
    assert found.communication == pytest.approx((150 + 100) / 1000)
    assert found.hidden == pytest.approx((100 + 10) / 1000)
    assert found.exposed == pytest.approx((50 + 80) / 1000), "the last 10 of it are beside a copy"
    assert found.idle == pytest.approx((90 + 150 + 200) / 1000)
    # Kernel 1 was queued from 1090 to 1100, kernel 2 from 1510 to 1600.
    assert found.host_gap == pytest.approx((80 + 60 + 200) / 1000)
    assert found.data_wait == pytest.approx(0.05)
    longest = found.operations[0]
    assert (longest.name, longest.calls, longest.share) == ("cutlass::Kernel2", 2, pytest.approx(0.4))


def test_on_a_cpu_collectives_are_hidden_behind_operations_and_exposed_without_them() -> None:
    found = figures_of(
        [
            span("user_annotation", STEP, 0, 100),
            span("cpu_op", "autograd::engine::evaluate_function: MmBackward0", 0, 60),
            span("cpu_op", "aten::mm", 10, 50),
            span("cpu_op", "aten::addmm", 5, 55),
            span("cpu_op", "c10d::allreduce_", 39, 40),
            span("user_annotation", "gloo:all_reduce", 40, 75, tid=8),
        ]
    )
    assert (found.computing, found.communication) == (0.5, 0.35)
    assert (found.hidden, found.exposed) == (0.15, 0.2)
    assert (found.idle, found.host_gap) == (0.3, 0.3)
    own = {one.name: one.share for one in found.operations}
    assert own["aten::mm"] == pytest.approx(0.39), "without what is inside"
    assert own["aten::addmm"] == pytest.approx(0.1)


def test_a_trace_without_a_step_is_refused() -> None:
    with pytest.raises(ValueError, match=STEP):
        figures_of(GPU[4:])
