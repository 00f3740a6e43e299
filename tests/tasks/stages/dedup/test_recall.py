"""Recall of pairs matches theory: 1 - (1 - s^rows)^bands for a true Jaccard similarity of s."""

from pathlib import Path

import numpy as np
import pytest

from tasks.stages.dedup import DedupConfig
from tests.soak import soak_but
from tests.tasks.stages.dedup.made import document, rows_of
from tests.tasks.stages.dedup.test_stage import dedup, edited, prose

PAIRS = 100
CHANGES = (27, 20, 16, 11, 6)
"""Of 100 shingles: similarities of 0.57, 0.67, 0.72, 0.8 and 0.89."""


@pytest.mark.parametrize(("bands", "rows"), soak_but({0}, [(16, 8), (20, 6)]))
def test_recall_follows_the_minhash_formula(tmp_path: Path, bands: int, rows: int) -> None:
    texts = []
    for seed in range(PAIRS * len(CHANGES)):
        words = prose(seed, 104)
        changes = CHANGES[seed // PAIRS]
        both = (" ".join(words), edited(words, range(changes), "x"))
        texts += [document(text, f"{seed}/{side}") for side, text in enumerate(both)]
    every = DedupConfig(jaccard=0.01, minhash={"bands": bands, "rows": rows})
    found = [row["jaccard"] for row in rows_of(dedup(tmp_path, texts, every), "pairs/")]
    squares = 0.0
    for changes in CHANGES:
        similarity = (100 - changes) / (100 + changes)
        expected = 1 - (1 - similarity**rows) ** bands
        met = np.isclose(found, similarity, atol=1e-6).sum()
        squares += (met - PAIRS * expected) ** 2 / max(PAIRS * expected * (1 - expected), 1)
    assert squares < 20.5  # chi-squared of five degrees of freedom: once in a thousand families of permutations
