"""What the parts of the stage read: its inputs, the index before, and what it has written itself."""

from dataclasses import dataclass

from tasks.core.artifact import ArtifactFolder, ArtifactId
from tasks.core.store import Store
from tasks.formats.dedup_index import DedupIndex
from tasks.formats.tombstones import Tombstones


@dataclass(frozen=True)
class Work:
    """Picklable; its size does not depend on this version's parts."""

    extracted: ArtifactFolder
    duplicates: ArtifactFolder
    documents: ArtifactFolder
    store: Store
    address: ArtifactId
    before: DedupIndex
    takedowns: Tombstones

    @property
    def own(self) -> ArtifactFolder:
        """This stage's artifact."""
        return ArtifactFolder(self.store, self.address, self.address.path)
