"""Bytes, CPU time and memory of the record of an artifact with many parts: of its commit, and of what readers open.

    python -m benchmarks.records

Parts have eight files each, in as many folders; only their records exist. `commit` is the cost of the commit, and
`held_mb` what the records of the parts take before it. Readers: `head` opens the artifact and adds up the bytes of a
folder; `part` also reads one part, `file` one file; `paths` lists the files of one folder; `all` reads every part, one
after another. Each is a process of its own on one thread. Memory is the growth of the peak of the process, bytes are
those read from the store. `exponents` are from one number of parts to the next. Writes `records.json`.
"""

import hashlib
import json
import math
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

from benchmarks.harness import cost, keep, parser
from tasks.core.artifact import RECORD, Artifact, ArtifactId, FileEntry, PartRecord
from tasks.core.commit import commit
from tasks.core.config import Config
from tasks.core.stage import Output, Report
from tasks.core.store import Store

PARTS = (1_000, 10_000, 100_000)
FILES = 8
ADDRESS = ArtifactId("bench/words", "dev")


def records(parts: int) -> Iterator[PartRecord]:
    """Yields the records of parts whose files do not exist."""
    for number in range(parts):
        name = f"part-{number:07d}-of-{parts:07d}"
        hashes = (hashlib.sha256(f"{name} {folder}".encode()).hexdigest() for folder in range(FILES))
        yield PartRecord(
            name=name,
            rows_in=300,
            rows_out=290,
            rejected={"too_short": 10},
            files=tuple(
                FileEntry(path=f"folder{folder}/{name}.parquet", bytes=1_234_567, sha256=sha256, rows=290)
                for folder, sha256 in enumerate(hashes)
            ),
            metrics={"texts": 290.0},
        )


def _peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3


def write(root: str, parts: int) -> dict[str, Any]:
    """Commits an artifact; returns the cost."""
    output, before = Output(Store(root), ADDRESS, "1" * 64), _peak_mb()
    output.committed = {record.name: record for record in records(parts)}
    held = _peak_mb()
    begin = time.process_time()
    artifact = commit(output, "bench", 1, Config(), (), Report())
    return {
        "cpu_s": time.process_time() - begin,
        "held_mb": held - before,
        "memory_mb": _peak_mb() - held,
        "head_bytes": output.store.size(f"{ADDRESS.path}/{RECORD}"),
        "manifest_bytes": sum(one.bytes for one in artifact.record.manifests),
    }


READERS: dict[str, Callable[[Artifact, str], object]] = {
    "head": lambda artifact, name: artifact.total("folder3/").bytes,
    "part": lambda artifact, name: artifact.parts.part(name),
    "file": lambda artifact, name: artifact.entry(f"folder3/{name}.parquet"),
    "paths": lambda artifact, name: artifact.files("folder3/"),
    "all": lambda artifact, name: sum(part.rows_out for part in artifact.parts),
}


def read(root: str, parts: int, reader: str) -> dict[str, Any]:
    """Reads the artifact in one way; returns the cost."""
    sizes: list[int] = []
    original = Store.read

    def counted(store: Store, path: str) -> bytes:
        data = original(store, path)
        sizes.append(len(data))
        return data

    setattr(Store, "read", counted)  # noqa: B010  mypy has no type for a method that is replaced
    before, begin = _peak_mb(), time.process_time()
    READERS[reader](Artifact.open_at(Store(root), ADDRESS), f"part-{parts // 2:07d}-of-{parts:07d}")
    used = {"cpu_s": time.process_time() - begin, "memory_mb": _peak_mb() - before}
    return {**used, "bytes": sum(sizes), "requests": len(sizes)}


def _process(*arguments: str) -> dict[str, Any]:
    result: dict[str, Any] = json.loads(cost([sys.executable, "-m", "benchmarks.records", *arguments]).output)
    return {name: round(value, 3) for name, value in result.items()}


def _exponents(sizes: list[dict[str, Any]]) -> dict[str, list[float]]:
    """Returns the exponents of CPU time and bytes from one size to the next."""
    return {
        f"{reader}_{figure}": [
            round(math.log(two[reader][figure] / one[reader][figure]) / math.log(two["parts"] / one["parts"]), 2)
            for one, two in pairwise(sizes)
        ]
        for reader in READERS
        for figure in ("cpu_s", "bytes")
    }


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("run", nargs="*", help="folder, parts and reader of one process; for the benchmark itself")
    given = arguments.parse_args().run
    if given:
        root, parts, reader = given[0], int(given[1]), given[2]
        print(json.dumps(write(root, parts) if reader == "commit" else read(root, parts, reader)))
        return
    sizes = []
    for parts in PARTS:
        with tempfile.TemporaryDirectory() as root:
            ways = ("commit", *READERS)
            sizes.append({"parts": parts, **{way: _process(root, str(parts), way) for way in ways}})
    keep("records", {"files": FILES, "sizes": sizes, "exponents": _exponents(sizes)})


if __name__ == "__main__":
    main()
