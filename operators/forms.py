"""Common parts of all DAGs of a recipe: id, tags, page text, retries, and the form of the trigger dialog."""

import json
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import pendulum
from airflow.configuration import conf
from airflow.sdk import Param

from tasks.core.config import canonical_json
from tasks.run.catalogue import PARTS, STAGES
from tasks.run.recipe import Recipe

RETRIES = {
    "owner": "sluice",
    "retries": 2,
    "retry_delay": timedelta(seconds=5),
    "retry_exponential_backoff": 2.0,
    "max_retry_delay": timedelta(minutes=5),
}
"""Only transient errors are retried: a permanent error fails the task on its first try (`operators.runs`)."""

MAPPED = {"crawl": "crawl.partitions", "canary": "canary.runs_at_once"}
"""By DAG, the recipe field with the most tasks that one of its stages is mapped to."""

_LETTERS = "Letters, digits, '.', '_' and '-'."


def dag_settings(
    recipe: Recipe,
    dag: str,
    doc: str | None,
    *,
    schedule: Any,
    timezone: str = "UTC",
) -> dict[str, Any]:
    """Returns the arguments of the DAG `<recipe>.<dag>`.

    Args:
        recipe: the recipe of the DAG.
        dag: its part of the pipeline: "crawl", "corpus", ...
        doc: docstring of the DAG file; becomes the page text. The recipe sections of the DAG's stages are appended, so
            that a changed recipe creates a new version of the DAG in the UI.
        schedule: cron expression, assets, or None. Of a recipe with `[cycle]`, the cycle starts the DAGs that make
            assets.
        timezone: zone of a cron expression.
    """
    return {
        "dag_id": f"{recipe.name}.{dag}",
        "schedule": None if recipe.cycle and dag in PARTS else schedule,
        # Airflow takes the zone of a schedule from here.
        "start_date": pendulum.datetime(2026, 1, 1, tz=timezone),
        "catchup": False,
        # The next crawl cycle starts from the one before, and two runs of one version would do the same work twice.
        "max_active_runs": 1,
        # The pools limit the tasks at one time. Airflow's default of 16 would limit those of one stage besides.
        "max_active_tasks": max(
            conf.getint("core", "max_active_tasks_per_dag"), recipe.field(MAPPED[dag]) if dag in MAPPED else 0
        ),
        "tags": ["sluice", recipe.name],
        # A DAG is registered when it is complete (`operators.dags`).
        "auto_register": False,
        "doc_md": _page(recipe, doc, dag),
        "default_args": RETRIES,
    }


def _page(recipe: Recipe, doc: str | None, dag: str) -> str:
    sections = dict.fromkeys(STAGES[stage].section for stage in recipe.stages(dag))
    settings = {section: json.loads(canonical_json(getattr(recipe, section))) for section in sections}
    code = f"```json\n{json.dumps(settings, indent=2, ensure_ascii=False)}\n```\n"
    return f"{doc or ''}\nSettings of the recipe `{recipe.name}` (version `{recipe.version}`):\n\n{code}"


def form_of(recipe: Recipe, fields: Mapping[str, str | Param]) -> dict[str, Param]:
    """Returns the form of the trigger dialog.

    Args:
        recipe: the recipe of the DAG.
        fields: recipe fields (dotted path) with their own field in the form: a description for a numeric field, or the
            complete Param.
    """
    # Airflow's form says only "Bad Request" of a value that the schema refuses. So a schema has only what its fields
    # ensure by themselves; the first task refuses the rest, and the note of the run says why (`operators.run_notes`).
    text = {"type": ["null", "string"]}
    form = {
        "version": Param(
            None,
            title="Version",
            description=f"Version of the artifacts to create. Empty: that of the run that started this one, the time "
            f"of a scheduled run, or the recipe's: {recipe.version}. {_LETTERS}",
            **text,
        ),
        "source_version": Param(
            None,
            title="Source version",
            description="Version whose artifacts, and their inputs, are read where the version above has none. Its "
            "artifacts are adopted where settings and inputs are the same, except for a crawl. Later DAGs read it "
            f"too. Enter the version alone, such as {recipe.version}, not the address of an artifact. Empty: none.",
            **text,
        ),
    }
    for path, description in fields.items():
        if isinstance(description, Param):
            form[path] = description
            continue
        value = recipe.field(path)
        kind = "integer" if isinstance(value, int) else "number"
        form[path] = Param(
            None, type=["null", kind], minimum=1, title=path, description=f"{description} Recipe: {value}"
        )
    form["overrides"] = Param(
        {},
        type="object",
        title="Overrides",
        description="Other recipe fields by dotted path, except [place]; passed on to later DAGs. "
        'Example: {"dedup.jaccard": 0.7}',
    )
    return form
