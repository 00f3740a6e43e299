"""A crawl with grants for some internal hosts, in a network namespace with other internal hosts. Not a test module.

Like `private_net`: `python -m tests.tasks.stages.crawl.hostile.intranet_net STORE` prints which of the internal servers
got a connection, which of them were granted, and the fetch log.
"""

import json
import sys
from pathlib import Path

from tests.tasks.stages.crawl.hostile.name_server import NameServer, addresses
from tests.tasks.stages.crawl.hostile.private_net import NAMES, PUBLIC, SECOND, SETTINGS, crawl, reach, up
from tests.tasks.stages.crawl.hostile.web import Web, page, redirect

INSIDE = ("10.20.0.5", "10.20.0.6", "10.20.0.7", "10.99.0.1", "169.254.169.254", "100.100.100.200", "fd00:ec2::254")
GRANTED = ("10.20.0.5 8080", "10.20.0.6 80", f"{PUBLIC} 81")
PLACES = ("wiki.corp.internal:8080", "10.20.0.6", "port.example:81")
NETWORKS = ["10.20.0.0/16", "100.64.0.0/10", "fd00::/8"]
# Granted by name, but resolved outside the granted networks, or to a cloud metadata address.
ASTRAY = ("outside.corp", "meta.corp", "meta6.corp", "lists.corp")
# Not granted.
STRANGERS = ("evil.example", "mixed.example", "10.20.0.5", "10.20.0.7", "corp.internal")

ZONE = {
    "public.example": addresses("public.example", PUBLIC),
    "port.example": addresses("port.example", PUBLIC),
    "leads.example": addresses("leads.example", SECOND),
    "wiki.corp.internal": addresses("wiki.corp.internal", "10.20.0.5"),
    "corp.internal": addresses("corp.internal", "10.20.0.5"),
    "outside.corp": addresses("outside.corp", "10.99.0.1"),
    "meta.corp": addresses("meta.corp", "100.100.100.200"),
    "meta6.corp": addresses("meta6.corp", "fd00:ec2::254"),
    "lists.corp": addresses("lists.corp", "10.20.0.5", "169.254.169.254"),
    "evil.example": addresses("evil.example", "10.20.0.5"),
    "mixed.example": addresses("mixed.example", PUBLIC, "10.20.0.5"),
}


def main() -> None:
    store = Path(sys.argv[1])
    up((PUBLIC, SECOND, NAMES, *INSIDE))
    with Web() as web, NameServer(ZONE, 53, NAMES):
        inside = {
            f"{address} {port}": web.host(page(b"inside"), address=address, port=port)
            for address in INSIDE
            for port in (80, 443, 8080, 8081)
        }
        inside |= {f"{PUBLIC} {port}": web.host(page(b"port"), address=PUBLIC, port=port) for port in (81, 82, 8080)}
        for host in inside.values():  # all of them are reachable
            reach(host.address, host.port)
        while any(not host.connections for host in inside.values()):
            pass
        before = {name: host.connections for name, host in inside.items()}
        targets = ["wiki.corp.internal:8080", "wiki.corp.internal:8081", "wiki.corp.internal", "10.20.0.6"]
        targets += ["10.20.0.6:8080", "public.example:8080", "port.example:81", "port.example:82", *ASTRAY, *STRANGERS]
        links = "".join(f"<a href='http://{target}/'>x</a>" for target in [*targets, "leads.example"])
        web.host(page(links.encode()), address=PUBLIC, port=80)
        web.host(redirect("http://10.20.0.7:8080/"), address=SECOND, port=80)
        grants: dict[str, list[str]] = dict.fromkeys(ASTRAY, NETWORKS)
        grants |= {"wiki.corp.internal:8080": ["10.20.0.0/16"], "10.20.0.6": ["10.20.0.6/32"], "port.example:81": []}
        config = {"seeds": ["http://public.example/"], "include_hosts": ["*.example", "*.corp", *targets]}
        rows = crawl(store, {**SETTINGS, **config, "allow_hosts": grants})
        reached = sorted(name for name, host in inside.items() if host.connections != before[name])
    # All of them, including wiki.corp.internal on its second web port, except the one on another port.
    refused = len(ASTRAY) + len(STRANGERS) + 1
    print(json.dumps({"reached": reached, "granted": GRANTED, "places": PLACES, "rows": rows, "refused": refused}))


if __name__ == "__main__":
    main()
