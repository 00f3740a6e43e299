"""E-mail addresses.

Called by `scan` once per "@", with a bounded look to its left and right. Sources: RFC 5321 section 4.5.3.1 (lengths),
RFC 5322 section 3.2.3 (dots), the public suffix list that ships with tldextract (top-level domains).
"""

import re
from collections.abc import Iterator
from functools import lru_cache

from tasks.pii.span import Evidence, Span

_MAX_LOCAL = 64
_MAX_DOMAIN = 255
# Latin letters with accents occur in mail boxes and domains; letters of unspaced scripts are other text beside it.
_LETTERS = "A-Za-z0-9\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u024f"
_LOCAL = frozenset(character for code in range(0x250) if re.match(rf"[{_LETTERS}._%+'-]", character := chr(code))) | {
    "’"
}
_DOMAIN = re.compile(
    rf"[{_LETTERS}](?:[{_LETTERS}-]{{0,61}}[{_LETTERS}])?(?:\.[{_LETTERS}](?:[{_LETTERS}-]{{0,61}}[{_LETTERS}])?){{1,9}}"
)
_SPECIAL = frozenset(("example", "test", "invalid", "local", "internal", "lan", "corp"))
"""Top-level names that are no public suffix and yet stand in addresses: RFC 2606, RFC 6762 and its appendix G."""

_SCP = re.compile(r":[\w.~-]{0,255}+/")


def find(text: str, at: int) -> Iterator[Span]:
    """Yields the address around the "@" at `at`, if there is one: two labels at least, no quoted local part.

    >>> text = "Write to (jo.doe+web@example.co.uk)."
    >>> [text[a:b] for _, a, b, _ in find(text, text.index("@"))]
    ['jo.doe+web@example.co.uk']
    >>> [list(find(text, text.index("@"))) for text in ("npm i vue@3.2.1", "icon@2x.png", "git@host.org:a/b", "by @jo")]
    [[], [], [], []]
    """
    start = _local_start(text, at)
    end = _domain_end(text, at) if start is not None else None
    if start is None or end is None or _is_other(text, start, at, end):
        return
    yield Span("email", start, end, Evidence.PATTERN)


def _local_start(text: str, at: int) -> int | None:
    start = at
    floor = max(0, at - _MAX_LOCAL - 1)
    while start > floor and text[start - 1] in _LOCAL:
        start -= 1
    # Dots neither stand in a row nor begin or end the part: what is before them is other text.
    start = max(start, text.rfind("..", start, at) + 2 if ".." in text[start:at] else start)
    while start < at and text[start] in ".%+-'’":
        start += 1
    if start == at or at - start > _MAX_LOCAL or text[at - 1] in ".'’":
        return None
    return start


def _domain_end(text: str, at: int) -> int | None:
    found = _DOMAIN.match(text, at + 1, at + 1 + _MAX_DOMAIN)
    if found is None:
        return None
    labels = found.group().split(".")
    if len(labels) > 2 and labels[-1].istitle() and labels[-2].islower() and _is_top_level(labels[-2]):
        labels.pop()  # the next sentence, without a space before it
    # Take away from the right until the last label is a top-level domain: a sentence run on, a number, a file name.
    while len(labels) >= 2 and not _is_top_level(labels[-1]):
        cut = labels.pop().partition("-")[0]
        if _is_top_level(cut):
            labels.append(cut)
    return at + 1 + len(".".join(labels)) if len(labels) >= 2 else None


def _is_other(text: str, start: int, at: int, end: int) -> bool:
    """Tells a user name of a URL, one of the fediverse, a path of scp or Git, and a call in code from an address."""
    if text[start - 1 : start] == "@":
        return True
    if text[start - 2 : start] == "//" or (
        text[start - 1 : start] == ":" and "://" in text[max(0, start - 99) : start]
    ):
        return True
    return text[end : end + 1] in ("(", "[") or _SCP.match(text, end) is not None


def _is_top_level(label: str) -> bool:
    return label[:4].lower() == "xn--" or (len(label) >= 2 and label.lower() in _top_level())


@lru_cache(maxsize=1)
def _top_level() -> frozenset[str]:
    import tldextract

    # The list that ships with the library; never the network, never a cache on disk.
    suffixes = tldextract.TLDExtract(suffix_list_urls=(), cache_dir=None).tlds
    return frozenset(suffix.rpartition(".")[2] for suffix in suffixes) | _SPECIAL
