"""Ranks as forked processes: a new process would import torch, which takes longer than most runs. Not a test module."""

import gc
import multiprocessing
from collections.abc import Callable, Sequence
from typing import Any


def forked(work: Callable[..., None], arguments: Sequence[tuple[Any, ...]], limit_s: float = 120) -> list[int]:
    """Calls `work` in a forked process for each tuple of arguments; returns the exit codes."""
    fork = multiprocessing.get_context("fork")
    started = [fork.Process(target=_without_garbage, args=(work, *some)) for some in arguments]
    for process in started:
        process.start()
    for process in started:
        process.join(limit_s)
        process.kill()
        process.join()
    return [process.exitcode or 0 for process in started]


def _without_garbage(work: Callable[..., None], *arguments: Any) -> None:
    # A process group of the tests' process that is collected here would wait for its threads, which only exist there.
    gc.freeze()
    gc.unfreeze = lambda: None  # called by the trainer
    work(*arguments)
