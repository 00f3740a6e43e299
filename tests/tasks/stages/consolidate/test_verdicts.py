"""Contract of the verdict on a document: rules precede duplicates, and only kept documents have a tier."""

import numpy as np
import pyarrow as pa
import pytest

from tasks.stages.consolidate.config import ConsolidateConfig
from tasks.stages.consolidate.resolve import COPIES
from tasks.stages.consolidate.rules import verdicts

IDS = ["fine", "copy", "broken", "broken copy", "promoted", "trusted"]
NONE = np.zeros(len(IDS), np.bool_)
SOURCES = pa.chunked_array([["web", "web", "web", "web", "web", "books"]])
JUDGED = pa.table(
    {"id": IDS, "error": pa.array([None, None, "no", "no", None, None], pa.string()), "paged": [False] * len(IDS)}
)
# Dedup marked "promoted" as a copy of "broken", which is rejected by a rule: so "promoted" is kept.
DUPLICATES = pa.table(
    {
        "id": IDS,
        "duplicate_of": pa.array([None, "fine", None, "fine", "broken", None], pa.string()),
        "kind": pa.array([None, "near", None, "exact", "near", None], pa.string()),
    }
)
RESOLVED = pa.table({"id": ["copy"], "duplicate_of": ["fine"], "kind": ["near"], "jaccard": [0.9]}).cast(COPIES)


@pytest.mark.parametrize(
    ("dedup", "reasons", "duplicate_of"),
    [
        (
            True,
            [[], ["duplicate_near"], ["poison"], ["poison", "duplicate_exact"], [], []],
            [None, "fine", None, "fine", None, None],
        ),
        (False, [[], [], ["poison"], ["poison"], [], []], [None] * 6),
    ],
)
def test_rules_come_first_and_copies_of_a_rejected_document_are_kept(
    dedup: bool, reasons: list[list[str]], duplicate_of: list[str | None]
) -> None:
    config = ConsolidateConfig(filters=(), limits={}, mask_pii=False, dedup=dedup, trusted=("books",))
    found = verdicts(config, SOURCES, JUDGED, RESOLVED if dedup else COPIES.empty_table(), DUPLICATES, NONE)
    assert found.reasons == reasons
    assert found.duplicate_of == duplicate_of
    assert found.first == [why[0] if why else "" for why in reasons]
    assert found.is_kept.to_pylist() == [not why for why in reasons]
    assert found.tiers == [
        "" if why else "gold" if name == "trusted" else "silver" for name, why in zip(IDS, reasons, strict=True)
    ]
