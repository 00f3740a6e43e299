"""Grants: hosts at private addresses or on other ports that the recipe allows (`[crawl] allow_hosts`).

A grant is for one host on one port, and lists the networks to which its name may resolve. So it gives no access to a
page of another host or through a forged DNS answer. Addresses of cloud metadata services are in no grant.
"""

import ipaddress
from collections.abc import Mapping, Sequence

from tasks.formats.web.url import host_and_port

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
            inside = tuple(map(ipaddress.ip_network, networks))
            for one in WEB_PORTS if port is None else (port,):
                self._networks[name.strip("[]"), one] = inside

    def __bool__(self) -> bool:
        """Returns whether there are any grants."""
        return bool(self._networks)

    def of(self, host: str, port: int | None) -> tuple[Network, ...] | None:
        """Returns the networks to which a host may resolve besides public ones; None without a grant.

        Args:
            host: name or address, IPv6 with or without brackets.
            port: None for that of the scheme.
        """
        return self._networks.get((host.strip("[]"), port)) if self._networks else None

    def only(self, host: str) -> "Grants":
        """Returns the grants of one host (`tasks.formats.web.url.authority`), for requests of its pages."""
        name, port = host_and_port(f"http://{host}/")
        found = Grants()
        for one in WEB_PORTS if port is None else (port,):
            key = name.strip("[]"), one
            if key in self._networks:
                found._networks[key] = self._networks[key]
        return found


def is_metadata(address: str) -> bool:
    """Returns whether an address is that of a cloud metadata service."""
    return ipaddress.ip_address(address.partition("%")[0]) in _METADATA


def within(address: str, networks: Sequence[Network] | None) -> bool:
    """Returns whether an IP address is in one of the networks of a grant."""
    ip = ipaddress.ip_address(address.partition("%")[0])
    return any(ip in one for one in networks or ()) and ip not in _METADATA
