"""Corpus: clean, deduplicated documents from captured pages and local files.

| | |
|---|---|
| reads | the asset `warc` where the recipe crawls, and the files that `[extract]` names |
| makes | `extracted`, `attributes`, `duplicates`, and the asset `documents` (kept and rejected, with reasons) |
| | and `contamination`, where `[decontaminate]` names evaluation sets |
| costs | CPU: all parts run on Dask where the recipe's place names a cluster, or makes one for the run |
| next | `tokens` starts by itself |

Documents are never changed or dropped before `consolidate`: `annotate`, `dedup` and `decontaminate` write columns
beside them, so a new threshold costs one join and not a new run. Classifiers and perplexity models are trained where
the recipe names training data.
"""

from airflow.sdk import DAG

from operators.dask_cluster import on_cluster
from operators.dask_stage import dask_stages
from operators.forms import dag_settings
from operators.recipes import asset, recipes_for
from tasks.run.catalogue import STAGES

for recipe in recipes_for("corpus"):
    # Without a crawl the files are read as often as the recipe says.
    schedule = [asset(recipe.name, "warc")] if recipe.has(STAGES["publish"]) else recipe.schedule
    settings = dag_settings(recipe, "corpus", __doc__, schedule=schedule)
    with DAG(**settings):
        on_cluster(recipe, dask_stages(recipe, "corpus"))
