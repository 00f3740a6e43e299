"""A crawl with the rules of the public web in a network namespace with servers at private addresses. Not a test module.

Run as root of an isolated network namespace (`unshare --user --map-root-user --net`): it gives the loopback
interface public and private addresses, puts a server behind each, and crawls with the rules for the public web. `python
-m tests.tasks.stages.crawl.hostile.private_net STORE` prints the private servers that got a connection, and
the fetch log.
"""

import errno
import itertools
import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

from tests.tasks.stages.crawl.hostile.name_server import CNAME, SERVFAIL, A, DnsAnswer, NameServer, addresses
from tests.tasks.stages.crawl.hostile.web import Web, page, redirect

PUBLIC, SECOND, THIRD, NAMES = "93.184.216.34", "93.184.216.35", "93.184.216.36", "93.184.216.53"
PRIVATE = (
    *("127.0.0.1", "127.8.8.8", "10.0.0.1", "172.16.5.4", "192.168.1.1", "169.254.169.254", "100.64.0.1"),
    *("192.0.0.170", "198.18.0.1", "192.88.99.1"),
    *("::1", "fc00::1", "fd00:ec2::254", "fec0::1", "64:ff9b::a00:1", "2002:a00:1::1", "::10.0.0.1"),
)
LITERALS = (
    *(
        "127.0.0.1",
        "127.1",
        "0x7f.1",
        "2130706433",
        "0177.0.0.1",
        "１２７.０.０.１",
        "127.0.0.1.",
        "localhost",
        "a.localhost",
    ),
    *("[::1]", "[::ffff:127.0.0.1]", "[::ffff:10.0.0.1]", "[fe80::1]", "[fc00::1]", "[fd00:ec2::254]", "[fec0::1]"),
    *("[64:ff9b::a00:1]", "[2002:a00:1::1]", "[::10.0.0.1]", "[::]", "0.0.0.0", "0", "10.0.0.1", "0xa000001"),
    *("012.0.0.1", "172.16.5.4", "192.168.1.1", "169.254.169.254", "100.64.0.1", "192.0.0.170", "198.18.0.1"),
    *("metadata.google.internal", "metadata", "instance-data.ec2.internal", "printer.local", "router.lan"),
)
SETTINGS: dict[str, object] = {
    "contact": "mailto:a@b.example",
    "name_servers": [NAMES],
    "partitions": 1,
    "max_depth": 1,
    # A hundred hosts share two addresses; politeness by address is not tested here.
    "ip_delay_s": 0.02,
    # Requests are counted.
    "guess_sitemaps": False,
    "timeout_s": 3.0,
    "max_backoff_s": 2.0,
    "time_box_s": 60.0,
    "concurrency": 200,
}
PORTS = (22, 25, 6379, 8080, 3128)
NAMED = ("private.example", "loop.example", "mixed.example", "mixed6.example", "metadata.example", "alias.example")


def rebinding(name):
    """Public at the first lookup, private at all others; with a TTL of zero."""

    def answer(kind, before):
        return DnsAnswer() if kind == "AAAA" else addresses(name, "10.0.0.1" if before else SECOND, ttl=0)

    return answer


ZONE = {
    "public.example": addresses("public.example", PUBLIC),
    "second.example": addresses("second.example", SECOND),
    "many.example": addresses("many.example", *[SECOND] * 500),
    "private.example": addresses("private.example", "10.0.0.1"),
    "loop.example": addresses("loop.example", "127.0.0.1", "::1"),
    "mixed.example": addresses("mixed.example", SECOND, "192.168.1.1"),
    "mixed6.example": addresses("mixed6.example", SECOND, "fc00::1"),
    "metadata.example": addresses("metadata.example", "169.254.169.254"),
    "alias.example": DnsAnswer([("alias.example", CNAME, 60, "in.example"), ("in.example", A, 60, "10.0.0.1")]),
    "circle.example": DnsAnswer([("circle.example", CNAME, 60, "circle.example")]),
    "silent.example": DnsAnswer(silent=True),
    "broken.example": DnsAnswer(code=SERVFAIL),
    "rebind.example": rebinding("rebind.example"),
    **{f"r{number}.example": addresses(f"r{number}.example", SECOND) for number in range(64)},
    **{f"q{number}.example": addresses(f"q{number}.example", THIRD) for number in range(64)},
}


def main() -> None:
    store = Path(sys.argv[1])
    up((PUBLIC, SECOND, THIRD, NAMES, *PRIVATE))
    with Web() as web, NameServer(ZONE, 53, NAMES):
        private = {
            f"{address} {port}": web.host(page(b"secret"), address=address, port=port)
            for address in PRIVATE
            for port in (80, 443, 3128)
        }
        private |= {f"{PUBLIC} {port}": web.host(page(b"secret"), address=PUBLIC, port=port) for port in PORTS}
        for host in private.values():  # all of them are reachable
            reach(host.address, host.port)
        while any(not host.connections for host in private.values()):
            pass
        before = {name: host.connections for name, host in private.items()}
        _open_public(web)
        rows = crawl(store, _config())
        reached = [name for name, host in private.items() if host.connections != before[name]]
    print(json.dumps({"reached": reached, "rows": rows, "servers": len(private)}))


def reach(address: str, port: int, limit_s: float = 10) -> None:
    """Connects once; on a loaded machine the kernel adds the route of a new IPv6 address with a delay."""
    deadline = time.monotonic() + limit_s
    while True:
        try:
            socket.create_connection((address, port), 5).close()
        except OSError as error:
            if error.errno != errno.ENETUNREACH or time.monotonic() > deadline:
                raise
            time.sleep(0.05)
        else:
            return


def _targets() -> list[str]:
    """Returns URLs of private addresses."""
    literals = [f"http://{host}/secret" for host in LITERALS]
    named = [f"http://{host}/" for host in NAMED]
    return [*literals, *named, *(f"http://public.example:{port}/" for port in PORTS), "http://user@10.0.0.1/"]


def _open_public(web: Web) -> None:
    """Starts the public servers: one links to all targets, one redirects to them, others redirect robots.txt."""
    targets = _targets()
    extra = [f"http://{name}.example/" for name in ("rebind", "many", "circle", "silent", "broken", "none")]
    extra += [f"http://r{number}.example/{number}" for number in range(len(targets))]
    extra += [f"http://q{number}.example/" for number in range(len(targets))]
    links = "".join(f"<a href='{target}'>x</a>" for target in [*targets, *extra])
    turn, other_turn = itertools.cycle(targets), itertools.cycle(targets)
    web.host(page(links.encode(), kind="text/html; charset=utf-8"), address=PUBLIC, port=80)
    web.host(
        lambda path: redirect(targets[int(path[1:])]) if path[1:].isdigit() else page(b"second"),
        address=SECOND,
        port=80,
        tdm=lambda _: redirect(next(other_turn)),
    )
    web.host(page(b"third"), address=THIRD, port=80, robots=lambda _: redirect(next(turn)))


def _config() -> dict[str, object]:
    """Returns the settings for the public web, with a scope that covers all targets."""
    scope = ["*.example", "*.internal", "*.local", "*.lan", "*.localhost", "metadata", *PRIVATE[:10], "0.0.0.0"]
    scope += [host for host in LITERALS if host.startswith("[")] + ["[::7f00:1]", "[::a00:1]"]
    scope += ["[::ffff:7f00:1]", "[::ffff:a00:1]", *(f"public.example:{port}" for port in PORTS)]
    return {
        **SETTINGS,
        "seeds": ["http://public.example/"],
        "include_hosts": scope,
    }


def crawl(store: Path, config: dict[str, object]) -> list[dict[str, object]]:
    """Crawls in a separate process, with proxy variables set; returns the rows of the fetch log."""
    proxies = {name: "http://10.0.0.1:3128" for name in ("HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "ALL_PROXY")}
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("run_crawl.py")), str(store)],
        input=json.dumps(config),
        env={**os.environ, **proxies},
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    if done.returncode:
        sys.exit(done.stderr[-4000:])
    rows: list[dict[str, object]] = json.loads((store / "result.json").read_text())["rows"]
    return rows


def up(addresses: tuple[str, ...]) -> None:
    """Adds all addresses to the loopback interface of this namespace."""
    commands = ["link set lo up"]
    commands += [f"addr add {one}/32 dev lo" for one in addresses if "." in one and ":" not in one]
    commands += [f"addr add {one}/128 dev lo nodad" for one in addresses if ":" in one]
    for command in commands:
        subprocess.run(["ip", *command.split()], check=False, capture_output=True)


if __name__ == "__main__":
    main()
