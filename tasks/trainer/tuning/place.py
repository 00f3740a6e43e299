"""What a fine-tuning can use of a place: one node, whose ranks have the whole model each. Imports pydantic only."""

from collections.abc import Iterator

from tasks.trainer.place import Layout

_REMEDY = (
    "a fine-tuning has all of the model on each rank of one node: leave it out, or fine-tune in a recipe without it"
)


def beyond(layout: Layout | None, nodes: int) -> Iterator[str]:
    """Yields what a place asks for that a fine-tuning does not have, as "setting: why: what to do".

    Args:
        layout: of the place; None: it names none.
        nodes: nodes of a run.
    """
    if nodes > 1:
        yield f"place.kubernetes.nodes: {nodes} nodes: {_REMEDY}"
    given = layout.model_dump() if layout else {}
    usual = Layout().model_dump() | {name: given.get(name) for name in ("replicate", "zero", "schedule", "chunks")}
    for name, value in given.items():
        if value != usual[name]:
            yield f"place.train.layout.{name}: {value}: {_REMEDY}"
