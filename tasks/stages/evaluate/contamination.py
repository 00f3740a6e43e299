"""Flag on scores: which evaluation items the model has read in its training.

Reads the matches of `contamination`, and which of these documents the steps of the run learned from, or of the runs
from whose weights it began (`tasks.formats.tokens.exposure`).
"""

from collections import defaultdict
from typing import Any

from tasks.core.artifact import Artifact
from tasks.formats.contamination import MATCHES, SETS_FILE
from tasks.formats.tokens.exposure import of_checkpoint
from tasks.formats.tombstones import Tombstones


def learned(contamination: Artifact, checkpoint: Artifact) -> dict[str, Any]:
    """Returns how many items of each evaluation set stand in documents that the model has learned from.

    Returns:
        {contaminated, sets: {set: {items, documents}}, problem}. A set of which nothing was read has zeros: it was
        looked for. `problem` says why not all that the model has read can be known, or "".

    Raises:
        InputError: the plan or the shards of the run are gone.
    """
    matches = [
        (row["set"], row["item"], row["id"])
        for path in contamination.files(f"{MATCHES}/")
        for row in contamination.table(path, columns=["set", "item", "id"]).to_pylist()
    ]
    exposure = of_checkpoint(checkpoint, Tombstones(documents=frozenset(uid for _, _, uid in matches)))
    read = {row["id"] for row in exposure.rows}
    items, documents = defaultdict[str, set[str]](set), defaultdict[str, set[str]](set)
    for group, item, uid in matches:
        if uid in read:
            items[group].add(item)
            documents[group].add(uid)
    names = contamination.table(SETS_FILE, columns=["set"]).column("set").to_pylist()
    sets = {name: {"items": len(items[name]), "documents": len(documents[name])} for name in names}
    return {"contaminated": bool(read), "sets": sets, "problem": exposure.problem}
