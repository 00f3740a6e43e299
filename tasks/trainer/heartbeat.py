"""Heartbeats and results between the agents of a gang, over a TCPStore on node 0.

A thread per node writes its heartbeat and its result to the store and reads those of the other nodes twice a second, so
that a machine that disappears without closing its connections is detected after `PEER_TIMEOUT_S`, where a collective
would wait for minutes. The ranks use the same store for their rendezvous.
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
from tasks.trainer.launch.failure import Failure
from tasks.trainer.launch.gang import AGAIN_S, MEETING_S, Gang

log = logging.getLogger(__name__)

BEAT_S = 0.5
PEER_TIMEOUT_S = float(os.environ.get("SLUICE_PEER_TIMEOUT", "30"))
"""Seconds without a heartbeat after which a node counts as lost."""
LEAVE_S = 10.0
"""Seconds a node waits at its end for the others to read its result."""
_STORE_TIMEOUT = timedelta(seconds=60)


@dataclass(frozen=True)
class Result:
    """How the ranks of one node ended: exit code, and the failure that was recorded first."""

    code: int
    failure: Failure | None = None

    def text(self) -> str:
        """Returns JSON for `read`."""
        return json.dumps({"code": self.code, "failure": asdict(self.failure) if self.failure else None})

    @classmethod
    def read(cls, text: str) -> "Result":
        """Parses what `text` returned."""
        fields = json.loads(text)
        return cls(fields["code"], Failure(**fields["failure"]) if fields["failure"] else None)


class HeartbeatStore:
    """One agent's connection to the store. A context manager; `host` is the IP address of the store.

    Args:
        gang: this node among the others.
        nproc: ranks here; all nodes must have as many.

    Raises:
        TransientError: the others did not connect within `MEETING_S`.
        InputError: the nodes differ in their number of ranks.
    """

    def __init__(self, gang: Gang, nproc: int) -> None:
        self.gang = gang
        self.host, self._store = _connect(gang, nproc, time.monotonic() + MEETING_S)
        counts = [int(self._store.get(f"node/{node}")) for node in range(gang.nodes)]
        if len(set(counts)) > 1:
            raise InputError(f"the nodes of the gang have {counts} ranks", "give all pods the same PET_NPROC_PER_NODE")
        self.peers = [node for node in range(gang.nodes) if node != gang.node]
        self._last_beat = dict.fromkeys(self.peers, time.monotonic())
        self._beats = dict.fromkeys(self.peers, 0)
        self._attempt = 0
        self._outbox: dict[str, str] = {}
        self._results: dict[int, Result] = {}
        self._broken = False
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._exchange, name="heartbeat", daemon=True)

    def __enter__(self) -> "HeartbeatStore":
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        """Closes when everything is sent; node 0 last, since the store ends with it."""
        self._outbox["left/" + str(self.gang.node)] = "1"
        deadline = time.monotonic() + LEAVE_S
        while self._outbox and not self.lost and time.monotonic() < deadline:
            time.sleep(0.05)
        if self.gang.node == 0 and exc[0] is None:
            self._await_peers(deadline)
        self._closing.set()
        # A thread that is still inside torch when the interpreter ends makes C++ abort the process: exit code 134.
        self._thread.join(LEAVE_S)

    def begin(self, attempt: int) -> None:
        """Starts to read the results of an attempt."""
        self._attempt, self._results = attempt, {}

    def post(self, result: Result) -> None:
        """Sends the result of this node for the current attempt."""
        self._outbox[f"result/{self._attempt}/{self.gang.node}"] = result.text()

    @property
    def results(self) -> dict[int, Result]:
        """Results of the other nodes for the current attempt so far."""
        return dict(self._results)

    @property
    def lost(self) -> list[int]:
        """Nodes without a heartbeat for `PEER_TIMEOUT_S`; all of them when the store on node 0 is gone."""
        if self._broken:
            return list(self.peers)
        now = time.monotonic()
        return [node for node in self.peers if now - self._last_beat[node] > PEER_TIMEOUT_S]

    def _exchange(self) -> None:
        try:
            while not self._closing.wait(BEAT_S):
                self._store.add(f"beat/{self.gang.node}", 1)
                for key, text in list(self._outbox.items()):
                    self._store.set(key, text)
                    del self._outbox[key]
                for node in self.peers:
                    self._read_peer(node)
        except Exception as error:  # torch raises plain RuntimeErrors
            if not self._closing.is_set():
                log.warning("the gang's store is gone (%s)", str(error).split("\n")[0])
            self._broken = True

    def _read_peer(self, node: int) -> None:
        beats = self._store.add(f"beat/{node}", 0)
        if beats != self._beats[node]:
            self._beats[node], self._last_beat[node] = beats, time.monotonic()
        attempt, key = self._attempt, f"result/{self._attempt}/{node}"
        if node not in self._results and self._store.check([key]):
            result = Result.read(self._store.get(key).decode())
            if attempt == self._attempt:
                self._results[node] = result

    def _await_peers(self, deadline: float) -> None:
        left = [f"left/{node}" for node in self.peers]
        while time.monotonic() < deadline and not self.lost and not self._store.check(left):
            time.sleep(0.1)


def _connect(gang: Gang, nproc: int, deadline: float) -> tuple[str, TCPStore]:
    """Returns the address of the store and, when all nodes have joined, the store."""
    while True:
        host = "127.0.0.1" if gang.node == 0 else gang.reach(deadline - time.monotonic())
        try:
            store = TCPStore(host, gang.port, is_master=gang.node == 0, timeout=_STORE_TIMEOUT, wait_for_workers=False)
            # A gang that is being ended may still listen at this address: then our key exists already, or the store
            # fails.
            if store.add(f"join/{gang.node}", 1) == 1:
                store.set(f"node/{gang.node}", str(nproc))
                _await_all(gang, store, deadline)
                return host, store
            problem = "an earlier gang still uses it"
        except RuntimeError as error:  # torch raises nothing more specific
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
