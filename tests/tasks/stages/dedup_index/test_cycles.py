"""Consecutive versions publish the same as one version with all documents, and forget on demand.

Run as a program it makes four versions, and kills itself with SIGKILL in a pass of the last one. The kills in other
passes, and more workers, are soak: run them when dedup, dedup_index or the resolution in consolidate change.
"""

import json
import shutil
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

from tasks.core.artifact import Artifact
from tasks.core.errors import InputError
from tasks.formats.dedup.dedup_index import DedupIndex
from tasks.formats.documents.tombstones import DOCUMENT, DOMAIN, URL
from tasks.stages.dedup import DedupConfig
from tests.conftest import SCATTERED
from tests.kills import die_in
from tests.soak import soak_but
from tests.tasks.stages.dedup.made import document, rows_of
from tests.tasks.stages.dedup.test_buckets import edited, mixed
from tests.tasks.stages.dedup_index.cycles import Cycles, Rows


def poor_sometimes(rows: Rows) -> Rows:
    return [{**row, "poor": number % 9 == 4} for number, row in enumerate(rows)]


def in_cycles(rows: Rows, sizes: Sequence[int]) -> list[Rows]:
    bounds = np.cumsum([0, *sizes]).tolist()
    return [rows[begin:end] for begin, end in pairwise(bounds)]


def text(seed: int, edits: int = 0) -> str:
    return edited(1000 + seed, edits, np.random.default_rng(seed))


def capture(name: str, words: str, day: int, scheme: str = "https://", **more: Any) -> dict[str, Any]:
    row = document(words, f"{name} {day}")
    fetched = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(days=day)
    return {**row, "url": f"{scheme}example.org/{name}", "warc_file": "a.warc.gz", "fetched_at": fetched, **more}


def filler(number: int) -> dict[str, Any]:
    """A document unrelated to all others, so that a version has something to publish."""
    return document(text(500 + number), f"filler {number}")


def as_one(folder: Path, cycles: list[Rows]) -> list[str]:
    """Returns the kept documents of one version with all documents that prefers those of earlier cycles."""
    first = datetime(2026, 1, 1, tzinfo=UTC)
    ranked = [
        # Order of preference: by cycle, then by quality, as `prefer = "first"` over versions.
        {**row, "prose_score": 0.5 - number / 10 + row["prose_score"] / 100, "fetched_at": first}
        for number, rows in enumerate(cycles)
        for row in rows
    ]
    made = Cycles(folder)
    made.run(ranked, 3)
    return made.kept()


@pytest.mark.parametrize("seed", soak_but({0}, [1, 2, 3]))
def test_cycles_keep_the_same_documents_as_one_run_with_the_same_preference(tmp_path: Path, seed: int) -> None:
    rows = poor_sometimes([{**row, "fetched_at": datetime(2026, 1, 1, tzinfo=UTC)} for row in mixed(seed, 150)])
    cycles = in_cycles(rows, [60, 50, 40])
    made = Cycles(tmp_path / "cycles")
    for part in cycles:
        made.run(part)
    kept = [made.kept(number) for number in range(3)]
    assert sorted(one for several in kept for one in several) == as_one(tmp_path / "one", cycles) == made.published()
    duplicates = made.made[2]["duplicates"]
    before = {*kept[0], *kept[1]}
    across = [row for row in rows_of(duplicates, "duplicates/") if row["duplicate_of"] in before]
    assert {row["kind"] for row in across} == {"exact", "near"}
    told = [duplicates.record.metrics[f"duplicates_of/{version}"] for version in ("c1", "c2")]
    assert sum(told) == len(across)
    assert min(told) > 0


def test_a_published_document_stays_the_keeper_even_if_a_better_copy_appears(tmp_path: Path) -> None:
    poor, better = document(text(1), "a", prose_score=0.2), document(text(1), "b", prose_score=0.9)
    made = Cycles(tmp_path / "first")
    made.run([poor, filler(1)])
    made.run([better, filler(2)])
    assert made.rejected()[better["id"]] == ("duplicate_exact", poor["id"])
    by_quality = Cycles(tmp_path / "quality", DedupConfig(prefer="quality"))
    by_quality.run([poor, filler(1)])
    by_quality.run([better, filler(2)])
    assert better["id"] in by_quality.kept()
    assert by_quality.replaced() == {poor["id"]: ("duplicate_exact", better["id"])}
    assert poor["id"] not in by_quality.published()
    by_quality.take_down(better["id"])
    by_quality.run([filler(3)])
    assert by_quality.kept() == sorted([poor["id"], filler(3)["id"]]), "what was replaced stands again"


def test_the_newest_capture_of_a_page_replaces_the_older_one_and_the_change_is_recorded(tmp_path: Path) -> None:
    made = Cycles(tmp_path)
    old = capture("page", edited(5, 0, np.random.default_rng(1)), 1)
    made.run([old, filler(1)])
    new = capture("page", edited(5, 1, np.random.default_rng(1)), 2, scheme="http://www.")
    broken = capture("page", "not found", 3, poor=True)
    made.run([new, broken])
    assert made.kept() == [new["id"]]
    assert made.replaced() == {old["id"]: ("duplicate_page", new["id"])}
    assert made.published() == sorted([new["id"], filler(1)["id"]])


def test_of_two_captures_in_one_version_the_newest_passing_one_is_kept(tmp_path: Path) -> None:
    made = Cycles(tmp_path)
    rows = [capture("page", text(1), 1), capture("page", text(2), 3), capture("page", text(3), 4, poor=True)]
    made.run([*rows, capture("elsewhere", text(4), 1)])
    assert made.kept() == sorted([rows[1]["id"], capture("elsewhere", text(4), 1)["id"]])
    assert made.rejected()[rows[0]["id"]] == ("duplicate_page", rows[1]["id"])
    both = Cycles(tmp_path / "all", DedupConfig(pages="all"))
    both.run(rows)
    assert both.kept() == sorted([rows[0]["id"], rows[1]["id"]])


def test_a_page_is_published_again_only_if_its_text_changed(tmp_path: Path) -> None:
    made = Cycles(tmp_path)
    said = [text(1), text(1).upper(), text(1), text(2), text(3), text(1)]
    for day, words in enumerate(said):
        # The same words in other bytes, then other words, and finally the first bytes again.
        row = capture("page", words, 0 if day == 5 else day)
        made.run([{**row, "fetched_at": capture("", "", day)["fetched_at"]}, filler(day)])
    made.run([filler(9)])
    ids = [capture("page", "", day)["id"] for day in (0, 3, 4)]
    published = [[one for one in made.kept(number) if one in ids] for number in range(7)]
    assert published == [[ids[0]], [], [], [ids[1]], [ids[2]], [ids[0]], []]
    assert made.published().count(ids[0]) == 1
    # No earlier capture of the page comes back: all were dropped for its current text.
    assert made.returned() == []
    assert {keeper for _, keeper in made.copies()} == {ids[0]}


def test_a_document_that_is_read_again_is_kept_again_and_indexed_once(tmp_path: Path) -> None:
    made = Cycles(tmp_path)
    source = [document(text(number), f"file{number}", source="code") for number in range(4)]
    source.append(document("...", "no words", source="code"))
    made.run(source)
    assert made.made[0]["duplicates"].record.metrics["clusters"] == 0
    made.run([*source, document(text(0, 1), "near"), filler(1)])
    assert made.kept() == sorted([*(row["id"] for row in source), filler(1)["id"]])
    metrics = made.made[1]["duplicates"].record.metrics
    assert (metrics["clusters"], metrics["largest_cluster"]) == (1, 2), "a document is no cluster with itself"
    assert len(made.published()) == 6
    made.run([*source, filler(2)])
    assert made.kept() == sorted([*(row["id"] for row in source), filler(2)["id"]])
    assert len(made.published()) == 7


def test_captures_that_every_version_reads_are_indexed_once_and_return_once(tmp_path: Path) -> None:
    made = Cycles(tmp_path)
    keeper, copy = capture("keeper", text(1), 1, prose_score=0.9), capture("copy", text(1), 1)
    for number in range(3):
        made.run([keeper, copy, filler(number)])
        assert made.copies() == [(copy["id"], keeper["id"])]
    made.take_down(keeper["id"])
    made.run([keeper, copy, filler(3)])
    assert (made.kept(), made.returned()) == (sorted([copy["id"], filler(3)["id"]]), [])
    assert made.copies() == []


def test_a_forgotten_document_leaves_no_trace_and_its_duplicate_returns(tmp_path: Path) -> None:
    made = Cycles(tmp_path)
    keeper = capture("keeper", text(1), 1, prose_score=0.9)
    copy, near = capture("copy", text(1), 1), capture("near", text(1, 1), 1)
    made.run([keeper, copy, filler(1)])
    made.run([near, filler(2)])
    assert {*made.published()}.isdisjoint({copy["id"], near["id"]})
    made.take_down(keeper["id"])
    mirror = document(text(1).upper(), "mirror")
    made.run([filler(3), mirror])
    # The best of the returning documents is kept, and new ones are compared with it.
    (kept,) = {*made.kept()} & {copy["id"], near["id"]}
    assert made.rejected()[mirror["id"]][1] == kept
    raw = bytes.fromhex(keeper["id"])
    held = {path: path.read_bytes() for path in newest_files(made)}
    assert not [path for path, data in held.items() if keeper["id"].encode() in data or raw in data]
    made.run([filler(4)])
    assert made.kept() == [filler(4)["id"]], "what came back once does not come back again"
    # The returning one is forgotten as well: then the other one returns, from the same part.
    made.take_down(kept)
    made.run([filler(5)])
    (other,) = {copy["id"], near["id"]} - {kept}
    assert made.kept() == sorted([other, filler(5)["id"]])
    # Lifted and captured again, the first one is now a copy of the published one.
    made.in_force([(DOCUMENT, kept)])
    made.run([{**keeper, "fetched_at": capture("", "", 9)["fetched_at"]}, filler(6)])
    assert made.rejected()[keeper["id"]][1] == other


def newest_files(made: Cycles) -> list[Path]:
    """Returns the files of the newest version and those of its index."""
    root = Path(made.indexes[-1].store.root)
    index = DedupIndex.open(made.indexes[-1])
    held = [root / made.made[-1][name].folder.path for name in ("documents", "duplicates", "index")]
    folders = ("rows", "copies", "names", "ids")
    named = [
        path
        for files, part in zip(index.folders, index.manifest.parts, strict=True)
        for folder in folders
        for path in (root / files.path / folder).glob(f"{part.name}.*")
    ]
    assert len(named) == len(folders) * index.count
    return [*named, *(path for folder in held for path in folder.rglob("*") if path.is_file())]


def test_a_takedown_between_two_stages_applies_to_the_index(tmp_path: Path) -> None:
    made = Cycles(tmp_path)
    keeper, copy = capture("keeper", text(1), 1), capture("copy", text(1), 2)
    made.run([keeper, filler(1)])
    late, mirror = capture("late", text(2), 1, prose_score=0.9), capture("mirror", text(2), 2)
    third = made.run([copy, late, mirror, filler(2)])
    made.indexes.pop()
    shutil.rmtree(tmp_path / third["index"].folder.path)
    made.take_down(keeper["id"], late["id"])
    made.indexes.append(
        made.add_to_index({name: third[name] for name in ("extracted", "duplicates", "documents")}, "c2")
    )
    assert made.published() == sorted([filler(1)["id"], filler(2)["id"]])
    assert made.copies() == sorted([(copy["id"], None), (mirror["id"], None)])
    made.run([filler(3)])
    assert made.kept() == sorted([copy["id"], mirror["id"], filler(3)["id"]])


def test_a_capture_returns_when_its_duplicate_successor_is_forgotten(tmp_path: Path) -> None:
    made = Cycles(tmp_path)
    elsewhere, old = capture("elsewhere", text(2), 1), capture("page", text(1), 1)
    made.run([elsewhere, old])
    new = capture("page", text(2), 2)
    made.run([new, filler(2)])
    assert made.replaced() == {old["id"]: ("duplicate_page", new["id"])}
    assert made.rejected()[new["id"]] == ("duplicate_exact", elsewhere["id"])
    made.take_down(new["id"])
    made.run([filler(3)])
    assert made.kept() == sorted([old["id"], filler(3)["id"]])


@pytest.mark.parametrize("kind", soak_but({0}, [URL, DOMAIN]))
def test_pages_and_hosts_can_be_forgotten_during_a_merge(tmp_path: Path, kind: str) -> None:
    made = Cycles(tmp_path, merge=2)
    for number in range(4):
        made.run([capture(f"{number}", text(number), 1), capture(f"mirror{number}", text(number), 2)], parts=1)
    value = "https://example.org/1" if kind == URL else "example.org"
    other = {**capture("x", text(1), 3), "url": "https://example.net/x", "host": "example.net"}
    made.in_force([(kind, value)])
    made.run([other, filler(9)], parts=1)
    parts = DedupIndex.open(made.indexes[-1]).manifest.parts
    assert {part.artifact for part in parts} == {"test/dedup_index@c5"}, "what was there before is one part, or none"
    assert sum("again" in part.name for part in parts) == (kind == URL)
    back = [capture("mirror1", "", 2)["id"]] if kind == URL else []
    assert made.returned() == back
    assert (made.rejected().get(other["id"]) is None) == (kind == DOMAIN)
    assert len(made.published()) == (5 if kind == URL else 1)


@pytest.mark.soak
def test_merging_small_parts_changes_no_result(tmp_path: Path) -> None:
    rows = poor_sometimes([{**row, "fetched_at": datetime(2026, 1, 1, tzinfo=UTC)} for row in mixed(4, 160)])
    plain, merged = Cycles(tmp_path / "plain", merge=100), Cycles(tmp_path / "merged", merge=3)
    for part in in_cycles(rows, [40, 40, 40, 40]):
        plain.run(part)
        merged.run(part)
        assert plain.kept() == merged.kept()
    assert len(DedupIndex.open(plain.indexes[-1]).manifest.parts) == 8
    assert len(DedupIndex.open(merged.indexes[-1]).manifest.parts) < 5
    assert plain.published() == merged.published()


def test_an_index_with_missing_parts_or_texts_is_refused_by_name(tmp_path: Path) -> None:
    made = Cycles(tmp_path)
    for number in range(2):
        made.run([filler(number)], parts=1)
    record = tmp_path / "test/extracted/c1/.artifact.json"
    kept = record.read_text()
    record.write_text(json.dumps({**json.loads(kept), "content": "0" * 64}))
    with pytest.raises(InputError, match="test/extracted@c1 is gone or has changed since, and texts of documents"):
        made.run([document(text(500, 1), "near the first")])
    record.write_text(kept)
    (tmp_path / "test/dedup_index/c1/.artifact.json").unlink()
    with pytest.raises(InputError, match="has parts in test/dedup_index@c1, which is gone"):
        made.run([filler(9)])


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"minhash": {"seed": 2}}, r"dedup.minhash.seed is 2, and the dedup index of c1 was made with 1: near copies"),
        ({"minhash": {"bands": 20, "rows": 6}}, "dedup.minhash.bands is 20, and .* made with 16"),
        ({"minhash": {"shingle": 7}}, "dedup.minhash.shingle is 7, and .* made with 5"),
        ({"jaccard": 0.9, "minhash": {"max_bucket": 50}, "exact": False, "pages": "all", "prefer": "quality"}, ""),
        ({"near": False}, ""),
    ],
)
def test_settings_incompatible_with_the_index_are_refused(tmp_path: Path, changed: dict[str, Any], said: str) -> None:
    made = Cycles(tmp_path)
    made.run([filler(1)], parts=1)
    made.config = DedupConfig(**changed)
    if said:
        with pytest.raises(InputError, match=said):
            made.run([filler(2)], parts=1)
    else:
        made.run([filler(2), document(text(501), "copy")], parts=1)
        assert len(made.kept()) == 1 + (not made.config.near and not made.config.exact)


def test_near_duplicates_survive_versions_without_near_deduplication(tmp_path: Path) -> None:
    made = Cycles(tmp_path, DedupConfig(near=False))
    made.run([filler(1)], parts=1)
    made.config = DedupConfig()
    with pytest.raises(InputError, match=r"dedup\.near is true, and the dedup index of c1 was made with false"):
        made.run([filler(2)], parts=1)


@pytest.mark.parametrize("workers", soak_but({0}, [SCATTERED, 2, 8]))
def test_the_last_version_is_byte_identical_on_any_number_of_workers(tmp_path: Path, workers: int) -> None:
    one, other = four(tmp_path / "none"), four(tmp_path / "some", workers)
    assert {k: v.record.content for k, v in one.items()} == {k: v.record.content for k, v in other.items()}


PASSES = (
    *(
        "leaving-",
        "fates",
        "returned-",
        "sign-",
        "forgotten-",
        "recaptured",
        "earlier-",
        "part-",
        "captures-",
        "newest",
    ),
    *("survivors-", "resolved-", "seen-", "c4-part", "c4-again"),
)


@pytest.mark.soak
@pytest.mark.parametrize("name", PASSES)
def test_a_version_killed_in_a_pass_resumes_and_ends_with_the_same_bytes(tmp_path: Path, name: str) -> None:
    whole = four(tmp_path / "whole")
    killed = subprocess.run([sys.executable, "-m", __spec__.name, str(tmp_path / "killed"), name], check=False)
    assert killed.returncode == -signal.SIGKILL
    again = four(tmp_path / "killed")
    assert {k: v.record.content for k, v in again.items()} == {k: v.record.content for k, v in whole.items()}


def four(folder: Path, workers: int = 0) -> dict[str, Artifact]:
    """Makes four versions with returning documents, the last one after a takedown; returns their files."""
    rows = poor_sometimes([capture(f"p{n % 100}", row["text"], n) for n, row in enumerate(mixed(6, 150))])
    made = Cycles(folder, merge=3)
    cycles = in_cycles(rows, [50, 50, 30, 20])
    for part in cycles[:3]:
        made.run(part, workers=workers)
    forgotten = sorted({keeper for _, keeper in made.copies() if keeper in made.published()})[:4]
    made.take_down(*forgotten)
    last = made.run(cycles[3], workers=workers)
    assert made.returned()
    return last


if __name__ == "__main__":
    one_alone = ("fates", "newest", "recaptured", "c4-again")
    die_in(sys.argv[2], 1 if sys.argv[2] in one_alone else 2, "/c4")
    four(Path(sys.argv[1]))
