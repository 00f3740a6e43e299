"""Tokens: encodes documents into token shards and packs them into training sequences.

| | |
|---|---|
| reads | the asset `documents` |
| makes | `tokenizer`, `shards`, and the asset `tokens` (the plan: the document slices of each sequence) |
| costs | CPU: encoding runs on Dask where the recipe's place names a cluster, or makes one for the run |
| next | `canary` starts by itself, or `pretrain` where the recipe has no canaries |

Another sequence length rewrites the plan, never the tokens.
"""

from airflow.sdk import DAG

from operators.dask_cluster import on_cluster
from operators.dask_stage import dask_stages
from operators.forms import dag_settings
from operators.recipes import asset, recipes_for

for recipe in recipes_for("tokens"):
    settings = dag_settings(recipe, "tokens", __doc__, schedule=[asset(recipe.name, "documents")])
    with DAG(**settings):
        on_cluster(recipe, dask_stages(recipe, "tokens"))
