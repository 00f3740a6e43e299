"""How the agents of a gang talk: who is there, who still lives, how each one's ranks ended.

Node 0 keeps a TCPStore that the ranks meet in as well; a thread per node exchanges heartbeats and results with it twice
a second, so that a machine that vanishes without a word (no connection is closed then) is missed after
`PEER_TIMEOUT_S`, where a collective would wait for minutes.
"""

import json
import logging
import os
import threading
import time
from dataclasses import asdict, dataclass
from datetime import timedelta

from torch.distributed import TCPStore  # type: ignore[attr-defined]

from tasks.core.errors import InputError, TransientError
from tasks.trainer.failure import Failure
from tasks.trainer.gang import AGAIN_S, MEETING_S, Gang

log = logging.getLogger(__name__)

BEAT_S = 0.5
PEER_TIMEOUT_S = float(os.environ.get("SLUICE_PEER_TIMEOUT", "30"))
"""Silence after which a node is taken for dead."""
LEAVE_S = 10.0
"""How long a node waits at its end for the others to hear it."""
_STORE_TIMEOUT = timedelta(seconds=60)


@dataclass(frozen=True)
class Result:
    """How the ranks of one node ended: exit code, and what the first of them wrote down about it."""

    code: int
    failure: Failure | None = None

    def text(self) -> str:
        """Returns JSON for `read`."""
        return json.dumps({"code": self.code, "failure": asdict(self.failure) if self.failure else None})

    @classmethod
    def read(cls, text: str) -> "Result":
        """Returns what `text` returned as a Result."""
        held = json.loads(text)
        return cls(held["code"], Failure(**held["failure"]) if held["failure"] else None)


class HeartbeatStore:
    """One agent's end of the conversation. Use as a context; `host` is the IP address the ranks find the store at.

    Args:
        gang: this node among the others.
        nproc: ranks here; all nodes must have as many.

    Raises:
        TransientError: the others did not come within `MEETING_S`.
        InputError: the nodes differ in their number of ranks.
    """

    def __init__(self, gang: Gang, nproc: int) -> None:
        self.gang = gang
        self.host, self._store = _meet(gang, nproc, time.monotonic() + MEETING_S)
        counts = [int(self._store.get(f"node/{node}")) for node in range(gang.nodes)]
        if len(set(counts)) > 1:
            raise InputError(f"the nodes of the gang have {counts} ranks", "give all pods the same PET_NPROC_PER_NODE")
        self.peers = [node for node in range(gang.nodes) if node != gang.node]
        self._heard = dict.fromkeys(self.peers, time.monotonic())
        self._beats = dict.fromkeys(self.peers, 0)
        self._attempt = 0
        self._said: dict[str, str] = {}
        self._results: dict[int, Result] = {}
        self._broken = False
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._exchange, name="channel", daemon=True)

    def __enter__(self) -> "HeartbeatStore":
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        """Leaves when all is said; node 0 last, since the store ends with it."""
        self._said["left/" + str(self.gang.node)] = "1"
        deadline = time.monotonic() + LEAVE_S
        while self._said and not self.lost and time.monotonic() < deadline:
            time.sleep(0.05)
        if self.gang.node == 0 and exc[0] is None:
            self._linger(deadline)
        self._closing.set()
        # A thread that is still inside torch when the interpreter ends makes C++ abort the process: exit code 134.
        self._thread.join(LEAVE_S)

    def begin(self, attempt: int) -> None:
        """Starts to listen for the results of an attempt."""
        self._attempt, self._results = attempt, {}

    def post(self, result: Result) -> None:
        """Tells the others how our ranks of this attempt have ended."""
        self._said[f"result/{self._attempt}/{self.gang.node}"] = result.text()

    @property
    def results(self) -> dict[int, Result]:
        """What the other nodes have told about this attempt so far."""
        return dict(self._results)

    @property
    def lost(self) -> list[int]:
        """Nodes that are silent for too long; all of them when node 0, through whom they speak, is gone."""
        if self._broken:
            return list(self.peers)
        now = time.monotonic()
        return [node for node in self.peers if now - self._heard[node] > PEER_TIMEOUT_S]

    def _exchange(self) -> None:
        try:
            while not self._closing.wait(BEAT_S):
                self._store.add(f"beat/{self.gang.node}", 1)
                for key, text in list(self._said.items()):
                    self._store.set(key, text)
                    del self._said[key]
                for node in self.peers:
                    self._listen(node)
        except Exception as error:  # torch raises plain RuntimeErrors
            if not self._closing.is_set():
                log.warning("the gang's store is gone (%s)", str(error).split("\n")[0])
            self._broken = True

    def _listen(self, node: int) -> None:
        beats = self._store.add(f"beat/{node}", 0)
        if beats != self._beats[node]:
            self._beats[node], self._heard[node] = beats, time.monotonic()
        attempt, key = self._attempt, f"result/{self._attempt}/{node}"
        if node not in self._results and self._store.check([key]):
            result = Result.read(self._store.get(key).decode())
            if attempt == self._attempt:
                self._results[node] = result

    def _linger(self, deadline: float) -> None:
        there = [f"left/{node}" for node in self.peers]
        while time.monotonic() < deadline and not self.lost and not self._store.check(there):
            time.sleep(0.1)


def _meet(gang: Gang, nproc: int, deadline: float) -> tuple[str, TCPStore]:
    """Returns the address of the store, and the store itself when all nodes have come to it."""
    while True:
        host = "127.0.0.1" if gang.node == 0 else gang.reach(deadline - time.monotonic())
        try:
            store = TCPStore(host, gang.port, is_master=gang.node == 0, timeout=_STORE_TIMEOUT, wait_for_workers=False)
            # A gang that is being ended may still listen at this address: then our place is taken, or the store breaks.
            if store.add(f"join/{gang.node}", 1) == 1:
                store.set(f"node/{gang.node}", str(nproc))
                _await_all(gang, store, deadline)
                return host, store
            problem = "an earlier gang still holds it"
        except RuntimeError as error:  # torch knows no better
            problem = str(error).split("\n")[0]
        if time.monotonic() > deadline:
            raise TransientError(f"port {gang.port} of node 0 cannot be used ({problem})", "look at node 0's log")
        time.sleep(AGAIN_S)


def _await_all(gang: Gang, store: TCPStore, deadline: float) -> None:
    while missing := [node for node in range(gang.nodes) if not store.check([f"node/{node}"])]:
        if time.monotonic() > deadline:
            raise TransientError(
                f"nodes {missing} of the gang did not come within {MEETING_S:.0f} s", "look at the events of their pods"
            )
        time.sleep(AGAIN_S)
