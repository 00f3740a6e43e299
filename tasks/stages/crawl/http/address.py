"""IP addresses and ports that the crawler may connect to: public ones, and those that the recipe grants to a host.

Private, loopback, link-local, metadata and translated addresses are refused. There are three checks: of the address or
name in a canonical URL, before anything is sent; of every answer of the resolver, where the crawler connects to the
checked address, so that a name cannot resolve differently in between (DNS rebinding); and of the peer address of a
connection, before a request is sent over it. The ranges are IANA's special-purpose registries (RFC 6890), listed here
in full because Python's `ipaddress` differs from release to release.

A grant (`[crawl] allow_hosts`) applies to one host on one port and lists the networks to which its name may resolve. It
gives no access through pages of other hosts or forged DNS answers. No grant covers addresses of cloud metadata
services.
"""

import ipaddress
from collections.abc import Mapping, Sequence
from functools import lru_cache

from tasks.formats.web.url import split_port
from tasks.stages.crawl.config import METADATA_NAMES, is_loopback

PRIVATE = "private_address"
PORT = "port"

WEB_PORTS = (None, 80, 443)

Network = ipaddress.IPv4Network | ipaddress.IPv6Network

# Metadata services and agents of AWS, Alibaba, Oracle, Azure and GCP. Grants cannot cover 169.254.0.0/16 and fe80::/10.
_METADATA = frozenset(
    map(ipaddress.ip_address, ("fd00:ec2::254", "100.100.100.200", "192.0.0.192", "168.63.129.16", "fd20:ce::254"))
)

# IANA's registries of special-purpose addresses as of 2025 (RFC 9780). All blocks are listed, including the few that
# are globally reachable (AS112, multicast relays, IETF anycast), because none of them contains a web server. Also
# listed: multicast, and IPv6 addresses that embed another address (6to4). IPv6 is limited to global unicast, which
# excludes NAT64, IPv4-mapped and -compatible, local, link-local, site-local, discard-only and SRv6 addresses.
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
# Domains that clouds and home routers resolve to internal addresses.
_INTERNAL_DOMAINS = (".internal", ".local", ".localdomain", ".home.arpa", ".intranet", ".lan")


class RefusedAddressError(OSError):
    """A name resolved to, or a connection ended at, an address that the crawler must not reach."""


class Grants:
    """What a crawl may reach besides public addresses: the grants of `allow_hosts`, and this machine.

    Args:
        allowed: networks by host ("wiki.corp", or "wiki.corp:8080" for that port). A host with an empty list of
            networks may only resolve to public addresses.
        allow_loopback: whether this machine may be reached, on any port.

    Attributes:
        allow_loopback: see above.
    """

    def __init__(self, allowed: Mapping[str, Sequence[str]] | None = None, *, allow_loopback: bool = False) -> None:
        self.allow_loopback = allow_loopback
        self._networks: dict[tuple[str, int | None], tuple[Network, ...]] = {}
        for entry, networks in (allowed or {}).items():
            name, port = split_port(entry)
            parsed = tuple(map(ipaddress.ip_network, networks))
            for granted_port in WEB_PORTS if port is None else (port,):
                self._networks[name.strip("[]"), granted_port] = parsed

    def of(self, host: str, port: int | None) -> tuple[Network, ...] | None:
        """Returns the networks to which a host may resolve in addition to public addresses; None without a grant.

        Args:
            host: name or address, IPv6 with or without brackets.
            port: None for the default port of the scheme.
        """
        return self._networks.get((host.strip("[]"), port)) if self._networks else None

    def only(self, host: str) -> "Grants":
        """Returns the grants of one host (`tasks.formats.web.url.authority`), for the requests that its pages make."""
        name, port = split_port(host)
        grants = Grants(allow_loopback=self.allow_loopback)
        for granted_port in WEB_PORTS if port is None else (port,):
            key = name.strip("[]"), granted_port
            if key in self._networks:
                grants._networks[key] = self._networks[key]
        return grants


@lru_cache(maxsize=1 << 14)
def refusal(authority: str, grants: Grants) -> str | None:
    """Returns why a host must not be requested ("private_address", "port"), or None.

    Args:
        authority: the host of a canonical URL (`tasks.formats.web.url.authority`), in which every spelling of an
            address (0x7f.1, 2130706433, full-width digits) is the same literal.
        grants: what may be reached besides public addresses.
    """
    host, port = split_port(authority)
    if is_loopback(host):
        return None if grants.allow_loopback else PRIVATE
    granted = grants.of(host, port)
    if port not in WEB_PORTS and granted is None:
        return PORT
    if host in METADATA_NAMES or (host.endswith(_INTERNAL_DOMAINS) and not granted):
        return PRIVATE
    try:
        return None if reachable(host.strip("[]"), granted) else PRIVATE
    except ValueError:
        return None


def reachable(address: str, granted: Sequence[Network] | None, *, allow_loopback: bool = False) -> bool:
    """Returns whether the crawler may connect to an IP address for a host with the networks `granted`."""
    return is_public(address) or is_within(address, granted) or (allow_loopback and is_loopback(address))


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


def is_within(address: str, networks: Sequence[Network] | None) -> bool:
    """Returns whether an IP address is in one of the networks of a grant, and not that of a metadata service."""
    ip = ipaddress.ip_address(address.partition("%")[0])
    return any(ip in network for network in networks or ()) and ip not in _METADATA
