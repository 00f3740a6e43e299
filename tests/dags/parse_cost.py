"""Parses each DAG file like the dag-processor; prints CPU-seconds as JSON, after a line COSTS.

First prints the cost of importing only Kubernetes, as `KUBERNETES <seconds>`. Every figure is the least of ROUNDS: a
busy machine makes single ones up to twice as high.

Run by test_parse_cost in a separate process. The dag-processor imports a file's top-level imports of `airflow.`
into itself, then forks; only the work of the child counts, and it is repeated every 30 seconds. Here the imports of
all files come first, as in every round of the dag-processor but its first one.
"""

import importlib
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import structlog
from airflow.dag_processing.dagbag import BundleDagBag
from airflow.dag_processing.processor import _pre_import_airflow_modules

KUBERNETES = "airflow.providers.cncf.kubernetes.operators.pod"
ROUNDS = 3


def in_child(works: Callable[[], object]) -> float:
    """Returns the CPU-seconds of a forked child in which `works` returns true; -1 if it does not."""
    read, write = os.pipe()
    child = os.fork()
    if not child:
        before = time.process_time()
        good = works()
        os.write(write, json.dumps(time.process_time() - before if good else -1.0).encode())
        os._exit(0)
    os.waitpid(child, 0)
    return float(json.loads(os.read(read, 100)))


def parses(path: Path) -> bool:
    """Returns whether `path` is parsed without an error."""
    bag = BundleDagBag(str(path), bundle_path=path.parent, bundle_name="dags-folder", load_op_links=False)
    return not bag.import_errors


def cost(path: Path) -> float:
    """Returns the CPU-seconds of a forked child that parses `path`."""
    return in_child(lambda: parses(path))


if __name__ == "__main__":
    files = [Path(name) for name in sys.argv[1:]]
    kubernetes = [in_child(lambda: importlib.import_module(KUBERNETES)) for _ in range(ROUNDS)]
    for path in files:
        _pre_import_airflow_modules(str(path), structlog.get_logger())
    rounds = [[cost(path) for path in files] for _ in range(ROUNDS)]
    print("KUBERNETES", min(kubernetes))
    print("COSTS " + json.dumps({path.name: min(costs) for path, *costs in zip(files, *rounds, strict=True)}))
