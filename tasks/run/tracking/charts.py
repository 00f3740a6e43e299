"""Names of metrics in MLflow, which decide the order of its charts: loss first, the machine and alerts last.

MLflow (3.17) sorts charts by the name of the metric, in sections by what precedes its last "/": sections by name, then
the metrics without one ("Model metrics", here the numbers of the record), then "system/" ("System metrics", over time
instead of steps). So the series of a training are in `loss`, `loss_by_source`, `optimizer` and `speed`.
"""

from collections.abc import Mapping

SYSTEM = "system"
"""MLflow's own section for metrics of machines, the last one."""

_SERIES: Mapping[str, str] = {
    "loss": "loss/train",
    "bpb": "loss/heldout_bpb",
    "grad_norm": "optimizer/grad_norm",
    "lr": "optimizer/lr",
    "tokens": "optimizer/tokens",
    "tokens_per_s": "speed/tokens_per_s",
    "step_s": "speed/step_s",
    "data_wait": "speed/data_wait",
    "mfu": "speed/mfu",
    "heldout_s": "speed/heldout_s",
    "memory_gib": f"{SYSTEM}/memory_gib",
}
"""Metrics of the steps of a training, by their name in its log."""

_FAMILIES: Mapping[str, str] = {
    "bpb": "loss_by_source/heldout_bpb.",
    "step_s": "speed/step_s.",
    "gpu": f"{SYSTEM}/gpu.",
    "alert": f"{SYSTEM}/alert.",
}
"""The same for names with a "/", by what precedes it."""

_FAULTS = ("alerts", "faults")
"""Families of a record that count what went wrong."""


def series(name: str) -> str:
    """Returns the name in MLflow of a metric that has a value for each step.

    >>> series("loss"), series("bpb/web"), series("alert/slow"), series("task_by_step/quiz/acc")
    ('loss/train', 'loss_by_source/heldout_bpb.web', 'system/alert.slow', 'task_by_step/quiz/acc')
    """
    family, slash, rest = name.partition("/")
    if not slash:
        return _SERIES.get(name, name)
    return _FAMILIES[family] + rest.replace("/", ".") if family in _FAMILIES else name


def number(name: str) -> str:
    """Returns the name in MLflow of a metric of a record, which has one value.

    >>> number("loss"), number("alerts/slow"), number("score/high")
    ('loss', 'system/alerts.slow', 'score/high')
    """
    family, slash, rest = name.partition("/")
    return f"{SYSTEM}/{family}.{rest}" if slash and family in _FAULTS else name
