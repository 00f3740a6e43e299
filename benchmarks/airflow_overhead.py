"""Airflow's overhead: the recipe `demo` through the DAGs, and the same stages sequentially from the shell.

    python -m benchmarks.airflow_overhead [--rounds 1] [--set train.steps=150]

Both run on one stack (Airflow, MLflow, Dask, the site) started for this, in turn, each under a separate version, so
nothing is skipped. The shell runs the same commands as Airflow: members of a mapped stage two at a time,
part-wise stages on the same Dask cluster, every stage in a separate process. Airflow's time is from the trigger to
the end of the last DAG. Writes `airflow_overhead.json`: seconds of both, their ratio, seconds by DAG and by stage, and
the peak memory of the whole stack.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil

from benchmarks.harness import ROOT, keep, parser
from tasks.demo import stack
from tasks.demo.drive import CHAIN, Airflow, DagChain
from tasks.demo.home import Home
from tasks.demo.stack import stack_processes
from tasks.run.catalogue import STAGES
from tasks.run.recipe import find_recipe

ON_DASK = {"extract", "annotate", "dedup", "consolidate", "encode"}


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--rounds", type=int, default=1)
    options.add_argument("--set", action="append", default=[], help="override a number of the recipe, for both")
    given = options.parse_args()
    overrides = {name: int(value) for name, _, value in (text.partition("=") for text in given.set)}
    here = Home.here()
    home = Home(Path(tempfile.mkdtemp(prefix="sluice-overhead-")), here.ports)
    os.environ.setdefault("SLUICE_MODELS", str(here.root / "models"))
    try:
        stack.up(home)
        results = [one_round(home, number, overrides) for number in range(given.rounds)]
    finally:
        stack.down(home)
    best = min(results, key=lambda row: row["ratio"])
    keep("airflow_overhead", {"ratio": best["ratio"], "overrides": overrides, "rounds": results})


def one_round(home: Home, number: int, overrides: dict[str, int]) -> dict[str, Any]:
    with Peak(home) as peak:
        airflow_s, by_dag = through_airflow(home, f"airflow-{number}", overrides)
    shell_s, by_stage = through_shell(home, f"shell-{number}", overrides)
    return {
        "airflow_s": round(airflow_s, 1),
        "shell_s": round(shell_s, 1),
        "ratio": round(airflow_s / shell_s, 3),
        "dags_s": by_dag,
        "shell_stages_s": by_stage,
        "peak_memory_mb": peak.mb,
    }


def through_airflow(home: Home, version: str, overrides: dict[str, int]) -> tuple[float, dict[str, float]]:
    with Airflow(home.airflow_url, home.password()) as airflow:
        chain = DagChain(airflow, "demo")
        chain.wait_for_dags()
        begin = time.monotonic()
        chain.start({"version": version, "overrides": overrides})
        for dag_runs in chain.follow():
            print(
                "  ".join(f"{dag_run.dag_id} {dag_run.state} {dag_run.done}/{dag_run.total}" for dag_run in dag_runs),
                end="\r",
            )
        return time.monotonic() - begin, {dag_run.dag_id: round(dag_run.seconds, 1) for dag_run in chain.dag_runs}


def through_shell(home: Home, version: str, overrides: dict[str, int]) -> tuple[float, dict[str, float]]:
    begin = time.monotonic()
    settings = [word for name, value in overrides.items() for word in ("--set", f"{name}={value}")]
    members: tuple[str, ...] = ()
    seconds = {}
    stages = [STAGES[name] for dag in CHAIN for name in find_recipe("demo").stages(dag)]
    for stage in stages:
        began = time.monotonic()
        with ThreadPoolExecutor(2) as two:
            jobs = [
                two.submit(shell, home, stage.name, version, one, settings)
                for one in (members if stage.mapped else [""])
            ]
            members = tuple(jobs[0].result()["members"]) or members
            for job in jobs:
                job.result()
        seconds[stage.name] = round(time.monotonic() - began, 1)
    return time.monotonic() - begin, seconds


def shell(home: Home, stage: str, version: str, member: str, settings: list[str]) -> dict[str, Any]:
    command = [sys.executable, "-m", "tasks", stage, "--recipe", "demo", "--version", version]
    command += ["--dask"] if stage in ON_DASK else []
    command += ["--member", member] if member else []
    command += settings
    done = subprocess.run(command, cwd=ROOT, env=home.environment(), capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}\n{done.stderr}")
    result: dict[str, Any] = json.loads(re.findall(r"(?m)^\{.*\}$", done.stdout)[-1])
    return result


class Peak:
    """Samples the memory of all processes of a stack: proportional set size, so shared pages count once."""

    def __init__(self, home: Home) -> None:
        self.mb = 0
        self._home = home
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> "Peak":
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._end.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._end.wait(5.0):
            self.mb = max(self.mb, round(sum(map(_pss, stack_processes(self._home.root))) / 1e6))


def _pss(process: psutil.Process) -> int:
    try:
        memory = process.memory_full_info()
    except psutil.Error:
        return 0
    return int(getattr(memory, "pss", memory.rss))


if __name__ == "__main__":
    main()
