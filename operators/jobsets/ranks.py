"""Outcomes of the ranks of a gang, over all its restarts.

Reads pods as JSON while the gang runs, because JobSet deletes the old pods with their exit codes on a restart. The rank
that failed first determines the failure of the gang, because the others fail as a consequence.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from operators.jobsets.manifest import INDEX, RESTART
from operators.pods.failure import Object, PodFailure, disruption_of, failure_of, has_ended, has_succeeded, terminated


@dataclass
class RankAttempt:
    """One rank (pod) in one start of the gang."""

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
            return f"rank {self.rank}{start}: end not observed (pod {self.pod})"
        code = "" if self.failure.exit_code is None else f", exit code {self.failure.exit_code}"
        return f"rank {self.rank}{start}: {self.failure.kind}{code}: {self.failure.reason}"


@dataclass
class RankHistory:
    """Observed outcomes of a gang's pods.

    Args:
        container: name of the stage's container.
    """

    container: str
    attempts: dict[str, RankAttempt] = field(default_factory=dict)

    def update(self, pod: Object) -> None:
        """Records the current state of a pod."""
        name = pod["metadata"]["name"]
        attempt = self.attempts.setdefault(name, RankAttempt(rank_of(pod), restart_of(pod), name))
        attempt.succeeded = has_succeeded(pod, self.container)
        failure = failure_of(pod, self.container)
        disruption = disruption_of(pod)
        if failure is None and disruption and pod["metadata"].get("deletionTimestamp"):
            failure = PodFailure(*disruption)
        attempt.failure = failure or attempt.failure
        attempt.ended_at = attempt.ended_at or str((terminated(pod, self.container) or {}).get("finishedAt") or "")

    @property
    def last_restart(self) -> int:
        """Returns the number of restarts, from the pods' labels."""
        return max((attempt.restart for attempt in self.attempts.values()), default=0)

    def first_failure(self) -> PodFailure | None:
        """Returns why the last start of the gang failed: a permanent failure before others, then the earliest.

        A rank that ended after SIGTERM (143) is not the cause if another rank failed otherwise.
        """
        failed = [
            attempt for attempt in self.attempts.values() if attempt.restart == self.last_restart and attempt.failure
        ]
        failed.sort(
            key=lambda attempt: (
                not (attempt.failure and attempt.failure.permanent),
                _was_terminated(attempt),
                attempt.ended_at or "~",
            )
        )
        return failed[0].failure if failed else None

    def report(self) -> list[str]:
        """Returns one line for each rank of each start, in order."""
        order = sorted(self.attempts.values(), key=lambda attempt: (attempt.restart, attempt.rank, attempt.pod))
        return [str(attempt) for attempt in order]


def rank_of(pod: Object) -> int:
    """Returns the rank (node) of a gang's pod."""
    return int(_mark(pod, INDEX) or 0)


def restart_of(pod: Object) -> int:
    """Returns the number of the restart that created a pod; 0 for the first start."""
    return int(_mark(pod, RESTART) or 0)


def _mark(pod: Object, key: str) -> str:
    """Returns an annotation or label of a pod that a controller has set; "" if it has neither."""
    metadata = pod["metadata"]
    return str((metadata.get("annotations") or {}).get(key) or (metadata.get("labels") or {}).get(key) or "")


def nodes_of(gang: Object) -> int:
    """Returns the number of pods of a JobSet or TrainJob; 0 if it does not say."""
    if trainer := gang["spec"].get("trainer"):
        return int(trainer.get("numNodes") or 0)
    jobs = gang["spec"].get("replicatedJobs") or []
    return sum(int(job.get("replicas", 1)) * int(job["template"]["spec"].get("parallelism") or 1) for job in jobs)


def current_pods(pods: Iterable[Object], restarts: int = 0) -> list[Object]:
    """Returns the newest pod of each rank in the newest start of a gang, without pods that are being deleted.

    Args:
        pods: all pods of the gang.
        restarts: number of its restarts, as far as its status says.
    """
    pods = [pod for pod in pods if not pod["metadata"].get("deletionTimestamp")]
    newest = max((restart_of(pod) for pod in pods), default=0)
    ordered = sorted(pods, key=lambda pod: str(pod["metadata"].get("creationTimestamp") or ""))
    # A pod without a rank is told from the others by its name.
    by_rank = {
        _mark(pod, INDEX) or pod["metadata"]["name"]: pod for pod in ordered if restart_of(pod) == newest >= restarts
    }
    return list(by_rank.values())


def is_held(pod: Object, container: str) -> bool:
    """Returns whether a pod goes on only because of another container, such as an injected proxy.

    The kubelet ends native sidecars (init containers with restartPolicy Always) itself, so these hold no pod.
    """
    listed = (pod.get("spec") or {}).get("containers") or []
    reported = (pod.get("status") or {}).get("containerStatuses") or []
    others = {one["name"] for one in [*listed, *reported]} - {container}
    running = any(terminated(pod, other) is None for other in others)
    return running and terminated(pod, container) is not None and not has_ended(pod)


def _was_terminated(attempt: RankAttempt) -> bool:
    return bool(attempt.failure and attempt.failure.exit_code == 143 and attempt.failure.kind == "killed")
