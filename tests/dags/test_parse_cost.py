"""A DAG file costs the dag-processor less CPU than importing Kubernetes, with or without a cluster.

Soak: run it after a change of the imports of dags/.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.real_time, pytest.mark.soak]

FILES = sorted((Path(__file__).parents[2] / "dags").glob("*.py"))
CLUSTER = '[place.train]\nwhere = "kubernetes"\n[place.kubernetes]\nimage = "trainer:1"\n'


@pytest.mark.parametrize("place", ["", CLUSTER], ids=["here", "cluster"])
def test_a_dag_file_costs_less_than_importing_kubernetes(place, recipes, airflow_db):
    for name in ("one", "two", "three"):
        recipes(name, place)
    script = Path(__file__).with_name("parse_cost.py")
    ran = subprocess.run([sys.executable, str(script), *map(str, FILES)], capture_output=True, text=True, check=False)
    found = [json.loads(line[6:]) for line in ran.stdout.splitlines() if line.startswith("COSTS ")]
    print(*found)
    assert [set(costs) for costs in found] == [{path.name for path in FILES}], ran.stderr
    (kubernetes,) = [float(line.split()[1]) for line in ran.stdout.splitlines() if line.startswith("KUBERNETES ")]
    assert kubernetes > 0
    # The bound is relative: a busy or slow machine takes several times as many CPU-seconds for all of them.
    for name, seconds in found[0].items():
        assert 0 <= seconds < kubernetes, (name, seconds)
