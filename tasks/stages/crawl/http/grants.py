"""Hosts that the recipe names one by one although they lie inside, or on another port (`[crawl] allow_hosts`).

A grant is of one host on one port, and says in which networks its name may lie. So a page of another host, or a name
server that lies, reaches nothing by it. Addresses that clouds answer from about a machine itself are in no grant.
"""

import ipaddress
from collections.abc import Mapping, Sequence

from tasks.formats.url import host_and_port

Network = ipaddress.IPv4Network | ipaddress.IPv6Network

WEB_PORTS = (None, 80, 443)

# Metadata and agents of AWS, Alibaba, Oracle, Azure and GCP; 169.254.0.0/16 and fe80::/10 are no networks of a grant.
_METADATA = frozenset(
    map(ipaddress.ip_address, ("fd00:ec2::254", "100.100.100.200", "192.0.0.192", "168.63.129.16", "fd20:ce::254"))
)


class Grants:
    """What `allow_hosts` grants.

    Args:
        allowed: networks by host ("wiki.corp", or "wiki.corp:8080" for that port); none of them: public addresses only.
    """

    def __init__(self, allowed: Mapping[str, Sequence[str]] | None = None) -> None:
        self._networks: dict[tuple[str, int | None], tuple[Network, ...]] = {}
        for place, networks in (allowed or {}).items():
            name, port = host_and_port(f"http://{place}/")
            held = tuple(map(ipaddress.ip_network, networks))
            for one in WEB_PORTS if port is None else (port,):
                self._networks[name.strip("[]"), one] = held

    def __bool__(self) -> bool:
        """Tells whether anything is granted."""
        return bool(self._networks)

    def of(self, host: str, port: int | None) -> tuple[Network, ...] | None:
        """Returns the networks in which a host may lie beside the public ones; None where nothing is granted.

        Args:
            host: name or address, IPv6 with or without brackets.
            port: None for that of the scheme.
        """
        return self._networks.get((host.strip("[]"), port)) if self._networks else None

    def only(self, host: str) -> "Grants":
        """Returns what is granted to one host (`tasks.formats.url.authority`), for what is asked on its behalf."""
        name, port = host_and_port(f"http://{host}/")
        found = Grants()
        for one in WEB_PORTS if port is None else (port,):
            key = name.strip("[]"), one
            if key in self._networks:
                found._networks[key] = self._networks[key]
        return found


def is_metadata(address: str) -> bool:
    """Tells whether a cloud answers from an address about the machine that asks."""
    return ipaddress.ip_address(address.partition("%")[0]) in _METADATA


def within(address: str, networks: Sequence[Network] | None) -> bool:
    """Tells whether an IP address lies in one of the networks of a grant."""
    ip = ipaddress.ip_address(address.partition("%")[0])
    return any(ip in one for one in networks or ()) and ip not in _METADATA
