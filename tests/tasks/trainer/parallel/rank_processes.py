"""Runs a module of this folder as all ranks of a process group. Not a test module."""

import importlib
import os
import subprocess
import sys
import traceback

import torch

from tests.tasks.trainer.forks import forked
from tests.tasks.trainer.gangs import free_port


def run_ranks(ranks: int, module: str, *arguments: str) -> list[int]:
    """Calls `main(*arguments)` of `tests.tasks.trainer.parallel.<module>` in each rank; returns the exit codes."""
    name = f"tests.tasks.trainer.parallel.{module}"
    shared = {"WORLD_SIZE": str(ranks), "MASTER_ADDR": "localhost", "MASTER_PORT": str(free_port())}
    environments = [{**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(ranks)]
    if torch.cuda.is_available():  # a forked process cannot use CUDA if this one has
        command = [sys.executable, "-W", "ignore", "-m", name, *arguments]
        started = [subprocess.Popen(command, env={**os.environ, **one}) for one in environments]
        return [process.wait(600) for process in started]
    importlib.import_module(name)
    return forked(_rank, [(name, arguments, one) for one in environments], 600)


def _rank(name: str, arguments: tuple[str, ...], environment: dict[str, str]) -> None:
    os.environ |= environment
    try:
        importlib.import_module(name).main(*arguments)
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)
