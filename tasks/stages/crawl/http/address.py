"""IP addresses and ports that a crawler may request: public ones, and what the recipe grants single hosts.

Refused are private, loopback, link-local, metadata and translated addresses. Checked three times: the literal or name
in a canonical URL before anything is sent; every answer of the resolver, whose checked address is the one connected to,
so that a name cannot resolve differently in between (DNS rebinding); and the address at the other end of a connection
before a request goes over it. Ranges: IANA's special-purpose registries (RFC 6890), listed here in full, as Python's
`ipaddress` differs from release to release.

A grant (`[crawl] allow_hosts`) is for one host on one port, and lists the networks to which its name may resolve. So it
gives no access to a page of another host or through a forged DNS answer. Addresses of cloud metadata services are in no
grant.
"""

import ipaddress
from collections.abc import Mapping, Sequence
from functools import lru_cache

from tasks.formats.web.url import authority, host_and_port
from tasks.stages.crawl.config import INSIDE_NAMES, is_loopback

PRIVATE = "private_address"
PORT = "port"

WEB_PORTS = (None, 80, 443)

Network = ipaddress.IPv4Network | ipaddress.IPv6Network

# Metadata and agents of AWS, Alibaba, Oracle, Azure and GCP; 169.254.0.0/16 and fe80::/10 are no networks of a grant.
_METADATA = frozenset(
    map(ipaddress.ip_address, ("fd00:ec2::254", "100.100.100.200", "192.0.0.192", "168.63.129.16", "fd20:ce::254"))
)

# IANA's registries of special-purpose addresses, with what was allocated up to 2025 (RFC 9780): every block, also the
# few that are called globally reachable (AS112, multicast relays, anycast of the IETF), for none holds a web server.
# Besides: multicast; addresses of IPv6 that carry another inside (6to4); and of IPv6 nothing outside global unicast,
# which leaves out NAT64, IPv4-mapped and -compatible, local, link-local, site-local, discard-only and SRv6 addresses.
_SPECIAL_4 = tuple(
    ipaddress.IPv4Network(net)
    for net in (
        *("0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12"),
        *("192.0.0.0/24", "192.0.2.0/24", "192.31.196.0/24", "192.52.193.0/24", "192.88.99.0/24", "192.168.0.0/16"),
        *("192.175.48.0/24", "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24", "224.0.0.0/4", "240.0.0.0/4"),
    )
)
_GLOBAL_6 = ipaddress.IPv6Network("2000::/3")
_SPECIAL_6 = tuple(
    ipaddress.IPv6Network(net) for net in ("2001::/23", "2001:db8::/32", "2002::/16", "2620:4f:8000::/48", "3fff::/20")
)
# Names that clouds and home routers answer from inside.
_INSIDE = (".internal", ".local", ".localdomain", ".home.arpa", ".intranet", ".lan")


class RefusedAddressError(OSError):
    """A name or a connection led to an address that a crawler must not reach."""


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


NO_GRANTS = Grants()


def refusal(url: str, *, allow_loopback: bool, grants: Grants = NO_GRANTS) -> str | None:
    """Returns why a canonical URL must not be requested ("private_address", "port"), or None.

    Run it after `canonical`: the parser turns every spelling of an address (0x7f.1, 2130706433, full-width digits)
    into the same literal.
    """
    return _refusal(authority(url), allow_loopback, grants)


@lru_cache(maxsize=1 << 14)
def _refusal(place: str, allow_loopback: bool, grants: Grants) -> str | None:
    host, port = host_and_port(f"http://{place}/")
    if is_loopback(host):
        return None if allow_loopback else PRIVATE
    granted = grants.of(host, port)
    if port not in WEB_PORTS and granted is None:
        return PORT
    if host in INSIDE_NAMES or (host.endswith(_INSIDE) and not granted):
        return PRIVATE
    try:
        return None if reachable(host.strip("[]"), granted) else PRIVATE
    except ValueError:
        return None


def reachable(address: str, granted: Sequence[Network] | None, *, allow_loopback: bool = False) -> bool:
    """Returns whether a crawler may connect to an IP address for a host with the grant `granted`."""
    return is_public(address) or within(address, granted) or (allow_loopback and is_loopback(address))


@lru_cache(maxsize=1 << 14)
def is_public(address: str) -> bool:
    """Returns whether an IP address literal is on the public Internet.

    >>> is_public("93.184.216.34"), is_public("100.64.0.1"), is_public("64:ff9b::7f00:1")
    (True, False, False)
    """
    ip = ipaddress.ip_address(address.partition("%")[0])
    if is_metadata(address):
        return False
    if isinstance(ip, ipaddress.IPv4Address):
        return not any(ip in net for net in _SPECIAL_4)
    return ip in _GLOBAL_6 and not any(ip in net for net in _SPECIAL_6)


@lru_cache(maxsize=1 << 14)
def is_address(host: str) -> bool:
    """Returns whether a host (without brackets) is an IP address and not a name."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def is_metadata(address: str) -> bool:
    """Returns whether an address is that of a cloud metadata service."""
    return ipaddress.ip_address(address.partition("%")[0]) in _METADATA


def within(address: str, networks: Sequence[Network] | None) -> bool:
    """Returns whether an IP address is in one of the networks of a grant."""
    ip = ipaddress.ip_address(address.partition("%")[0])
    return any(ip in one for one in networks or ()) and ip not in _METADATA
