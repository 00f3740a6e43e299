"""IP addresses that may identify a person's connection.

Only addresses that the registries allocate count: private, loopback, link-local, documentation and multicast ranges do
not (`ipaddress`, from the IANA special-purpose registries), and neither do networks
("198.41.0.0/24"). "1.2.3.4" is both an address and a version: in the context of a version it is one, and four small
numbers need a label of an address.
"""

import re
from collections.abc import Iterator
from ipaddress import AddressValueError, IPv4Address, IPv6Address

from tasks.filters.recognisers.context import Labels
from tasks.filters.recognisers.span import Evidence, Span

_V4 = re.compile(
    r"(?<![0-9A-Za-z_.+~^])(?<![^0-9]-)(?<![=~<>!^]=)(?:(?:0|[1-9][0-9]{0,2})\.){3}(?:0|[1-9][0-9]{0,2})"
    r"(?![0-9A-Za-z_+]|-(?!(?:[0-9]{1,3}\.){3})|\.(?:[0-9]|in-addr))"
)
# 2000::/3, all that is allocated so far.
_V6 = re.compile(
    r"[23][0-9A-Fa-f]{3}(?::[0-9A-Fa-f]{1,4}){0,7}(?:::(?:[0-9A-Fa-f]{1,4}(?::[0-9A-Fa-f]{1,4}){0,6})?)?"
    r"(?![0-9A-Za-z_]|:[0-9A-Fa-f:])"
)
# A name with its version, "XFree86-4.2.99.3"; of two addresses with a dash between, a dot comes first.
_NAMED_VERSION = re.compile(r"[A-Za-z][A-Za-z0-9_+]{0,30}-\Z")
_COMPARED_VERSION = re.compile(r"\w ?[<>]\Z")
_PREFIX_LENGTH = re.compile(r"/([0-9]{1,3})(?![0-9])")
_SMALL_BYTE = 32
_IP_LABELS = Labels(
    r"ips?\b|ipv[46]|address|adresse|addr\b|host|server|client|peer|remote|gateway|proxy|dns|resolver|ping|router|login"
    r"|logged|visitor|banned|blocked",
    r"version|ver\b|v\b|rev|release|build|firmware|driver|sdk|section|chapter|sec\b|§|clause|table|figure|fig\b|annex|oid"
    r"|update|upgrade|patch|kernel|appendix|rule|article|abschnitt|kapitel",
)


def find_ipv4(text: str, start: int, end: int) -> Iterator[Span]:
    """Yields the IPv4 addresses in text[start:end].

    >>> text = "Version 1.2.3.4 answered 8.8.8.8 from client 93.184.215.14, not 192.168.1.7"
    >>> [text[a:b] for _, a, b, _ in find_ipv4(text, 0, len(text))]
    ['93.184.215.14']
    """
    for found in _V4.finditer(text, start, end):
        try:
            address = IPv4Address(found.group())
        except AddressValueError:
            continue
        if not address.is_global or address.is_multicast or _is_version_or_network(text, found, address):
            continue
        label = _IP_LABELS.of(text, found.start(), found.end())
        if label or (label is None and max(address.packed) >= _SMALL_BYTE):
            yield Span("ip", found.start(), found.end(), Evidence.PATTERN if label is None else Evidence.CONTEXT)


def find_ipv6(text: str, start: int) -> Iterator[Span]:
    """Yields the IPv6 address that begins at `start`, if one does.

    >>> [list(find_ipv6(text, 0)) != [] for text in ("2606:4700:4700::1111", "2001:db8::1", "2014:05:30")]
    [True, False, False]
    """
    found = _V6.match(text, start)
    if found is None or text[max(0, start - 1) : start].isalnum() or text[max(0, start - 1) : start] in ("_", ":", "."):
        return
    if found.group().endswith("::"):
        return  # a network
    try:
        address = IPv6Address(found.group())
    except AddressValueError:
        return
    if address.is_global and not _is_network(text, found.end(), address):
        yield Span("ip", start, found.end(), Evidence.CHECKSUM)


def _is_version_or_network(text: str, found: re.Match[str], address: IPv4Address) -> bool:
    """Returns whether it is a network, or a version: in a comparison ("pkg<1.2.3.4"), or behind a name and a dash."""
    if text[found.start() - 1 : found.start()] == "-" and _NAMED_VERSION.search(
        text, max(0, found.start() - 32), found.start()
    ):
        return True
    compared = _COMPARED_VERSION.search(text, max(0, found.start() - 3), found.start())
    tagged = text[found.end() : found.end() + 1] in ("<", ">")
    return (compared is not None and not tagged) or _is_network(text, found.end(), address)


def _is_network(text: str, end: int, address: IPv4Address | IPv6Address) -> bool:
    """Returns whether a prefix length follows without host bits set: "/24" behind 198.41.0.0, not behind 198.41.0.4."""
    length = _PREFIX_LENGTH.match(text, end)
    free = address.max_prefixlen - int(length[1]) if length else 0
    return free > 0 and int(address) % (1 << free) == 0
