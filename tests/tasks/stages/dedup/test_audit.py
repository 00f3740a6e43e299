"""The audit of duplicates: has the data for a person's judgement, is bounded and independent of partitioning."""

from pathlib import Path
from typing import Any

import pytest

from tasks.core.artifact import Artifact
from tasks.formats.dedup.duplicates import AUDIT_FILE, DuplicateAudit
from tasks.stages.dedup import DedupConfig, audit
from tasks.stages.dedup.audit import DOMAINS_FILE
from tests.tasks.stages.dedup.made import document, rows_of
from tests.tasks.stages.dedup.test_stage import dedup, edited, prose

SURE = {"bands": 32, "rows": 4}
"""Bands in which two texts of a similarity of 0.75 meet with a probability of 0.999994."""


def couple(seed: int, changes: int, **more: Any) -> list[dict[str, Any]]:
    """Two texts of 96 shingles each, with a similarity of (96 - changes) / (96 + changes)."""
    words = prose(seed, 100)
    texts = (" ".join(words), edited(words, range(changes), "x"))
    return [document(text, f"{seed}/{side}", **more) for side, text in enumerate(texts)]


def audit_of(artifact: Artifact) -> DuplicateAudit:
    return DuplicateAudit.model_validate_json(artifact.read(AUDIT_FILE))


def around_the_threshold() -> list[dict[str, Any]]:
    """25 pairs just above 0.8, 25 just below, and one far from it on each side."""
    rows = [row for seed in range(25) for row in couple(seed, 10)]
    rows += [row for seed in range(25, 50) for row in couple(seed, 11)]
    return [*rows, *couple(50, 2), *couple(51, 20)]


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    return dedup(tmp_path_factory.mktemp("around"), around_the_threshold(), DedupConfig(minhash=SURE))


def test_pairs_near_the_threshold_are_counted_and_sampled(artifact: Artifact) -> None:
    found = audit_of(artifact)
    assert (found.below.pairs, found.above.pairs) == (25, 25)
    metrics = artifact.record.metrics
    assert (metrics["pairs_just_below"], metrics["pairs_just_above"]) == (25, 25)
    for side, seeds, jaccard in ((found.below, range(25, 50), 85 / 107), (found.above, range(25), 86 / 106)):
        couples = {frozenset(row["id"] for row in couple(seed, 0)) for seed in seeds}
        shown = {frozenset(pair.ids) for pair in side.shown}
        assert len(shown) == audit.PAIRS
        assert shown < couples
        assert {pair.jaccard for pair in side.shown} == {round(jaccard, 6)}
    clusters = {row["id"]: row["cluster"] for row in rows_of(artifact, "duplicates/")}
    assert all(pair.clusters == tuple(clusters[one] for one in pair.ids) for pair in found.above.shown)
    assert all(pair.clusters == (None, None) for pair in found.below.shown)


def test_the_audit_does_not_depend_on_parts_or_buckets(artifact: Artifact, tmp_path: Path) -> None:
    fine = DedupConfig(minhash=SURE, pairs_per_part=10, records_per_bucket=1000)
    divided = dedup(tmp_path, around_the_threshold(), fine)
    assert divided.read(AUDIT_FILE) == artifact.read(AUDIT_FILE)


def test_clusters_are_counted_by_size_and_the_largest_show_distinct_texts(tmp_path: Path) -> None:
    rows = [document(" ".join(prose(1)) + "!" * copy, f"same/{copy}") for copy in range(9)]
    words = prose(2, 200)
    near = [document(edited(words, range(place, place + 1), "x"), f"near/{place}") for place in range(8)]
    rows += [*near, *couple(3, 2), *couple(4, 2)]
    made = dedup(tmp_path, rows, DedupConfig(minhash=SURE))
    found = audit_of(made)
    sizes = {(one.first, one.last): (one.clusters, one.documents) for one in found.sizes}
    assert sizes == {(2, 2): (2, 4), (3, 4): (0, 0), (5, 8): (1, 8), (9, 16): (1, 9)}
    assert made.record.metrics["clusters_of/9-16"] == 1
    assert [(one.documents, one.texts, len(one.shown)) for one in found.largest[:2]] == [(9, 1, 1), (8, 8, audit.TEXTS)]
    assert set(found.largest[1].shown) < {row["id"] for row in near}
    assert found.largest[1].cluster == found.largest[1].shown[0]


def test_duplicates_are_counted_by_registered_domain_and_by_source_where_there_is_no_host(tmp_path: Path) -> None:
    rows = couple(1, 2, host="www.copies.co.uk") + couple(2, 2, host="shop.copies.co.uk:8080")
    rows += couple(3, 40, host="fine.net") + couple(4, 2, host="", source="books")
    made = dedup(tmp_path, rows, DedupConfig(minhash=SURE))
    found = audit_of(made)
    domains = [(one.name, one.documents, one.duplicates) for one in found.domains]
    assert domains == [("copies.co.uk", 4, 2), ("books", 2, 1), ("fine.net", 2, 0)]
    assert [tuple(row.values()) for row in made.table(DOMAINS_FILE).to_pylist()] == domains
    assert [(one.name, one.share) for one in found.sources] == [("books", 0.5), ("web", 2 / 6)]


def test_the_audit_names_documents_by_id_without_text_or_url(artifact: Artifact) -> None:
    data = artifact.read(AUDIT_FILE).decode()
    assert "example.org/" not in data
    assert prose(0)[50] not in data


def test_without_comparisons_the_audit_is_empty(tmp_path: Path) -> None:
    found = audit_of(dedup(tmp_path, couple(1, 2), DedupConfig(near=False)))
    assert (found.sizes, found.largest, found.above.shown, found.below.shown) == ((), (), (), ())
    assert [one.duplicates for one in found.domains] == [0]
