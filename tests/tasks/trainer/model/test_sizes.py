"""Named sizes have the weights that they are called by, and the table in docs/model.md shows them."""

import re
from pathlib import Path

import pytest

from tasks.trainer.model.shape import SIZES, Shape

DOCS = Path(__file__).parents[4] / "docs" / "model.md"
_UNIT = {"m": 1e6, "b": 1e9}
_FFN, _THETA = 8 / 3, 10_000.0


@pytest.mark.parametrize("name", SIZES)
def test_a_size_has_the_weights_of_its_name(name: str) -> None:
    size = SIZES[name]
    weights = Shape.of(size.model, size.vocab_size).weights["total"]
    assert weights == pytest.approx(float(name[:-1]) * _UNIT[name[-1]], rel=0.05)


def test_the_table_in_the_docs_is_that_of_the_sizes() -> None:
    rows = []
    for name, size in SIZES.items():
        model = size.model
        others = [
            *([f"ffn_multiple = {model.ffn_multiple}"] if model.ffn_multiple != _FFN else []),
            *([f"rope_theta = {model.rope_theta}"] if model.rope_theta != _THETA else []),
        ]
        shape = (
            model.layers,
            model.dim,
            model.heads,
            model.kv_heads,
            size.vocab_size,
            str(model.tie_embeddings).lower(),
        )
        weights = f"{Shape.of(model, size.vocab_size).weights['total']:,}"
        rows.append([name, *map(str, shape), ", ".join(others), weights])
    table = [[cell.strip() for cell in line.strip("|").split("|")] for line in DOCS.read_text().splitlines()]
    assert [row for row in table if re.fullmatch(r"[\d.]+[mb]", row[0])] == rows
