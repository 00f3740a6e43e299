"""Versions that follow one another publish what one version with all of their documents would, and forget on demand.

Run as a program it makes three versions, and kills itself with SIGKILL in a pass of the third. The kills in other
passes, and more workers, are soak: run them when dedup, dedup_index or the resolution in consolidate change.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tasks.core.artifact import Artifact, ArtifactId
from tasks.core.commit import commit
from tasks.core.errors import InputError
from tasks.core.stage import Output, Report
from tasks.core.store import Store
from tasks.formats import returned
from tasks.formats.dedup_index import DedupIndex
from tasks.formats.packed_ids import unpack
from tasks.formats.tombstones import DOCUMENT, FILE, Tombstone, Tombstones
from tasks.formats.tombstones import write as write_tombstones
from tasks.stages.consolidate.config import ConsolidateConfig
from tasks.stages.dedup.config import DedupConfig
from tasks.stages.dedup_index.config import DedupIndexConfig
from tests.conftest import run_stage_in
from tests.tasks.stages.dedup.made import corpus, document, rows_of
from tests.tasks.stages.dedup.test_buckets import edited, mixed

DEDUP, CONSOLIDATE, INDEX = (f"tasks.stages.{name}.stage" for name in ("dedup", "consolidate", "dedup_index"))
FILTERS = ConsolidateConfig(filters=("gopher_quality",))
Rows = list[dict[str, Any]]


class Cycles:
    """Runs dedup, consolidate and dedup_index over version after version of made-up documents."""

    def __init__(self, folder: Path, config: DedupConfig | None = None, **index: Any) -> None:
        self.folder = folder
        self.config = config or DedupConfig(pairs_per_part=25, records_per_bucket=300)
        self.index_config = DedupIndexConfig(enabled=True, **index)
        self.indexes: list[Artifact] = []
        self.made: list[dict[str, Artifact]] = []
        self.held: dict[str, dict[str, Any]] = {}
        self.takedowns: list[Artifact] = []

    def run(self, rows: Rows, parts: int = 2, workers: int = 0) -> dict[str, Artifact]:
        """Makes one version; `extracted` has the given documents, and those that come back."""
        version = f"c{len(self.indexes) + 1}"
        self.held |= {row["id"]: row for row in rows}
        before: dict[str, Any] = {"index": self.indexes[-1]} if self.indexes else {}
        taken: dict[str, Any] = {"takedowns": self.takedowns} if self.takedowns else {}
        inputs = corpus(self.folder, rows, parts, version=version, **self._returning())
        options: Any = {"version": version, "workers": workers}
        given = {**inputs, **before, **taken}
        duplicates = run_stage_in(self.folder, DEDUP, self.config, given, kind="duplicates", **options)
        judged = {**inputs, "duplicates": duplicates, **taken}
        documents = run_stage_in(self.folder, CONSOLIDATE, FILTERS, judged, kind="documents", **options)
        given = {"extracted": inputs["extracted"], "duplicates": duplicates, "documents": documents, **before, **taken}
        index = run_stage_in(self.folder, INDEX, self.index_config, given, kind="dedup_index", **options)
        self.indexes.append(index)
        self.made.append({**judged, "documents": documents, "index": index})
        return self.made[-1]

    def _returning(self) -> dict[str, Rows]:
        """Returns the documents that come back, as extract gives them, with what was measured of them."""
        if not self.indexes:
            return {}
        index, stones = DedupIndex.open(self.indexes[-1]), Tombstones.read([one.folder for one in self.takedowns])
        gone = [one for n in range(index.count) for one in returned.forgotten(index, stones, n).to_pylist()]
        found: dict[str, Rows] = {}
        for number in range(index.count):
            copies = returned.returning(index, returned.ids(gone), stones, number)
            if copies.num_rows:
                texts = returned.documents(index, copies).select(["id", "text"]).to_pylist()
                assert [self.held[row["id"]]["text"] for row in texts] == [row["text"] for row in texts]
                found[returned.part_name(number).replace("-", "_")] = [self.held[row["id"]] for row in texts]
        return found

    def take_down(self, *ids: str) -> None:
        """Takes documents down, from the next version on."""
        stones = [Tombstone(DOCUMENT, one, "asked", "a@example.org", "2026-01-01", "form", "test@1") for one in ids]
        output = Output(Store(str(self.folder)), ArtifactId("test/takedown", f"t{len(self.takedowns)}"), "made here")
        with output.part("takedown", conserved=False) as part, part.file(FILE) as file:
            write_tombstones(file, stones)
        self.takedowns.append(commit(output, "takedown", 1, DedupConfig(), [], Report()))

    def kept(self, number: int = -1) -> set[str]:
        return {row["id"] for row in rows_of(self.made[number]["documents"], "kept/")}

    def published(self) -> set[str]:
        """Returns the ids in the newest index."""
        index = DedupIndex.open(self.indexes[-1])
        found = [one for number in range(index.count) for one in index.names(number).column("id").to_pylist()]
        rows = [unpack(np.array(index.rows(number)["id"])).to_pylist() for number in range(index.count)]
        assert [one for several in rows for one in several] == found, "rows and names are of the same documents"
        assert len(found) == len(set(found))
        return set(found)


def poor_sometimes(rows: Rows) -> Rows:
    return [{**row, "poor": number % 9 == 4} for number, row in enumerate(rows)]


def in_cycles(rows: Rows, sizes: Sequence[int]) -> list[Rows]:
    bounds = np.cumsum([0, *sizes]).tolist()
    return [rows[begin:end] for begin, end in pairwise(bounds)]


def as_one(folder: Path, cycles: list[Rows]) -> set[str]:
    """Returns what one version with all documents keeps that prefers those of earlier cycles."""
    first = datetime(2026, 1, 1, tzinfo=UTC)
    ranked = [
        # An order of preference by cycle, then by quality: what `prefer = "first"` says of versions.
        {**row, "prose_score": 0.5 - number / 10 + row["prose_score"] / 100, "fetched_at": first}
        for number, rows in enumerate(cycles)
        for row in rows
    ]
    made = Cycles(folder)
    made.run(ranked, 3)
    return made.kept()


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.soak) for seed in (2, 3))])
def test_cycles_keep_exactly_what_one_run_with_the_same_preference_keeps(tmp_path: Path, seed: int) -> None:
    rows = poor_sometimes([{**row, "fetched_at": datetime(2026, 1, 1, tzinfo=UTC)} for row in mixed(seed, 150)])
    cycles = in_cycles(rows, [60, 50, 40])
    made = Cycles(tmp_path / "cycles")
    for part in cycles:
        made.run(part)
    kept = [made.kept(number) for number in range(3)]
    assert set.union(*kept) == as_one(tmp_path / "one", cycles) == made.published()
    assert sum(map(len, kept)) == len(made.published())
    duplicates = made.made[2]["duplicates"]
    before = kept[0] | kept[1]
    across = [row for row in rows_of(duplicates, "duplicates/") if row["duplicate_of"] in before]
    assert {row["kind"] for row in across} == {"exact", "near"}
    told = [duplicates.record.metrics[f"duplicates_of/{version}"] for version in ("c1", "c2")]
    assert sum(told) == len(across)
    assert min(told) > 0


def test_a_published_document_stays_the_keeper_though_a_better_copy_is_found(tmp_path: Path) -> None:
    poor, better = document(text(1), "a", prose_score=0.2), document(text(1), "b", prose_score=0.9)
    other = document(text(2), "c")
    made = Cycles(tmp_path / "first")
    made.run([poor, other])
    made.run([better, document(text(3), "d")])
    assert better["id"] not in made.kept()
    assert rejected(made)[better["id"]]["duplicate_of"] == poor["id"]
    by_quality = Cycles(tmp_path / "quality", DedupConfig(prefer="quality"))
    by_quality.run([poor, other])
    by_quality.run([better, document(text(3), "d")])
    assert better["id"] in by_quality.kept()
    (gone,) = rows_of(by_quality.made[1]["documents"], "replaced/")
    assert (gone["id"], gone["reason"], gone["replaced_by"]) == (poor["id"], "duplicate_exact", better["id"])
    assert poor["id"] not in by_quality.published()


def test_the_newest_capture_of_a_page_replaces_the_older_one_and_the_change_is_recorded(tmp_path: Path) -> None:
    made = Cycles(tmp_path)
    old = capture("page", edited(5, 0, np.random.default_rng(1)), 1)
    made.run([old, document(text(2), "other")])
    new = capture("page", edited(5, 1, np.random.default_rng(1)), 2, scheme="http://www.")
    broken = capture("page", "not found", 3, poor=True)
    made.run([new, broken])
    assert made.kept() == {new["id"]}
    (gone,) = rows_of(made.made[1]["documents"], "replaced/")
    assert (gone["id"], gone["reason"], gone["replaced_by"]) == (old["id"], "duplicate_page", new["id"])
    assert {old["id"], broken["id"]}.isdisjoint(made.published())
    assert new["id"] in made.published()


def test_of_two_captures_in_one_version_the_newest_that_passes_stays(tmp_path: Path) -> None:
    made = Cycles(tmp_path)
    rows = [capture("page", text(1), 1), capture("page", text(2), 3), capture("page", text(3), 4, poor=True)]
    made.run([*rows, capture("elsewhere", text(4), 1)])
    assert made.kept() == {rows[1]["id"], capture("elsewhere", text(4), 1)["id"]}
    assert rejected(made)[rows[0]["id"]]["reason"] == "duplicate_page"
    both = Cycles(tmp_path / "all", DedupConfig(pages="all"))
    both.run(rows)
    assert both.kept() == {rows[0]["id"], rows[1]["id"]}


def test_a_document_that_is_read_again_is_kept_again_and_in_the_index_once(tmp_path: Path) -> None:
    made = Cycles(tmp_path)
    source = [document(text(number), f"file{number}", source="code") for number in range(4)]
    made.run(source)
    made.run([*source, document(text(0, 1), "near"), document(text(9), "new")])
    assert made.kept() == {row["id"] for row in source} | {document(text(9), "new")["id"]}
    assert len(made.published()) == 5
    made.run([*source, document(text(10), "newer")])
    assert made.kept() == {row["id"] for row in source} | {document(text(10), "newer")["id"]}
    assert len(made.published()) == 6


def test_a_forgotten_document_leaves_no_trace_and_its_former_duplicate_comes_back(tmp_path: Path) -> None:
    made = Cycles(tmp_path)
    keeper = capture("keeper", text(1), 1, prose_score=0.9)
    copy, near = capture("copy", text(1), 1), capture("near", text(1, 1), 1)
    made.run([keeper, copy, document(text(2), "other")])
    made.run([near, document(text(3), "later")])
    assert made.published().isdisjoint({copy["id"], near["id"]})
    made.take_down(keeper["id"])
    made.run([document(text(4), "third"), document(text(1).upper(), "mirror")])
    # Of what came back the best is kept, and what is new is compared with it.
    assert len(made.kept() & {copy["id"], near["id"]}) == 1
    assert not {document(text(1).upper(), "mirror")["id"]} & made.kept()
    traces = [path for path in newest_files(made) if keeper["id"].encode() in path.read_bytes()]
    raw = bytes.fromhex(keeper["id"])
    assert traces == []
    assert not [path for path in newest_files(made) if raw in path.read_bytes()]
    made.run([document(text(5), "fourth")])
    assert made.kept() == {document(text(5), "fourth")["id"]}, "what came back once does not come back again"


def newest_files(made: Cycles) -> list[Path]:
    """Returns the files that the newest version has written, and those that its index is made of."""
    root = Path(made.indexes[-1].store.root)
    index = DedupIndex.open(made.indexes[-1])
    held = [root / made.made[-1][name].folder.path for name in ("documents", "duplicates", "index")]
    named = [
        root / files.path / f"rows/{part.name}.bin"
        for files, part in zip(index.folders, index.manifest.parts, strict=True)
    ]
    named += [path.parent.parent / "copies" / f"{path.stem}.parquet" for path in named]
    return [*named, *(path for folder in held for path in folder.rglob("*") if path.is_file())]


def test_small_parts_are_merged_and_nothing_changes_for_it(tmp_path: Path) -> None:
    rows = poor_sometimes([{**row, "fetched_at": datetime(2026, 1, 1, tzinfo=UTC)} for row in mixed(4, 160)])
    plain, merged = Cycles(tmp_path / "plain", merge=100), Cycles(tmp_path / "merged", merge=3)
    for part in in_cycles(rows, [40, 40, 40, 40]):
        plain.run(part)
        merged.run(part)
        assert plain.kept() == merged.kept()
    assert len(DedupIndex.open(plain.indexes[-1]).manifest.parts) == 8
    assert len(DedupIndex.open(merged.indexes[-1]).manifest.parts) < 5
    assert plain.published() == merged.published()


def test_an_index_whose_earlier_parts_are_gone_is_refused_by_name(tmp_path: Path) -> None:
    made = Cycles(tmp_path)
    for number in range(2):
        made.run([document(text(number), f"{number}")])
    (Path(made.indexes[0].store.root) / made.indexes[0].folder.path / ".artifact.json").unlink()
    with pytest.raises(InputError, match="has parts in test/dedup_index@c1, which is gone"):
        made.run([document(text(9), "9")])


@pytest.mark.parametrize(
    "workers", [1, pytest.param(2, marks=pytest.mark.soak), pytest.param(8, marks=pytest.mark.soak)]
)
def test_the_third_version_is_byte_identical_on_any_number_of_workers(tmp_path: Path, workers: int) -> None:
    rows = poor_sometimes(mixed(5, 120))
    made = [Cycles(tmp_path / name, merge=3) for name in ("none", "some")]
    for cycles, count in zip(made, (0, workers), strict=True):
        for part in in_cycles(rows, [50, 40, 30]):
            cycles.run(part, workers=count)
    one, other = ({name: artifact.record.content for name, artifact in cycles.made[-1].items()} for cycles in made)
    assert one == other


@pytest.mark.parametrize(
    "name",
    ["gone-", *(pytest.param(name, marks=pytest.mark.soak) for name in ("c3-part", "c3-again", "earlier-", "newest"))],
)
def test_a_version_killed_in_a_pass_resumes_and_ends_with_the_same_bytes(tmp_path: Path, name: str) -> None:
    whole = _three(tmp_path / "whole")
    killed = subprocess.run([sys.executable, "-m", __spec__.name, str(tmp_path / "killed"), name], check=False)
    assert killed.returncode == -signal.SIGKILL
    again = _three(tmp_path / "killed")
    assert {k: v.record.content for k, v in again.items()} == {k: v.record.content for k, v in whole.items()}


def _three(folder: Path) -> dict[str, Artifact]:
    rows = poor_sometimes([capture(f"p{n % 100}", row["text"], n) for n, row in enumerate(mixed(6, 130))])
    made = Cycles(folder, merge=3)
    for part in in_cycles(rows, [50, 50, 30]):
        made.run(part)
    return made.made[-1]


def _die_in(name: str) -> None:
    """Makes this process kill itself when it is to publish the record of the second part of a pass."""
    publish, seen = Store.publish, []

    def publish_or_die(store: Store, path: str, data: bytes) -> None:
        if "/c3/" in path and path.partition("/.parts/")[2].startswith(name):
            seen.append(path)
            if len(seen) == (1 if name in ("newest", "c3-again") else 2):
                os.kill(os.getpid(), signal.SIGKILL)
        publish(store, path, data)

    Store.publish = publish_or_die  # type: ignore[method-assign]


def text(seed: int, edits: int = 0) -> str:
    return edited(1000 + seed, edits, np.random.default_rng(seed))


def capture(name: str, words: str, day: int, scheme: str = "https://", **more: Any) -> dict[str, Any]:
    row = document(words, f"{name} {day}")
    fetched = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(days=day)
    return {**row, "url": f"{scheme}example.org/{name}", "warc_file": "a.warc.gz", "fetched_at": fetched, **more}


def rejected(made: Cycles) -> dict[str, dict[str, Any]]:
    return {row["id"]: row for row in rows_of(made.made[-1]["documents"], "rejected/")}


if __name__ == "__main__":
    _die_in(sys.argv[2])
    _three(Path(sys.argv[1]))
