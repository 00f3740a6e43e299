"""Starts and restarts the ranks of one node of a gang, in step with the agents of the other nodes.

torchrun could start them, but its static rendezvous cannot restart, and its dynamic one numbers the nodes in the order
of arrival, so that rank 0, which writes, could be on any of them. Here rank = node * ranks per node + local rank. When
a rank fails, all ranks of all nodes are ended, every agent posts the exit code of its own, and all agents compute the
same result from the codes: an exit code, or one more attempt.
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
from tasks.trainer.config import TrainSpec
from tasks.trainer.heartbeat import HeartbeatStore, Result
from tasks.trainer.launch import failure
from tasks.trainer.launch.gang import Gang
from tasks.trainer.parallel.ranks import ATTEMPT

log = logging.getLogger(__name__)

WIND_DOWN_S = 20.0
"""Seconds a rank may continue after another has failed: it may be writing a checkpoint."""
PRECEDENCE = (2, 143, 137)
"""Exit codes of a node that become the exit code of all, in order of precedence; other failures come after them."""
_POLL_S = 0.1

Rank = subprocess.Popen[bytes]


def run_gang(spec: Path, nproc: int, gang: Gang, max_restarts: int, final: Iterable[int]) -> int:
    """Runs the ranks of this node to the end; returns the exit code that all nodes of the gang return.

    A node that is lost ends the gang with 1 within half a minute or so (`PEER_TIMEOUT_S`, `WIND_DOWN_S`): the
    supervisor of the nodes starts all of them again.
    """
    log.info("node %d of %d, %d ranks each; node 0 is %s:%d", gang.node, gang.nodes, nproc, gang.address, gang.port)
    out = Path(TrainSpec.model_validate_json(spec.read_bytes()).out)
    try:
        with HeartbeatStore(gang, nproc) as heartbeats:
            node = _Node(spec, out, nproc, heartbeats)
            for attempt in range(1 + max_restarts):
                code = node.run(attempt)
                if code in final or heartbeats.lost or node.stop_requested:
                    break
                log.warning("attempt %d ended with %d; all ranks resume from the newest checkpoint", attempt, code)
            return 143 if node.stop_requested and code not in final else code
    except SluiceError as error:
        log.error("%s", error)
        return failure.record(out, 0, error).code


class _Node:
    """The ranks of this node."""

    def __init__(self, spec: Path, out: Path, nproc: int, heartbeats: HeartbeatStore) -> None:
        self.spec, self.out, self.nproc, self.heartbeats = spec, out, nproc, heartbeats
        self.stop_requested = False
        self.ranks: list[Rank] = []
        signal.signal(signal.SIGTERM, self._pass_on)

    def run(self, attempt: int) -> int:
        """Runs all ranks once; returns the exit code of the whole gang."""
        failure.clear(self.out)
        self.heartbeats.begin(attempt)
        self.ranks = [self._start(local, attempt) for local in range(self.nproc)]
        if self.stop_requested:  # while they were being started
            self._signal(signal.SIGTERM)
        mine = self._result(self._wait())
        self.heartbeats.post(mine)
        return self._agree(mine)

    def _start(self, local: int, attempt: int) -> Rank:
        gang = self.heartbeats.gang
        environment = {
            **os.environ,
            "RANK": str(gang.node * self.nproc + local),
            "LOCAL_RANK": str(local),
            "WORLD_SIZE": str(gang.nodes * self.nproc),
            "LOCAL_WORLD_SIZE": str(self.nproc),
            "MASTER_ADDR": self.heartbeats.host,
            "MASTER_PORT": str(gang.port),
            ATTEMPT: str(attempt),
        }
        if interface := gang.interface():
            environment = {"GLOO_SOCKET_IFNAME": interface, "NCCL_SOCKET_IFNAME": interface, **environment}
        return subprocess.Popen([sys.executable, "-m", "tasks.trainer", "--spec", str(self.spec)], env=environment)

    def _wait(self) -> int:
        """Waits until no rank runs any more; returns the exit code with the highest precedence."""
        deadline = None
        while any(rank.poll() is None for rank in self.ranks):
            ended = [rank.returncode for rank in self.ranks if rank.returncode]
            if deadline is None and (ended or self._failures_elsewhere()):
                deadline = time.monotonic() + WIND_DOWN_S
            if deadline is not None and time.monotonic() > deadline:
                self._signal(signal.SIGKILL)  # the exit codes that this causes are not counted
                return decisive_code([1, *map(_code, ended)])
            time.sleep(_POLL_S)
        return decisive_code(_code(rank.returncode) for rank in self.ranks)

    def _failures_elsewhere(self) -> list[int]:
        return [result.code for result in self.heartbeats.results.values() if result.code] or self._missing()

    def _missing(self) -> list[int]:
        """Returns the nodes that are lost and have not posted a result."""
        return [node for node in self.heartbeats.lost if node not in self.heartbeats.results]

    def _result(self, code: int) -> Result:
        failures = failure.recorded(self.out)
        return Result(code, failures[0] if failures and code else None)

    def _agree(self, mine: Result) -> int:
        """Returns the exit code of the whole gang, and writes the failure behind it into the run's folder."""
        while len(self.heartbeats.results) < len(self.heartbeats.peers):
            if missing := self._missing():
                return self._lost(missing)
            time.sleep(_POLL_S)
        results = [mine, *self.heartbeats.results.values()]
        code = decisive_code(result.code for result in results)
        for result in results:
            if result.failure and result.code == code:
                failure.write(self.out, result.failure)
        return code

    def _lost(self, nodes: list[int]) -> int:
        # Without node 0 the state of the other nodes is unknown.
        lost = f"lost node {0 if 0 in nodes else ', '.join(map(str, nodes))} of the gang"
        log.error("%s", lost)
        failure.clear(self.out)  # broken connections are only a consequence
        failure.record(self.out, 0, TransientError(lost, "all nodes must be started again; they resume"))
        return 1

    def _signal(self, number: int) -> None:
        for rank in self.ranks:
            rank.send_signal(number)
            if number == signal.SIGKILL:
                rank.wait()

    def _pass_on(self, number: int, frame: object) -> None:
        self.stop_requested = True
        self._signal(number)


def _code(status: int) -> int:
    """Returns a rank's exit code as a shell would."""
    return status if status >= 0 else 128 - status


def decisive_code(codes: Iterable[int]) -> int:
    """Returns the exit code for several: one that forbids a restart, then a stop, a kill, any failure, 0.

    >>> decisive_code([0, 1, 143]), decisive_code([1, 2]), decisive_code([0, 0])
    (143, 2, 0)
    """
    given = list(codes)
    return next((code for code in PRECEDENCE if code in given), max(given))
