"""GPUs: peak rates and memory, by the words of the name that CUDA reports.

Imports nothing but Python's own modules.
"""

import re

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


def peak_flops(device: str) -> float | None:
    """Returns the dense bf16 FLOP/s of a GPU by its name.

    None where it is not known: that of a CPU, of other cards, and of a part of a card (MIG).

    >>> peak_flops("NVIDIA H200"), peak_flops("NVIDIA H100 PCIe"), peak_flops("AMD EPYC")
    (989000000000000.0, 756000000000000.0, None)
    """
    words = set(re.split(r"[\s-]+", device))
    fitting = [name for name in PEAKS if set(name.split()) <= words and "MIG" not in words]
    return PEAKS[max(fitting, key=len)] if fitting else None
