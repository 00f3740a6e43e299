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

from operators.assets import asset
from operators.dask_cluster import on_cluster
from operators.dask_stage import DaskStageOperator
from operators.forms import dag_settings
from operators.recipes import recipes_for

STAGES = ["tokenizer", "encode", "pack"]

for recipe in recipes_for("tokens"):
    settings = dag_settings(recipe, "tokens", __doc__, stages=STAGES, schedule=[asset(recipe.name, "documents")])
    with DAG(**settings):
        tokenizer = DaskStageOperator(task_id="tokenizer", recipe=recipe.name, stage="tokenizer", pool="dask")
        encode = DaskStageOperator(task_id="encode", recipe=recipe.name, stage="encode", pool="dask")
        pack = DaskStageOperator(
            task_id="pack", recipe=recipe.name, stage="pack", pool="dask", outlets=[asset(recipe.name, "tokens")]
        )
        on_cluster(recipe, [tokenizer, encode, pack])
