"""Settings of a plan, and the peak rates and memory of GPUs. Imports only pydantic, for the Airflow dag-processor."""

import re

from pydantic import Field, model_validator

from tasks.core.config import Config, Problems, SectionCopy, nearest
from tasks.trainer.config import TrainConfig
from tasks.trainer.parallel.start import Device

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
"""Dense bf16 FLOP/s on tensor cores, by words of the name that CUDA reports ("NVIDIA H100 80GB HBM3"); a name without
"PCIe" or "NVL" means the SXM module. NVIDIA's data sheets list, in TFLOP/s, dense | with sparsity, which is twice the
dense rate (-: not stated):

NVIDIA A100 Tensor Core GPU                    312 | 624, both forms
NVIDIA A10; A10G, product brief for AWS        125 | 250; 70 | 140
NVIDIA L4; L40; L40S                           - | 242; 181 | 362; 362 | 733
NVIDIA H100 Tensor Core GPU                    - | 1,979 SXM, 1,671 NVL; 1,513 PCIe (edition of 2022)
NVIDIA H200 Tensor Core GPU                    - | 1,979 SXM, 1,671 NVL
NVIDIA GH200 Grace Hopper Superchip            990 | 1,979
NVIDIA Blackwell: HGX B200; GB200 NVL72        - | 4,500; 5,000, per GPU

Runs in fp32 multiply in TF32 (`tasks.trainer.process`), whose rate is half of that in all of these data sheets. The
rate of fp8 is twice as high, but only the products of the layers are in fp8: by convention, MFU is relative to bf16.
"""
TF32 = 0.5
"""Rate of TF32, relative to bf16."""
CAPABILITY = {"A100": (8, 0), "A10": (8, 6), "A10G": (8, 6), "L4": (8, 9), "L40": (8, 9), "L40S": (8, 9)}
CAPABILITY |= dict.fromkeys(("H100", "H100 PCIe", "H100 NVL", "H200", "H200 NVL", "GH200"), (9, 0))
CAPABILITY |= dict.fromkeys(("B200", "GB200"), (10, 0))
"""Compute capability (NVIDIA, "CUDA GPU Compute Capability")."""
NODE = 8
"""GPUs of a machine of another place than the recipe's."""
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
"""Memory in 10^9 bytes, from the same data sheets; for the A100, the larger of its two versions."""

INSIDE = 450.0
"""10^9 bytes per second: NVLink of an H100 SXM (NVIDIA H100 data sheet: 900 in both directions together)."""
ACROSS = 50.0
"""10^9 bytes per second: a port of 400 Gb/s for each GPU (NVIDIA DGX H100 data sheet)."""


class Region(Config):
    """Cost and carbon intensity of a region."""

    price_per_gpu_hour: float = Field(default=3.0, ge=0)
    """In any currency. The default is about the on-demand price of an H100 in USD; set your own."""
    gco2_per_kwh: float = Field(default=480.0, ge=0)
    """Grams of CO2 equivalent per kWh of electricity. The default is the world average of 2023 (Ember, Global
    Electricity Review 2024)."""
    pue: float = Field(default=1.56, ge=1)
    """Power usage effectiveness: energy of the data center per energy of its machines. The default is the average of
    the Uptime Institute survey of 2024; large clouds report 1.1 to 1.2."""


class PlanConfig(Config):
    """Assumptions about the GPUs and their region."""

    COPIED = {"train": SectionCopy("train", when="plan.enabled")}

    enabled: bool = False
    """Whether the training DAG starts with an estimate and ends with its comparison with the run."""
    gpu: str = "H100"
    """One of `tasks.trainer.planning.config.PEAKS`; another name with `peak_flops` and `memory_gb`, such as "CPU"."""
    gpus: int = Field(default=0, ge=0)
    """Number of GPUs, on machines of `gpus_per_node`; 0: the number of the place."""
    gpus_per_node: int = Field(default=0, ge=0, exclude_if=lambda number: number == 0)
    """GPUs of a machine, which NVLink connects; 0: the `nproc` of the place, or with `gpus` at most 8."""
    nvlink_gb_s: float = Field(default=INSIDE, gt=0, exclude_if=lambda rate: rate == INSIDE)
    """10^9 bytes per second and direction between GPUs of a machine."""
    network_gb_s: float = Field(default=ACROSS, gt=0, exclude_if=lambda rate: rate == ACROSS)
    """10^9 bytes per second and direction between machines, per GPU."""
    peak_flops: float = Field(default=0.0, ge=0)
    """Dense FLOP/s of one GPU in the run's precision; 0: the rate of the table."""
    memory_gb: float = Field(default=0.0, ge=0)
    """Memory of one GPU in 10^9 bytes; 0: the value of the table."""
    memory_share: float = Field(default=0.9, gt=0, le=1)
    """Share of the memory that the tensors of a step may use; the allocator and the libraries need the rest."""
    mfu: float = Field(default=0.4, gt=0, le=1)
    """Share of the peak that a GPU reaches while it computes, used until a run of the recipe has measured its MFU.
    Published MFUs of runs that hardly wait, in bf16 on H100, are 0.35 to 0.46 (torchtitan, llm-foundry)."""
    watts: float = Field(default=700.0, gt=0)
    """Power of one GPU including its share of the machine. The default is the limit of an H100 SXM alone."""
    region: str = "world"
    """One of `regions`."""
    regions: dict[str, Region] = {"world": Region()}
    """Regions by name."""
    gpu_mtbf_hours: float = Field(default=50_000.0, gt=0)
    """Mean time between failures per GPU, including everything that stops a run. The default is that of Llama 3: 419
    interruptions in 54 days on 16,384 GPUs (arXiv 2407.21783, table 5)."""
    checkpoint_s: float = Field(default=0.0, ge=0)
    """Seconds that a checkpoint delays the run; 0: the time to write its bytes per rank at 1 GB/s."""
    restart_s: float = Field(default=300.0, ge=0)
    """Seconds from a failure to the first step after it."""
    train: TrainConfig | None = Field(default=None, exclude_if=lambda train: train is None)
    """Settings of the planned run; copied from `[train]` if the plan is enabled."""

    @property
    def active(self) -> bool:
        """Whether the recipe has the planning stages."""
        return self.enabled

    def peak(self, precision: str) -> float:
        """Returns the FLOP/s of one GPU in the precision of a run."""
        return self.peak_flops or PEAKS[self.gpu] * (TF32 if precision == "fp32" else 1)

    @property
    def device(self) -> Device:
        """What a rank computes with."""
        return Device(self.gpu, CAPABILITY.get(self.gpu))

    @property
    def memory(self) -> float:
        """Bytes of one GPU that a step may use."""
        return 1e9 * (self.memory_gb or MEMORY_GB[self.gpu]) * self.memory_share

    @property
    def place(self) -> Region:
        """The region of the run."""
        return self.regions[self.region]

    @model_validator(mode="after")
    def _known(self) -> "PlanConfig":
        problems = []
        if self.gpu not in PEAKS and not (self.peak_flops and self.memory_gb):
            hint = nearest(self.gpu, PEAKS)
            problems.append(f'.gpu: "{self.gpu}" is unknown ({hint}): set peak_flops and memory_gb, too')
        if self.region not in self.regions:
            problems.append(f'.region: no region "{self.region}": {nearest(self.region, self.regions)}')
        if problems:
            raise Problems(problems)
        return self


def peak_flops(device: str, precision: str) -> float | None:
    """Returns the dense FLOP/s of a GPU by its name, in the precision of a run.

    None if it is unknown, as for CPUs, other cards, and parts of a card (MIG).

    >>> peak_flops("NVIDIA H200", "bf16"), peak_flops("NVIDIA A100-SXM4-80GB", "fp32"), peak_flops("AMD EPYC", "bf16")
    (989000000000000.0, 156000000000000.0, None)
    """
    words = set(re.split(r"[\s-]+", device))
    matches = [name for name in PEAKS if set(name.split()) <= words and "MIG" not in words]
    return PEAKS[max(matches, key=len)] * (TF32 if precision == "fp32" else 1) if matches else None
