"""URLs as text: length limits, the parts, identity and key of a canonical URL, and the host of any text.

This module needs no URL library; `tasks.formats.web.canonical_url` computes the canonical form.
"""

import hashlib
import re
from collections.abc import Iterable
from typing import NamedTuple
from urllib.parse import quote, urlsplit

MAX_CRAWLED_URL = 4096
"""Maximum length in characters of a URL to crawl: half of the 8 kB that nginx and Apache accept for a request line by
default, because each URL is stored in the crawl DB and a page can link to thousands."""
MAX_CAPTURED_URL = 8_000
"""Maximum length in characters of the URL of a capture. A captured URL works, so the limit is that of servers and
browsers (RFC 9110, section 4.1: support at least 8,000 octets)."""
MAX_CANONICAL_URL = 2_000
"""Maximum length in characters of a `rel=canonical` URL. It is written for search engines, whose protocol
(sitemaps.org) accepts URLs of fewer than 2,048 characters."""

WITHOUT_ESCAPES = re.compile(r"[!#$&'()*+,/:;=?@\[\]0-9A-Za-z._~-]*")
"""A text of characters that a URI can have unescaped (RFC 3986, sections 2.2 and 2.3): its own `identity`."""
_UNRESERVED = r"%(?:2[DE]|3[0-9]|4[1-9A-F]|5[0-9AF]|6[1-9A-F]|7[0-9AE])"
_IDENTITY = re.compile(rf"(?:[!#$&'()*+,/:;=?@\[\]0-9A-Za-z._~-]++|(?!{_UNRESERVED})%[0-9A-F]{{2}})*+")
_UNRESERVED_ESCAPE = re.compile(_UNRESERVED)
_EQUIVALENT = re.compile(r"(?:%[0-9A-Fa-f]{2})+|%|[^%!#$&'()*+,/:;=?@\[\]0-9A-Za-z._~-]+")

_MAX_SEGMENTS = 20
_LONGEST_CYCLE = 4
_HOST_PORT = re.compile(r"(\[.*\]|[^:]*)(?::(\d+))?")
# Matches nearly all URLs, ten times faster than `urlsplit`.
_PLAIN_HOST = re.compile(r"https?://([a-z0-9.-]+)/")


def is_trap(url: str) -> bool:
    """Returns whether a canonical URL looks like part of an endless site: its path repeats itself or is very deep.

    The rules are those of Heritrix: the same one to four segments three times in a row, or more than 20 segments.

    >>> is_trap("http://h/a/b/a/b/a/b/c"), is_trap("http://h/a/a/b/b/c")
    (True, False)
    """
    segments = url.partition("?")[0].split("/")[3:]
    if len(segments) > _MAX_SEGMENTS + 1:
        return True
    if len(segments) < len(set(segments)) + 2:  # a segment that occurs three times adds two duplicates
        return False
    return any(
        segments[at : at + size] == segments[at + size : at + 2 * size] == segments[at + 2 * size : at + 3 * size]
        for size in range(1, min(_LONGEST_CYCLE, len(segments) // 3) + 1)
        for at in range(len(segments) - 3 * size + 1)
    )


def identity(url: str) -> str:
    """Returns what identifies the page at a canonical URL: equal for all spellings that RFC 3986 calls equivalent.

    Escapes have upper-case digits, and those of unreserved characters are decoded (sections 6.2.2.1 and 6.2.2.2). What
    a URI has only as an escape is escaped: other characters, and a "%" that begins no escape. Reserved characters
    differ from their escapes. The result is a URI and its own identity. Requests use the spelling of the page that
    links to it, because some sites know only one.

    >>> identity("http://h/%d9%85/%7Eann/%2f?q=%26|"), identity("http://h/100%")
    ('http://h/%D9%85/~ann/%2F?q=%26%7C', 'http://h/100%25')
    """
    return url if _IDENTITY.fullmatch(url) else _EQUIVALENT.sub(_normal, url)


def distinct(urls: Iterable[str]) -> tuple[str, ...]:
    """Returns the first spelling of each page among canonical URLs, in their order."""
    first: dict[str, str] = {}
    for url in urls:
        first.setdefault(identity(url), url)
    return tuple(first.values())


def _normal(match: re.Match[str]) -> str:
    text = match[0]
    if len(text) == 1 or text[0] != "%":
        return quote(text.encode("utf-8", "surrogatepass"), safe="")
    return _UNRESERVED_ESCAPE.sub(lambda escape: chr(int(escape[0][1:], 16)), text.upper())


def key(url: str) -> bytes:
    """Returns the key of a canonical URL: the blake2b-128 hash of its identity, 16 bytes."""
    return hashlib.blake2b(identity(url).encode(), digest_size=16).digest()


def authority(url: str) -> str:
    """Returns the host of a canonical URL, with its port unless it is the scheme's default: the unit of politeness.

    >>> authority("https://example.com/a"), authority("http://127.0.0.1:8080/")
    ('example.com', '127.0.0.1:8080')
    """
    return url.split("/", 3)[2]


def host_and_port(url: str) -> tuple[str, int | None]:
    """Returns host name (IPv6 in brackets) and explicit port of a canonical URL."""
    return split_port(authority(url))


def split_port(host: str) -> tuple[str, int | None]:
    """Splits the result of `authority` into host name and port, or None; raises ValueError for other text.

    >>> split_port("[::1]:8080"), split_port("a.example")
    (('[::1]', 8080), ('a.example', None))
    """
    match = _HOST_PORT.fullmatch(host)
    if match is None:
        raise ValueError(f"{host!r} is no host in canonical form")
    return match[1], int(match[2]) if match[2] else None


def origin_of(url: str) -> str:
    """Returns scheme and authority of a canonical URL.

    >>> origin_of("https://example.org:8443/a/b?c")
    'https://example.org:8443'
    """
    return "/".join(url.split("/", 3)[:3])


def target(url: str) -> str:
    """Returns path and query of a canonical URL, as in a request line.

    >>> target("https://example.org/a/b?c"), target("https://example.org/")
    ('/a/b?c', '/')
    """
    return "/" + url.split("/", 3)[3]


class Parts(NamedTuple):
    """Parts of a URL; scheme and host in lower case, the host without user, port and brackets."""

    scheme: str
    host: str
    path: str


def web_parts(url: str) -> Parts | None:
    """Returns the parts of a text if it is an http or https URL with a host, else None.

    >>> web_parts("HTTPS://me@[2001:DB8::1]:8443/a"), web_parts("ftp://a.example/"), web_parts("http:///a")
    (Parts(scheme='https', host='2001:db8::1', path='/a'), None, None)
    """
    parts = _parts(url)
    return parts if parts and parts.host and parts.scheme in ("http", "https") else None


def host_of(url: str) -> str:
    """Returns the host of any text, in lower case and without user, port and brackets; "" if it has none.

    >>> host_of("https://me:secret@WWW.Example.org:8443/a"), host_of("ftp://[::1]/"), host_of("urn:isbn:1")
    ('www.example.org', '::1', '')
    """
    if plain := _PLAIN_HOST.match(url):
        return plain[1]
    parts = _parts(url)
    return parts.host if parts else ""


def _parts(url: str) -> Parts | None:
    try:
        parts = urlsplit(url)
    except ValueError:  # unbalanced brackets; letters whose NFKC form contains "/"
        return None
    return Parts(parts.scheme, parts.hostname or "", parts.path)


def bare(host: str) -> str:
    """Returns a host without "www.", which scopes and lists ignore.

    A site that serves both its bare name and "www." redirects from one to the other.
    """
    return host.removeprefix("www.")


def schemeless(url: str) -> str:
    """Returns a canonical URL without its scheme and "www."."""
    return bare(url.partition("://")[2])
