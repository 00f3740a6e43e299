"""URLs as text: how long one may be, the parts and the key of a canonical one, and the host of any text.

No library is needed for that; the canonical form that a crawl works with is made by `tasks.formats.web.canonical_url`.
"""

import hashlib
import re
from typing import NamedTuple
from urllib.parse import urlsplit

MAX_CRAWLED_URL = 4096
"""Characters of a URL that a crawl follows: half of the 8 kB that nginx and Apache take for a request line by default,
since each one is stored in the crawl DB, and a page can name thousands of them."""
MAX_CAPTURED_URL = 8_000
"""Characters of the URL of a capture. What was fetched did work, so no more is refused than servers and browsers refuse
(RFC 9110, section 4.1: support at least 8,000 octets)."""
MAX_CANONICAL_URL = 2_000
"""Characters of the address that a page calls its own (`rel=canonical`). It is written for search engines, whose
protocol (sitemaps.org) takes URLs of fewer than 2,048 characters."""

_MAX_SEGMENTS = 20
_LONGEST_CYCLE = 4
_HOST_PORT = re.compile(r"(\[.*\]|[^:]*)(?::(\d+))?")
# As nearly all URLs begin; a tenth of the time that `urlsplit` takes.
_PLAIN_HOST = re.compile(r"https?://([a-z0-9.-]+)/")


def is_trap(url: str) -> bool:
    """Tells whether a canonical URL has the form of an endless site: a path that repeats itself or is very deep.

    Rules of Heritrix: the same segments (here one to four of them) three times in a row, or more than 20 segments.

    >>> is_trap("http://h/a/b/a/b/a/b/c"), is_trap("http://h/a/a/b/b/c")
    (True, False)
    """
    segments = url.partition("?")[0].split("/")[3:]
    if len(segments) > _MAX_SEGMENTS + 1:
        return True
    if len(segments) < len(set(segments)) + 2:  # what comes three times leaves two to spare
        return False
    return any(
        segments[at : at + size] == segments[at + size : at + 2 * size] == segments[at + 2 * size : at + 3 * size]
        for size in range(1, min(_LONGEST_CYCLE, len(segments) // 3) + 1)
        for at in range(len(segments) - 3 * size + 1)
    )


def key(url: str) -> bytes:
    """Returns the key of a canonical URL: the 16 bytes of its blake2b-128."""
    return hashlib.blake2b(url.encode(), digest_size=16).digest()


def authority(url: str) -> str:
    """Returns the host of a canonical URL, with its port where that is not the scheme's own: the unit of politeness.

    >>> authority("https://example.com/a"), authority("http://127.0.0.1:8080/")
    ('example.com', '127.0.0.1:8080')
    """
    return url.split("/", 3)[2]


def host_and_port(url: str) -> tuple[str, int | None]:
    """Returns host name (IPv6 in brackets) and explicit port of a canonical URL."""
    return split_port(authority(url))


def split_port(place: str) -> tuple[str, int | None]:
    """Returns host name and port, or None, of what `authority` returns; raises ValueError for what it never returns.

    >>> split_port("[::1]:8080"), split_port("a.example")
    (('[::1]', 8080), ('a.example', None))
    """
    found = _HOST_PORT.fullmatch(place)
    if found is None:
        raise ValueError(f"{place!r} is no host in canonical form")
    return found[1], int(found[2]) if found[2] else None


def origin_of(url: str) -> str:
    """Returns scheme and authority of a canonical URL.

    >>> origin_of("https://example.org:8443/a/b?c")
    'https://example.org:8443'
    """
    return "/".join(url.split("/", 3)[:3])


def target(url: str) -> str:
    """Returns path and query of a canonical URL, as they stand in a request line.

    >>> target("https://example.org/a/b?c"), target("https://example.org/")
    ('/a/b?c', '/')
    """
    return "/" + url.split("/", 3)[3]


class Parts(NamedTuple):
    """What a URL is made of; scheme and host in lower case, the host without user, port and brackets."""

    scheme: str
    host: str
    path: str


def web_parts(url: str) -> Parts | None:
    """Returns the parts of any text that is an http or https URL with a host, else None.

    >>> web_parts("HTTPS://me@[2001:DB8::1]:8443/a"), web_parts("ftp://a.example/"), web_parts("http:///a")
    (Parts(scheme='https', host='2001:db8::1', path='/a'), None, None)
    """
    found = _parts(url)
    return found if found and found.host and found.scheme in ("http", "https") else None


def host_of(url: str) -> str:
    """Returns the host of any text, in lower case and without user, port and brackets; "" where it has none.

    >>> host_of("https://me:secret@WWW.Example.org:8443/a"), host_of("ftp://[::1]/"), host_of("urn:isbn:1")
    ('www.example.org', '::1', '')
    """
    if plain := _PLAIN_HOST.match(url):
        return plain[1]
    found = _parts(url)
    return found.host if found else ""


def _parts(url: str) -> Parts | None:
    try:
        found = urlsplit(url)
    except ValueError:  # brackets that do not close; letters that another spelling makes a "/" of
        return None
    return Parts(found.scheme, found.hostname or "", found.path)


def bare(host: str) -> str:
    """Returns a host without "www.", which makes no difference to what a crawl covers and what a list names."""
    # A site that answers on its bare name and on "www." redirects from one to the other.
    return host.removeprefix("www.")
