"""Division of the links into clusters: every link with the label of its cluster, at the bucket of this label.

Reads the runs `verified/` and `equal/`, and those of the last round of `components`, one bucket of texts at a time.
Writes `clusters/<bucket>.bin`, a run of LABELLED. A cluster is a connected component of verified pairs and equal texts;
it serves reports and the division of work. Which documents are dropped is decided by the rule in
`tasks.formats.duplicate_resolution`.
"""

import numpy as np

from tasks.core.part import Part
from tasks.formats import sorted_runs
from tasks.formats.mix import mix
from tasks.formats.sorted_runs import Buckets
from tasks.stages.dedup.components import labels_of
from tasks.stages.dedup.records import EDGE, LABELLED, LINK, packed
from tasks.stages.dedup.workspace import Workspace


def clusters_part(
    work: Workspace, links: tuple[Buckets, ...], stars: Buckets | None, made: Buckets, part: Part, number: int
) -> None:
    """Labels the links from the texts of one bucket of `made`; runs on a worker.

    Args:
        work: the stage's files.
        links: runs of LINK.
        stars: the last round of the search for components; None where no pair was verified.
        made: the runs that this pass writes.
        part: the part to write.
        number: of the bucket.
    """
    found = np.concatenate([work.bucket(run, LINK, number, made.count) for run in links])
    edges = work.bucket(stars, EDGE, number, made.count) if stars else np.empty(0, EDGE)
    label = labels_of(found["left"], edges)
    columns = {name: found[name] for name in ("left", "right", "jaccard", "equal")}
    labelled = packed(LABELLED, key=mix(label), label=label, **columns)
    order = np.lexsort((found["right"], found["left"], labelled["key"]))
    sorted_runs.write(part, made.path(number), [labelled[order]])
