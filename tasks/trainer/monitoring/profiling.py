"""Profiles one step in so many on rank 0, with torch's profiler.

Writes `profiles/step-<n>.json.gz` into the run's folder, a trace that Perfetto and chrome://tracing open, and keeps the
newest ones. The stage reads them (`monitor`), so that the ranks do not wait for the arithmetic. Nothing that is
computed changes; a profiled step takes longer.
"""

import contextlib
import gzip
import logging
import shutil
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch

# torch.profiler.profile is the same and imports torch._inductor when it starts: 2.3 CPU-seconds.
from torch.autograd.profiler import profile, record_function

from tasks.trainer.monitoring.step_trace import DATA, STEP, trace_path, traces
from tasks.trainer.place import Watch

log = logging.getLogger(__name__)


class StepProfile:
    """Profiles steps on one rank; an observer of the loop.

    Args:
        run: folder of the run.
        watch: settings.
        device: of this rank.
        on: whether this rank profiles.
    """

    def __init__(self, run: Path, watch: Watch, device: torch.device, on: bool) -> None:
        self._run, self._device = run, device
        self._every, self._kept = watch.profile_every if on else 0, watch.profiles_kept
        self._profile: profile | None = None
        self._step: AbstractContextManager[Any] = contextlib.nullcontext()

    def started(self, step: int) -> None:
        """Removes the traces from a step (0-based) on, of an attempt before, which would count as the newest ones."""
        for other, path in traces(self._run).items() if self._every else ():
            if other >= step:
                path.unlink(missing_ok=True)

    def begin(self, step: int) -> None:
        """Starts the profiler if a step (0-based) is to be profiled; called before it."""
        # In the middle, away from steps that are a multiple of something else: checkpoints, checks, figures of layers.
        if not self._every or (step + 1) % self._every != self._every // 2:
            return
        self._profile = profile(use_device="cuda" if self._device.type == "cuda" else None, use_kineto=True)
        self._synchronize()
        self._profile.__enter__()  # type: ignore[no-untyped-call]
        self._step = record_function(STEP)
        self._step.__enter__()  # type: ignore[no-untyped-call]

    def waiting(self) -> AbstractContextManager[Any]:
        """Marks the wait for data within a profiled step."""
        return record_function(DATA) if self._profile else contextlib.nullcontext()

    def after_step(self, step: int, line: dict[str, Any]) -> None:
        """Ends the profile of a step and writes its trace. The run goes on if that fails."""
        if self._profile is None:
            return
        self._synchronize()
        self._step.__exit__(None, None, None)
        self._profile.__exit__(None, None, None)  # type: ignore[no-untyped-call]
        try:
            self._write(self._profile, trace_path(self._run, step))
        except (OSError, RuntimeError) as error:
            log.warning("step %d: its profile is not written: %s", step, error)
        self._profile = None

    def _write(self, profiled: profile, path: Path) -> None:
        path.parent.mkdir(exist_ok=True)
        plain, aside = (path.with_name(f".{name}") for name in (path.stem, path.name))
        profiled.export_chrome_trace(str(plain))  # type: ignore[no-untyped-call]
        with plain.open("rb") as source, gzip.open(aside, "wb", compresslevel=6) as target:
            shutil.copyfileobj(source, target)
        plain.unlink()
        aside.rename(path)  # a reader must not see a part of it
        for old in list(traces(self._run).values())[: -self._kept]:
            old.unlink(missing_ok=True)

    def _synchronize(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
