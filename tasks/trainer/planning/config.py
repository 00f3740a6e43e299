"""Settings of a plan, and the peak rates and memory of GPUs. Imports pydantic only, for the Airflow dag-processor."""

import re

from pydantic import Field, model_validator

from tasks.core.config import Config, Problems, SectionCopy, nearest
from tasks.trainer.config import TrainConfig

PEAKS = {
    "A100": 312e12,
    "A10G": 70e12,
    "A10": 125e12,
    "L4": 121e12,
    "L40": 181e12,
    "L40S": 362e12,
    "H100": 989e12,
    "H100 PCIe": 756e12,
    "H100 NVL": 835e12,
    "H200": 989e12,
    "H200 NVL": 835e12,
    "GH200": 989e12,
    "B200": 2250e12,
    "GB200": 2500e12,
}
"""FLOP/s of bf16 on tensor cores, dense, by words of the name that CUDA reports ("NVIDIA H100 80GB HBM3"); a name
without "PCIe" or "NVL" is that of the SXM module. NVIDIA's data sheets have, in TFLOP/s, dense | with sparsity, which
is twice as much (-: not stated):

NVIDIA A100 Tensor Core GPU                    312 | 624, both forms
NVIDIA A10; A10G, product brief for AWS        125 | 250; 70 | 140
NVIDIA L4; L40; L40S                           - | 242; 181 | 362; 362 | 733
NVIDIA H100 Tensor Core GPU                    - | 1,979 SXM, 1,671 NVL; 1,513 PCIe (edition of 2022)
NVIDIA H200 Tensor Core GPU                    - | 1,979 SXM, 1,671 NVL
NVIDIA GH200 Grace Hopper Superchip            990 | 1,979
NVIDIA Blackwell: HGX B200; GB200 NVL72        - | 4,500; 5,000, per GPU
"""
MEMORY_GB = {
    "A100": 80,
    "A10G": 24,
    "A10": 24,
    "L4": 24,
    "L40": 48,
    "L40S": 48,
    "H100": 80,
    "H100 PCIe": 80,
    "H100 NVL": 94,
    "H200": 141,
    "H200 NVL": 141,
    "GH200": 96,
    "B200": 180,
    "GB200": 186,
}
"""Memory in 10^9 bytes, from the same data sheets; of an A100 the larger one of two."""


class Region(Config):
    """Where GPUs stand: what their time costs, and what their energy emits."""

    price_per_gpu_hour: float = Field(default=3.0, ge=0)
    """In the currency of your choice. The default is about the price of an H100 on demand in USD: set your own."""
    gco2_per_kwh: float = Field(default=480.0, ge=0)
    """Grams of CO2 equivalent per kWh of electricity. The default is the mean of the world in 2023 (Ember, Global
    Electricity Review 2024)."""
    pue: float = Field(default=1.56, ge=1)
    """Energy of the data centre per energy of its machines. The default is the mean of those that Uptime Institute
    asked in 2024; those of large clouds state 1.1 to 1.2."""


class PlanConfig(Config):
    """What is assumed of GPUs and of the place they stand in."""

    COPIED = {"train": SectionCopy("train", when="plan.enabled")}

    enabled: bool = False
    """Estimate at the head of the DAG of training, and compare with the run at its end."""
    gpu: str = "H100"
    """One of `tasks.trainer.planning.config.PEAKS`; another name with `peak_flops` and `memory_gb`, such as "CPU"."""
    gpus: int = Field(default=0, ge=0)
    """GPUs of the run; 0: those of the place."""
    peak_flops: float = Field(default=0.0, ge=0)
    """Dense FLOP/s of one GPU in the run's precision; 0: the bf16 rate of the table."""
    memory_gb: float = Field(default=0.0, ge=0)
    """Memory of one GPU in 10^9 bytes; 0: that of the table."""
    memory_share: float = Field(default=0.9, gt=0, le=1)
    """Share of the memory that the tensors of a step may take: the allocator and the libraries need the rest."""
    mfu: float = Field(default=0.4, gt=0, le=1)
    """Model FLOPs utilisation until a run of the recipe has measured it. Published for bf16 on H100 are 0.35 to 0.46
    (torchtitan, llm-foundry)."""
    watts: float = Field(default=700.0, gt=0)
    """Of one GPU with its share of the machine. The default is the limit of one H100 SXM alone."""
    region: str = "world"
    """One of `regions`."""
    regions: dict[str, Region] = {"world": Region()}
    """Regions by name."""
    gpu_mtbf_hours: float = Field(default=50_000.0, gt=0)
    """Mean time between failures of one GPU, everything included that stops a run. The default is that of Llama 3: 419
    interruptions in 54 days on 16,384 GPUs (arXiv 2407.21783, table 5)."""
    checkpoint_s: float = Field(default=0.0, ge=0)
    """Seconds that a checkpoint delays the run; 0: its bytes per rank at 1 GB/s."""
    restart_s: float = Field(default=300.0, ge=0)
    """Seconds from a failure until the first step after it."""
    train: TrainConfig | None = Field(default=None, exclude_if=lambda train: train is None)
    """What is planned: filled in from `[train]` where the plan is enabled."""

    @property
    def active(self) -> bool:
        """Whether the stages run."""
        return self.enabled

    @property
    def peak(self) -> float:
        """FLOP/s of one GPU."""
        return self.peak_flops or PEAKS[self.gpu]

    @property
    def memory(self) -> float:
        """Bytes of one GPU that a step may take."""
        return 1e9 * (self.memory_gb or MEMORY_GB[self.gpu]) * self.memory_share

    @property
    def place(self) -> Region:
        """The region of the run."""
        return self.regions[self.region]

    @model_validator(mode="after")
    def _known(self) -> "PlanConfig":
        wrong = []
        if self.gpu not in PEAKS and not (self.peak_flops and self.memory_gb):
            known = nearest(self.gpu, PEAKS)
            wrong.append(f'.gpu: nothing is known of "{self.gpu}" ({known}): set peak_flops and memory_gb, too')
        if self.region not in self.regions:
            wrong.append(f'.region: no region "{self.region}": {nearest(self.region, self.regions)}')
        if wrong:
            raise Problems(wrong)
        return self


def peak_flops(device: str) -> float | None:
    """Returns the dense bf16 FLOP/s of a GPU by its name.

    None where it is not known: that of a CPU, of other cards, and of a part of a card (MIG).

    >>> peak_flops("NVIDIA H200"), peak_flops("NVIDIA H100 PCIe"), peak_flops("AMD EPYC")
    (989000000000000.0, 756000000000000.0, None)
    """
    words = set(re.split(r"[\s-]+", device))
    fitting = [name for name in PEAKS if set(name.split()) <= words and "MIG" not in words]
    return PEAKS[max(fitting, key=len)] if fitting else None
