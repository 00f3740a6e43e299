"""Parts of `KubernetesStageOperator`: the command of a stage, its object, and the completion of a task."""

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextlib import suppress
from threading import Thread
from typing import Any, NoReturn

from airflow.sdk.exceptions import AirflowException, AirflowFailException
from kubernetes_asyncio.config import ConfigException

from operators import stats
from operators.pods.api import Api
from operators.pods.failure import Object, PodFailure
from operators.pods.outage import Refused, Unreachable
from operators.pods.owner import Claim
from operators.pods.refusal import connection_failure, refusal_failure
from operators.results import announce, read_result
from operators.runs import parent_key, run_of
from tasks.core.errors import InputError
from tasks.run.recipe import Recipe, find_recipe

log = logging.getLogger("sluice.pods")


DISRUPTIONS = ("evicted", "preempted", "node_lost")
"""Kinds of failure that are normal on spot nodes and do not count as retries of the task."""


START_OUTAGE_S = 300.0
"""Seconds a worker waits for an unavailable API server before it leaves the start of its pod to a retry."""


def command_of(recipe: Recipe, stage: str, member: str, context: Any) -> list[str]:
    """Returns the arguments of `python` that run the stage."""
    run = run_of(recipe, context)
    command = ["-m", "tasks", stage, "--recipe", run.recipe(recipe).text, "--version", run.version]
    command += ["--parent-key", parent_key(context)]
    if run.source_version:
        command += ["--source-version", run.source_version]
    return [*command, "--member", member] if member else command


def deadline_of(operator: Any, context: Any) -> float | None:
    """Returns the Unix time at which the task's `execution_timeout` expires, or None without one."""
    if operator.execution_timeout is None:
        return None
    began = getattr(context["ti"], "start_date", None)
    return float((began.timestamp() if began else time.time()) + operator.execution_timeout.total_seconds())


def take_object(claim: Claim, api: Api) -> Object:
    """Adopts the task's object or creates it; raises AirflowFailException for permanent failures."""
    try:
        result: Object = run_in_thread(claim.take(api))
    except Refused as error:
        # Without the right to list, objects of an earlier try cannot be found.
        hint = f"Objects of earlier tries have the label {claim.label}" if error.missing_rights else ""
        raise_failure(refusal_failure(error, claim.kind, claim.namespace), hint)
    except Unreachable as error:
        raise AirflowException(str(error)) from None
    except ConfigException as error:
        raise_failure(connection_failure(api.conn_id, error))
    return result


def has_artifact(operator: Any, context: Any) -> bool:
    """Returns whether the task's artifact is in the store."""
    recipe = find_recipe(operator.recipe)
    run = run_of(recipe, context)
    with suppress(InputError):
        return bool(read_result(run.recipe(recipe), operator.stage, run.version, operator.member))
    return False


def publish_result(operator: Any, context: Any) -> Object:
    """Returns the result from the artifact, and emits outlet events; raises InputError without artifact."""
    recipe = find_recipe(operator.recipe)
    run = run_of(recipe, context)
    result = read_result(run.recipe(recipe), operator.stage, run.version, operator.member)
    operator.result = result.to_json()
    announce(context, operator.outlets, result, run)
    stats.send_gauges(result)
    return dict(operator.result)


def finish_task(
    operator: Any, claim: Claim, api: Api, context: Any, event: Object, restart: Callable[[], Object] | None = None
) -> Object:
    """Completes the task according to the outcome of its object, and deletes the object.

    Args:
        operator: operator of the stage.
        claim: claim on its object.
        api: client of the cluster.
        context: Airflow context of the task.
        event: event of the trigger.
        restart: restarts the stage after a disruption; None: leave that to the task's retries.

    Raises:
        AirflowException: the pods failed (`raise_failure`).
        InputError: they succeeded, but there is no artifact.
    """
    failure = PodFailure.from_json(event["failure"]) if event["failure"] else None
    operator.result = {"mlflow_run_url": event["mlflow_run_url"]}  # for the link, even if the run failed
    if failure is None:
        result = _result(operator, claim, api, context, event["name"])
        delete_object(claim, api, event["name"])
        return result
    if event["gone"]:
        # The object was deleted; only the store shows whether the stage had committed its artifact before.
        with suppress(InputError):
            return publish_result(operator, context)
    for line in failure.last_lines:
        log.error("%s", line)
    # The next try adopts a kept object; after a permanent failure there is no next try.
    may_run = event["keep"] and not failure.permanent
    if not may_run:
        may_run = not delete_object(claim, api, event["name"])
    if restart is not None and failure.kind in DISRUPTIONS:
        log.warning("%s It is restarted and resumes from its newest checkpoint", failure)
        return restart()
    raise_failure(failure, claim.leftover_hint(event["name"]) if may_run else "")


def _result(operator: Any, claim: Claim, api: Api, context: Any, name: str) -> Object:
    try:
        return publish_result(operator, context)
    except InputError as error:
        delete_object(claim, api, name)  # otherwise every later try would adopt it
        remedy = "have Airflow and the pod use one store, and read the pod's log"
        raise InputError(f"{name} ended with exit code 0, but {error.cause}", remedy) from None


def raise_failure(failure: PodFailure, hint: str = "") -> NoReturn:
    """Raises the Airflow exception for a failure of the pods.

    Args:
        failure: failure of the pods.
        hint: sentence about objects that may still run, without its period; may be empty.

    Raises:
        AirflowFailException: the failure is permanent.
        AirflowException: a retry resumes from the newest checkpoint.
    """
    message = f"{failure} {hint}." if hint else str(failure)
    if failure.permanent:
        raise AirflowFailException(message) from None
    raise AirflowException(message) from None


def delete_object(claim: Claim, api: Api, name: str) -> bool:
    """Deletes an object; returns False, with a warning, if that fails."""
    try:
        run_in_thread(claim.remove(api, name))
    except (Refused, Unreachable, ConfigException) as error:
        log.warning("%s could not be deleted: %s", name, error)
        return False
    return True


def run_in_thread(work: Coroutine[Any, Any, Any]) -> Any:
    """Runs a coroutine in a new thread and returns its result or raises its exception.

    `on_kill` runs in a signal handler, where an event loop may be running already.
    """
    done: Future[Any] = Future()

    def run() -> None:
        try:
            done.set_result(asyncio.run(work))
        except BaseException as error:
            done.set_exception(error)

    Thread(target=run, name="kubernetes", daemon=True).start()
    return done.result()
