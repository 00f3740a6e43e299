"""Notice of takedowns to a training run, from the process that started it.

Writes `withhold.json` into the run's folder: {takedowns, rows}, the takedowns in force and the rows of their documents
in the token shards or example files. The ranks read it at checkpoints (`withheld`). Nothing is written while no
takedown affects these files.
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
from tasks.formats.tokens.exposure import checkpoint_exposure
from tasks.formats.tokens.marks import Rows

log = logging.getLogger("sluice.train")

REQUEST = "withhold.json"
ROLE = "takedowns"
RowLookup = Callable[[Tombstones], Rows]


class TakedownNotice:
    """Passes the takedowns in force to the ranks of a run.

    Args:
        output: the artifact of the run; its name contains the recipe.
        rows: returns the rows of documents in the files that the run reads, by file, ascending.
        run: folder of the run.
        recipes: other recipes whose documents the run reads.
    """

    def __init__(self, output: Output, rows: RowLookup, run: Path, recipes: Iterable[str] = ()) -> None:
        self._output, self._rows, self._run = output, rows, run
        self._recipes = sorted({output.address.name.partition("/")[0], *recipes})
        self._addresses: list[str] = []

    def update(self) -> None:
        """Rewrites the request if the takedowns in force have changed since the last call.

        If the store does not respond, this is retried at the next checkpoint.
        """
        try:
            takedowns = self._in_force()
            addresses = [str(takedown.address) for takedown in takedowns]
            if addresses == self._addresses:
                return
            rows = self._rows(Tombstones.read(takedowns))
        except (SluiceError, OSError) as error:
            log.warning("[%s] takedowns cannot be read, will be retried: %s", self._output.address, error)
            return
        self._addresses = addresses
        if rows:
            self._write({"takedowns": addresses, "rows": {file: numbers.tolist() for file, numbers in rows.items()}})

    def marks_content(self) -> bytes:
        """Returns the content of the run's `marks.FILE` so far; b"" if there are no marks."""
        path = self._run / marks.FILE
        return path.read_bytes() if path.exists() else b""

    def refs(self) -> tuple[InputRef, ...]:
        """Returns references to the takedowns that the run has applied, for its record."""
        return takedown_refs(self._output.store, self.marks_content())

    def _in_force(self) -> list[Artifact]:
        takedowns = (takedown for recipe in self._recipes for takedown in in_force(self._output.store, recipe))
        return [takedown.restricted_to(FILES) for takedown in takedowns]

    def _write(self, request: dict[str, object]) -> None:
        self._run.mkdir(parents=True, exist_ok=True)
        temporary = self._run / f".{REQUEST}"
        temporary.write_text(json.dumps(request, sort_keys=True) + "\n")
        temporary.rename(self._run / REQUEST)


def takedown_refs(store: Store, marks_content: bytes) -> tuple[InputRef, ...]:
    """Returns references to the takedowns that a run has applied, from the content of its `marks.FILE` (b"": none)."""
    addresses = {address for mark in marks.from_json(marks_content or b"[]") for address in mark.takedowns}
    # By address, because a takedown that a later one supersedes is no longer in force.
    takedowns = (Artifact.find(store, ArtifactId.parse(address)) for address in sorted(addresses))
    return tuple(takedown.restricted_to(FILES).ref(ROLE) for takedown in takedowns if takedown)


def initial_model_note(model: Artifact, output: Output, until: int | None = None) -> str:
    """Returns a clause for the note of a run: its initial model, and how many of its documents are now taken down.

    Args:
        model: the model with the initial weights.
        output: the artifact of the run; its name contains the recipe.
        until: step of the model's run from whose checkpoint the new run begins; None for the last one.
    """
    tombstones = Tombstones.read(in_force(output.store, output.address.name.partition("/")[0]))
    count = len(checkpoint_exposure(model, tombstones, until=until).rows) if tombstones else 0
    note = f"began from {model.address}"
    if count:
        note += f", which has learned from {count:,} document{'s' * (count > 1)} now taken down"
        log.warning("[%s] %s", output.address, note)
    return note
