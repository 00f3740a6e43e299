"""Cycle: a month that runs by itself, from the crawl of what is due to the champion and the report of the month.

| | |
|---|---|
| reads | what the month before left: the crawl database, the index of documents, the token shards, the model |
| writes | through the other DAGs of the recipe, all at one version, such as 2026-12; and `month`, the report |
| costs | what its steps cost; while it waits for one of them it holds no worker |
| next | nothing; the next month begins when it is due, and not before this one has ended |

A step runs another DAG of the recipe: its run, with the same id in every DAG, is behind **Triggered DAG**. Clear a step
to run it again; what is finished is skipped. A month with fewer new tokens than `[cycle] min_new_tokens` ends after its
tokens, which count in the next month; one with nothing due ends after the crawl. Missed months are not made up, because
the web of that time is gone: the next run takes what has become due since.
"""

from airflow.sdk import DAG, chain

from operators.cycle import CycleStep, EnoughTokens, ReportOperator
from operators.dags import for_each_recipe
from operators.forms import dag_settings
from tasks.run.monthly.config import GATED, Cycle


@for_each_recipe("cycle")
def _build(recipe):
    cycle = recipe.cycle or Cycle()
    due = {"schedule": cycle.schedule or None, "timezone": cycle.timezone}
    with DAG(**dag_settings(recipe, "cycle", __doc__, **due)) as dag:
        tasks = []
        for step in recipe.parts:
            tasks.append(CycleStep(task_id=step, recipe=recipe.name, step=step))
            if step == GATED and step != recipe.parts[-1] and cycle.min_new_tokens:
                tasks.append(EnoughTokens(task_id="enough_tokens", recipe=recipe.name))
        # A month that ended early has a report, too; a failed one has none.
        chain(*tasks, ReportOperator(task_id="report", recipe=recipe.name, trigger_rule="none_failed"))
    return dag
