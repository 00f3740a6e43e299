"""kill -9 of a Dask worker, of a stage, of the scheduler during a run. The artifact must be unaffected."""

import os
import signal

import psutil
import pytest

from tasks.demo.stack import stack_processes

CORPUS = ("extracted", "attributes", "duplicates", "documents")


@pytest.fixture(autouse=True)
def _only_this_dag(stack, smoke):
    """Prevents finished DAGs from triggering others: these tests run one DAG each."""
    for dag in ("tokens", "canary", "pretrain"):
        stack.pause(f"smoke.{dag}", True)
    yield
    for dag in ("tokens", "canary", "pretrain"):
        stack.pause(f"smoke.{dag}", False)


def same_as_undisturbed(stack, version: str, kinds: tuple[str, ...]) -> None:
    for kind in kinds:
        made, undisturbed = stack.artifact(f"smoke/{kind}", version), stack.artifact(f"smoke/{kind}")
        assert made.record.content == undisturbed.record.content, kind
        assert made.verify() == []


@pytest.mark.soak
def test_a_killed_dask_worker_only_costs_time(stack, smoke) -> None:
    run_id = corpus_anew(stack, "worker-killed")
    stack.running("smoke.corpus", run_id, "extract")
    # The nanny's children have their address in their title.
    workers = [
        one for one in stack_processes(stack.home.root, "dask-workers") if title(one).startswith("dask worker [")
    ]
    assert len(workers) == 2
    workers[0].kill()
    assert stack.finished("smoke.corpus", run_id)["state"] == "success"
    same_as_undisturbed(stack, "worker-killed", CORPUS)


def test_a_killed_stage_is_retried_and_writes_the_same_bytes(stack, smoke, airflow_until) -> None:
    stack.pause("smoke.pretrain", False)
    for kind in ("shards", "plan", "tokenizer", "mixture"):
        stack.copy(f"smoke/{kind}/dev", f"smoke/{kind}/stage-killed")
    run_id = stack.airflow.trigger("smoke.pretrain", {"version": "stage-killed"})
    task = stack.running("smoke.pretrain", run_id, "train")
    process = airflow_until(lambda: stage_process(stack, task["id"]), 30)
    process.kill()
    (retried,) = stack.done("smoke.pretrain", run_id, "train")
    stack.stop("smoke.pretrain", run_id)
    assert retried["try_number"] == 2
    same_as_undisturbed(stack, "stage-killed", ("checkpoint",))


@pytest.mark.soak
def test_a_killed_scheduler_restarts_and_finishes_the_run(stack, smoke) -> None:
    run_id = corpus_anew(stack, "scheduler-killed")
    stack.running("smoke.corpus", run_id, "extract")
    scheduler = next(one for one in stack_processes(stack.home.root, "scheduler") if one.ppid() == supervisor(stack))
    os.kill(scheduler.pid, signal.SIGKILL)
    assert stack.finished("smoke.corpus", run_id)["state"] == "success"
    same_as_undisturbed(stack, "scheduler-killed", CORPUS)


def corpus_anew(stack, version: str) -> str:
    """Starts a new corpus on the captures of the undisturbed run."""
    stack.copy("smoke/warc/dev", f"smoke/warc/{version}")
    return stack.airflow.trigger("smoke.corpus", {"version": version})


def stage_process(stack, instance: str) -> psutil.Process | None:
    """Returns the process of the stage: Airflow's task runner, once the training has started."""
    for process in stack_processes(stack.home.root, "scheduler"):
        named = title(process)
        if named.endswith(instance) and "LocalExecutor" not in named and process.children():
            return process
    return None


def title(process: psutil.Process) -> str:
    """Returns the process title without the padding of setproctitle."""
    return " ".join(process.cmdline()).strip()


def supervisor(stack) -> int:
    from tasks.demo.stack import read_status

    status = read_status(stack.home.run)
    assert status is not None
    return status.pid
