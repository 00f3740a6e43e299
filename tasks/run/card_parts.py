"""What the cards of trained and fine-tuned models have in common. Reads the records that lead to what was learned."""

from collections.abc import Sequence

from tasks.core.artifact import Artifact
from tasks.formats.tokens.exposure import Exposure, of_checkpoint
from tasks.formats.tombstones import Tombstones

HEADER = "---\nlibrary_name: transformers\npipeline_tag: text-generation\n---\n\n"
"""What the Hugging Face hub reads of a card."""


def taken_down(model: Artifact, takedowns: Sequence[Artifact]) -> list[str]:
    """Returns numbers, never what is taken down: the card is public."""
    stones = Tombstones.read(takedowns)
    lines = [
        f"- {len(stones.urls):,} addresses, {len(stones.domains):,} domains and {len(stones.documents):,} documents "
        "are taken down today"
    ]
    exposure = of_checkpoint(model, stones) if stones else Exposure()
    if exposure.rows:
        lines.append(f"- the model has learned from {len(exposure.rows):,} documents that are taken down today")
    if exposure.problem:
        lines.append(f"- not known of all that it has learned from: {exposure.problem}")
    return lines + [f"- the training read the takedown {ref.address}" for ref in model.record.inputs
                    if "/takedown" in ref.address]  # fmt: skip
