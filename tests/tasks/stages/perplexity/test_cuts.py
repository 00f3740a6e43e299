"""Documents for the cut points: a sample by hash, drawn part by part in bounded memory."""

import tracemalloc
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tasks.core.artifact import Artifact
from tasks.core.engine import Engine
from tasks.formats.documents.document import DOCUMENT
from tasks.stages.perplexity import PerplexityConfig
from tasks.stages.perplexity.reference import CANDIDATE, lowest, ranks
from tasks.stages.perplexity.stage import sample_crawl
from tests.corpora import by_hand, kept_document


class Backwards(Engine):
    """Results arrive in another order than the items."""

    def map(self, fn: Any, items: Sequence[Any]) -> Iterator[tuple[int, Any]]:
        """See `Engine.map`."""
        yield from reversed(list(super().map(fn, items)))


def extracted(folder: Path, texts: Sequence[str], parts: int) -> Artifact:
    rows = [kept_document(f"https://h.org/{number}", text) for number, text in enumerate(texts)]
    rows += [kept_document("https://h.org/other", "of another source", "code")]
    documents = [{name: row.get(name) for name in DOCUMENT.names} for row in rows]
    return by_hand(folder, "extracted", parts, {"documents": (DOCUMENT, documents)})


def texts_drawn(artifact: Artifact, engine: Engine, **settings: int) -> list[str]:
    (texts,) = sample_crawl(PerplexityConfig.model_validate({"cut_bytes": 900, **settings}), artifact, engine).values()
    return texts


def test_the_same_documents_are_drawn_from_any_number_of_parts_in_any_order(tmp_path: Path) -> None:
    texts = [f"The {number % 150}th document of a crawl." for number in range(200)] + ["", ""]
    found = [
        texts_drawn(extracted(tmp_path / f"{parts}", texts, parts), engine)
        for parts in (1, 3, 7)
        for engine in (Engine(), Backwards())
    ]
    assert len(set(map(frozenset, found))) == 1
    assert len(set(found[0])) == len(found[0])
    sizes = [len(text) for text in found[0]]
    assert 900 <= sum(sizes) < 900 + max(sizes)
    other = texts_drawn(extracted(tmp_path / "1", texts, 1), Engine(), seed=1)
    assert frozenset(other) != frozenset(found[0])


@pytest.mark.parametrize("units", [1, 4, 30])
def test_sampling_part_by_part_equals_sampling_all_at_once(units: int) -> None:
    random = np.random.default_rng(units)
    hashes = random.integers(0, 2**63, 400).astype(np.uint64)[random.integers(0, 400, 1000)]
    sizes = (hashes % np.uint64(50)).astype(np.int64)
    wanted, total = list[int](), 0
    first = {value: place for place, value in reversed(list(enumerate(hashes.tolist()))) if sizes[place]}
    for place in sorted(first.values(), key=lambda place: int(ranks(hashes[[place]], "sample/7")[0])):
        if total < 1000:
            wanted.append(place)
            total += int(sizes[place])
    rows = np.zeros(len(hashes), CANDIDATE)
    rows["rank"], rows["hash"], rows["size"] = ranks(hashes, "sample/7"), hashes, sizes
    rows["unit"] = np.sort(random.integers(0, units, len(rows)))
    rows["place"] = np.arange(len(rows))
    held = np.zeros(0, CANDIDATE)
    for unit in random.permutation(units):
        held = lowest(np.concatenate([held, lowest(rows[rows["unit"] == unit], 1000)]), 1000)
    assert held["place"].tolist() == wanted


def test_memory_does_not_grow_with_the_number_of_documents(tmp_path: Path) -> None:
    def peak(parts: int) -> int:
        artifact = extracted(tmp_path / f"{parts}", [f"Document {number}." for number in range(300 * parts)], parts)
        texts_drawn(artifact, Engine())
        tracemalloc.start()
        try:
            texts_drawn(artifact, Engine())
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    assert peak(30) < 1.5 * peak(3)
