"""Counters of a GPU from NVML, the library of NVIDIA's driver (`libnvidia-ml.so.1`).

Read by ctypes: the library comes with the driver, and five of its functions are needed. A counter that the GPU or the
driver does not have is left out.
"""

import ctypes
from collections.abc import Callable
from typing import Any

LIBRARY = "libnvidia-ml.so.1"
_TEMPERATURE_GPU, _CLOCK_SM = 0, 1
SLOWED = 0x8 | 0x20 | 0x40 | 0x80
"""Reasons for a lower clock that are a fault of the machine: hardware slowdown, heat (by software or hardware), power
brake. The usual power cap is none of them."""


class _Utilization(ctypes.Structure):
    _fields_ = [("gpu", ctypes.c_uint), ("memory", ctypes.c_uint)]


class Nvml:
    """The counters of one GPU.

    Args:
        library: the library, already initialised.
        device: handle of the GPU in it.
    """

    def __init__(self, library: Any, device: ctypes.c_void_p) -> None:
        self._library, self._device = library, device

    @classmethod
    def of(cls, uuid: str, load: Callable[[str], Any] = ctypes.CDLL) -> "Nvml | None":
        """Returns the counters of the GPU with this UUID ("GPU-5f..."); None where there is no driver, or no such GPU.

        Args:
            uuid: as CUDA reports it, with "GPU-" before it.
            load: loads a library by name; raises OSError where it is absent.
        """
        try:
            library = load(LIBRARY)
        except OSError:
            return None
        device = ctypes.c_void_p()
        if library.nvmlInit_v2() or library.nvmlDeviceGetHandleByUUID(uuid.encode(), ctypes.byref(device)):
            return None
        return cls(library, device)

    def counters(self) -> dict[str, float]:
        """Reads the counters.

        Returns:
            gpu/busy (share of the last sampling period, a second or less, in which a kernel ran), gpu/power_w,
            gpu/temperature_c, gpu/clock_mhz (of the multiprocessors) and gpu/slowed (1 where `SLOWED`, else 0).
        """
        busy, number, reasons = _Utilization(), ctypes.c_uint(), ctypes.c_ulonglong()
        found: dict[str, float] = {}
        if self._read("nvmlDeviceGetUtilizationRates", busy):
            found["gpu/busy"] = busy.gpu / 100
        if self._read("nvmlDeviceGetPowerUsage", number):
            found["gpu/power_w"] = number.value / 1000
        if self._read("nvmlDeviceGetTemperature", ctypes.c_uint(_TEMPERATURE_GPU), number):
            found["gpu/temperature_c"] = float(number.value)
        if self._read("nvmlDeviceGetClockInfo", ctypes.c_uint(_CLOCK_SM), number):
            found["gpu/clock_mhz"] = float(number.value)
        if self._read("nvmlDeviceGetCurrentClocksThrottleReasons", reasons):
            found["gpu/slowed"] = float(bool(reasons.value & SLOWED))
        return found

    def _read(self, function: str, *arguments: Any) -> bool:
        """Calls a function with the device, constants, and a reference to the last argument; returns its success."""
        *constants, target = arguments
        try:
            called = getattr(self._library, function)
        except AttributeError:  # an older driver
            return False
        return bool(called(self._device, *constants, ctypes.byref(target)) == 0)
