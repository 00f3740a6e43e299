"""Takedowns as inputs: which of them a stage run reads.

Reads the records of artifacts. All that are in force count, whatever their version, and count in the fingerprint by
their tombstones alone: what was made before a takedown is not what would be made after it. A crawl cycle and a takedown
themselves keep those that they began with, so that a killed one resumes.
"""

from tasks.core.artifact import Artifact, ArtifactId
from tasks.core.stage_spec import StageSpec
from tasks.core.store import Store
from tasks.formats.tombstones import FILES, TAKEDOWN, in_force
from tasks.run.previous_version import Found
from tasks.run.recipe import Recipe


def takedowns_in_force(
    recipe: Recipe, store: Store, stage: StageSpec, own: ArtifactId, current: Found, named: Found
) -> Found:
    """Returns the takedowns that a stage reads, by role; {} where there are none.

    Args:
        recipe: the whole run.
        store: store of its artifacts.
        stage: the stage that reads them.
        own: id of the artifact that it writes.
        current: its inputs of its own version, by role.
        named: its inputs that its settings name, by role: what their recipes have taken down counts, too.

    Raises:
        InputError: a takedown's record cannot be read.
    """
    if not stage.takedowns or (stage.takedowns_if and not recipe.field(stage.takedowns_if)):
        return {}
    deciding = None
    if stage.reads_web or stage.output == TAKEDOWN:
        deciding = Artifact.find(store, own) or current.get(stage.previous_as)
    if isinstance(deciding, Artifact):
        refs = [ref for ref in deciding.record.inputs if ref.address.startswith(f"{recipe.name}/{TAKEDOWN}@")]
        found = [Artifact.open_at(store, ArtifactId.parse(ref.address)) for ref in refs]
    else:
        others = {one.address.name.partition("/")[0] for one in named.values() if isinstance(one, Artifact)}
        found = [one for name in sorted({recipe.name, *others}) for one in in_force(store, name)]
    return {stage.takedowns: [one.restricted(FILES) for one in found]} if found else {}
