"""Notice of takedowns to a training run, from the process that started it.

Writes `withhold.json` into the run's folder: {takedowns, rows}, what is in force and where its documents lie in the
token shards. The ranks read it at checkpoints (`withheld`). Nothing is written while no takedown meets these shards.
"""

import json
import logging
from pathlib import Path

from tasks.core.artifact import Artifact, ArtifactId, InputRef
from tasks.core.errors import SluiceError
from tasks.core.stage import Output
from tasks.core.store import Store
from tasks.formats.tokens import marks
from tasks.formats.tokens.withheld import withheld_rows
from tasks.formats.tombstones import FILES, Tombstones, in_force

log = logging.getLogger("sluice.train")

REQUEST = "withhold.json"
ROLE = "takedowns"


class Notice:
    """The takedowns in force, passed on to the ranks of a run.

    Args:
        output: the artifact of the run; its name gives the recipe.
        shards: the token shards that it reads.
        run: folder of the run.
    """

    def __init__(self, output: Output, shards: Artifact, run: Path) -> None:
        self._output, self._shards, self._run = output, shards, run
        self._known: list[str] = []

    def look(self) -> None:
        """Writes the request anew if other takedowns are in force than at the last look.

        A store that does not answer does not end the run: the next look is at the next checkpoint.
        """
        try:
            takedowns = self._in_force()
            addresses = [str(one.address) for one in takedowns]
            if addresses == self._known:
                return
            rows = withheld_rows(self._shards, Tombstones.read(takedowns))
        except (SluiceError, OSError) as error:
            log.warning("[%s] takedowns cannot be read, tried again: %s", self._output.address, error)
            return
        self._known = addresses
        if rows:
            self._write({"takedowns": addresses, "rows": {shard: found.tolist() for shard, found in rows.items()}})

    def met(self) -> bytes:
        """Returns the marks of the run so far (`marks.FILE`); b"" where there is none."""
        path = self._run / marks.FILE
        return path.read_bytes() if path.exists() else b""

    def refs(self) -> tuple[InputRef, ...]:
        """Returns references to the takedowns that the run has obeyed, for its record."""
        return obeyed(self._output.store, self.met())

    def _in_force(self) -> list[Artifact]:
        recipe = self._output.address.name.partition("/")[0]
        return [one.restricted(FILES) for one in in_force(self._output.store, recipe)]

    def _write(self, request: dict[str, object]) -> None:
        self._run.mkdir(parents=True, exist_ok=True)
        temporary = self._run / f".{REQUEST}"
        temporary.write_text(json.dumps(request, sort_keys=True) + "\n")
        temporary.rename(self._run / REQUEST)


def obeyed(store: Store, met: bytes) -> tuple[InputRef, ...]:
    """Returns references to the takedowns that a run has obeyed, by the content of its `marks.FILE` (b"": none)."""
    addresses = {address for mark in marks.from_json(met or b"[]") for address in mark.takedowns}
    # By address: one that a later takedown contains is not among those in force any more.
    found = (Artifact.find(store, ArtifactId.parse(address)) for address in sorted(addresses))
    return tuple(one.restricted(FILES).ref(ROLE) for one in found if one)
