"""Hostile web hosts on loopback, and valid and invalid certificates of a test authority. Not a test module.

Each host has a separate port and sends raw bytes.
"""

import asyncio
import contextlib
import re
import socket
import ssl
import threading
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

Answer = bytes | Callable[[str], bytes | AsyncIterator[bytes]]

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n"


def page(body: bytes, *headers: str, status: str = "200 OK", kind: str = "text/html") -> bytes:
    """A complete response."""
    lines = [f"HTTP/1.1 {status}", f"Content-Type: {kind}", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body


def redirect(to: str, status: str = "302 Found") -> bytes:
    # Servers send non-ASCII letters as UTF-8, and browsers decode them so.
    return page(b"", "Location: " + to.encode().decode("latin-1"), status=status)


NOT_FOUND = page(b"", status="404 Not Found")
TDMREP = "/.well-known/tdmrep.json"


@dataclass
class Host:
    """One host: answers `answer` to every path but /robots.txt and /.well-known/tdmrep.json.

    Attributes:
        requests: (monotonic time of the request, time of the end of the response, path).
        sent: bytes of responses.
    """

    answer: Answer
    robots: Answer
    tdm: Answer = b""
    address: str = "127.0.0.1"
    port: int = 0
    requests: list[tuple[float, float, str]] = field(default_factory=list)
    connections: int = 0
    sent: int = 0
    scheme: str = "http"
    name: str = ""
    greeting: bytes = b""

    def url(self, path: str = "/") -> str:
        return f"{self.scheme}://{self.name or self.address}:{self.port}{path}"

    def paths(self) -> list[str]:
        return [path for *_, path in self.requests]


class Web:
    """Serves hosts from one thread; an endless response does not affect other hosts."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._servers: list[asyncio.Server] = []

    def __enter__(self) -> "Web":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(20)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)

    def host(
        self,
        answer: Answer,
        robots: Answer = NOT_FOUND,
        tdm: Answer = NOT_FOUND,
        *,
        tls: ssl.SSLContext | None = None,
        name: str = "",
        address: str = "127.0.0.1",
        port: int = 0,
        greeting: bytes = b"",
    ) -> Host:
        """Starts a host that answers, or one that sends an unsolicited `greeting`; see `Host.url` for its URL."""
        scheme = "https" if tls else "http"
        host = Host(answer, robots, tdm, address, port, scheme=scheme, name=name, greeting=greeting)
        asyncio.run_coroutine_threadsafe(self._open(host, tls), self._loop).result(10)
        return host

    async def _open(self, host: Host, tls: ssl.SSLContext | None) -> None:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            host.connections += 1
            with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
                writer.write(host.greeting)
                await _converse(host, reader, writer)
            writer.close()

        server = await asyncio.start_server(serve, host.address, host.port, ssl=tls)
        # Data in kernel buffers counts as sent: without a limit, several unread MiB.
        server.sockets[0].setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 18)
        host.port = server.sockets[0].getsockname()[1]
        self._servers.append(server)

    async def _end(self) -> None:
        for server in self._servers:
            server.close()
        mine = asyncio.current_task()
        others = [task for task in asyncio.all_tasks() if task is not mine]
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)


async def _converse(host: Host, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while True:
        head = await reader.readuntil(b"\r\n\r\n")
        path = head.split(b" ", 2)[1].decode("latin-1")
        begin, number = time.monotonic(), len(host.requests)
        host.requests.append((begin, begin, path))
        try:
            answer = {"/robots.txt": host.robots, TDMREP: host.tdm}.get(path, host.answer)
            if callable(answer):
                answer = answer(path)
            if isinstance(answer, bytes):
                await _send(host, writer, answer)
                if not _whole(answer):
                    return
            else:
                async for piece in answer:
                    await _send(host, writer, piece)
                return
        finally:
            host.requests[number] = (begin, time.monotonic(), path)


def _whole(answer: bytes) -> bool:
    """Returns whether a response has its declared length: only then may the connection be reused."""
    end = answer.find(b"\r\n\r\n") + 4
    head = answer[:end].lower()
    lengths = re.findall(rb"(?m)^content-length: (\d{1,12})\r?$", head)
    return lengths == [str(len(answer) - end).encode()] and b"transfer-encoding" not in head


async def _send(host: Host, writer: asyncio.StreamWriter, data: bytes) -> None:
    for start in range(0, len(data), 1 << 16):
        piece = data[start : start + (1 << 16)]
        writer.write(piece)
        await writer.drain()
        host.sent += len(piece)


def endless(head: bytes, piece: bytes, pause_s: float = 0.0) -> Callable[[str], AsyncIterator[bytes]]:
    """A response that starts with `head` and repeats `piece` until the client closes the connection."""

    async def answer(_: str) -> AsyncIterator[bytes]:
        yield head
        while True:
            yield piece
            await asyncio.sleep(pause_s)

    return answer


_DAY = timedelta(days=1)


class CertificateAuthority:
    """Issues certificates into `folder`; clients that trust `file` trust them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "Tests")])
        self._certificate = self._signed(self._name, self._key, "", authority=True)
        self.file = folder / "authority.pem"
        self.file.write_bytes(_pem(self._certificate))

    def server(self, name: str, *, expired: bool = False, self_signed: bool = False, chain: int = 0) -> ssl.SSLContext:
        """Returns certificate and key of a server with that name, followed by `chain` unrelated certificates."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
        signer = (subject, key) if self_signed else None
        leaf = self._signed(subject, key, name, expired=expired, signer=signer)
        private = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        file = self._folder / f"{name}-{expired}-{self_signed}-{chain}.pem"
        file.write_bytes(private + _pem(leaf) + _pem(self._certificate) * chain)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(file)
        return context

    def _signed(
        self,
        subject: x509.Name,
        key: ec.EllipticCurvePrivateKey,
        name: str,
        *,
        expired: bool = False,
        authority: bool = False,
        signer: tuple[x509.Name, ec.EllipticCurvePrivateKey] | None = None,
    ) -> x509.Certificate:
        issuer, issuer_key = signer or (self._name, self._key)
        now = datetime.now(UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(issuer)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - 30 * _DAY)
            .not_valid_after(now - _DAY if expired else now + _DAY)
            .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        )
        if name:
            builder = builder.add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        return builder.sign(issuer_key, hashes.SHA256())


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)
