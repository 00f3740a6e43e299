"""Crawl: one cycle over the recipe's seeds and over what earlier cycles found.

| | |
|---|---|
| reads | `[crawl]` of the recipe, the crawl database of the cycle before |
| makes | `fetchlist`, one `segment` per partition, `crawldb`, and the asset `warc` |
| costs | network and time: at most `crawl.max_pages` pages, never faster than each host allows |
| next | `corpus` starts by itself |

`generate` picks what is due, `fetch` runs once per partition (its members p0, p1, ... own their hosts, so politeness
needs no coordination), `update` joins what was learned, `publish` lists the WARC files. A killed fetch goes on where
its log ends.
"""

from airflow.sdk import DAG

from operators.assets import asset
from operators.forms import dag_settings
from operators.recipes import recipes_for
from operators.stage import StageOperator

STAGES = ["generate", "fetch", "update", "publish"]
FORM = {"crawl.max_pages": "Most pages that this cycle fetches."}

for recipe in recipes_for("crawl"):
    settings = dag_settings(recipe, "crawl", __doc__, stages=STAGES, schedule=recipe.schedule, form=FORM)
    with DAG(**settings):
        generate = StageOperator(task_id="generate", recipe=recipe.name, stage="generate")
        fetch = StageOperator.partial(
            task_id="fetch", recipe=recipe.name, stage="fetch", pool="crawl", map_index_template="{{ task.member }}"
        ).expand(member=[f"p{partition}" for partition in range(recipe.crawl.partitions)])
        update = StageOperator(task_id="update", recipe=recipe.name, stage="update")
        publish = StageOperator(
            task_id="publish", recipe=recipe.name, stage="publish", outlets=[asset(recipe.name, "warc")]
        )
        generate >> fetch >> [update, publish]
