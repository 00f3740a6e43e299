"""Tokens: encodes documents into token shards and packs them into training sequences.

| | |
|---|---|
| reads | the asset `documents` |
| writes | `tokenizer`, `shards`, and the asset `tokens` (the plan: the document slices of each sequence) |
| costs | CPU: encoding runs on Dask if the recipe's place names a cluster or creates one per run |
| next | `canary` starts automatically, or `pretrain` if the recipe has no canaries |

A new sequence length rewrites only the plan, not the tokens.
"""

from airflow.sdk import DAG

from operators.dags import for_each_recipe
from operators.dask_cluster import on_cluster
from operators.dask_stage import dask_stages
from operators.forms import dag_settings
from operators.recipes import asset


@for_each_recipe("tokens")
def _build(recipe):
    settings = dag_settings(recipe, "tokens", __doc__, schedule=[asset(recipe.name, "documents")])
    with DAG(**settings) as dag:
        on_cluster(recipe, dask_stages(recipe, "tokens"))
    return dag
