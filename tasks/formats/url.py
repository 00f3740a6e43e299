"""URLs: canonical form, key, host, partition, and the scope of a crawl.

The parser is ada (WHATWG URL standard), so that the crawler parses a URL as a browser does; 598,000 joins per
CPU-second.
"""

import hashlib
import re
from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple

import ada_url
import tldextract

MAX_URL = 4096
# Parameters that name a click, a campaign or a visit, never a page. The first two lines are written by advertising and
# mail tools into every link that they send out; the last two are session ids, recognised by their value where the name
# is also used otherwise ("sid=3" is a page, "sid=" with 32 hex digits a phpBB session; Heritrix has the same rule).
_TRACKING = re.compile(
    r"(?:utm_[a-z_]*|gclid|gclsrc|gbraid|wbraid|dclid|srsltid|fbclid|msclkid|yclid|ysclid|twclid|ttclid|li_fat_id|_ga|_gl"
    r"|igshid|igsh|mc_cid|mc_eid|mkt_tok|_hsenc|_hsmi|__hs(?:sc|tc|fp)|hsctatracking|vero_id|_openstat|oly_(?:anon|enc)_id"
    r"|phpsessid|jsessionid|aspsessionid[a-z]{8}|cfid|cftoken|oscsid|zenid)(?:=|$)"
    r"|(?:sid|s|sess(?:ion)?_?id)=(?=(?:[a-z]*\d){4})[0-9a-z]{24,}$",
    re.I,
)
# A Java server's session id is in the path. (An ASP.NET one, "/(S(..))/", is kept: without it the server redirects.)
_PATH_SESSION = re.compile(r";(?:jsessionid|phpsessid)=[^/?;]*", re.I)
_MAX_SEGMENTS = 20
_LONGEST_CYCLE = 4
_KNOWN_HOSTS = 1 << 16
# The list that ships with tldextract; never the network, never a cache on disk.
_SUFFIXES = tldextract.TLDExtract(suffix_list_urls=(), cache_dir=None)


def canonical(url: str, base: str | None = None) -> str | None:
    """Returns the canonical form of `url` (joined to `base`), or None when a crawler cannot fetch it.

    WHATWG normal form without fragment, without the dot after a host name, without session ids in the path, and
    without query parameters that only track visits. Refused: other schemes, user names and passwords, more than 4,096
    characters.

    >>> canonical("HTTP://Example.COM:80/a/../b;jsessionid=1F?utm_source=x&q=1#top")
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
    if ";" in href:
        path, mark, query = href.partition("?")
        href = _PATH_SESSION.sub("", path) + mark + query
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
    """Returns whether a canonical URL has the form of a crawler trap: a path that repeats itself or is very deep.

    Rules of Heritrix: the same segments (here one to four of them) three times in a row, or more than 20 segments.

    >>> is_trap("http://h/a/b/a/b/a/b/c"), is_trap("http://h/a/a/b/b/c")
    (True, False)
    """
    segments = url.partition("?")[0].split("/")[3:]
    if len(segments) > _MAX_SEGMENTS + 1:
        return True
    if len(segments) < len(set(segments)) + 2:  # three equal segments leave two duplicates
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
    """Returns the host of a canonical URL, with its port where not the default of the scheme: the unit of politeness.

    >>> authority("https://example.com/a"), authority("http://127.0.0.1:8080/")
    ('example.com', '127.0.0.1:8080')
    """
    return url.split("/", 3)[2]


def host_and_port(url: str) -> tuple[str, int | None]:
    """Returns host name (IPv6 in brackets) and explicit port of a canonical URL."""
    match = re.fullmatch(r"(\[.*\]|[^:]*)(?::(\d+))?", authority(url))
    if match is None:
        raise ValueError(f"{url!r} is not in canonical form")
    return match[1], int(match[2]) if match[2] else None


@lru_cache(maxsize=65536)
def registered_domain(host: str) -> str:
    """Returns the registered domain of a host name, by the public suffix list ("a.b.co.uk" -> "b.co.uk").

    A name under no listed suffix counts its last label as the suffix (the list's rule "*"); an IP address is
    returned unchanged.
    """
    if host.startswith("[") or host.replace(".", "").isdigit():
        return host
    parts = _SUFFIXES(host)
    if parts.suffix:
        return f"{parts.domain}.{parts.suffix}" if parts.domain else str(parts.suffix)
    return ".".join(host.split(".")[-2:])


class Link(NamedTuple):
    """A canonical URL with its key, host and owner.

    Attributes:
        url: canonical.
        key: see `key`.
        host: see `authority`.
        owner: 64-bit hash of the registered domain; `owner % partitions` is the partition that owns the URL.
    """

    url: str
    key: bytes
    host: str
    owner: int


def link(url: str) -> Link:
    """Returns a canonical URL as a link."""
    host = authority(url)
    return Link(url, key(url), host, owner_of(host))


def domain_of(host: str) -> str:
    """Returns the registered domain of a host as `authority` gives it, port or not."""
    return registered_domain(host_and_port(f"http://{host}/")[0])


@lru_cache(maxsize=1 << 16)
def owner_of(host: str) -> int:
    """Returns the 64-bit hash of a host's registered domain; modulo the number of partitions, the host's partition."""
    return int.from_bytes(hashlib.blake2b(domain_of(host).encode(), digest_size=8).digest())


def partition(url: str, partitions: int) -> int:
    """Returns the partition (0 .. partitions-1) of a canonical URL: a hash of its registered domain."""
    return owner_of(authority(url)) % partitions


class Scope:
    """The scope of a crawl: which URLs it covers.

    Args:
        entries: "host", "host:port" or "*.domain" (the domain itself and all below it).
        prefixes: URL prefixes; of a host that one of them names, only URLs with one of the prefixes are covered. Like
            the hosts they apply to http and https, with and without "www.".
        include_pattern: regular expression that must match somewhere in a URL; "" admits all.
        exclude_pattern: regular expression that must not match anywhere in a URL; "" excludes none.

    >>> scope = Scope(["www.example.com", "*.example.org"], prefixes=["https://example.com/docs/"])
    >>> scope.covers("https://example.com/docs/a"), scope.covers("http://a.b.example.org/"), scope.covers("http://b.net/")
    (True, True, False)
    >>> scope.covers("https://example.com/a")
    False
    """

    def __init__(
        self,
        entries: Iterable[str],
        prefixes: Iterable[str] = (),
        include_pattern: str = "",
        exclude_pattern: str = "",
    ) -> None:
        entries = list(entries)
        self._hosts = frozenset(bare(entry) for entry in entries if not entry.startswith("*."))
        self._domains = tuple("." + entry[2:] for entry in entries if entry.startswith("*."))
        self._prefixes: dict[str, tuple[str, ...]] = {}
        for prefix in map(_prefix, prefixes):
            host = prefix.partition("/")[0]
            self._prefixes[host] = (*self._prefixes.get(host, ()), prefix)
        self._include = re.compile(include_pattern) if include_pattern else None
        self._exclude = re.compile(exclude_pattern) if exclude_pattern else None
        self._plain = not (self._prefixes or include_pattern or exclude_pattern)
        self._known: dict[str, bool] = {}

    @classmethod
    def of(
        cls,
        include_hosts: tuple[str, ...],
        seeds: Iterable[str],
        prefixes: Iterable[str] = (),
        include_pattern: str = "",
        exclude_pattern: str = "",
    ) -> "Scope":
        """Returns the scope of a crawl: the hosts named, or else the hosts of its canonical seeds, and the prefixes."""
        hosts = list(include_hosts) or [authority(seed) for seed in seeds]
        return cls(hosts, prefixes, include_pattern, exclude_pattern)

    def covers(self, url: str, host: str = "") -> bool:
        """Returns whether a canonical URL is in scope; `host` is its `authority` where the caller has it."""
        host = host or authority(url)
        covered = self._known.get(host)
        if covered is None:
            covered = self.covers_host(host)
            if len(self._known) < _KNOWN_HOSTS:
                self._known[host] = covered
        return covered and (self._plain or not self._refused_by(url, host))

    @property
    def is_open(self) -> bool:
        """Whether the scope covers hosts that are not named."""
        return bool(self._domains)

    @property
    def named(self) -> frozenset[str]:
        """The hosts that are named, without "www."."""
        return self._hosts.union(self._prefixes)

    def refusal(self, url: str) -> str:
        """Returns the setting that excludes a canonical URL ("include_hosts", "exclude_pattern", ...), or ""."""
        host = authority(url)
        if not self.covers_host(host):
            return "include_hosts"
        return self._refused_by(url, host)

    @property
    def looks_at_urls(self) -> bool:
        """Whether the scope depends on more than the host."""
        return not self._plain

    def covers_host(self, host: str) -> bool:
        """Returns whether any URL of a host (its `authority`) can be in scope."""
        name = bare(host)
        return name in self._hosts or name in self._prefixes or f".{host}".endswith(self._domains)

    def _refused_by(self, url: str, host: str) -> str:
        prefixes = self._prefixes.get(bare(host))
        if prefixes is not None and not _schemeless(url).startswith(prefixes):
            return "include_prefixes"
        if self._include is not None and not self._include.search(url):
            return "include_pattern"
        return "exclude_pattern" if self._exclude is not None and self._exclude.search(url) else ""


def _prefix(url: str) -> str:
    prefix = canonical(url)
    if prefix is None:
        raise ValueError(f"the prefix {url!r} is no http or https address")
    return _schemeless(prefix)


def _schemeless(url: str) -> str:
    return bare(url.partition("://")[2])


def bare(host: str) -> str:
    """Returns a host without "www.", which the scope ignores."""
    # A site that serves its bare name and "www." redirects from one to the other.
    return host.removeprefix("www.")
