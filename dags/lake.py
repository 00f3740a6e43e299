"""Lake: writes the corpus of a version into tables of Delta Lake or Iceberg, one commit per version and table.

| | |
|---|---|
| reads | the asset `documents`, and `chunks` where the recipe makes them; takedowns in force; `[place.lake]` |
| writes | the tables `documents`, `chunks`, `scores` and `funnel` below the root of the lake |
| costs | the new rows are written once; the ids and URLs of all rows are read |
| next | nothing; a version that the tables have is not written again |

With a dedup index a version adds its new rows, without one it replaces all. Documents that are taken down leave every
version that can be read.
"""

from airflow.sdk import DAG

from operators.dags import for_each_recipe
from operators.forms import dag_settings
from operators.lake import LakeOperator
from operators.recipes import CHUNKS, asset
from tasks.run.catalogue import STAGES


@for_each_recipe("lake")
def _build(recipe):
    documents = asset(recipe.name, "documents")
    finished = documents | asset(recipe.name, CHUNKS) if recipe.has(STAGES["chunks"]) else documents
    with DAG(**dag_settings(recipe, "lake", __doc__, schedule=finished)) as dag:
        LakeOperator(task_id="lake", recipe=recipe.name)
    return dag
