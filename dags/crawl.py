"""Crawl: one cycle over the recipe's seeds and over what earlier cycles found.

| | |
|---|---|
| reads | `[crawl]` of the recipe, the crawl database of the previous cycle |
| makes | per partition a `fetchlist`, a `segment`, `rendered` pages and a `crawldb`; the asset `warc` |
| costs | network and time: at most `crawl.max_pages` pages, never faster than each host allows |
| next | `corpus` starts by itself |

`inject` checks the seeds, `rank` scores hosts, `generate` selects due URLs; `fetch`, `render` and `update` follow.
From `generate` on each stage runs once per partition (members p0, p1, ... own their hosts, so politeness needs no
coordination). `publish` lists the WARC files, reports on every domain, and makes the new crawl database current. A
killed fetch resumes where its log ends.
"""

from airflow.sdk import DAG

from operators.assets import asset
from operators.forms import dag_settings
from operators.recipes import recipes_for
from operators.stage import StageOperator

STAGES = ["inject", "rank", "generate", "fetch", "render", "update", "publish"]
FORM = {"crawl.max_pages": "Most pages that this cycle fetches."}


def mapped(recipe, stage: str, **settings):
    """Returns the stage as one task per partition."""
    members = [f"p{partition}" for partition in range(recipe.crawl.partitions)]
    operator = StageOperator.partial(
        task_id=stage, recipe=recipe.name, stage=stage, map_index_template="{{ task.member }}", **settings
    )
    return operator.expand(member=members)


for recipe in recipes_for("crawl"):
    settings = dag_settings(recipe, "crawl", __doc__, stages=STAGES, schedule=recipe.schedule, form=FORM)
    with DAG(**settings):
        inject = StageOperator(task_id="inject", recipe=recipe.name, stage="inject")
        rank = StageOperator(task_id="rank", recipe=recipe.name, stage="rank")
        fetch = mapped(recipe, "fetch", pool="crawl")
        render = mapped(recipe, "render", pool="crawl")
        # A cycle with nothing due is no failure, and nothing follows it.
        publish = StageOperator(
            task_id="publish",
            recipe=recipe.name,
            stage="publish",
            outlets=[asset(recipe.name, "warc")],
            skip_when_empty=True,
        )
        [inject, rank] >> mapped(recipe, "generate") >> fetch >> render >> mapped(recipe, "update") >> publish
