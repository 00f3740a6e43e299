"""Cost of a canary cycle: FLOPs of its runs, planned GPU hours and price, and how many runs a budget pays for.

All figures are planned from settings, not measured, so that the same settings give the same rounds. The unit is one
run of the small model; a run of `confirm_model` counts by its FLOPs.
"""

import math
from dataclasses import dataclass

from tasks.core.errors import RecipeError
from tasks.stages.canary import CanaryConfig
from tasks.trainer.model.config import ModelConfig
from tasks.trainer.model.shape import ModelShape, flops_per_token
from tasks.trainer.planning.config import PEAKS


@dataclass(frozen=True)
class CycleCost:
    """What the runs of a cycle cost.

    Args:
        config: settings of the cycle.
        vocab_size: of the tokenizer.
        seq_len: tokens of a sequence.
    """

    config: CanaryConfig
    vocab_size: int
    seq_len: int

    def flops(self, model: ModelConfig) -> float:
        """Returns the FLOPs of one run of a model, forward and backward."""
        tokens = self.config.steps * self.config.batch_size * self.seq_len
        return tokens * flops_per_token(ModelShape.of(model, self.vocab_size), self.seq_len)

    @property
    def parameters(self) -> int:
        """Weights of the model that decides."""
        return ModelShape.of(self.config.confirm_model or self.config.model, self.vocab_size).weights["total"]

    @property
    def gpu_hours(self) -> float:
        """Planned GPU hours of one run of the small model."""
        budget = self.config.budget
        return self.flops(self.config.model) / (PEAKS[budget.gpu] * budget.mfu) / 3600

    @property
    def confirming(self) -> float:
        """One run of the confirmation, in runs of the small model."""
        larger = self.config.confirm_model
        return self.flops(larger) / self.flops(self.config.model) if larger else 1.0

    @property
    def limit(self) -> float:
        """Runs that the budget pays for beside a sweep of widths; infinite without one."""
        budget, hours = self.config.budget, self.gpu_hours
        limits = [budget.runs] if budget.runs else []
        limits += [budget.gpu_hours / hours] if budget.gpu_hours else []
        if budget.money and budget.price_per_gpu_hour:
            limits.append(budget.money / (hours * budget.price_per_gpu_hour))
        return max(0.0, min(limits, default=math.inf) - self.swept)

    @property
    def swept(self) -> float:
        """The runs of a sweep of widths, in runs of the small model; 0 without one."""
        config, widths = self.config, self.config.widths
        if not widths:
            return 0.0
        each = sum(self.flops(widths.model_of(config.model, dim)) for dim in widths.dims) / self.flops(config.model)
        return each * len(widths.lr) * len(config.seeds)

    @property
    def reserved(self) -> float:
        """Runs of the smallest confirmation: of finalist, current mixture and A/A, and one pair at a low rate."""
        return (3 * self.config.confirmations + 2 * self.config.lr_check) * self.confirming

    def affordable(self, runs: float) -> int:
        """Returns how many more runs of the screening can start after `runs`, at most 10,000."""
        left = self.limit - self.reserved - runs
        return int(max(0.0, min(left, 10_000.0)))

    def low_rate_pairs(self, runs: float) -> int:
        """Returns with how many fresh seeds the low learning rate is checked after a screening of `runs`.

        At least one, unless the check is off: that pair is in the reserve.
        """
        left = self.limit - runs - 3 * self.config.confirmations * self.confirming
        return self.config.lr_check * int(max(1, min(self.config.confirmations, left // (2 * self.confirming))))

    def require(self, screening: int) -> None:
        """Raises RecipeError if the budget does not pay for the least cycle, with `screening` runs before it."""
        needed = screening + self.reserved
        if needed > self.limit:
            beside = " beside those of [canary.widths]" if self.swept else ""
            raise RecipeError(
                f"[canary] budget pays for {self.limit:.1f} runs{beside}, and the least cycle needs {needed:.1f}: "
                f"{screening} to screen the current mixture, its A/A arm and the others, and {self.reserved:.1f} to "
                "confirm",
                "raise the budget, or lower [canary] confirmations, seeds or steps",
            )

    def text(self, runs: float) -> str:
        """Returns what a number of runs, and with them the sweep of widths, costs, in words."""
        budget = self.config.budget
        runs = round(runs + self.swept, 2) if self.swept else runs
        hours = runs * self.gpu_hours
        each = self.flops(self.config.model)
        return (
            f"{runs:g} runs x {each:.2e} FLOPs = {runs * each:.2e} FLOPs, planned as {hours:.3g} hours of one "
            f"{budget.gpu} at {budget.mfu:.0%} of its peak, {hours * budget.price_per_gpu_hour:.2f} at "
            f"{budget.price_per_gpu_hour:g} an hour"
        )

    def most(self, first: int = 0) -> float:
        """Returns the runs of a cycle in which every round runs and a finalist is confirmed; at most the budget.

        Args:
            first: arms of the first round; 0: by the settings, with one arm for each kind of anchors.
        """
        config = self.config
        first = first or 2 + (len(config.settings) or len(config.anchors) + config.arms)
        screening = (first + (config.screenings - 1) * config.arms) * len(config.seeds)
        confirming = config.confirming_runs * self.confirming
        return min(self.limit, screening + confirming)
