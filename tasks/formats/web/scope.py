"""Scope of a crawl: the URLs that it covers, by host, prefix and pattern."""

import re
from collections.abc import Iterable

from tasks.formats.documents.tombstones import NO_TOMBSTONES, TAKEDOWN, Tombstones
from tasks.formats.web.canonical_url import canonical
from tasks.formats.web.url import authority, bare, identity, schemeless

_MAX_CACHED_HOSTS = 1 << 16


class Scope:
    """The set of URLs that a crawl covers.

    Args:
        entries: "host", "host:port" or "*.domain" (the domain and its subdomains).
        prefixes: URL prefixes; on a host with prefixes, only URLs with one of them are covered, in any spelling
            (`url.identity`). Like hosts, prefixes apply to http and https, with and without "www.".
        include_pattern: regular expression that must match somewhere in a URL; "" admits all.
        exclude_pattern: regular expression that must not match anywhere in a URL; "" excludes none.
        taken_down: URLs and domains that are never covered.

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
        taken_down: Tombstones = NO_TOMBSTONES,
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
        self._taken_down = taken_down
        self._plain = not (self._prefixes or include_pattern or exclude_pattern or taken_down.urls)
        self._covered_hosts: dict[str, bool] = {}

    def covers(self, url: str, host: str = "") -> bool:
        """Returns whether a canonical URL is covered; `host` is its `authority` if the caller has it."""
        host = host or authority(url)
        covered = self._covered_hosts.get(host)
        if covered is None:
            covered = self.covers_host(host)
            if len(self._covered_hosts) < _MAX_CACHED_HOSTS:
                self._covered_hosts[host] = covered
        return covered and (self._plain or not self._refused_by(url, host))

    @property
    def is_open(self) -> bool:
        """Whether the scope covers hosts that it does not name."""
        return bool(self._domains)

    @property
    def named_hosts(self) -> frozenset[str]:
        """The hosts that the scope names, without "www."."""
        return self._hosts.union(self._prefixes)

    def refusal(self, url: str) -> str:
        """Returns why a canonical URL is not covered: a setting ("include_hosts", ...) or "takedown"; "" if it is."""
        host = authority(url)
        if self._taken_down.covers_url(url):
            return TAKEDOWN
        if not self.covers_host(host):
            return "include_hosts"
        return self._refused_by(url, host)

    @property
    def depends_on_url(self) -> bool:
        """Whether coverage depends on more than the host."""
        return not self._plain

    def covers_host(self, host: str) -> bool:
        """Returns whether any URL of a host (its `authority`) can be covered."""
        name = bare(host)
        named = name in self._hosts or name in self._prefixes or f".{host}".endswith(self._domains)
        return named and not self._taken_down.covers_host(host)

    def _refused_by(self, url: str, host: str) -> str:
        if self._taken_down.covers_url(url):
            return TAKEDOWN
        prefixes = self._prefixes.get(bare(host))
        if prefixes is not None and not schemeless(identity(url)).startswith(prefixes):
            return "include_prefixes"
        if self._include is not None and not self._include.search(url):
            return "include_pattern"
        return "exclude_pattern" if self._exclude is not None and self._exclude.search(url) else ""


def _prefix(url: str) -> str:
    prefix = canonical(url)
    if prefix is None:
        raise ValueError(f"the prefix {url!r} is no http or https address")
    return schemeless(identity(prefix))
