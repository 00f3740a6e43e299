"""The crawl tests' small site, a private network to be kept out of, and Chromium where there is one."""

import contextlib
import importlib.util
import socket
import sys
import threading
from pathlib import Path

import pytest

from tasks.errors import InputError

if "crawl_site" not in sys.modules:
    _spec = importlib.util.spec_from_file_location("crawl_site", Path(__file__).parents[1] / "crawl" / "site.py")
    _module = importlib.util.module_from_spec(_spec)
    sys.modules["crawl_site"] = _module
    _spec.loader.exec_module(_module)


@pytest.fixture
def chromium() -> str:
    """The browser's program; skips where there is none."""
    pytest.importorskip("playwright.async_api", reason="rendering is not tested: no package playwright")
    from tasks.render.browser import find_chromium

    try:
        return find_chromium()
    except InputError as error:
        pytest.skip(f"rendering is not tested: {error}")


class Inside:
    """A server of a private network: TCP and UDP on one loopback port; notes whatever reaches it.

    Attributes:
        heard: path of each HTTP request, or "tcp" and "udp" for anything else.
    """

    def __init__(self) -> None:
        self.heard: list[str] = []
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
                head = connection.recv(65536)
                words = head.split(b" ", 2)
                self.heard.append(words[1].decode() if words[0] in (b"GET", b"POST", b"OPTIONS") else "tcp")
                body = b"HTTP/1.1 200 OK\r\nAccess-Control-Allow-Origin: *\r\nContent-Length: 0\r\n\r\n"
                connection.sendall(body)
            except OSError:
                self.heard.append("tcp")

    def _receive(self) -> None:
        while True:
            try:
                self._udp.recvfrom(65536)
            except OSError:
                return
            self.heard.append("udp")

    def close(self) -> None:
        for one in (self._tcp, self._udp):
            # A thread that waits in a system call is woken by the end of the connection, not by the file's.
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()


@pytest.fixture
def inside():
    server = Inside()
    yield server
    server.close()
