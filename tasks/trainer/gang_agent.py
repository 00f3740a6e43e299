"""Starts and restarts the ranks of one node of a gang, in step with the agents of the other nodes.

torchrun would do the first half; but its static rendezvous cannot restart, and its dynamic one numbers the nodes as
they come, so that rank 0, which writes, could be on any of them. Here rank = node * ranks per node + local rank. When a
rank ends badly all ranks of all nodes are ended, every agent tells how its own came to an end, and all draw the same
conclusion: the same exit code, or one more attempt.
"""

import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path

from tasks.core.errors import SluiceError, TransientError
from tasks.trainer import failure
from tasks.trainer.config import TrainSpec
from tasks.trainer.gang import Gang
from tasks.trainer.heartbeat import HeartbeatStore, Result
from tasks.trainer.ranks import ATTEMPT

log = logging.getLogger(__name__)

WIND_DOWN_S = 20.0
"""How long a rank may go on when another has failed: it may be writing a checkpoint."""
WEIGHT = (2, 143, 137)
"""Exit codes that decide for all nodes, the first one found; any other failure comes after them."""
_POLL_S = 0.1

Rank = subprocess.Popen[bytes]


def run_gang(spec: Path, nproc: int, gang: Gang, max_restarts: int, final: Iterable[int]) -> int:
    """Runs the ranks of this node to the end; returns the exit code that all nodes of the gang return.

    A node that is lost ends the gang with 1 within half a minute or so (`PEER_TIMEOUT_S`, `WIND_DOWN_S`): whoever
    supervises the nodes starts all of them again.
    """
    log.info("node %d of %d, %d ranks each; node 0 is %s:%d", gang.node, gang.nodes, nproc, gang.address, gang.port)
    out = Path(TrainSpec.model_validate_json(spec.read_bytes()).out)
    try:
        with HeartbeatStore(gang, nproc) as channel:
            node = _Node(spec, out, nproc, channel)
            for attempt in range(1 + max_restarts):
                code = node.run(attempt)
                if code in final or channel.lost or node.asked_to_stop:
                    break
                log.warning("attempt %d ended with %d; all ranks resume from the newest checkpoint", attempt, code)
            return 143 if node.asked_to_stop and code not in final else code
    except SluiceError as error:
        log.error("%s", error)
        return failure.note(out, 0, error).code


class _Node:
    """The ranks of this node."""

    def __init__(self, spec: Path, out: Path, nproc: int, channel: HeartbeatStore) -> None:
        self.spec, self.out, self.nproc, self.channel = spec, out, nproc, channel
        self.asked_to_stop = False
        self.ranks: list[Rank] = []
        signal.signal(signal.SIGTERM, self._pass_on)

    def run(self, attempt: int) -> int:
        """Runs all ranks once; returns the exit code all nodes agree on."""
        failure.forget(self.out)
        self.channel.begin(attempt)
        self.ranks = [self._start(local, attempt) for local in range(self.nproc)]
        if self.asked_to_stop:  # while they were being started
            self._signal(signal.SIGTERM)
        mine = self._result(self._wait())
        self.channel.post(mine)
        return self._agree(mine)

    def _start(self, local: int, attempt: int) -> Rank:
        gang = self.channel.gang
        environment = {
            **os.environ,
            "RANK": str(gang.node * self.nproc + local),
            "LOCAL_RANK": str(local),
            "WORLD_SIZE": str(gang.nodes * self.nproc),
            "LOCAL_WORLD_SIZE": str(self.nproc),
            "MASTER_ADDR": self.channel.host,
            "MASTER_PORT": str(gang.port),
            ATTEMPT: str(attempt),
        }
        if interface := gang.interface():
            environment = {"GLOO_SOCKET_IFNAME": interface, "NCCL_SOCKET_IFNAME": interface, **environment}
        return subprocess.Popen([sys.executable, "-m", "tasks.trainer", "--spec", str(self.spec)], env=environment)

    def _wait(self) -> int:
        """Returns when no rank runs any more: 0, or the code that says most about why."""
        deadline = None
        while any(rank.poll() is None for rank in self.ranks):
            ended = [rank.returncode for rank in self.ranks if rank.returncode]
            if deadline is None and (ended or self._trouble_elsewhere()):
                deadline = time.monotonic() + WIND_DOWN_S
            if deadline is not None and time.monotonic() > deadline:
                self._signal(signal.SIGKILL)  # what this makes of them is no finding
                return weightiest([1, *map(_code, ended)])
            time.sleep(_POLL_S)
        return weightiest(_code(rank.returncode) for rank in self.ranks)

    def _trouble_elsewhere(self) -> list[int]:
        return [result.code for result in self.channel.results.values() if result.code] or self._missing()

    def _missing(self) -> list[int]:
        """Returns the nodes that are gone and have not told how they ended."""
        return [node for node in self.channel.lost if node not in self.channel.results]

    def _result(self, code: int) -> Result:
        noted = failure.noted(self.out)
        return Result(code, noted[0] if noted and code else None)

    def _agree(self, mine: Result) -> int:
        """Returns the code that counts for all, and leaves the reason where the stage looks for it."""
        while len(self.channel.results) < len(self.channel.peers):
            if missing := self._missing():
                return self._lost(missing)
            time.sleep(_POLL_S)
        results = [mine, *self.channel.results.values()]
        code = weightiest(result.code for result in results)
        for result in results:
            if result.failure and result.code == code:
                failure.write(self.out, result.failure)
        return code

    def _lost(self, nodes: list[int]) -> int:
        # Where it is node 0 that is gone, nobody can say how the others are.
        lost = f"lost node {0 if 0 in nodes else ', '.join(map(str, nodes))} of the gang"
        log.error("%s", lost)
        failure.forget(self.out)  # that connections broke is no news
        failure.note(self.out, 0, TransientError(lost, "all nodes must be started again; they resume"))
        return 1

    def _signal(self, number: int) -> None:
        for rank in self.ranks:
            rank.send_signal(number)
            if number == signal.SIGKILL:
                rank.wait()

    def _pass_on(self, number: int, frame: object) -> None:
        self.asked_to_stop = True
        self._signal(number)


def _code(status: int) -> int:
    """Returns a rank's exit code in the terms of a shell."""
    return status if status >= 0 else 128 - status


def weightiest(codes: Iterable[int]) -> int:
    """Returns the exit code that stands for several: what forbids a restart, then a stop, a kill, any failure, 0.

    >>> weightiest([0, 1, 143]), weightiest([1, 2]), weightiest([0, 0])
    (143, 2, 0)
    """
    held = list(codes)
    return next((code for code in WEIGHT if code in held), max(held))
