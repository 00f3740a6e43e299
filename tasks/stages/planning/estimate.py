"""Stage `estimate`: what the training run of the recipe will take at its place.

Reads the summary of the pack plan (vocabulary, sequence length) and, where there is one, the record of the previous
version's checkpoint, whose MFU is taken for the next one. Writes `estimate.json` (`tasks.trainer.planning.estimate`)
and `estimate.md`. A layout that the run cannot be trained in ends it with an error; one that does not fit the memory
is a warning, since an estimate can be wrong. The layout is that of the place where the estimate is made first.
"""

import json
import logging

from tasks.core.config import canonical_json
from tasks.core.engine import Engine
from tasks.core.stage import Inputs, Output, Report
from tasks.formats.tokens.plan import SUMMARY
from tasks.trainer.model.shape import ModelShape
from tasks.trainer.parallel.fit import check_fit
from tasks.trainer.place import layout_here, ranks_here
from tasks.trainer.planning.config import PlanConfig
from tasks.trainer.planning.estimate import RunEstimate, estimate
from tasks.trainer.planning.measured import RunPerformance
from tasks.trainer.planning.tables import number, plan_text

log = logging.getLogger("sluice.estimate")

VERSION = 1


def run(config: PlanConfig, inputs: Inputs, output: Output, engine: Engine) -> Report:
    """Estimates; raises RecipeError where the run cannot be trained in the layout of the place."""
    assert config.train is not None, "the recipe fills it in where the plan is enabled"
    summary, layout = json.loads(inputs["plan"].read(SUMMARY)), layout_here()
    vocab_size, seq_len = summary["vocab_size"], summary["seq_len"]
    if layout:
        check_fit(layout, config.train, vocab_size, seq_len, layout.ranks)
    previous = inputs.get("previous")
    found = estimate(
        config,
        config.train,
        ModelShape.of(config.train.model, vocab_size),
        seq_len,
        layout,
        ranks_here(),
        RunPerformance.of(previous.record.metrics) if previous else None,
        str(previous.address) if previous else "",
    )
    if not found["memory"]["fits"]:
        log.warning("[%s] a rank needs more memory than the plan's %s has", output.address, config.gpu)
    text = plan_text(found).encode()
    if "estimate" not in output.committed:
        with output.part("estimate", conserved=False) as part:
            for name, content in (("estimate.json", canonical_json(found).encode() + b"\n"), ("estimate.md", text)):
                with part.file(name) as file:
                    file.write(content)
    output.log_file("estimate.md", text)
    return Report(metrics=_metrics(found), note=_note(found))


def _metrics(found: RunEstimate) -> dict[str, float]:
    time, money = found["time"], found["cost"]
    return {
        "parameters": float(found["model"]["parameters"]),
        "flops": float(time["flops"]),
        "mfu": time["mfu"],
        "gpu_hours": money["gpu_hours"],
        "memory_gib": found["memory"]["needed_gib"],
        "price": money["price"],
        "kwh": money["kwh"],
        "kg_co2": money["kg_co2"],
    }


def _note(found: RunEstimate) -> str:
    time, money = found["time"], found["cost"]
    fits = "" if found["memory"]["fits"] else "; does not fit the memory"
    return (
        f"{number(found['model']['parameters'])} parameters, {number(time['flops'])} FLOPs, "
        f"{number(money['gpu_hours'])} GPU-hours, {number(money['kg_co2'])} kg CO2e{fits}"
    )
