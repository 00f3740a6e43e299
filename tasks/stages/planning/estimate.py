"""Stage `estimate`: predicted memory, time and cost of the recipe's training run at its place.

Reads the summary of the pack plan (vocabulary, sequence length) and, if it exists, the record of the previous version's
checkpoint, whose MFU is assumed for this run; with `[train.continual]` the run is then a later month. Writes
`estimate.json` (`tasks.trainer.planning.estimate`) and `estimate.md`. A run that its launcher would refuse is an error;
a layout that does not fit the memory is only a warning, because an estimate can be wrong. The layout is that of the
place where the estimate is computed first.
"""

import json
import logging

from tasks.core.config import canonical_json
from tasks.core.engine import Engine
from tasks.core.stage import Inputs, Output, Report
from tasks.formats.tokens.plan import SUMMARY
from tasks.trainer.model.shape import ModelShape
from tasks.trainer.place import TrainPlace
from tasks.trainer.planning.config import PlanConfig
from tasks.trainer.planning.estimate import RunEstimate, RunPerformance, estimate, planned_start
from tasks.trainer.planning.tables import number, plan_text
from tasks.trainer.tuning.memory import Workload

log = logging.getLogger("sluice.estimate")

VERSION = 4


def run(config: PlanConfig, inputs: Inputs, output: Output, engine: Engine) -> Report:
    """Writes the estimate; raises RecipeError if the run cannot be trained in the layout of the place."""
    assert config.train is not None, "the recipe sets it if the plan is enabled"
    previous = inputs.get("previous")
    train = config.train.of_month(2) if previous else config.train
    summary, place = json.loads(inputs["plan"].read(SUMMARY)), TrainPlace.of(output.place)
    load = Workload(train, ModelShape.of(train.model, summary["vocab_size"]), summary["seq_len"])
    here = config.model_copy(update={"gpus": 0})
    start = planned_start(here, load, place.layout, place.nodes, place.nproc)
    start.check()
    for warning in start.warnings:
        log.warning("[%s] %s", output.address, warning)
    start = planned_start(config, load, place.layout, place.nodes, place.nproc)
    measured = RunPerformance.of(previous.record.metrics) if previous else None
    run_estimate = estimate(config, load, start, measured, str(previous.address) if previous else "")
    if not run_estimate["memory"]["fits"]:
        log.warning("[%s] a rank needs more memory than a %s of the plan has", output.address, config.gpu)
    text = plan_text(run_estimate).encode()
    if "estimate" not in output.committed:
        with output.part("estimate", conserved=False) as part:
            for name, content in (
                ("estimate.json", canonical_json(run_estimate).encode() + b"\n"),
                ("estimate.md", text),
            ):
                with part.file(name) as file:
                    file.write(content)
    output.log_file("estimate.md", text)
    return Report(metrics=_metrics(run_estimate), note=_note(run_estimate))


def _metrics(run_estimate: RunEstimate) -> dict[str, float]:
    time, cost = run_estimate["time"], run_estimate["cost"]
    return {
        "parameters": float(run_estimate["model"]["parameters"]),
        "flops": float(time["flops"]),
        "mfu": time["mfu"],
        "gpu_hours": cost["gpu_hours"],
        "memory_gib": run_estimate["memory"]["needed_gib"],
        "price": cost["price"],
        "kwh": cost["kwh"],
        "kg_co2": cost["kg_co2"],
    }


def _note(run_estimate: RunEstimate) -> str:
    time, cost = run_estimate["time"], run_estimate["cost"]
    fits = "" if run_estimate["memory"]["fits"] else "; does not fit the memory"
    return (
        f"{number(run_estimate['model']['parameters'])} parameters, {number(time['flops'])} FLOPs, "
        f"{number(cost['gpu_hours'])} GPU-hours, {number(cost['kg_co2'])} kg CO2e{fits}"
    )
