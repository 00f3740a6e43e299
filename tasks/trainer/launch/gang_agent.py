"""Starts and restarts the ranks of one node of a gang, in coordination with the agents of the other nodes.

torchrun's static rendezvous tells no other agent of a restart. Its dynamic one numbers the nodes by the text of their
addresses, then by process id (torch 2.13, `dynamic_rendezvous.py`): node-10 before node-2, and nodes without names in
any order, while node 0 runs the stage and must have rank 0, which writes. Here rank = node * ranks per node + local
rank. When a rank fails, all ranks on all nodes are stopped, every agent publishes the exit code of its ranks, and all
agents derive the same decision from the codes: an exit code, or another attempt.

Every agent has a connection to that of node 0, which shows within a second that an agent has ended: the kernel closes
the connections of a process that ends for any reason. A node that leaves says so first. A machine that vanishes closes
nothing; its heartbeats end.
"""

import contextlib
import json
import logging
import math
import os
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path

from torch.distributed import TCPStore  # type: ignore[attr-defined]

from tasks.core.errors import InputError, SluiceError, TransientError
from tasks.trainer.launch import failure
from tasks.trainer.launch.failure import Failure
from tasks.trainer.launch.gang import AGAIN_S, MEETING_S, Gang
from tasks.trainer.parallel.ranks import ATTEMPT

_FAREWELL = b"\x01"
_NODE_BYTES = 4
_JOIN_S = 10.0


class Listener:
    """On node 0: accepts the connections, and reports nodes that are gone. Its thread ends with `close`.

    Args:
        on_lost: called by the thread with the index of a node whose connection has ended without a farewell.
    """

    def __init__(self, on_lost: Callable[[int], None]) -> None:
        self._on_lost = on_lost
        self._server = socket.create_server(("", 0))
        self._wake, self._woken = socket.socketpair()
        self._selector = selectors.DefaultSelector()
        for one in (self._server, self._woken):
            self._selector.register(one, selectors.EVENT_READ)
        self._nodes: dict[socket.socket, int] = {}
        self._thread = threading.Thread(target=self._serve, name="connections", daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        """The port on which it listens."""
        return int(self._server.getsockname()[1])

    def close(self) -> None:
        """Ends the thread and closes all connections."""
        self._wake.send(_FAREWELL)
        self._thread.join(_JOIN_S)

    def _serve(self) -> None:
        with self._server, self._wake, self._woken, self._selector:
            while True:
                for key, _ in self._selector.select():
                    if key.fileobj is self._woken:
                        return
                    if key.fileobj is self._server:
                        self._accept()
                    elif isinstance(key.fileobj, socket.socket):
                        self._read(key.fileobj)

    def _accept(self) -> None:
        connection, _ = self._server.accept()
        connection.settimeout(_JOIN_S)
        with contextlib.suppress(OSError):
            number = connection.recv(_NODE_BYTES, socket.MSG_WAITALL)
            if len(number) == _NODE_BYTES:
                self._nodes[connection] = int.from_bytes(number, "big")
                self._selector.register(connection, selectors.EVENT_READ)
                return
        connection.close()

    def _read(self, connection: socket.socket) -> None:
        try:
            said = connection.recv(len(_FAREWELL))
        except OSError:
            said = b""
        self._selector.unregister(connection)
        node = self._nodes.pop(connection)
        connection.close()
        if said != _FAREWELL:
            self._on_lost(node)


class Connection:
    """The connection of another node to the `Listener`.

    Raises:
        OSError: it cannot be reached.
    """

    def __init__(self, host: str, port: int, node: int) -> None:
        self._socket = socket.create_connection((host, port), timeout=_JOIN_S)
        self._socket.sendall(node.to_bytes(_NODE_BYTES, "big"))

    def close(self) -> None:
        """Leaves the gang."""
        with contextlib.suppress(OSError):
            self._socket.sendall(_FAREWELL)
        self._socket.close()


log = logging.getLogger(__name__)
BEAT_S = 0.5
PEER_TIMEOUT_S = float(os.environ.get("SLUICE_PEER_TIMEOUT", "30"))
"""Seconds without a heartbeat after which a node is considered lost."""
LEAVE_S = 10.0
"""Seconds that a node waits at exit for the others to read its result."""
_STORE_TIMEOUT = timedelta(seconds=60)
WIND_DOWN_S = 20.0
"""Seconds that a rank may continue after another has failed, because it may be writing a checkpoint."""
LOST_S = 3.0
"""The same after a node is lost. A rank that waits for another than those of the lost node sees no broken connection,
and would continue for all of `WIND_DOWN_S`; a checkpoint that is spread over nodes cannot be completed."""
PRECEDENCE = (2, 143, 137)
"""Exit codes of a node that become the exit code of all nodes, in order of precedence, before other failures."""
_POLL_S = 0.1
_CONNECTIONS, _GONE = "connections", "gone"
"""Keys of the store: the port for connections of agents, and the nodes whose agent has ended, as JSON."""
Rank = subprocess.Popen[bytes]


@dataclass(frozen=True)
class NodeResult:
    """Result of the ranks of one node: exit code, and the first recorded failure."""

    code: int
    failure: Failure | None = None

    def text(self) -> str:
        """Returns the result as JSON, for `read`."""
        return json.dumps({"code": self.code, "failure": asdict(self.failure) if self.failure else None})

    @classmethod
    def read(cls, text: str) -> "NodeResult":
        """Parses the output of `text`."""
        fields = json.loads(text)
        return cls(fields["code"], Failure(**fields["failure"]) if fields["failure"] else None)


class HeartbeatStore:
    """Heartbeats and results between the agents of a gang, over a TCPStore on node 0.

    A thread on each node writes its heartbeat and its result to the store, and reads those of the other nodes, twice a
    second. An agent that ends is detected within a second, because its connection to node 0 does (`connections`); a
    machine that disappears without closing its connections after `PEER_TIMEOUT_S`. A collective would block for
    minutes. The ranks use the same store for their rendezvous.

    A context manager; `host` is the IP address of the store.

    Args:
        gang: this node and its gang.
        nproc: number of ranks on this node; it must be equal on all nodes.

    Raises:
        TransientError: the other nodes did not connect within `MEETING_S`.
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
        self._results: dict[int, NodeResult] = {}
        self._broken = False
        self._gone: set[int] = set()
        self._connection = self._connect_to_first()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._exchange, name="heartbeat", daemon=True)

    def __enter__(self) -> "HeartbeatStore":
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        """Closes after everything is sent; node 0 closes last, because it hosts the store."""
        self._outbox["left/" + str(self.gang.node)] = "1"
        deadline = time.monotonic() + LEAVE_S
        while self._outbox and not self.lost and time.monotonic() < deadline:
            time.sleep(0.05)
        if self.gang.node == 0 and exc[0] is None:
            self._await_peers(deadline)
        self._connection.close()
        self._closing.set()
        # A thread that is inside torch while the interpreter exits makes C++ abort the process (exit code 134).
        self._thread.join(LEAVE_S)

    def begin(self, attempt: int) -> None:
        """Starts an attempt, and discards the results of the previous one."""
        self._attempt, self._results = attempt, {}

    def post(self, result: NodeResult) -> None:
        """Publishes the result of this node for the current attempt."""
        self._outbox[f"result/{self._attempt}/{self.gang.node}"] = result.text()

    @property
    def results(self) -> dict[int, NodeResult]:
        """Results of the other nodes for the current attempt, by node, as far as received."""
        return dict(self._results)

    @property
    def lost(self) -> list[int]:
        """Nodes whose agent has ended, or without a heartbeat for `PEER_TIMEOUT_S`; all others if node 0 is lost."""
        if self._broken:
            return list(self.peers)
        now = time.monotonic()
        return [node for node in self.peers if node in self._gone or now - self._last_beat[node] > PEER_TIMEOUT_S]

    def _connect_to_first(self) -> Listener | Connection:
        """Opens the connections that show the end of an agent."""
        if self.gang.node == 0:
            listener = Listener(self._gone.add)
            self._store.set(_CONNECTIONS, str(listener.port))
            return listener
        try:
            return Connection(self.host, int(self._store.get(_CONNECTIONS)), self.gang.node)
        except (OSError, RuntimeError) as error:
            raise TransientError(f"the agent of node 0 accepts no connection ({error})", "see its log") from None

    def _exchange(self) -> None:
        try:
            while not self._closing.wait(BEAT_S):
                self._store.add(f"beat/{self.gang.node}", 1)
                for key, text in list(self._outbox.items()):
                    self._store.set(key, text)
                    del self._outbox[key]
                self._share_gone()
                for node in self.peers:
                    self._read_peer(node)
        except Exception as error:  # torch raises plain RuntimeErrors
            if not self._closing.is_set():
                log.warning("lost connection to the gang's store (%s)", str(error).split("\n")[0])
            self._broken = True

    def _share_gone(self) -> None:
        """Node 0 publishes which agents have ended, and the others read it."""
        if self.gang.node == 0:
            if self._gone:
                self._store.set(_GONE, json.dumps(sorted(self._gone)))
        elif self._store.check([_GONE]):
            self._gone.update(json.loads(self._store.get(_GONE)))

    def _read_peer(self, node: int) -> None:
        beats = self._store.add(f"beat/{node}", 0)
        if beats != self._beats[node]:
            self._beats[node], self._last_beat[node] = beats, time.monotonic()
        attempt, key = self._attempt, f"result/{self._attempt}/{node}"
        if node not in self._results and self._store.check([key]):
            result = NodeResult.read(self._store.get(key).decode())
            if attempt == self._attempt:
                self._results[node] = result

    def _await_peers(self, deadline: float) -> None:
        keys = [f"left/{node}" for node in self.peers]
        while time.monotonic() < deadline and not self.lost and not self._store.check(keys):
            time.sleep(0.1)


def _connect(gang: Gang, nproc: int, deadline: float) -> tuple[str, TCPStore]:
    """Waits until all nodes have joined; returns the address of the store, and the store."""
    while True:
        host = "127.0.0.1" if gang.node == 0 else gang.reach(deadline - time.monotonic())
        try:
            store = TCPStore(host, gang.port, is_master=gang.node == 0, timeout=_STORE_TIMEOUT, wait_for_workers=False)
            # An earlier gang that is shutting down may still listen at this address; then the key exists already, or
            # the store fails.
            if store.add(f"join/{gang.node}", 1) == 1:
                store.set(f"node/{gang.node}", str(nproc))
                _await_all(gang, store, deadline)
                return host, store
            problem = "an earlier gang still uses it"
        except RuntimeError as error:  # torch raises nothing more specific
            problem = str(error).split("\n")[0]
        if time.monotonic() > deadline:
            raise TransientError(f"port {gang.port} of node 0 cannot be used ({problem})", "see the log of node 0")
        time.sleep(AGAIN_S)


def _await_all(gang: Gang, store: TCPStore, deadline: float) -> None:
    while missing := [node for node in range(gang.nodes) if not store.check([f"node/{node}"])]:
        if time.monotonic() > deadline:
            raise TransientError(
                f"nodes {missing} of the gang did not join within {MEETING_S:.0f} s", "see the events of their pods"
            )
        time.sleep(AGAIN_S)


def run_gang(spec: Path, out: Path, nproc: int, gang: Gang, max_restarts: int, final: Iterable[int]) -> int:
    """Runs the ranks of this node until they end; returns the exit code, which is the same on all nodes of the gang.

    If a node is lost, the gang ends with exit code 1, within five seconds if its agent ended and else within
    `PEER_TIMEOUT_S` more, and the supervisor of the nodes restarts all of them.
    """
    log.info("node %d of %d, %d ranks each; node 0 is %s:%d", gang.node, gang.nodes, nproc, gang.address, gang.port)
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
    """The ranks of this node, as processes."""

    def __init__(self, spec: Path, out: Path, nproc: int, heartbeats: HeartbeatStore) -> None:
        self.spec, self.out, self.nproc, self.heartbeats = spec, out, nproc, heartbeats
        self.stop_requested = False
        self.ranks: list[Rank] = []
        signal.signal(signal.SIGTERM, self._forward_signal)

    def run(self, attempt: int) -> int:
        """Runs all ranks for one attempt; returns the exit code of the whole gang."""
        failure.clear(self.out)
        self.heartbeats.begin(attempt)
        self.ranks = [self._start(local, attempt) for local in range(self.nproc)]
        if self.stop_requested:  # during their start
            self._signal(signal.SIGTERM)
        own = self._result(self._wait())
        self.heartbeats.post(own)
        return self._agree(own)

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
        """Waits until all ranks have ended; returns the exit code with the highest precedence."""
        deadline = math.inf
        while any(rank.poll() is None for rank in self.ranks):
            ended, now = [rank.returncode for rank in self.ranks if rank.returncode], time.monotonic()
            if self._missing():
                deadline = min(deadline, now + LOST_S)
            elif ended or self._failed_elsewhere():
                deadline = min(deadline, now + WIND_DOWN_S)
            if now > deadline:
                self._signal(signal.SIGKILL)  # the resulting exit codes are ignored
                return decisive_code([1, *map(_code, ended)])
            time.sleep(_POLL_S)
        return decisive_code(_code(rank.returncode) for rank in self.ranks)

    def _failed_elsewhere(self) -> bool:
        return any(result.code for result in self.heartbeats.results.values())

    def _missing(self) -> list[int]:
        """Returns the lost nodes that have not published a result."""
        return [node for node in self.heartbeats.lost if node not in self.heartbeats.results]

    def _result(self, code: int) -> NodeResult:
        failures = failure.recorded(self.out)
        return NodeResult(code, failures[0] if failures and code else None)

    def _agree(self, own: NodeResult) -> int:
        """Returns the exit code of the whole gang, and records the failure that caused it in the run's folder."""
        while len(self.heartbeats.results) < len(self.heartbeats.peers):
            if missing := self._missing():
                return self._record_lost_nodes(missing)
            time.sleep(_POLL_S)
        results = [own, *self.heartbeats.results.values()]
        code = decisive_code(result.code for result in results)
        for result in results:
            if result.failure and result.code == code:
                failure.write(self.out, result.failure)
        return code

    def _record_lost_nodes(self, nodes: list[int]) -> int:
        # Without node 0 the state of the other nodes is unknown.
        message = f"lost node {0 if 0 in nodes else ', '.join(map(str, nodes))} of the gang"
        log.error("%s", message)
        failure.clear(self.out)  # recorded errors of broken connections are only a consequence
        failure.record(self.out, 0, TransientError(message, "restart all nodes; they resume"))
        return 1

    def _signal(self, number: int) -> None:
        for rank in self.ranks:
            rank.send_signal(number)
            if number == signal.SIGKILL:
                rank.wait()

    def _forward_signal(self, number: int, frame: object) -> None:
        self.stop_requested = True
        self._signal(number)


def _code(status: int) -> int:
    """Returns the exit code of a rank like a shell."""
    return status if status >= 0 else 128 - status


def decisive_code(codes: Iterable[int]) -> int:
    """Combines exit codes, in order of precedence: permanent failure, stop, kill, other failure, success.

    >>> decisive_code([0, 1, 143]), decisive_code([1, 2]), decisive_code([0, 0])
    (143, 2, 0)
    """
    all_codes = list(codes)
    return next((code for code in PRECEDENCE if code in all_codes), max(all_codes))
