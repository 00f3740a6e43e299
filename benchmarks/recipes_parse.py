"""CPU of the dag-processor for many recipes: one round over all DAG files, as it runs every 30 seconds.

    python -m benchmarks.recipes_parse [--sizes 25 50 100 200] [--before CHECKOUT]

Copies of one recipe with six DAGs. Every DAG file is parsed in a forked process with Airflow's imports, as the
dag-processor does, and with what SLUICE_IMPORTS has it import in the local stack and on Kubernetes; `parse_s` is the
CPU of these processes, and `serialize_s` what Airflow then takes to serialize the DAGs. `start_s` is paid once, when
the dag-processor starts. `before` has the same of another checkout. Writes `recipes_parse.json`: CPU-seconds by number
of recipes, and the exponent of the growth of parses between the smallest and the largest number.
"""

import importlib
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.harness import ROOT, keep, parser

RECIPE = """
name = "{name}"
[crawl]
seeds = ["http://site.localhost:18799/"]
allow_loopback = true
[tokenizer]
vocab_size = 300
[pack]
seq_len = 64
[evaluate]
[canary]
seeds = [0, 1]
"""


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--sizes", type=int, nargs="+", default=[25, 50, 100, 200])
    options.add_argument("--before", type=Path, help="another checkout")
    options.add_argument("--worker", action="store_true", help="measure the code of the working folder")
    given = options.parse_args()
    if given.worker:
        print(json.dumps([measured(size) for size in given.sizes]))
        return
    rows = worker(ROOT, given.sizes)
    if given.before:
        for row, before in zip(rows, worker(given.before, given.sizes), strict=True):
            row["before"] = {key: value for key, value in before.items() if key != "recipes"}
    first, last = rows[0], rows[-1]
    exponent = math.log(last["parse_s"] / first["parse_s"]) / math.log(last["recipes"] / first["recipes"])
    keep("recipes_parse", {"rows": rows, "exponent": round(exponent, 2)})


def worker(checkout: Path, sizes: list[int]) -> list[dict[str, Any]]:
    """Returns a row per size, measured with the code of a checkout in a process and an Airflow home of its own."""
    with tempfile.TemporaryDirectory() as home:
        changed = {
            "PYTHONPATH": str(checkout),
            "AIRFLOW_HOME": home,
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{home}/airflow.db",
        }
        command = [sys.executable, __file__, "--sizes", *map(str, sizes), "--worker"]
        done = subprocess.run(command, cwd=checkout, env={**os.environ, **changed}, stdout=subprocess.PIPE, check=True)
    result: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    return result


def measured(size: int) -> dict[str, Any]:
    """Returns the CPU-seconds of a round with `size` recipes."""
    import structlog
    from airflow.dag_processing.processor import _pre_import_airflow_modules

    from operators import recipes
    from tasks.demo.supervise import operators_of_dags

    files = sorted(Path.cwd().glob("dags/*.py"))
    for file in files:
        _pre_import_airflow_modules(str(file), structlog.get_logger())
    with tempfile.TemporaryDirectory() as name:
        for number in range(size):
            Path(name, f"r{number}.toml").write_text(RECIPE.format(name=f"r{number}"))
        os.environ["SLUICE_RECIPES"] = name
        begin = time.process_time()
        for module in operators_of_dags():
            importlib.import_module(module)
        if hasattr(recipes, "remember_recipes"):  # other checkouts may not have it
            recipes.remember_recipes()
        row = {"recipes": size, "start_s": round(time.process_time() - begin, 2), **one_round(files)}
    print(row, file=sys.stderr)
    return row


def one_round(files: list[Path]) -> dict[str, float]:
    """Parses every DAG file in a forked process; returns CPU-seconds."""
    parse_s, serialize_s = (sum(seconds) for seconds in zip(*map(_parsed, files), strict=True))
    return {"parse_s": round(parse_s, 2), "serialize_s": round(serialize_s, 2)}


def _parsed(file: Path) -> tuple[float, float]:
    """Returns the CPU-seconds of a forked process that parses a file, and of serializing its DAGs."""
    from airflow.dag_processing.dagbag import BundleDagBag
    from airflow.serialization.serialized_objects import DagSerialization

    read, write = os.pipe()
    child = os.fork()
    if not child:
        begin = time.process_time()
        bag = BundleDagBag(str(file), bundle_path=file.parent, bundle_name="dags-folder", load_op_links=False)
        parsed = time.process_time()
        for dag in bag.dags.values():
            DagSerialization.to_dict(dag)
        seconds = [parsed - begin, time.process_time() - parsed] if not bag.import_errors else None
        os.write(write, json.dumps(seconds).encode())
        os._exit(0)
    os.close(write)
    with open(read) as answer:
        parse_s, serialize_s = json.load(answer)
    os.waitpid(child, 0)
    return parse_s, serialize_s


if __name__ == "__main__":
    main()
