"""Outcomes of the ranks of a gang, over all its restarts.

Reads pods as JSON while the gang runs, since JobSet deletes the old pods with their exit codes on a restart. The report
for the task's log names the rank that failed first, because the others fail as a consequence.
"""

from dataclasses import dataclass, field
from typing import Any

from operators.jobsets.manifest import INDEX, RESTART
from operators.pods.failure import PodFailure, disruption_of, failure_of, has_succeeded, terminated

Object = dict[str, Any]


@dataclass
class Rank:
    """One pod of one start of the gang."""

    rank: int
    restart: int
    pod: str
    failure: PodFailure | None = None
    ended_at: str = ""
    succeeded: bool = False

    def __str__(self) -> str:
        start = f" after restart {self.restart}" if self.restart else ""
        if self.succeeded:
            return f"rank {self.rank}{start}: done (exit code 0)"
        if self.failure is None:
            return f"rank {self.rank}{start}: no end was seen (pod {self.pod})"
        code = "" if self.failure.exit_code is None else f", exit code {self.failure.exit_code}"
        return f"rank {self.rank}{start}: {self.failure.kind}{code}: {self.failure.reason}"


@dataclass
class Ranks:
    """Observed states of a gang's pods.

    Args:
        container: name of the container that counts.
    """

    container: str
    seen: dict[str, Rank] = field(default_factory=dict)

    def update(self, pod: Object) -> None:
        """Takes in a pod as it is now."""
        name = pod["metadata"]["name"]
        known = self.seen.setdefault(name, Rank(rank_of(pod), restart_of(pod), name))
        known.succeeded = has_succeeded(pod, self.container)
        failure = failure_of(pod, self.container)
        disturbed = disruption_of(pod)
        if failure is None and disturbed and pod["metadata"].get("deletionTimestamp"):
            failure = PodFailure(*disturbed)
        known.failure = failure or known.failure
        known.ended_at = known.ended_at or str((terminated(pod, self.container) or {}).get("finishedAt") or "")

    @property
    def last_restart(self) -> int:
        """Returns the number of restarts, from the pods' labels."""
        return max((one.restart for one in self.seen.values()), default=0)

    def first_failure(self) -> PodFailure | None:
        """Returns why the last start of the gang failed: a permanent failure before others, then the earliest.

        A rank that ended after SIGTERM (143) is not the cause if another rank failed otherwise.
        """
        failed = [one for one in self.seen.values() if one.restart == self.last_restart and one.failure]
        failed.sort(key=lambda one: (not (one.failure and one.failure.permanent), _followed(one), one.ended_at or "~"))
        return failed[0].failure if failed else None

    def report(self) -> list[str]:
        """Returns one line for each rank of each start, in order."""
        return [str(one) for one in sorted(self.seen.values(), key=lambda one: (one.restart, one.rank, one.pod))]


def rank_of(pod: Object) -> int:
    """Returns the rank (node) of a gang's pod."""
    labels = {**(pod["metadata"].get("labels") or {}), **(pod["metadata"].get("annotations") or {})}
    return int(labels.get(INDEX, 0))


def restart_of(pod: Object) -> int:
    """Returns to which start of the gang a pod belongs; 0: the first."""
    labels = {**(pod["metadata"].get("annotations") or {}), **(pod["metadata"].get("labels") or {})}
    return int(labels.get(RESTART, 0))


def _followed(one: Rank) -> bool:
    return bool(one.failure and one.failure.exit_code == 143 and one.failure.kind == "killed")
