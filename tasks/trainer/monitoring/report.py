"""The report page of a training or fine-tuning run, and the figure of its loss.

The page starts with three sentences: result, speed, and points that need attention. Charts are inline SVG, so the page
loads no other files.
"""

import io
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from html import escape
from statistics import fmean, median
from types import MappingProxyType
from typing import Any, NamedTuple

from markupsafe import Markup

from tasks.core.pages import template
from tasks.core.terminal import duration
from tasks.formats.documents.examples import SOURCE, Examples
from tasks.trainer.config import TrainSpec
from tasks.trainer.model.shape import ModelShape, attended_length, flops_per_token
from tasks.trainer.monitoring.layer_map import maps
from tasks.trainer.monitoring.step_trace import StepFigures
from tasks.trainer.spec import epochs, open_artifact, open_plan
from tasks.trainer.tuning.memory import tuning_flops_per_token

Lines = Sequence[Mapping[str, Any]]

CHARTS = {
    "loss": "loss, nats per {unit}",
    "bpb": "held-out text, bits per byte, mean over sources",
    "grad_norm": "gradient norm before clipping",
    "lr": "learning rate",
    "tokens_per_s": "{unit}s per second, all ranks",
    "mfu": "MFU, share of the peak",
    "step_s": "seconds per step",
    "data_wait": "waiting for data, share of the step",
    "memory_gib": "peak memory of rank 0, GiB",
    "gpu/busy": "GPU busy, share of the time",
    "gpu/power_w": "power of the GPU, watts",
    "gpu/temperature_c": "temperature of the GPU, °C",
    "gpu/clock_mhz": "clock of the GPU, MHz",
}
"""Field of the step log -> title of its chart, in the order of the page; for {unit} see `_unit`."""

MAX_ROWS = 200
"""Maximum number of rows per list of the page."""

SAMPLED_SEQUENCES = 200
"""Number of sequences per source that are sampled for the attended length."""

WIDTH, HEIGHT = 640, 150
LEFT, BOTTOM, TOP = 70, 18, 6

BUCKETS = 300
"""Number of spans of steps in a long line, which shows the minimum and the maximum of each, so that spikes are kept."""

Points = Sequence[tuple[int, float]]
Box = tuple[int, int, float, float]


class RunData(NamedTuple):
    """The sequences of a run.

    Attributes:
        vocab_size: tokens of the vocabulary.
        seq_len: positions of a sequence.
        sequences: number of sequences by source.
        lengths: returns the lengths in tokens of the texts of a sequence, by source and number of the sequence.
    """

    vocab_size: int
    seq_len: int
    sequences: Mapping[str, int]
    lengths: Callable[[str, int], list[int]]

    @classmethod
    def open(cls, spec: TrainSpec) -> "RunData":
        """Opens the data of a run; raises InputError if it is missing."""
        if spec.tuning is None:
            plan = open_plan(spec)

            def in_plan(source: str, number: int) -> list[int]:
                return [int(length) for length in plan.slices(source, number)["length"]]

            return cls(plan.format.vocab_size, plan.seq_len, plan.sequences, in_plan)
        examples = Examples(open_artifact(spec.shards))

        def in_examples(source: str, number: int) -> list[int]:
            return [length for example in examples.numbers(number) for length in examples[example].lengths]

        return cls(spec.tuning.vocab_size, spec.tuning.seq_len, {SOURCE: examples.sequences}, in_examples)


def step_prefix(spec: TrainSpec) -> str:
    """Returns the prefix with which `trace` finds a step of a run."""
    return "tuned" if spec.tuning else "step"


def _unit(spec: TrainSpec) -> str:
    """Returns what the loss is a mean over, and what the log counts as tokens."""
    return "pair" if spec.tuning and spec.tuning.loss == "dpo" else "token"


def content(
    address: str,
    spec: TrainSpec,
    data: RunData,
    metrics: Lines,
    *,
    skipped: Lines = (),
    starts: Lines = (),
    alerts: Lines = (),
    faults: Lines = (),
    checkpoints: Sequence[int] = (),
    layers: Lines = (),
    profiles: Mapping[int, StepFigures] = MappingProxyType({}),
    failure: str = "",
) -> dict[str, Any]:
    """Returns the content of the page.

    Args:
        address: the artifact of the run.
        spec: the run.
        data: its sequences.
        metrics: lines of `metrics.jsonl`; values that depend on the clock may be missing.
        skipped: lines of `skipped.jsonl`.
        starts: lines of `starts.jsonl`.
        alerts: {kind, step, what, do, at}, by step.
        faults: lines of `faults.jsonl`.
        checkpoints: steps of the existing checkpoints.
        layers: lines of `layers.jsonl`.
        profiles: figures of the profiled steps, by step.
        failure: cause of a failed run; "": the run reached its last step.
    """
    speed = _speed(metrics, starts)
    resumed, unit = [start["step"] for start in starts[1:]], _unit(spec)
    return {
        "address": address,
        "recipe": address.partition("/")[0],
        "version": address.partition("@")[2],
        "sentences": [
            _result_sentence(spec, metrics, failure),
            _speed_sentence(speed, unit),
            _attention_sentence(metrics, skipped, resumed, alerts),
        ],
        "alerts": alerts,
        "faults": faults,
        "charts": [_chart(metrics, name, title.format(unit=unit)) for name, title in CHARTS.items()],
        "layers": maps(layers),
        "profiles": profiles,
        "speed": speed,
        "flops": _flops(spec, data, speed),
        "data": _data(spec, data),
        "skipped": [{"cause": "", **line, "documents": len(line["slices"])} for line in skipped],
        "starts": [{**start, "layout": _layout(start)} for start in starts],
        "tuned": spec.tuning is not None,
        "unit": unit,
        "step_prefix": step_prefix(spec),
        "model": {
            "parameters": starts[-1].get("parameters") if starts else None,
            "weights": _weights(spec),
            "method": _method(spec),
        },
        "checkpoints": [
            {"step": step, "milestone": step in spec.run.milestone_steps}
            for step in sorted({*checkpoints, *(at for at in spec.run.milestone_steps if at <= len(metrics))})
        ],
        "settings": _settings(spec, data),
    }


def page(content: Mapping[str, Any]) -> bytes:
    """Renders the result of `content` as a self-contained HTML page."""
    html: str = template(__package__, "report.html").render(**content, shown=MAX_ROWS)
    return html.encode()


def _result_sentence(spec: TrainSpec, metrics: Lines, failure: str) -> str:
    losses = [line["loss"] for line in metrics if line["loss"] is not None]
    if not losses:
        return f"No step was trained: {failure or 'the run has no step'}."
    count = max(1, len(losses) // 20)
    first, last = fmean(losses[:count]), fmean(losses[-count:])
    unit = _unit(spec)
    steps, tokens = f"{len(metrics):,} of {spec.run.steps:,} steps", f"{metrics[-1]['tokens']:,} {unit}s"
    change = f"loss {'fell' if last < first else 'rose'} from {first:.3f} to {last:.3f} nats per {unit}"
    if failure:
        return f"The run ended after {steps} and {tokens} ({failure.rstrip('.')}); until then its {change}."
    return f"The run trained {steps} on {tokens}; its {change} (means over the first and the last twentieth)."


def _speed_sentence(speed: Mapping[str, Any], unit: str) -> str:
    if "tokens_per_s" not in speed:
        return "No speed was measured."
    where = f" on {speed['ranks']} x {speed['device']}" if speed["device"] else ""
    mfu = f", {speed['mfu']:.1%} of the peak (MFU)" if "mfu" in speed else ""
    return (
        f"The median step trained {speed['tokens_per_s']:,.0f} {unit}s per second{where}{mfu} and waited "
        f"{speed['data_wait']:.1%} of its time for data; steps took {duration(speed['total_s'])} together."
    )


def _attention_sentence(metrics: Lines, skipped: Lines, resumed: Sequence[int], alerts: Lines) -> str:
    points = []
    if alerts:
        kinds = Counter(alert["kind"] for alert in alerts)
        points.append("alerts: " + ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items())))
    if skipped:
        reasons = Counter(line["reason"] for line in skipped)
        points.append("skipped steps: " + ", ".join(f"{count} {reason}" for reason, count in sorted(reasons.items())))
    if resumed:
        points.append(f"restarts: {len(resumed)}, from step {', '.join(f'{step:,}' for step in resumed[:5])}")
    if not points:
        return "Nothing needs attention: no alert, no skipped step, no restart."
    return f"Look at: {'; '.join(points)}."


def _speed(metrics: Lines, starts: Lines) -> dict[str, Any]:
    """Returns medians and extremes over the timed steps, and the device of the last start."""
    timed = [line for line in metrics if "step_s" in line]
    if not timed:
        return {}
    speed: dict[str, Any] = {"steps": len(timed), "total_s": sum(line["step_s"] for line in timed)}
    for name in ("tokens_per_s", "mfu", "data_wait"):
        if values := [line[name] for line in timed if name in line]:
            speed[name] = median(values)
    speed |= percentiles([line["step_s"] for line in timed])
    if memory := [line["memory_gib"] for line in timed if "memory_gib" in line]:
        speed["memory_gib"] = max(memory)
    newest = starts[-1] if starts else {}
    return speed | {name: newest.get(name) for name in ("ranks", "device", "peak_flops")}


def percentiles(seconds: list[float]) -> dict[str, float]:
    """Returns the nearest-rank percentiles of step times: step_s/p50, /p90, /p99 and /max; {} if there are none.

    >>> percentiles([0.1, 0.2, 0.3, 9.0])
    {'step_s/p50': 0.2, 'step_s/p90': 9.0, 'step_s/p99': 9.0, 'step_s/max': 9.0}
    """
    ordered = sorted(seconds)
    if not ordered:
        return {}
    ranks = {f"step_s/p{share}": -(-len(ordered) * share // 100) for share in (50, 90, 99)}
    return {**{name: ordered[rank - 1] for name, rank in ranks.items()}, "step_s/max": ordered[-1]}


def _flops(spec: TrainSpec, data: RunData, speed: Mapping[str, Any]) -> dict[str, Any]:
    """Returns FLOPs per token and MFU, by convention and with the attended length of the documents."""
    shape = ModelShape.of(spec.run.model, data.vocab_size)
    sources = [source for source, count in sorted(data.sequences.items()) if count and spec.weights.get(source)]
    lengths = {source: _lengths(data, source) for source in sources}
    weights = {source: spec.weights[source] for source in sources}
    attended = sum(weights[source] * attended_length(lengths[source]) for source in sources) / sum(weights.values())
    per_token = partial(tuning_flops_per_token, spec.tuning) if spec.tuning else flops_per_token
    conventional, actual = per_token(shape, data.seq_len), per_token(shape, attended)
    return {
        "weights": shape.matmul_weights,
        "seq_len": data.seq_len,
        "attended": attended,
        "usual": round(conventional),
        "needed": round(actual),
        "mfu": speed.get("mfu"),
        "mfu_needed": speed["mfu"] * actual / conventional if "mfu" in speed else None,
    }


def _layout(start: Mapping[str, Any]) -> str:
    """Returns the layout of a start as text."""
    if start["layout"] is None:
        return "the whole model on each rank, bit for bit as on one"
    return ", ".join(f"{name} = {_setting(value)}" for name, value in start["layout"].items()) or "sharded, one rank"


def _weights(spec: TrainSpec) -> str:
    """Returns a description of the initial weights."""
    if spec.initial:
        return f"the last ones of {spec.initial.artifact} (sha256 {spec.initial.sha256[:16]})"
    return f"random, of init_seed {spec.run.init_seed}"


def _method(spec: TrainSpec) -> str:
    """Returns a description of what a fine-tuning trains; "" for a pretraining."""
    if spec.tuning is None:
        return ""
    lora, loss = spec.tuning.lora, {"sft": "instructions (SFT)", "dpo": "preferences (DPO)"}[spec.tuning.loss]
    if lora is None:
        return f"all weights on {loss}"
    return f"adapters of rank {lora.rank} on {', '.join(lora.targets)} of a base in {lora.base}, on {loss}"


def _lengths(data: RunData, source: str) -> list[int]:
    """Returns the lengths of the texts in a sample of evenly spaced sequences of a source."""
    count = data.sequences[source]
    sample = range(0, count, -(-count // SAMPLED_SEQUENCES))
    return [length for number in sample for length in data.lengths(source, number)]


def _data(spec: TrainSpec, data: RunData) -> list[dict[str, Any]]:
    """Returns how much the whole run reads of each source."""
    times = epochs(spec.run, data.sequences, spec.weights, spec.anneal)
    anneal = spec.anneal.weights if spec.anneal else {}
    return [
        {
            "source": source,
            "weight": spec.weights.get(source, 0.0),
            "anneal": anneal.get(source, 0.0) if spec.anneal else None,
            "sequences": count,
            "epochs": times.get(source, 0.0),
            "tokens": round(times.get(source, 0.0) * count * data.seq_len) if count else 0,
        }
        for source, count in sorted(data.sequences.items())
    ]


def _settings(spec: TrainSpec, data: RunData) -> list[tuple[str, str]]:
    """Returns all settings of the run by dotted path, and those of its sequences."""
    settings: list[tuple[str, str]] = [("seq_len", str(data.seq_len)), ("vocab_size", str(data.vocab_size))]
    for name, value in spec.run.model_dump(mode="json").items():
        inner = value.items() if isinstance(value, dict) and value else ((None, value),)
        settings += [(f"{name}.{key}" if key else name, _setting(setting)) for key, setting in inner]
    return settings


def _setting(value: Any) -> str:
    return "none" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def _chart(metrics: Lines, name: str, title: str) -> Any:
    points = [(line["step"], float(line[name])) for line in metrics if line.get(name) is not None]
    return chart(title, points, smoothed(points) if name == "loss" else ())


def chart(title: str, points: Points, smooth: Points = ()) -> Markup:
    """Returns a chart of values over steps; empty if there are no values.

    Args:
        title: name and unit of the values.
        points: (step, value), ascending by step; values are finite.
        smooth: points of a second line on top.
    """
    if not points:
        return Markup("")
    values = [value for _, value in points]
    low, high = min(values), max(values)
    first, last = points[0][0], points[-1][0]
    # Center a line of equal values.
    margin = (high - low) * 0.04 or abs(high) * 0.1 or 1.0
    box = (first, max(last, first + 1), low - margin, high + margin)
    lines = [f'<polyline class=raw points="{_path(thinned(points), box)}"/>']
    if smooth:
        lines.append(f'<polyline class=smooth points="{_path(thinned(smooth), box)}"/>')
    texts = [
        _text(LEFT - 5, _y(high, box) + 4, _number(high), "end"),
        _text(LEFT - 5, _y(low, box) + 4, _number(low), "end") if high > low else "",
        _text(LEFT, HEIGHT - 3, f"{first:,}", "start"),
        _text(WIDTH - 2, HEIGHT - 3, f"{last:,}", "end"),
    ]
    frame = f'<path class=axis d="M{LEFT} {TOP}V{HEIGHT - BOTTOM}H{WIDTH}"/>'
    return Markup(
        f'<figure><figcaption>{escape(title)}</figcaption><svg viewBox="0 0 {WIDTH} {HEIGHT}" role=img '
        f'aria-label="{escape(title)} over steps">{frame}{"".join(lines)}{"".join(texts)}</svg></figure>'
    )


def thinned(points: Points) -> list[tuple[int, float]]:
    """Returns at most two points per span of steps, the minimum and the maximum, ascending by step.

    >>> len(thinned([(step, step % 7) for step in range(10_000)])) <= 2 * BUCKETS
    True
    """
    if len(points) <= 2 * BUCKETS:
        return list(points)
    selected = []
    for number in range(BUCKETS):
        span = points[number * len(points) // BUCKETS : (number + 1) * len(points) // BUCKETS]
        ends = {min(span, key=lambda point: point[1]), max(span, key=lambda point: point[1])}
        selected += sorted(ends)
    return selected


def smoothed(points: Points) -> list[tuple[int, float]]:
    """Returns the exponential moving average of values, over a fiftieth of them and at least ten.

    It is bias-corrected like the moments of Adam (Kingma and Ba 2015).

    >>> smoothed([(0, 2.0), (1, 2.0)])
    [(0, 2.0), (1, 2.0)]
    """
    decay = 1 - 2 / (max(10, len(points) / 50) + 1)
    mean, weight, averages = 0.0, 0.0, []
    for step, value in points:
        mean, weight = decay * mean + (1 - decay) * value, decay * weight + (1 - decay)
        averages.append((step, mean / weight))
    return averages


def _path(points: Points, box: Box) -> str:
    first, last, *_ = box
    scale = (WIDTH - LEFT) / (last - first)
    return " ".join(f"{LEFT + (step - first) * scale:.1f},{_y(value, box):.1f}" for step, value in points)


def _y(value: float, box: Box) -> float:
    *_, low, high = box
    return TOP + (HEIGHT - BOTTOM - TOP) * (high - value) / (high - low)


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x}" y="{y:.0f}" text-anchor={anchor}>{escape(text)}</text>'


def loss_curve(metrics: list[dict[str, Any]]) -> bytes:
    """Returns a PNG of the loss (nats per token) over the steps, with the learning rate beneath."""
    # Imported here, because it takes half a second. The object interface needs no display.
    from matplotlib.figure import Figure

    trained = [line for line in metrics if line["loss"] is not None]
    steps = [line["step"] for line in trained]
    figure = Figure(figsize=(7, 5), layout="constrained")
    loss, rate = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    loss.plot(steps, [line["loss"] for line in trained], linewidth=1)
    loss.set_ylabel("loss, nats per token")
    loss.grid(alpha=0.3)
    rate.plot(steps, [line["lr"] for line in trained], linewidth=1)
    rate.set(xlabel="step", ylabel="learning rate")
    picture = io.BytesIO()
    figure.savefig(picture, format="png", dpi=110)
    return picture.getvalue()
