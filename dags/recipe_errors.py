"""Reports invalid recipes as an import error of this file; the DAGs of other recipes are not affected.

Reads every file of `dags/recipes`, and makes the DAGs of valid ones to see which cannot be made; registers none. The
error has a line for each problem: file, field, cause, remedy.
"""

from pathlib import Path

# Not used here. The dag-processor imports the Airflow modules at the top of each DAG file once, before it forks, and
# every later parse inherits them. No task runs this file, so the Kubernetes client (0.6 to 0.8 CPU-seconds) slows down
# neither the parsing of a recipe with a cluster nor the tasks of a recipe without one.
import airflow.providers.cncf.kubernetes.operators.pod  # noqa: F401

from operators.dags import broken_dags
from operators.recipes import read_recipes

recipes, broken = read_recipes()
if broken := broken + broken_dags(Path(__file__).parent, recipes):
    raise ImportError("\n".join(["these recipes cannot be used:", *broken]))
