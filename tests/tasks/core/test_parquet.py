"""Parquet is opened in one module, in a way that short processes do not abort at exit.

Run the soak tests after a change of how Parquet is opened, or of the version of Arrow.
"""

import ast
import gc
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tasks.core import parquet
from tests.tasks.stages.consolidate.test_stage import prepare, text
from tests.tasks.stages.dedup.made import document

ROOT = Path(__file__).parents[3]
ONLY_HERE = ROOT / "tasks" / "core" / "parquet.py"
OPENS = {
    "ParquetFile", "ParquetDataset", "read_table", "read_schema", "read_metadata", "read_pandas", "read_parquet",
    "read_feather", "FeatherDataset",
}  # fmt: skip
PROCESSES = 20


def opens(source: str) -> list[int]:
    """Returns the lines that open Parquet directly with Arrow or pandas."""
    found = []
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Attribute(attr=name) | ast.Name(id=name) | ast.alias(name=name) if name in OPENS:
                found.append(node.lineno)
            case ast.alias(name="pyarrow.dataset" | "dataset" | "pyarrow.feather" | "feather"):
                found.append(node.lineno)
    return found


def test_only_one_module_opens_parquet() -> None:
    files = [file for folder in ("tasks", "operators", "plugins", "dags") for file in (ROOT / folder).rglob("*.py")]
    assert ONLY_HERE in files
    assert opens(ONLY_HERE.read_text())
    assert {str(file): lines for file in files if file != ONLY_HERE and (lines := opens(file.read_text()))} == {}


@pytest.mark.parametrize(
    "code",
    [
        "import pyarrow.parquet as pq\ntable = pq.read_table(file)",
        "from pyarrow.parquet import ParquetFile",
        "from pyarrow.parquet import read_table as load",
        "with pyarrow.parquet.ParquetFile(file) as rows: pass",
        "import pyarrow.dataset as ds",
        "from pyarrow import dataset",
        "pandas.read_parquet(path)",
    ],
)
def test_other_ways_to_open_parquet_are_detected(code: str) -> None:
    assert opens(code)


def test_bytes_and_paths_give_the_same_table(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pa.table({"a": range(10), "b": [str(n) for n in range(10)]})
    path = tmp_path / "a.parquet"
    pq.write_table(table, path, row_group_size=3)
    assert parquet.read(str(path)).equals(table)
    assert parquet.from_bytes(path.read_bytes()).equals(table)
    assert parquet.read(str(path), ["b"], pa.compute.field("a") > 7).to_pydict() == {"b": ["8", "9"]}
    assert parquet.schema(str(path)) == table.schema
    with parquet.open_file(str(path)) as rows:
        assert [len(batch) for batch in rows.iter_batches(batch_size=4)] == [4, 4, 2]


@pytest.mark.soak
def test_a_process_without_rows_ends_with_an_error_and_does_not_abort(tmp_path: Path) -> None:
    """In a process that exits right after reading, threads of Arrow may still hold the data."""
    prepare(tmp_path, [document(text(seed), f"{seed}", language="fr") for seed in range(8)], parts=4)
    done = subprocess.run(
        [sys.executable, "-m", "tests.tasks.core.test_parquet", str(tmp_path), str(PROCESSES)],
        cwd=ROOT, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.stdout.split() == ["2"] * PROCESSES, done.stderr[-2000:]


def consolidate(folder: str, number: int) -> int:
    """Consolidates into a separate version, like a separate process; returns the shell's exit status."""
    from tasks.core.artifact import Artifact, ArtifactId
    from tasks.core.errors import InputError
    from tasks.core.store import Store
    from tasks.stages.consolidate.config import ConsolidateConfig
    from tests.conftest import run_stage_in

    kinds = {"extracted": "extracted", "attributes": "attributes", "duplicates": "tasks-stages-dedup-stage"}
    found = {role: Artifact.open_at(Store(folder), ArtifactId(f"test/{kind}", "dev")) for role, kind in kinds.items()}
    config = ConsolidateConfig(limits={"language": {"keep": ("en",)}})
    try:
        run_stage_in(folder, "tasks.stages.consolidate.stage", config, dict(found), version=f"v{number}")
    except InputError:
        return 2
    return 0


def main(folder: str, processes: int) -> None:
    """Prints the exit codes of processes that are forked after the imports and before Arrow starts threads."""
    import pyarrow.dataset  # noqa: F401

    import tasks.stages.consolidate.stage  # noqa: F401

    gc.freeze()  # otherwise collected at the end of each, which takes ten times as long as the rest
    for number in range(processes):
        child = os.fork()
        if not child:
            sys.exit(consolidate(folder, number))
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        print(status if status >= 0 else signal.Signals(-status).name, flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
