"""Contract of the verdict on a document: rules precede duplicates, and only kept documents have a tier."""

import numpy as np
import pyarrow as pa
import pytest

from tasks.filters.batch import DocumentBatch
from tasks.filters.gopher_quality import GopherQualityMeasures
from tasks.stages.consolidate.config import ConsolidateConfig
from tasks.stages.consolidate.resolve import COPIES
from tasks.stages.consolidate.rules import limit_values, verdicts

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


def test_a_limit_has_the_values_of_the_documents_to_which_it_applies() -> None:
    texts = ["The cat sat, and slept.", "Die Katze saß.", "A broken one.", "One that is taken down.", "A trusted one."]
    measured = GopherQualityMeasures().annotate(DocumentBatch(texts, languages=["en", "de", "en", "en", "en"]))
    errors = pa.array([None, None, "no", None, None], pa.string())
    judged = pa.table({"error": errors, "paged": [False] * 5, "gopher_quality": measured})
    sources = pa.chunked_array([["web"] * 4 + ["books"]])
    config = ConsolidateConfig(filters=("gopher_quality",), limits={}, mask_pii=False, trusted=("books",))
    taken_down = np.array([False, False, False, True, False])
    found = {limit.reason: (rows, limit) for rows, limit in limit_values(config, sources, judged, taken_down)}
    assert found["gopher_quality_few_words"][0].tolist() == [0, 1]
    rows, stop_words = found["gopher_quality_stop_words"]
    assert (rows.tolist(), stop_words.values.tolist()) == ([0], [1])
    assert stop_words.beyond().tolist() == [True]
