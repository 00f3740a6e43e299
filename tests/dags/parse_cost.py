"""Parses each DAG file as the dag-processor does, two rounds; prints the costs in CPU-seconds as JSON, a line a round.

Run by test_parse_cost in a process of its own. The dag-processor imports what a file names at its top under `airflow.`
into itself, then forks; only what the child does counts, and it counts again every 30 seconds.
"""

import json
import os
import sys
import time
from pathlib import Path

import structlog
from airflow.dag_processing.dagbag import BundleDagBag
from airflow.dag_processing.processor import _pre_import_airflow_modules


def cost(path: Path) -> float:
    """Returns the CPU-seconds of a forked child that parses `path`."""
    _pre_import_airflow_modules(str(path), structlog.get_logger())
    read, write = os.pipe()
    child = os.fork()
    if not child:
        before = time.process_time()
        bag = BundleDagBag(str(path), bundle_path=path.parent, bundle_name="dags-folder", load_op_links=False)
        spent = -1.0 if bag.import_errors else time.process_time() - before
        os.write(write, json.dumps(spent).encode())
        os._exit(0)
    os.waitpid(child, 0)
    return float(json.loads(os.read(read, 100)))


if __name__ == "__main__":
    for _ in range(2):
        print("COSTS " + json.dumps({Path(name).name: cost(Path(name)) for name in sys.argv[1:]}))
