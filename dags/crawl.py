"""Crawl: one cycle over the recipe's seeds and the URLs from earlier cycles.

| | |
|---|---|
| reads | `[crawl]` of the recipe, the crawl database of the previous cycle |
| writes | per partition a `fetchlist`, a `segment`, `rendered` pages and a `crawldb`; the asset `warc` |
| costs | network and time: at most `crawl.max_pages` pages, never faster than each host allows |
| next | `corpus` starts automatically |

`inject` checks the seeds, `rank` scores hosts, `generate` selects due URLs; `fetch`, `render` and `update` follow.
From `generate` on each stage runs once per partition (members p0, p1, ... own their hosts, so politeness needs no
coordination). `publish` lists the WARC files, reports on every domain, and makes the new crawl database the current
one. A killed fetch resumes at the end of its log.
"""

from airflow.sdk import DAG

from operators.dags import for_each_recipe
from operators.forms import dag_settings
from operators.recipes import assets_of, connect
from operators.stage import StageOperator
from tasks.run.catalogue import STAGES, stages_of

FORM = {"crawl.max_pages": "Maximum number of pages in this cycle."}
POOLS = {"fetch": "crawl", "render": "crawl"}


def task_of(recipe, stage: str):
    """Returns the task of a stage; for a mapped stage, one task per partition."""
    settings = {"task_id": stage, "recipe": recipe.name, "stage": stage, "pool": POOLS.get(stage, "default_pool")}
    if STAGES[stage].mapped:
        members = [f"p{partition}" for partition in range(recipe.crawl.partitions)]
        return StageOperator.partial(**settings, map_index_template="{{ task.member }}").expand(member=members)
    # A cycle without due URLs is not a failure, but skips the downstream DAGs.
    last = bool(STAGES[stage].asset)
    return StageOperator(**settings, **assets_of(recipe, stage), skip_when_empty=last)


@for_each_recipe("crawl", form=FORM)
def _build(recipe):
    due = {"schedule": recipe.schedule, "timezone": recipe.timezone}
    with DAG(**dag_settings(recipe, "crawl", __doc__, **due)) as dag:
        connect({stage: task_of(recipe, stage) for stage in stages_of("crawl")})
    return dag
