"""A small name server on loopback (UDP and TCP) with answers from the tests. Not a test module."""

import asyncio
import ipaddress
import struct
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

A, CNAME, AAAA = 1, 5, 28
KINDS = {A: "A", AAAA: "AAAA"}
NXDOMAIN, SERVFAIL = 3, 2
_UDP_BYTES = 1232


@dataclass
class DnsAnswer:
    """One answer: records as (name, type, TTL, address or name), sent after `delay_s`, or never if `silent`."""

    records: list[tuple[str, int, int, str]] = field(default_factory=list)
    code: int = 0
    delay_s: float = 0.0
    silent: bool = False


def addresses(name: str, *ips: str, ttl: int = 300) -> DnsAnswer:
    return DnsAnswer([(name, AAAA if ":" in one else A, ttl, one) for one in ips])


class NameServer:
    """Answers by `zone`: an answer by name, or a function of (kind, number of earlier queries); others are NXDOMAIN.

    Attributes:
        queries: (name, "A" or "AAAA") of every query, in order.
    """

    def __init__(
        self, zone: dict[str, DnsAnswer | Callable[[str, int], DnsAnswer]], port: int = 0, host: str = "127.0.0.1"
    ) -> None:
        self.zone = zone
        self.queries: list[tuple[str, str]] = []
        self.host, self.port = host, port
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._serve, daemon=True)

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"

    def times(self, name: str, kind: str = "A") -> int:
        return self.queries.count((name, kind))

    def __enter__(self) -> "NameServer":
        self._thread.start()
        assert self._ready.wait(10)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._begin())
        self._loop.run_forever()
        self._tcp.close()
        self._udp.close()
        self._loop.run_until_complete(asyncio.sleep(0.01))

    async def _begin(self) -> None:
        self._tcp = await asyncio.start_server(self._conversation, self.host, self.port)
        self.port = self._tcp.sockets[0].getsockname()[1]
        self._udp, _ = await self._loop.create_datagram_endpoint(
            lambda: _Datagrams(self), local_addr=(self.host, self.port)
        )
        self._ready.set()

    async def _conversation(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                (length,) = struct.unpack(">H", await reader.readexactly(2))
                reply = await self.reply(await reader.readexactly(length), limit=65535)
                if reply is not None:
                    writer.write(struct.pack(">H", len(reply)) + reply)
        except (asyncio.IncompleteReadError, OSError):
            writer.close()

    async def reply(self, question: bytes, limit: int) -> bytes | None:
        name, end = _name(question, 12)
        kind = KINDS.get(struct.unpack_from(">H", question, end)[0], "other")
        before = self.times(name, kind)
        self.queries.append((name, kind))
        answer = self.zone.get(name, DnsAnswer(code=NXDOMAIN))
        if callable(answer):
            answer = answer(kind, before)
        await asyncio.sleep(answer.delay_s)
        if answer.silent:
            return None
        records = [one for one in answer.records if one[1] == CNAME or KINDS[one[1]] == kind]
        data = b"".join(map(_record, records))
        cut = len(data) + end + 4 > limit
        flags = 0x8180 | answer.code | (0x0200 if cut else 0)
        head = question[:2] + struct.pack(">HHHHH", flags, 1, 0 if cut else len(records), 0, 0)
        return head + question[12 : end + 4] + (b"" if cut else data)


class _Datagrams(asyncio.DatagramProtocol):
    def __init__(self, server: NameServer) -> None:
        self._server = server
        self._replies: set[asyncio.Task[None]] = set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        task = asyncio.ensure_future(self._answer(data, addr))
        self._replies.add(task)
        task.add_done_callback(self._replies.discard)

    async def _answer(self, data: bytes, addr: tuple[str, int]) -> None:
        reply = await self._server.reply(data, _UDP_BYTES)
        if reply is not None:
            self._transport.sendto(reply, addr)  # type: ignore[attr-defined]


def _name(packet: bytes, at: int) -> tuple[str, int]:
    labels = []
    while packet[at]:
        labels.append(packet[at + 1 : at + 1 + packet[at]].decode())
        at += 1 + packet[at]
    return ".".join(labels).lower(), at + 1


def _encoded(name: str) -> bytes:
    return b"".join(bytes([len(label)]) + label.encode() for label in name.split(".")) + b"\0"


def _record(record: tuple[str, int, int, str]) -> bytes:
    name, kind, ttl, value = record
    data = _encoded(value) if kind == CNAME else ipaddress.ip_address(value).packed
    return _encoded(name) + struct.pack(">HHIH", kind, 1, ttl, len(data)) + data
