"""Retention: removes files of old versions that nothing needs any more; their records stay.

| | |
|---|---|
| reads | the records of all artifacts, `[place.retention]` |
| writes | `.removed.json` beside the record of an artifact whose files it removes |
| costs | seconds for thousands of artifacts, and a request per removed file |
| next | nothing; reading a removed file raises an error with the time and the reason |

Files are listed first and removed after `grace_days`, and only with `[place.retention] remove`. What a registered model
traces to is never removed. `python -m tasks gc` shows the same list, with the reason for everything that stays.
"""

from airflow.sdk import DAG

from operators.forms import dag_settings
from operators.recipes import recipes_for
from operators.retention import RetentionOperator

for recipe in recipes_for("retention"):
    policy = recipe.place.retention
    with DAG(**dag_settings(recipe, "retention", __doc__, schedule=policy and policy.schedule)):
        RetentionOperator(task_id="retention", recipe=recipe.name)
