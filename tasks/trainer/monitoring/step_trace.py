"""Figures of a profiled step: which part of it computes, communicates, or does nothing.

Reads a trace in Chrome's format as torch.profiler writes it (times in microseconds). On a GPU the intervals are those
of its kernels and copies, by their category; on a CPU those of torch's operations, and of gloo's collectives beside
them. Everything is interval arithmetic on what is between the begin and the end of the annotation `STEP`:

    computing       union of the intervals of kernels that are no collective
    communication   union of the intervals of collectives
    hidden          communication while something computes
    exposed         communication while nothing computes and nothing is copied
    idle            no kernel, collective or copy
    host_gap        idle, and nothing is queued: between the end of a launch and the begin of its kernel it is
    data_wait       the annotation `DATA`

All are shares of the step. The definitions of exposed and hidden communication are those of Meta's Holistic Trace
Analysis, except that copies hide communication, too.
"""

import gzip
import json
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

STEP, DATA = "sluice.step", "sluice.data"
"""Annotations of a profiled step, and of its wait for data."""

TOP = 8
"""Number of operations that are listed."""

_COLLECTIVE = re.compile(r"nccl(Dev)?Kernel|rccl|multimem_|(one|two)_shot_all|^gloo:")
_COPIES = ("gpu_memcpy", "gpu_memset")
_LAUNCHES = ("cuda_runtime", "cuda_driver")
_LONGEST_NAME = 60

Interval = tuple[float, float]
Intervals = Sequence[Interval]
"""Disjoint intervals in ascending order."""


@dataclass(frozen=True)
class Operation:
    """Time of all executions of one kernel, or of one operation without those that it calls.

    `share` is of the step; it can be above 1 in sum, because streams and threads run at the same time.
    """

    name: str
    calls: int
    seconds: float
    share: float


@dataclass(frozen=True)
class StepFigures:
    """Figures of a step; see the module docstring. All but `seconds` are shares of it."""

    seconds: float
    computing: float
    communication: float
    exposed: float
    hidden: float
    idle: float
    host_gap: float
    data_wait: float
    operations: tuple[Operation, ...] = ()

    def shares(self) -> dict[str, float]:
        """Returns the numbers by name, without the operations."""
        return {name: value for name, value in asdict(self).items() if name != "operations"}


def trace_path(run: Path, step: int) -> Path:
    """Returns the path of the trace of a step in a run's folder."""
    return run / "profiles" / f"step-{step:08d}.json.gz"


def traces(run: Path) -> dict[int, Path]:
    """Returns the traces in a run's folder by step, ascending."""
    paths = sorted(trace_path(run, 0).parent.glob("step-*.json.gz"))
    return {int(path.name.removeprefix("step-").partition(".")[0]): path for path in paths}


def read_trace(path: Path) -> list[dict[str, Any]]:
    """Returns the events of a trace, compressed by gzip; raises OSError or ValueError if it is none."""
    with gzip.open(path, "rt") as file:
        events: list[dict[str, Any]] = json.load(file)["traceEvents"]
    return events


def figures_of(events: Iterable[Mapping[str, Any]]) -> StepFigures:
    """Returns the figures of the step in a trace.

    Raises:
        ValueError: no event is named `STEP`.
    """
    spans = [event for event in events if event.get("ph") == "X"]
    steps = [_interval(event) for event in spans if event["name"] == STEP and event["cat"] == "user_annotation"]
    if not steps:
        raise ValueError(f'the trace has no event "{STEP}"')
    window = [max(steps, key=lambda step: step[1] - step[0])]
    on_device = any(event.get("cat") == "kernel" for event in spans)
    found = _device_work(spans) if on_device else _host_work(spans)
    computing, communication, copies = (intersection(union(one), window) for one in found)
    queued = union(_queued(spans)) if on_device else []
    data = union(_interval(event) for event in spans if event["name"] == DATA and event["cat"] == "user_annotation")
    idle = difference(window, union([*computing, *communication, *copies]))
    total = length(window)
    return StepFigures(
        seconds=total / 1e6,
        computing=length(computing) / total,
        communication=length(communication) / total,
        exposed=length(difference(communication, union([*computing, *copies]))) / total,
        hidden=length(intersection(communication, computing)) / total,
        idle=length(idle) / total,
        host_gap=length(difference(idle, queued)) / total,
        data_wait=length(intersection(data, window)) / total,
        operations=_operations(spans, window[0], on_device),
    )


def union(intervals: Iterable[Interval]) -> list[Interval]:
    """Returns the same points as disjoint intervals.

    >>> union([(5, 6), (0, 2), (1, 3), (3, 4)])
    [(0, 4), (5, 6)]
    """
    merged: list[Interval] = []
    for begin, end in sorted(intervals):
        if merged and begin <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(merged[-1][1], end)
        elif end > begin:
            merged.append((begin, end))
    return merged


def intersection(left: Intervals, right: Intervals) -> list[Interval]:
    """Returns the points that are in both.

    >>> intersection([(0, 4), (5, 9)], [(3, 6), (8, 12)])
    [(3, 4), (5, 6), (8, 9)]
    """
    common, first, second = [], 0, 0
    while first < len(left) and second < len(right):
        begin, end = max(left[first][0], right[second][0]), min(left[first][1], right[second][1])
        if begin < end:
            common.append((begin, end))
        if left[first][1] < right[second][1]:
            first += 1
        else:
            second += 1
    return common


def difference(left: Intervals, right: Intervals) -> list[Interval]:
    """Returns the points of `left` that are not in `right`.

    >>> difference([(0, 10)], [(2, 3), (5, 12)])
    [(0, 2), (3, 5)]
    """
    if not left:
        return []
    edges = [left[0][0], *(edge for interval in right for edge in interval), left[-1][1]]
    outside = [(begin, end) for begin, end in zip(edges[::2], edges[1::2], strict=True) if begin < end]
    return intersection(left, outside)


def length(intervals: Intervals) -> float:
    """Returns the sum of the lengths of disjoint intervals.

    >>> length([(0, 2), (3, 4.5)])
    3.5
    """
    return sum(end - begin for begin, end in intervals)


def _interval(event: Mapping[str, Any]) -> Interval:
    return float(event["ts"]), float(event["ts"]) + float(event["dur"])


def _device_work(spans: Sequence[Mapping[str, Any]]) -> tuple[list[Interval], list[Interval], list[Interval]]:
    """Returns the intervals of the kernels that compute, of collectives, and of copies."""
    kernels = [event for event in spans if event.get("cat") == "kernel"]
    copies = [_interval(event) for event in spans if event.get("cat") in _COPIES]
    return (
        [_interval(event) for event in kernels if not _COLLECTIVE.search(event["name"])],
        [_interval(event) for event in kernels if _COLLECTIVE.search(event["name"])],
        copies,
    )


def _host_work(spans: Sequence[Mapping[str, Any]]) -> tuple[list[Interval], list[Interval], list[Interval]]:
    """Returns the same on a CPU: `aten` operations compute, and gloo annotates its collectives; copies are operations.

    Operations of autograd contain those of aten, and those of c10d return before their collective ends.
    """
    operations = [event for event in spans if event.get("cat") == "cpu_op" and event["name"].startswith("aten::")]
    collectives = [event for event in spans if _COLLECTIVE.search(event["name"])]
    return [_interval(event) for event in operations], [_interval(event) for event in collectives], []


def _queued(spans: Sequence[Mapping[str, Any]]) -> list[Interval]:
    """Returns when kernels and copies were launched and had not begun."""
    launched = {
        event["args"]["correlation"]: _interval(event)[1]
        for event in spans
        if event.get("cat") in _LAUNCHES and "correlation" in event.get("args", {})
    }
    waiting = []
    for event in spans:
        if event.get("cat") == "kernel" or event.get("cat") in _COPIES:
            at = launched.get(event.get("args", {}).get("correlation"))
            if at is not None and at < event["ts"]:
                waiting.append((at, float(event["ts"])))
    return waiting


def _operations(spans: Sequence[Mapping[str, Any]], window: Interval, on_device: bool) -> tuple[Operation, ...]:
    """Returns the operations with the most time in a step, the longest first."""
    begin, end = window
    inside = [event for event in spans if begin <= event["ts"] < end]
    if on_device:
        chosen = [event for event in inside if event.get("cat") == "kernel" or event.get("cat") in _COPIES]
        times = [float(event["dur"]) for event in chosen]
    else:
        collectives = [event for event in inside if _COLLECTIVE.search(event["name"])]
        operations = [event for event in inside if event.get("cat") == "cpu_op"]
        chosen = [*operations, *collectives]
        times = [*_own_times(operations), *(float(event["dur"]) for event in collectives)]
    total: defaultdict[str, float] = defaultdict(float)
    calls: defaultdict[str, int] = defaultdict(int)
    for event, time in zip(chosen, times, strict=True):
        name = short_name(event["name"])
        total[name] += time
        calls[name] += 1
    longest = sorted(total, key=lambda name: (-total[name], name))[:TOP]
    return tuple(Operation(name, calls[name], total[name] / 1e6, total[name] / (end - begin)) for name in longest)


def _own_times(events: Sequence[Mapping[str, Any]]) -> list[float]:
    """Returns the time of each event without the events of the same thread within it."""
    own = [float(event["dur"]) for event in events]
    open_at: defaultdict[Any, list[int]] = defaultdict(list)
    for index in sorted(range(len(events)), key=lambda index: (events[index]["ts"], -events[index]["dur"])):
        event, stack = events[index], open_at[events[index].get("tid")]
        while stack and _interval(events[stack[-1]])[1] <= event["ts"]:
            stack.pop()
        if stack:
            own[stack[-1]] -= float(event["dur"])
        stack.append(index)
    return own


def short_name(name: str) -> str:
    """Returns the name of a kernel without its result, its template arguments and its parameters.

    >>> short_name("void at::native::vectorized_elementwise_kernel<4, at::native::AddFunctor<float>>(int, float*)")
    'at::native::vectorized_elementwise_kernel'
    >>> short_name("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)")
    'ncclDevKernel_AllReduce_Sum_f32_RING_LL'
    """
    name = name.removeprefix("void ").replace("(anonymous namespace)::", "")
    return re.split(r"[<(]", name, maxsplit=1)[0].strip()[:_LONGEST_NAME]
