"""Shared parts of GpuPodOperator and JobSetOperator: the command of a stage, and the end of a task."""

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from threading import Thread
from typing import Any, NoReturn

from airflow.sdk.exceptions import AirflowException, AirflowFailException
from kubernetes_asyncio.config import ConfigException

from operators import stats
from operators.pods.api import Api
from operators.pods.failure import PodFailure
from operators.pods.outage import Refused, Unreachable
from operators.pods.owner import Claim
from operators.pods.refusal import no_cluster, refused
from operators.results import announce, committed
from operators.runs import parent_key, run_of
from tasks.core.errors import InputError
from tasks.run.recipe import Recipe, find_recipe

log = logging.getLogger("sluice.pods")

Object = dict[str, Any]

TAKEN_AWAY = ("evicted", "preempted", "node_lost")
"""Disruptions: normal on spot nodes, and not counted as retries of the task."""


START_OUTAGE_S = 300.0
"""Seconds a worker waits for an unavailable API server before the start of its pod is left to a retry."""


def command_of(recipe: Recipe, stage: str, member: str, context: Any) -> list[str]:
    """Returns the arguments of `python`, as in a shell."""
    run = run_of(recipe, context)
    command = ["-m", "tasks", stage, "--recipe", run.recipe(recipe).text, "--version", run.version]
    command += ["--parent-key", parent_key(context)]
    if run.source_version:
        command += ["--source-version", run.source_version]
    return [*command, "--member", member] if member else command


def deadline_of(operator: Any, context: Any) -> float | None:
    """Returns the epoch second at which the task's `execution_timeout` is over; None: it has none."""
    if operator.execution_timeout is None:
        return None
    began = getattr(context["ti"], "start_date", None)
    return float((began.timestamp() if began else time.time()) + operator.execution_timeout.total_seconds())


def taken(claim: Claim, api: Api) -> Object:
    """Starts the task's object or finds it; raises AirflowFailException for permanent failures."""
    try:
        found: Object = apart(claim.take(api))
    except Refused as error:
        # Without the right to list, objects of an earlier try cannot be found.
        earlier = f"What an earlier try has started has the label {claim.label}" if error.for_want_of_rights else ""
        ends_badly(refused(error, claim.kind, claim.namespace), earlier)
    except Unreachable as error:
        raise AirflowException(str(error)) from None
    except ConfigException as error:
        ends_badly(no_cluster(api.conn_id, error))
    return found


def made(operator: Any, context: Any) -> bool:
    """Returns whether the task's artifact is in the store."""
    recipe = find_recipe(operator.recipe)
    run = run_of(recipe, context)
    with suppress(InputError):
        return bool(committed(run.recipe(recipe), operator.stage, run.version, operator.member))
    return False


def finished(operator: Any, context: Any) -> Object:
    """Reads the artifact of the pods, emits outlet events, pushes the XCom; raises InputError where there is none."""
    recipe = find_recipe(operator.recipe)
    run = run_of(recipe, context)
    found = committed(run.recipe(recipe), operator.stage, run.version, operator.member)
    operator.result = found.to_json()
    announce(context, operator.outlets, found, run)
    stats.tell(found)
    # By hand: `do_xcom_push` of the provider would mean its sidecar container.
    context["ti"].xcom_push(key="return_value", value=operator.result)
    result: Object = operator.result
    return result


def ended(
    operator: Any, claim: Claim, api: Api, context: Any, event: Object, again: Callable[[], Object] | None = None
) -> Object:
    """Ends the task by the outcome of its object, and deletes the object.

    Args:
        operator: of the stage.
        claim: how its object is found.
        api: the cluster.
        context: of the task.
        event: of the trigger.
        again: restarts the stage after a disruption; None: leave that to the task's retries.

    Raises:
        AirflowException: it has failed (`ends_badly`).
        InputError: it succeeded, but there is no artifact.
    """
    failure = PodFailure.from_json(event["failure"]) if event["failure"] else None
    operator.result = {"mlflow_run_url": event["mlflow_run_url"]}  # for the link, also of a run that has failed
    if failure is None:
        result = _result(operator, claim, api, context, event["name"])
        removed(claim, api, event["name"])
        return result
    if event["gone"]:
        # Whether it had finished before it was removed is not in the 404 but in the store.
        with suppress(InputError):
            return finished(operator, context)
    for line in failure.last_lines:
        log.error("%s", line)
    # A kept object is for the next try; after a permanent failure there is none.
    left = event["keep"] and not failure.permanent
    if not left:
        left = not removed(claim, api, event["name"])
    if again is not None and failure.kind in TAKEN_AWAY:
        log.warning("%s It is started again and resumes from its newest checkpoint", failure)
        return again()
    ends_badly(failure, claim.left(event["name"]) if left else "")


def _result(operator: Any, claim: Claim, api: Api, context: Any, name: str) -> Object:
    try:
        return finished(operator, context)
    except InputError as error:
        removed(claim, api, name)  # or every later try would find it
        remedy = "have Airflow and the pod use one store, and read the pod's log"
        raise InputError(f"{name} ended with exit code 0, but {error.cause}", remedy) from None


def ends_badly(failure: PodFailure, left: str = "") -> NoReturn:
    """Ends the task as its pods have ended.

    Args:
        failure: what has become of them.
        left: text on what may still run, without a full stop; empty: nothing does.

    Raises:
        AirflowFailException: the failure is permanent.
        AirflowException: a retry resumes from the newest checkpoint.
    """
    message = f"{failure} {left}." if left else str(failure)
    if failure.permanent:
        raise AirflowFailException(message) from None
    raise AirflowException(message) from None


def removed(claim: Claim, api: Api, name: str) -> bool:
    """Deletes an object; returns False, with a warning, where that fails."""
    try:
        apart(claim.remove(api, name))
    except (Refused, Unreachable, ConfigException) as error:
        log.warning("%s could not be deleted: %s", name, error)
        return False
    return True


def apart(work: Coroutine[Any, Any, Any]) -> Any:
    """Runs a coroutine to its end in a thread of its own: `on_kill` runs in a signal handler, also in an event loop.

    Raises:
        BaseException: what the coroutine raised.
    """
    result: list[Any] = []
    raised: list[BaseException] = []

    def run() -> None:
        try:
            result.append(asyncio.run(work))
        except BaseException as error:
            raised.append(error)

    thread = Thread(target=run, name="kubernetes", daemon=True)
    thread.start()
    thread.join()
    if raised:
        raise raised[0]
    return result[0]
