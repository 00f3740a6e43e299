"""Registered domain of a host, and the partition of a crawl that owns its URLs.

Reads the public suffix list that ships with tldextract without importing the package, which imports an HTTP client and
builds two tries: 0.2 s in each process of a crawl.
"""

import contextlib
import hashlib
import re
from functools import cache, lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from tasks.formats.web.canonical_url import page_identity
from tasks.formats.web.url import authority, key, split_port

_LIST = ".tld_set_snapshot"
_PRIVATE_RULES = "// ===BEGIN PRIVATE DOMAINS==="
# The maximum number of labels of a rule.
_MOST_LABELS = 6

_PLAIN = re.compile(r"https?://([a-z0-9-]+(?:\.[a-z0-9-]+)*)(?::\d+)?[/?#]")


def host_name(url: str) -> str | None:
    """Returns the host name of a URL that need not be canonical, without port; None if it is not an http or https URL.

    >>> host_name("HTTPS://Example.org.:8443/a"), host_name("file://dump/a.jsonl#3")
    ('example.org', None)
    """
    if plain := _PLAIN.match(url):
        return plain[1]
    page = page_identity(url)
    return None if page is None else split_port(authority(page))[0]


@lru_cache(maxsize=65536)
def registered_domain(host: str) -> str:
    """Returns the registered domain of a host name by the public suffix list ("a.b.co.uk" -> "b.co.uk").

    For a name under no listed suffix, the last label counts as the suffix (the list's rule "*"). An IP address is
    returned unchanged.
    """
    if host.startswith("[") or host.replace(".", "").isdigit():
        return host
    labels = host.split(".")
    return ".".join(labels[-1 - (_suffix_labels(labels) or 1) :]).removeprefix(".")


def _suffix_labels(labels: list[str]) -> int:
    """Returns the number of labels of a host's public suffix by the list's rules; 0 if none matches."""
    rules, names = _rules(), [_letters(label.lower()) for label in labels]
    for start in range(max(0, len(names) - _MOST_LABELS), len(names)):
        name, above = ".".join(names[start:]), ".".join(names[start + 1 :])
        if f"!{name}" in rules:
            return len(names) - start - 1
        if name in rules or f"*.{above}" in rules:
            return len(names) - start
    return 0


@cache
def _rules() -> frozenset[str]:
    """Reads the rules of registries, without the private rules of providers that give subdomains to customers."""
    package = find_spec("tldextract")
    if package is None or package.origin is None:
        raise ImportError("the package tldextract, which holds the public suffix list, is not installed")
    text = Path(package.origin).with_name(_LIST).read_text("utf-8").partition(_PRIVATE_RULES)[0]
    return frozenset(line.split()[0] for line in text.splitlines() if line.strip() and not line.startswith("//"))


def _letters(label: str) -> str:
    """Returns a label in Unicode, as the list writes it."""
    if label.startswith("xn--"):
        with contextlib.suppress(UnicodeError):
            return label[4:].encode().decode("punycode")
    return label


@lru_cache(maxsize=1 << 16)
def domains_of(name: str) -> tuple[str, ...]:
    """Returns a host name and its parent domains, down to its registered domain.

    >>> domains_of("a.b.example.co.uk"), domains_of("127.0.0.1")
    (('a.b.example.co.uk', 'b.example.co.uk', 'example.co.uk'), ('127.0.0.1',))
    """
    names, last = [name], registered_domain(name)
    while names[-1] != last and "." in names[-1]:
        names.append(names[-1].partition(".")[2])
    return tuple(names)


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
    """Returns the link of a canonical URL."""
    host = authority(url)
    return Link(url, key(url), host, owner_of(host))


def domain_of(host: str) -> str:
    """Returns the registered domain of a host as returned by `authority`, with or without port."""
    return registered_domain(split_port(host)[0])


@lru_cache(maxsize=1 << 16)
def owner_of(host: str) -> int:
    """Returns the 64-bit hash of a host's registered domain; modulo the partitions it is the owner of the host."""
    return int.from_bytes(hashlib.blake2b(domain_of(host).encode(), digest_size=8).digest())


def partition(url: str, partitions: int) -> int:
    """Returns the partition (0 .. partitions-1) that owns a canonical URL: a hash of its registered domain."""
    return owner_of(authority(url)) % partitions


def is_public_suffix(host: str) -> bool:
    """Returns whether a host name is a public suffix, such as "com" or "co.uk".

    >>> is_public_suffix("co.uk"), is_public_suffix("example.co.uk"), is_public_suffix("127.0.0.1")
    (True, False, False)
    """
    if host.startswith("[") or host.replace(".", "").isdigit():
        return False
    labels = host.split(".")
    return len(labels) == 1 or _suffix_labels(labels) == len(labels)
