"""A server that a page must not reach, or one that speaks TLS. Not a test module."""

import contextlib
import socket
import ssl
import threading


class Inside:
    """A server of a private network: TCP and UDP on one loopback port; notes whatever reaches it.

    Args:
        tls: what it speaks TLS with; None for plain text.

    Attributes:
        heard: path of each HTTP request, or "tcp" and "udp" for anything else.
    """

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self.heard: list[str] = []
        self._tls = tls
        self._tcp = socket.create_server(("127.0.0.1", 0))
        self.port = self._tcp.getsockname()[1]
        self._udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._udp.bind(("127.0.0.1", self.port))
        self._threads = [threading.Thread(target=work, daemon=True) for work in (self._accept, self._receive)]
        for thread in self._threads:
            thread.start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._tcp.accept()
            except OSError:
                return
            threading.Thread(target=self._talk, args=(connection,), daemon=True).start()

    def _talk(self, connection: socket.socket) -> None:
        with connection:
            connection.settimeout(5)
            try:
                if self._tls:
                    connection = self._tls.wrap_socket(connection, server_side=True)
                head = connection.recv(65536)
                words = head.split(b" ", 2)
                self.heard.append(words[1].decode() if words[0] in (b"GET", b"POST", b"OPTIONS") else "tcp")
                body = b"HTTP/1.1 200 OK\r\nAccess-Control-Allow-Origin: *\r\nContent-Length: 2\r\n\r\nhi"
                connection.sendall(body)
            except OSError:
                self.heard.append("tcp")

    def _receive(self) -> None:
        while True:
            try:
                data, _ = self._udp.recvfrom(65536)
            except OSError:
                return
            if not data:  # closed
                return
            self.heard.append("udp")

    def close(self) -> None:
        for one in (self._tcp, self._udp):
            # A thread that waits in a system call is woken by the end of the connection, not by the file's.
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()
