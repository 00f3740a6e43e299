"""Retention: removes files of old versions that nothing needs any more; their records stay.

| | |
|---|---|
| reads | the records of all artifacts, `[place.retention]` |
| writes | `.removed.json` beside the record of an artifact whose files it removes |
| costs | seconds for thousands of artifacts, and a request per removed file |
| next | nothing; reading a removed file raises an error with the time and the reason |

Files are listed first and removed after `grace_days`, and only with `[place.retention] remove`. What a registered model
traces to is never removed. `sluice gc` shows the same list, with the reason for everything that stays.
"""

from airflow.sdk import DAG

from operators.dags import for_each_recipe
from operators.forms import dag_settings
from operators.retention import RetentionOperator


@for_each_recipe("retention")
def _build(recipe):
    policy = recipe.place.retention
    due = {"schedule": policy.schedule, "timezone": policy.timezone}
    with DAG(**dag_settings(recipe, "retention", __doc__, **due)) as dag:
        RetentionOperator(task_id="retention", recipe=recipe.name)
    return dag
