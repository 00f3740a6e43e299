"""Connections of the agents of a gang to that of node 0, which show within a second that an agent has ended.

The kernel closes the connections of a process that ends for any reason. A node that leaves says so first. A machine
that vanishes closes nothing; its heartbeats end.
"""

import contextlib
import selectors
import socket
import threading
from collections.abc import Callable

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
