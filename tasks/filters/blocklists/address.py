"""Look-up keys of URLs and of blocklist entries.

A key has no scheme, no port and no "www.", because lists and pages differ in them: "b.example.com" for a domain,
"example.com/a/b" for a URL. The parser is ada (WHATWG URLs).
"""

import re
from collections.abc import Iterator
from itertools import islice

import ada_url

from tasks.formats.web.url import authority, bare, split_port, target

_MOST = 24
"""Domains and beginnings of the path that are looked up. The shallow ones come first, since lists contain these:
whatever is appended to a URL does not displace them."""

_CUT = re.compile(r"[/?&]+")


def split(url: str) -> tuple[str, str] | None:
    """Returns host and path with query of a URL in canonical form, or None where it is no http or https URL.

    >>> split("HTTPS://www.Bücher.example:8080/a/../b?q=1#top")
    ('xn--bcher-kva.example', '/b?q=1')
    """
    try:
        href = ada_url.normalize_url(url)
    except (ValueError, UnicodeError):
        return None
    if not href.startswith(("http://", "https://")):
        return None
    host, _ = split_port(authority(href).rpartition("@")[2])
    return bare(host.rstrip(".")), target(href).partition("#")[0]


def keys(url: str) -> Iterator[str]:
    """Yields the keys of every entry that matches a URL, the closest first.

    First the URL itself, without its query, and its prefixes, cut at "/", "?" and "&"; then its host and the parent
    domains down to two labels. Of a very long URL those in between are left out. An IP address has no parent domain.

    >>> list(keys("http://a.b.example.com/x/y?q=1"))[:4]
    ['a.b.example.com/x/y?q=1', 'a.b.example.com/x/y', 'a.b.example.com/x', 'a.b.example.com']
    >>> list(keys("http://a.b.example.com/"))
    ['a.b.example.com', 'b.example.com', 'example.com']
    """
    parts = split(url)
    if parts is None:
        return
    host, path = parts
    path = path.rstrip("/")
    ends = {len(path), len(path.partition("?")[0].rstrip("/"))}
    ends.update(cut.start() for cut in islice(_CUT.finditer(path), _MOST + 1))
    for end in sorted(ends - {0}, reverse=True):
        yield host + path[:end]
    yield host
    if host.endswith("]") or host.replace(".", "").isdigit():
        return
    labels = host.split(".")[-_MOST:]
    yield from (".".join(labels[first:]) for first in range(1, len(labels) - 1))


def entry_key(line: str) -> str | None:
    """Returns the key of one line of a list, or None where it has no entry.

    Read are domains, "*.domain", URLs with or without scheme, and lines of a hosts file ("0.0.0.0 domain"); "#" and "!"
    begin comments.

    >>> [entry_key(line) for line in ("0.0.0.0 ads.example.com # x", "http://Example.org/A/", "*.example.net", "# no")]
    ['ads.example.com', 'example.org/A', 'example.net', None]
    """
    words = line.partition("#")[0].split()
    if not words or words[0].startswith("!"):
        return None
    entry = words[-1] if len(words) == 2 and words[0] in ("0.0.0.0", "127.0.0.1", "::", "::1") else words[0]
    entry = entry.removeprefix("*").removeprefix(".")
    parts = split(entry if "://" in entry else f"http://{entry}")
    return None if parts is None or not parts[0] else parts[0] + parts[1].rstrip("/")
