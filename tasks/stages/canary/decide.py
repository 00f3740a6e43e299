"""Stage decide: results of the confirmation -> the mixture for training, and the reason.

Reads `finalist`, and of `confirmations` the `result.json` of every arm and fresh seed; writes `mixture.json`
(`decision.Decision`), `report.md` and `evidence.json`, the runs of this cycle and earlier ones for the next
(`evidence`); logs `response.png` to the tracker.

The finalist is promoted only if the interval of its paired differences is above 0, no guarded source regresses, the A/A
arm would not have been promoted by the same rule, and the difference has the same sign at one fifth of the learning
rate. Otherwise the current mixture is kept. See `statistics` for the interval and the fit.
"""

import json
from functools import partial

from tasks.core.engine import Engine
from tasks.core.stage import Inputs, Output, Report
from tasks.formats.tokens.plan import Plan
from tasks.stages.canary import CanaryConfig
from tasks.stages.canary.cost import CycleCost
from tasks.stages.canary.decision import Decision, Screened
from tasks.stages.canary.evidence import EVIDENCE
from tasks.stages.canary.registration import ARMS, RESULT, write
from tasks.stages.canary.report import figure, markdown
from tasks.stages.canary.statistics import decide

VERSION = 5


def run(config: CanaryConfig, inputs: Inputs, output: Output, engine: Engine) -> Report:
    """Writes the decision; raises InputError if the result of a member is missing."""
    screening, arms = Screened.read(inputs["finalist"]), json.loads(inputs["finalist"].read(ARMS))
    results = [json.loads(member.read(RESULT)) for member in inputs.many("confirmations")]
    plan = Plan.open(inputs["plan"])
    decision = decide(config, screening, arms, results, CycleCost(config, plan.format.vocab_size, plan.seq_len))
    evidence = json.dumps({"cycles": screening.evidence}, indent=1, sort_keys=True).encode() + b"\n"
    report = markdown(decision).encode()
    write(output, {Decision.FILE: decision.content(), "report.md": report, EVIDENCE: evidence})
    output.log_file("response.png", partial(figure, decision))
    metrics = {"promoted": float(decision.promoted), "winner_bpb": decision.scored(decision.winner)}
    metrics |= {"current_bpb": decision.scored(decision.current), "runs": decision.runs}
    if confirmed := decision.confirmation:
        metrics["difference_low"], metrics["difference_high"] = confirmed.interval
    if sweep := decision.sweep:
        metrics |= {f"best_lr/{row.dim}": sweep.best(row) for row in sweep.widths}
        metrics["lr_transfers"] = float(sweep.transfers)
    return Report(metrics=metrics, note=decision.reason)
