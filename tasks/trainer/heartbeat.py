"""Heartbeats and results of the agents of a gang: which nodes have joined, which are alive, how each one's ranks ended.

Node 0 serves a TCPStore, which is also the rendezvous of the ranks. A thread per node writes its heartbeat and results
there and reads those of the others twice a second. So a machine that disappears without closing its connections counts
as lost after `PEER_TIMEOUT_S`, where a collective would wait for minutes.
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
"""Seconds without a heartbeat after which a node counts as lost."""
LEAVE_S = 10.0
"""Seconds that a node waits at its end until its last result is written and, on node 0, until the others have left."""
_STORE_TIMEOUT = timedelta(seconds=60)


@dataclass(frozen=True)
class Result:
    """How the ranks of one node ended: exit code, and the failure that the first of them recorded."""

    code: int
    failure: Failure | None = None

    def text(self) -> str:
        """Returns JSON for `read`."""
        return json.dumps({"code": self.code, "failure": asdict(self.failure) if self.failure else None})

    @classmethod
    def read(cls, text: str) -> "Result":
        """Returns the Result that `text` has written as JSON."""
        fields = json.loads(text)
        return cls(fields["code"], Failure(**fields["failure"]) if fields["failure"] else None)


class HeartbeatStore:
    """One agent's client of the store. Use as a context; `host` is the IP address at which the ranks find the store.

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
        self._last_seen = dict.fromkeys(self.peers, time.monotonic())
        self._beats = dict.fromkeys(self.peers, 0)
        self._attempt = 0
        self._pending: dict[str, str] = {}
        self._results: dict[int, Result] = {}
        self._broken = False
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._exchange, name="heartbeat", daemon=True)

    def __enter__(self) -> "HeartbeatStore":
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        """Leaves when every pending result is written; node 0 last, since the store ends with it."""
        self._pending["left/" + str(self.gang.node)] = "1"
        deadline = time.monotonic() + LEAVE_S
        while self._pending and not self.lost and time.monotonic() < deadline:
            time.sleep(0.05)
        if self.gang.node == 0 and exc[0] is None:
            self._linger(deadline)
        self._closing.set()
        # A thread that is still inside torch when the interpreter ends makes C++ abort the process: exit code 134.
        self._thread.join(LEAVE_S)

    def begin(self, attempt: int) -> None:
        """Starts to read the results of an attempt."""
        self._attempt, self._results = attempt, {}

    def post(self, result: Result) -> None:
        """Posts how the ranks of this node ended in this attempt."""
        self._pending[f"result/{self._attempt}/{self.gang.node}"] = result.text()

    @property
    def results(self) -> dict[int, Result]:
        """Results of this attempt that other nodes have posted so far, by node."""
        return dict(self._results)

    @property
    def lost(self) -> list[int]:
        """Nodes without a recent heartbeat; all of them when node 0, which serves the store, is gone."""
        if self._broken:
            return list(self.peers)
        now = time.monotonic()
        return [node for node in self.peers if now - self._last_seen[node] > PEER_TIMEOUT_S]

    def _exchange(self) -> None:
        try:
            while not self._closing.wait(BEAT_S):
                self._store.add(f"beat/{self.gang.node}", 1)
                for key, text in list(self._pending.items()):
                    self._store.set(key, text)
                    del self._pending[key]
                for node in self.peers:
                    self._read(node)
        except Exception as error:  # torch raises plain RuntimeErrors
            if not self._closing.is_set():
                log.warning("the gang's store is gone (%s)", str(error).split("\n")[0])
            self._broken = True

    def _read(self, node: int) -> None:
        beats = self._store.add(f"beat/{node}", 0)
        if beats != self._beats[node]:
            self._beats[node], self._last_seen[node] = beats, time.monotonic()
        attempt, key = self._attempt, f"result/{self._attempt}/{node}"
        if node not in self._results and self._store.check([key]):
            result = Result.read(self._store.get(key).decode())
            if attempt == self._attempt:
                self._results[node] = result

    def _linger(self, deadline: float) -> None:
        departures = [f"left/{node}" for node in self.peers]
        while time.monotonic() < deadline and not self.lost and not self._store.check(departures):
            time.sleep(0.1)


def _meet(gang: Gang, nproc: int, deadline: float) -> tuple[str, TCPStore]:
    """Returns the address of the store, and the store itself when all nodes have come to it."""
    while True:
        host = "127.0.0.1" if gang.node == 0 else gang.reach(deadline - time.monotonic())
        try:
            store = TCPStore(host, gang.port, is_master=gang.node == 0, timeout=_STORE_TIMEOUT, wait_for_workers=False)
            # A gang that is ending may still serve this address: then this node has joined before, or the store breaks.
            if store.add(f"join/{gang.node}", 1) == 1:
                store.set(f"node/{gang.node}", str(nproc))
                _await_all(gang, store, deadline)
                return host, store
            problem = "an earlier gang still uses it"
        except RuntimeError as error:  # the only type that torch raises
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
