"""Credentials of an S3 store: copied from an Airflow connection into the environment of the task's process.

Stages do not depend on Airflow: they and their subprocesses read credentials like every AWS client. Airflow forks one
process per task, so nothing outlives the task; the values never reach a pod, an artifact or an XCom,
and Airflow masks them in logs. Temporary credentials (an assumed role) expire: the store then raises a
TransientError, and the next try uses fresh ones and resumes at the first missing part.
"""

import os
from typing import Any

from tasks.core.errors import RecipeError
from tasks.run.recipe import Recipe

_CLEARED = ("AWS_SESSION_TOKEN", "AWS_SECURITY_TOKEN", "AWS_PROFILE")
"""Settings of another AWS identity that the process may have inherited."""


def use_connection(recipe: Recipe) -> None:
    """Makes the connection of `[place] aws_conn_id` the AWS identity of this process; without one, does nothing.

    Raises:
        RecipeError: the connection does not exist or cannot be used.
    """
    conn_id = recipe.place.aws_conn_id
    if not conn_id:
        return
    # Imported here, because DAG files import this module and must not import boto3.
    from airflow.providers.amazon.aws.hooks.base_aws import AwsGenericHook
    from airflow.sdk import BaseHook
    from airflow.sdk.exceptions import AirflowException

    try:
        # Without a connection the hook would silently use the machine's own identity.
        BaseHook.get_connection(conn_id)
        hook = AwsGenericHook(aws_conn_id=conn_id, client_type="s3")
        settings = _settings(hook)
    except AirflowException as error:
        raise RecipeError(
            f'the connection "{conn_id}" of {recipe.name} cannot be used ({" ".join(str(error).split())})',
            "create it under Admin > Connections (type Amazon Web Services) or empty [place] aws_conn_id",
        ) from None
    for name in _CLEARED:
        os.environ.pop(name, None)
    os.environ.update({name: value for name, value in settings.items() if value})


def _settings(hook: Any) -> dict[str, str | None]:
    connection = hook.conn_config
    settings = {
        "AWS_DEFAULT_REGION": connection.region_name,
        "AWS_ENDPOINT_URL_S3": connection.get_service_endpoint_url(service_name="s3"),
    }
    if not (connection.aws_access_key_id or connection.role_arn):
        # The machine's own role: clients refresh its credentials themselves, so they are not copied.
        return settings
    credentials = hook.get_credentials()
    keys = {"AWS_ACCESS_KEY_ID": credentials.access_key, "AWS_SECRET_ACCESS_KEY": credentials.secret_key}
    return {**settings, **keys, "AWS_SESSION_TOKEN": credentials.token}
