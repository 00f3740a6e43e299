"""Reports invalid recipes as an import error of this file; the DAGs of other recipes are not affected.

Reads every file of `dags/recipes`, makes no DAG. Raises with a line for each problem: file, field, cause, remedy.
"""

# Not used here. The dag-processor imports, once and before it forks, what a DAG file names at its top, and every later
# parse inherits it. Named in a file that no task ever runs, the Kubernetes client (0.6 to 0.8 CPU-seconds) burdens
# neither the parsing of a recipe with a cluster nor the tasks of one without.
import airflow.providers.cncf.kubernetes.operators.pod  # noqa: F401

from operators.recipes import broken_recipes

if broken := broken_recipes():
    raise ImportError("\n".join(["these recipes cannot be used:", *broken]))
