"""Corpus: clean, deduplicated documents from captured pages, local files and messages.

| | |
|---|---|
| reads | the asset `warc` where the recipe crawls, and the files, streams and archives that `[extract]` names |
| writes | `extracted`, `attributes`, `duplicates`, and the asset `documents` (kept and rejected, with reasons) |
| | and `messages` and `archived`, where `[extract]` names streams and archives |
| | and `contamination`, where `[decontaminate]` names evaluation sets |
| costs | CPU: all parts run on Dask if the recipe's place names a cluster or creates one per run |
| next | `tokens` starts automatically |

No stage before `consolidate` changes or drops documents: `annotate`, `dedup` and `decontaminate` write columns beside
them, so a new threshold costs one join, not a new run. Classifiers and perplexity models are trained if the recipe
names training data.
"""

from airflow.sdk import DAG

from operators.dags import for_each_recipe
from operators.dask_cluster import on_cluster
from operators.dask_stage import dask_stages
from operators.forms import dag_settings
from operators.recipes import asset
from operators.watch import watched_files
from tasks.run.catalogue import STAGES


@for_each_recipe("corpus")
def _build(recipe):
    # Without a crawl, the recipe's schedule determines when the files are read, or the watch on them.
    schedule = (
        [asset(recipe.name, "warc")] if recipe.has(STAGES["publish"]) else watched_files(recipe) or recipe.schedule
    )
    settings = dag_settings(recipe, "corpus", __doc__, schedule=schedule, timezone=recipe.timezone)
    with DAG(**settings) as dag:
        on_cluster(recipe, dask_stages(recipe, "corpus"))
    return dag
