"""URLs: one canonical form, its key, its host, its partition, and whether a crawl covers it.

Used by generate, fetch, links and update. The parser is ada (WHATWG URL standard), so that the crawler reads an
address as a browser does; 598,000 joins per CPU-second.
"""

import hashlib
import re
from functools import lru_cache
from typing import NamedTuple

import ada_url
import tldextract

MAX_URL = 4096
_TRACKING = re.compile(
    r"(?:utm_[a-z_]*|gclid|dclid|fbclid|msclkid|yclid|mc_cid|mc_eid|_ga|igshid|phpsessid|jsessionid)(?:=|$)", re.I
)
_MAX_SEGMENTS = 20
_REPEATED = re.compile(r"/([^/]+(?:/[^/]+)?)/\1/\1/")
# The list that ships with tldextract; never the network, never a cache on disk.
_SUFFIXES = tldextract.TLDExtract(suffix_list_urls=(), cache_dir=None)


def canonical(url: str, base: str | None = None) -> str | None:
    """Returns the canonical form of `url` (joined to `base`), or None when it is nothing a crawler fetches.

    WHATWG normal form without fragment, without the dot after a host name, and without query parameters that only
    track visits. Refused: other schemes, user names and passwords, more than 4,096 characters.

    >>> canonical("HTTP://Example.COM:80/a/../b?utm_source=x&q=1#top")
    'http://example.com/b?q=1'
    >>> canonical("mailto:a@b.example") is None
    True
    """
    try:
        href = ada_url.join_url(base, url) if base else ada_url.normalize_url(url)
    except (ValueError, UnicodeError):
        return None
    if not href.startswith(("http://", "https://")):
        return None
    href = href.partition("#")[0]
    host = authority(href)
    if "@" in host or len(href) > MAX_URL:
        return None
    if host.endswith(".") or ".:" in host:
        return _without_dot(href)
    return _without_tracking(href) if "?" in href else href


def _without_dot(href: str) -> str | None:
    parsed = ada_url.URL(href)
    try:
        parsed.hostname = parsed.hostname.rstrip(".")
    except ValueError:  # nothing but dots
        return None
    return canonical(parsed.href)


def _without_tracking(href: str) -> str:
    path, _, query = href.partition("?")
    fields = query.split("&")
    kept = [field for field in fields if not _TRACKING.match(field)]
    if len(kept) == len(fields):
        return href
    return f"{path}?{'&'.join(kept)}" if kept else path


def is_trap(url: str) -> bool:
    """Tells whether a canonical URL has the form of an endless site: a path that repeats itself or is very deep.

    Rules of Heritrix: the same one or two path segments three times in a row, or more than 20 segments.

    >>> is_trap("http://h/a/b/a/b/a/b/c"), is_trap("http://h/a/a/b/b/c")
    (True, False)
    """
    path = url.partition("?")[0].split("/", 3)[3]
    return path.count("/") > _MAX_SEGMENTS or _REPEATED.search("/" + path + "/") is not None


def key(url: str) -> str:
    """Returns the key of a canonical URL: 32 hex digits of blake2b-128."""
    return hashlib.blake2b(url.encode(), digest_size=16).hexdigest()


def authority(url: str) -> str:
    """Returns the host of a canonical URL, with its port where that is not the scheme's own: the unit of politeness.

    >>> authority("https://example.com/a"), authority("http://127.0.0.1:8080/")
    ('example.com', '127.0.0.1:8080')
    """
    return url.split("/", 3)[2]


def host_and_port(url: str) -> tuple[str, int | None]:
    """Returns host name (IPv6 in brackets) and explicit port of a canonical URL."""
    found = re.fullmatch(r"(\[.*\]|[^:]*)(?::(\d+))?", authority(url))
    if found is None:
        raise ValueError(f"{url!r} is not in canonical form")
    return found[1], int(found[2]) if found[2] else None


@lru_cache(maxsize=65536)
def registered_domain(host: str) -> str:
    """Returns the domain a name was registered as, by the public suffix list ("a.b.co.uk" -> "b.co.uk").

    A name under no listed suffix counts its last label as the suffix (the list's rule "*"); an address stands for
    itself.
    """
    if host.startswith("[") or host.replace(".", "").isdigit():
        return host
    parts = _SUFFIXES(host)
    if parts.suffix:
        return f"{parts.domain}.{parts.suffix}" if parts.domain else str(parts.suffix)
    return ".".join(host.split(".")[-2:])


class Link(NamedTuple):
    """A canonical URL with what decides where it belongs.

    Attributes:
        url: canonical.
        key: see `key`.
        host: see `authority`.
        owner: 64-bit hash of the registered domain; `owner % partitions` is the partition that owns the URL.
    """

    url: str
    key: str
    host: str
    owner: int


def link(url: str) -> Link:
    """Returns a canonical URL as a link."""
    host = authority(url)
    return Link(url, key(url), host, _owner(host))


@lru_cache(maxsize=1 << 16)
def _owner(host: str) -> int:
    domain = registered_domain(host_and_port(f"http://{host}/")[0])
    return int.from_bytes(hashlib.blake2b(domain.encode(), digest_size=8).digest())


def partition(url: str, partitions: int) -> int:
    """Returns the partition (0 .. partitions-1) that owns a canonical URL: a hash of its registered domain."""
    return _owner(authority(url)) % partitions


class Scope:
    """Which hosts a crawl covers.

    Args:
        entries: "host", "host:port" or "*.domain" (the domain itself and all below it).

    >>> scope = Scope(["www.example.com", "*.example.org"])
    >>> scope.covers("https://example.com/a"), scope.covers("http://a.b.example.org/"), scope.covers("http://b.net/")
    (True, True, False)
    """

    def __init__(self, entries: list[str]) -> None:
        self._hosts = frozenset(_bare(entry) for entry in entries if not entry.startswith("*."))
        self._domains = tuple("." + entry[2:] for entry in entries if entry.startswith("*."))

    @classmethod
    def of(cls, include_hosts: tuple[str, ...], seeds: list[str]) -> "Scope":
        """Returns the scope of a crawl: the hosts named, or else the hosts of its canonical seeds."""
        return cls(list(include_hosts) or [authority(seed) for seed in seeds])

    def covers(self, url: str) -> bool:
        """Tells whether a canonical URL lies within."""
        host = authority(url)
        return _bare(host) in self._hosts or f".{host}".endswith(self._domains)


def _bare(host: str) -> str:
    # A site that answers on its bare name and on "www." redirects from one to the other.
    return host.removeprefix("www.")
