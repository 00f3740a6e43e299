"""Contract of the index of a cycle: sorted, the same however it is merged, and with few open files."""

import json
import os
import resource
from pathlib import Path

import pytest

from tasks.core.artifact import ArtifactId
from tasks.core.stage import Output
from tasks.core.store import Store
from tasks.stages.crawl import publish
from tasks.stages.crawl.storage import merged_index
from tasks.stages.crawl.storage.merged_index import IndexFile, write_index
from tests.tasks.stages.crawl.site import Site
from tests.tasks.stages.crawl.test_crawl_end_to_end import config_for

FILES, LINES = 300, 4


def indexes(output: Output) -> list[IndexFile]:
    """Writes the indexes of so many WARC files, each sorted."""
    for number in range(FILES):
        name = f"{number:05d}"
        fields = json.dumps({"url": name, "filename": f"warc/{name}"})
        lines = [f"org,example)/{number * 7919 % 1000:04d}/{line} 2026 {fields}\n" for line in range(LINES)]
        with output.part(name, conserved=False) as part:
            part.write(f"index/{name}.cdxj", "".join(lines).encode())
    return [
        IndexFile(output.folder, entry.path, entry.bytes)
        for record in output.committed.values()
        for entry in record.files
    ]


def limit_with(free: int) -> int:
    """Returns the limit of open files at which this process may open `free` more."""
    open_now = {int(name) for name in os.listdir("/proc/self/fd")}
    return [number for number in range(free + len(open_now)) if number not in open_now][free - 1] + 1


def test_more_indexes_than_open_files_are_merged_into_a_sorted_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = Output(Store(str(tmp_path)), ArtifactId("demo/segment", "1"), "1" * 64)
    files = indexes(output)
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = limit_with(100)
    merged = {}
    for run_bytes in (sum(one.bytes for one in files), files[0].bytes * 30):
        monkeypatch.setattr(merged_index, "RUN_BYTES", run_bytes)
        path = f"{run_bytes}.cdxj"
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, before[1]))
        try:
            with output.part(path, conserved=False) as part:
                write_index(part, path, files, FILES * LINES)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, before)
        merged[run_bytes] = output.folder.read(path)
    whole, in_runs = merged.values()
    assert whole == in_runs
    lines = whole.decode().splitlines()
    assert len(lines) == FILES * LINES
    assert lines == sorted(lines)
    assert json.loads(lines[0].split(" ", 2)[2])["filename"] == "demo/segment/1/warc/00000"


def test_a_large_index_is_one_file_for_each_partition(crawl, monkeypatch: pytest.MonkeyPatch) -> None:
    with Site({"/": "home"}) as one, Site({"/": "home"}) as two:
        cycle = crawl(config_for(one, two, partitions=2))
    whole = cycle.warc.read("index.cdxj").decode().splitlines()
    monkeypatch.setattr(publish, "RUN_BYTES", 1)
    cycle.version = "again"
    inputs = {"segments": cycle.segments, "rendered": cycle.rendered, "crawldb": cycle.crawldb}
    split = cycle.stage("publish", inputs)
    files = split.files("index/")
    assert "index.cdxj" not in split.files()
    assert sorted(line for path in files for line in split.read(path).decode().splitlines()) == whole
    assert files == [f"index/{one.record.member}.cdxj" for one in cycle.segments if one.files("index/")]
    assert {path: split.read(path) for path in ("domains.parquet", "takedown.parquet", "manifest.parquet")} == {
        path: cycle.warc.read(path) for path in ("domains.parquet", "takedown.parquet", "manifest.parquet")
    }
