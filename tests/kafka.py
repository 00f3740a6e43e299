"""A Kafka broker for tests: librdkafka's mock cluster, which speaks Kafka's protocol on a socket of this machine.

`Guarded` asks for a password before it, which the mock cluster cannot.
"""

import json
import socket
import struct
import threading
from typing import Any, BinaryIO, Self

from confluent_kafka import Producer

_API_VERSIONS, _HANDSHAKE, _AUTHENTICATE = 18, 17, 36
_REFUSED = 58


class Broker:
    """A broker in this process, with four partitions per topic; a partition keeps its newest 5 MB."""

    def __init__(self) -> None:
        self._cluster = Producer({"bootstrap.servers": "none", "test.mock.num.brokers": 1, "log_level": 0})
        (one,) = self._cluster.list_topics(timeout=60).brokers.values()
        self.host, self.port = one.host, one.port
        self.address = f"{one.host}:{one.port}"
        self._producer = Producer({"bootstrap.servers": self.address, "log_level": 0})

    def send(self, *values: object, partition: int = 0, topic: str = "articles") -> None:
        """Appends messages, and waits until the broker has them."""
        for value in values:
            data = value if value is None or isinstance(value, bytes) else json.dumps(value).encode()
            self._producer.produce(topic, value=data, partition=partition, timestamp=1_790_000_000_000)
        assert self._producer.flush(60) == 0


class Guarded:
    """A broker behind SASL PLAIN, without TLS.

    Attributes:
        address: of the guard.
        refused: number of attempts with another user or password.
    """

    def __init__(self, broker: Broker, user: str, password: str) -> None:
        self._broker = broker
        self._expected = f"\0{user}\0{password}".encode()
        self._server = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._server.getsockname()[1]}"
        self.refused = 0

    def __enter__(self) -> Self:
        threading.Thread(target=self._serve, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.close()

    def _serve(self) -> None:
        while True:
            try:
                client, _ = self._server.accept()
            except OSError:  # closed
                return
            threading.Thread(target=self._guard, args=(client,), daemon=True).start()

    def _guard(self, client: socket.socket) -> None:
        with client, socket.create_connection((self._broker.host, self._broker.port)) as server:
            requests, replies = client.makefile("rb"), server.makefile("rb")
            while request := _frame(requests):
                kind, version, number = struct.unpack(">hhi", request[:8])
                if kind == _HANDSHAKE:
                    _send(client, struct.pack(">ihi", number, 0, 1) + _text("PLAIN"))
                elif kind == _AUTHENTICATE:
                    code = 0 if request.endswith(self._expected) else _REFUSED
                    _send(client, struct.pack(">ihhi", number, code, -1, 0))
                    if code:
                        self.refused += 1
                        return
                    break
                else:
                    assert kind == _API_VERSIONS, "a request before the password"
                    _send(server, request)
                    reply = _frame(replies)
                    _send(client, _with_sasl(reply) if version == 0 else reply)
            threading.Thread(target=_forward, args=(requests, server), daemon=True).start()
            # The client must come back through the guard.
            _forward(replies, client, struct.pack(">i", self._broker.port), struct.pack(">i", self._port))

    @property
    def _port(self) -> int:
        return int(self.address.partition(":")[2])


def _with_sasl(reply: bytes) -> bytes:
    number, code, count = struct.unpack(">ihi", reply[:10])
    more = struct.pack(">hhhhhh", _HANDSHAKE, 0, 1, _AUTHENTICATE, 0, 0)
    return struct.pack(">ihi", number, code, count + 2) + reply[10:] + more


def _text(text: str) -> bytes:
    return struct.pack(">h", len(text)) + text.encode()


def _frame(stream: BinaryIO | Any) -> bytes:
    head = stream.read(4)
    return bytes(stream.read(struct.unpack(">i", head)[0])) if len(head) == 4 else b""


def _send(target: socket.socket, frame: bytes) -> None:
    target.sendall(struct.pack(">i", len(frame)) + frame)


def _forward(source: BinaryIO | Any, target: socket.socket, old: bytes = b"", new: bytes = b"") -> None:
    try:
        while frame := _frame(source):
            _send(target, frame.replace(old, new) if old else frame)
    except (OSError, ValueError):  # the other side has gone
        return
