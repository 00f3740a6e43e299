"""Notice of takedowns to a training run, from the process that started it.

Writes `withhold.json` into the run's folder: {takedowns, rows}, what is in force and where its documents lie in the
token shards, or in the files of examples. The ranks read it at checkpoints (`withheld`). Nothing is written while no
takedown meets these files.
"""

import json
import logging
from collections.abc import Callable, Iterable
from pathlib import Path

from tasks.core.artifact import Artifact, ArtifactId, InputRef
from tasks.core.errors import SluiceError
from tasks.core.stage import Output
from tasks.core.store import Store
from tasks.formats.documents.tombstones import FILES, Tombstones, in_force
from tasks.formats.tokens import marks
from tasks.formats.tokens.exposure import of_checkpoint
from tasks.formats.tokens.marks import Rows

log = logging.getLogger("sluice.train")

REQUEST = "withhold.json"
ROLE = "takedowns"
Where = Callable[[Tombstones], Rows]


class TakedownNotice:
    """The takedowns in force, passed on to the ranks of a run.

    Args:
        output: the artifact of the run; its name gives the recipe.
        rows: returns where documents lie in the files that the run reads, by file, ascending.
        run: folder of the run.
        recipes: others whose documents it reads.
    """

    def __init__(self, output: Output, rows: Where, run: Path, recipes: Iterable[str] = ()) -> None:
        self._output, self._rows, self._run = output, rows, run
        self._recipes = sorted({output.address.name.partition("/")[0], *recipes})
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
            rows = self._rows(Tombstones.read(takedowns))
        except (SluiceError, OSError) as error:
            log.warning("[%s] takedowns cannot be read, tried again: %s", self._output.address, error)
            return
        self._known = addresses
        if rows:
            self._write({"takedowns": addresses, "rows": {file: found.tolist() for file, found in rows.items()}})

    def met(self) -> bytes:
        """Returns the marks of the run so far (`marks.FILE`); b"" where there is none."""
        path = self._run / marks.FILE
        return path.read_bytes() if path.exists() else b""

    def refs(self) -> tuple[InputRef, ...]:
        """Returns references to the takedowns that the run has obeyed, for its record."""
        return obeyed(self._output.store, self.met())

    def _in_force(self) -> list[Artifact]:
        found = (one for recipe in self._recipes for one in in_force(self._output.store, recipe))
        return [one.restricted(FILES) for one in found]

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


def known_of(model: Artifact, output: Output) -> str:
    """Returns a clause for the note of a run that begins with a model: what it has learned that is taken down now.

    Args:
        model: whose weights the run begins with.
        output: the artifact of the run; its name gives the recipe.
    """
    tombstones = Tombstones.read(in_force(output.store, output.address.name.partition("/")[0]))
    count = len(of_checkpoint(model, tombstones).rows) if tombstones else 0
    begun = f"began from {model.address}"
    if count:
        begun += f", which has learned from {count:,} document{'s' * (count > 1)} now taken down"
        log.warning("[%s] %s", output.address, begun)
    return begun
