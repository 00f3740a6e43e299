"""All shards of an encoding, by name.

Reads `shards/`; a file is fetched and mapped when it is first read.
"""

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from tasks.core.artifact import Artifact, ArtifactFolder
from tasks.core.errors import InputError
from tasks.formats.tokens.shard import FOLDER, HELDOUT, TRAIN, Shard, TokenFormat, parse_shard_name


class ShardSet:
    """All shards of an encoding. Files are mapped when first read; picklable and safe to use after a fork.

    Args:
        paths: local paths of shard files.

    Raises:
        InputError: there is no shard.
    """

    def __init__(self, paths: Iterable[str]) -> None:
        self._files = {Path(path).stem: os.path.abspath(path) for path in sorted(paths)}
        self._folder: ArtifactFolder | None = None
        if not self._files:
            raise InputError("there is no token shard to read", "run the stage encode first")
        self._open: dict[str, Shard] = {}

    @classmethod
    def open(cls, artifact: Artifact) -> "ShardSet":
        """Opens the shards of an artifact of the stage encode.

        Remote files are fetched into a local cache, each when it is first read.
        """
        files = artifact.files(f"{FOLDER}/")
        if not files:
            raise InputError(f"{artifact.address} contains no token shard", "run the stage encode again")
        shards = cls.__new__(cls)
        # A cached copy of a remote file has another name: the shard is named by the artifact's file.
        shards._files = {Path(file).stem: file for file in files}
        shards._folder = artifact.folder
        shards._open = {}
        return shards

    def __getstate__(self) -> dict[str, Any]:
        return {"_files": self._files, "_folder": self._folder, "_open": {}}

    @property
    def format(self) -> TokenFormat:
        """Vocabulary, end-of-text token and type of the tokens."""
        return self.shard(next(iter(self._files))).format

    @property
    def sources(self) -> tuple[str, ...]:
        """The sources, sorted."""
        return tuple(sorted({parse_shard_name(name)[0] for name in self._files}))

    @property
    def all_names(self) -> tuple[str, ...]:
        """The names of all shards, sorted."""
        return tuple(sorted(self._files))

    def names(self, source: str, split: str = TRAIN) -> tuple[str, ...]:
        """Returns the names of a source's shards of one split, sorted."""
        return tuple(sorted(name for name in self._files if parse_shard_name(name) == (source, split)))

    def shard(self, name: str) -> Shard:
        """Returns a shard by name; raises InputError when there is none."""
        if name not in self._open:
            if name not in self._files:
                raise InputError(f"no token shard is called {name}", "use the plan that was packed from these shards")
            self._open[name] = Shard(self._local(name))
        return self._open[name]

    def _local(self, name: str) -> str:
        return self._folder.local(self._files[name]) if self._folder else self._files[name]

    def n_tokens(self, source: str, split: str = TRAIN) -> int:
        """Returns the tokens of a source."""
        return sum(self.shard(name).n_tokens for name in self.names(source, split))

    def n_documents(self, source: str, split: str = TRAIN) -> int:
        """Returns the documents of a source."""
        return sum(self.shard(name).rows for name in self.names(source, split))

    def heldout(self, source: str) -> Iterator[tuple[bytes, NDArray[Any], int]]:
        """Yields (document id, tokens with end-of-text, UTF-8 bytes of its text) of the held-out documents."""
        for name in self.names(source, HELDOUT):
            shard = self.shard(name)
            for row, (length, size) in enumerate(zip(shard.lengths.tolist(), shard.n_bytes.tolist(), strict=True)):
                yield shard.uid(row), shard.slice(row, 0, length), size
