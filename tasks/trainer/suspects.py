"""Suspects: what ranks had at a step on which they did not agree, kept until a restart has repeated the step.

Rank 0 writes and removes `suspects.json` in the run's folder: {step, what, hashes, names}.
"""

import json
from collections.abc import Sequence
from pathlib import Path

from tasks.trainer.parallel.ranks import Ranks

FILE = "suspects.json"


class Suspects:
    """The last disagreement of a run, on one rank.

    Args:
        out: folder of the run.
        ranks: the process group; every rank constructs this.
    """

    def __init__(self, out: Path, ranks: Ranks) -> None:
        self._path, self._ranks = out / FILE, ranks
        text = self._path.read_text() if ranks.rank == 0 and self._path.exists() else "null"
        self._found = json.loads(ranks.broadcast_text(text))

    def keep(self, step: int, what: str, hashes: Sequence[float], names: Sequence[str]) -> None:
        """Writes what was compared at a step, the hash of every rank, and the ranks' names."""
        if self._ranks.rank == 0:
            content = {"step": step, "what": what, "hashes": list(hashes), "names": list(names)}
            temporary = self._path.with_suffix(".aside")
            temporary.write_text(json.dumps(content))
            temporary.rename(self._path)

    def of(self, step: int, what: str, right: Sequence[float]) -> list[str]:
        """Returns the names of the ranks that had another hash at this step before, and forgets the step.

        Args:
            step: 0-based.
            what: what is compared.
            right: the hashes now, on which all replicas agree. If no rank had these before, or the number of ranks has
                changed, the repetition is no proof, and no name is returned.
        """
        found = self._found
        if not found or (found["step"], found["what"]) != (step, what):
            return []
        self._found = None
        if self._ranks.rank == 0:
            self._path.unlink(missing_ok=True)
        pairs = list(zip(found["hashes"], right, strict=False))
        wrong = [before != now for before, now in pairs]
        if all(wrong) or len(found["hashes"]) != len(right):
            return []
        return [name for name, other in zip(found["names"], wrong, strict=True) if other]
