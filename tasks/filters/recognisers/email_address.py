"""E-mail addresses.

Examines a bounded number of characters on both sides of an "@". Sources: RFC 5321 section 4.5.3.1 (lengths), RFC 5322
section 3.2.4 (quoted local parts), RFC 3986 section 3.2.1 (user names in URLs), the public suffix list that ships with
tldextract (top-level domains). Every string that may be an address is treated as one, except for known other formats.
"""

import re
from collections.abc import Iterator
from functools import lru_cache

from tasks.filters.recognisers.span import Evidence, PiiSpan

_MAX_LOCAL = 64
_MAX_DOMAIN = 255
# Latin, Greek and Cyrillic letters occur in mailbox names; letters of unspaced scripts before one are other text.
_LETTERS = r"A-Za-z0-9\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u024f\u0370-\u052f\u1e00-\u1fff"
_IS_LOCAL = re.compile(rf"[{_LETTERS}._%+'-]")
_LOCAL = frozenset(character for code in range(0x2000) if _IS_LOCAL.match(character := chr(code))) | {"’"}
MARK = re.compile(rf"@(?<=[{_LETTERS}._%+'’\"-]@)(?=[^\W_])")
"""An "@" that may be part of an address; the "@" of a handle has nothing before it."""

_LABEL = r"[^\W_](?:[\w-]{0,61}[^\W_])?"
_DOMAIN = re.compile(rf"{_LABEL}(?:\.{_LABEL}){{1,9}}")
# Beginning of a label that may be the top-level domain, if other text follows without a space.
_RUN_ON = re.compile(
    r"(?i:[a-z]{2,8}?(?=(?:tel|phone|fax|mobil|www|http|e-?mail|web)))"
    r"|[a-z]{2,}(?![a-z])|[A-Z]{2,}(?=[A-Z][a-z]|[^A-Za-z])|[A-Za-z]{2,}(?=[^A-Za-z])"
)
_SPECIAL = frozenset(("example", "test", "invalid", "local", "internal", "intranet", "private", "home", "lan", "corp"))
"""Top-level names that are not public suffixes but occur in addresses: RFC 2606, RFC 6762 and its appendix G."""

# Characters that cannot occur in the user name of a URL: after one, the URL has ended or has no user name.
_NO_USER = re.compile(r"[\s/?#\"'<>()\[\]{}|,;“”‘’«»]")
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]{0,19}\Z")
_MAIL_SCHEMES = frozenset(("mailto", "mail", "email", "xmpp", "sip", "sips", "im"))
_LONGEST_USER = 99
_REMOTE_USERS = frozenset(("git", "hg", "svn", "cvs", "root", "gitea", "gitlab", "gitolite", "aur"))
_REMOTE_PATH = re.compile(r":[\w.~-]{0,255}+/")
# Methods of arrays whose name is a top-level domain: `x@w.to(device)`.
_METHODS = frozenset((".to(", ".dot(", ".data[", ".map("))
# Text before the "@" of a message ID: date and process, two or more hexadecimal numbers, a UUID, a long random word.
_MESSAGE = re.compile(
    r"[0-9]{9,14}\.(?=[A-Za-z]{0,4}[0-9])[A-Za-z0-9]{4,}(?:\.[A-Za-z0-9-]+)*|[0-9A-Fa-f]{8}\.[0-9A-Fa-f]{4,9}"
    r"|Pine\.[A-Z0-9]+\.[\w.-]+|MS-C\.[0-9]+\.[0-9]+\.\w+|E[0-9][A-Za-z0-9]{5}-[A-Za-z0-9]{6,11}-[A-Za-z0-9]{2,4}"
    r"|[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}|(?=[^0-9]*(?:[0-9][^0-9]*){4})[A-Za-z0-9+=_-]{40,}"
)
_HEXADECIMAL = re.compile(r"[0-9a-fA-F]{6,8}")
_MESSAGE_BEFORE = re.compile(r"<[A-Za-z0-9+=_-]{20,99}=\Z")
_MESSAGE_LABEL = re.compile(r"(?i:message|content|msg)[-_ ]?(?i:id)[\"']?[ ]?[:=][ <\"']{0,4}\Z")
_QUOTED = re.compile(r'"[^"\n@]{1,64}"\Z')


def find_email(text: str, at: int) -> Iterator[PiiSpan]:
    """Yields the address around the "@" at `at`, if there is one; its domain has at least two labels.

    >>> text = "Write to (jo.doe+web@example.co.uk)."
    >>> [text[a:b] for _, a, b, _ in find_email(text, text.index("@"))]
    ['jo.doe+web@example.co.uk']
    >>> [list(find_email(text, text.index("@"))) for text in ("npm i vue@3.2.1", "icon@2x.png", "git@host.org:a/b")]
    [[], [], []]
    """
    start = _local_start(text, at)
    end = _domain_end(text, at) if start is not None else None
    if start is None or end is None or _is_other(text, start, at, end):
        return
    yield PiiSpan("email", start, end, Evidence.PATTERN)


def _local_start(text: str, at: int) -> int | None:
    """Returns the start of the local part: at most 64 characters, without leading punctuation; None if it is empty."""
    floor = max(0, at - _MAX_LOCAL)
    if text[at - 1 : at] == '"':
        quoted = _QUOTED.search(text, max(0, floor - 2), at)
        return quoted.start() if quoted else None
    start = at
    while start > floor and text[start - 1] in _LOCAL:
        start -= 1
    # Text up to two consecutive dots, and a leading dot or dash, are other text; some providers allow a trailing one.
    body = len(text[start:at].rstrip(".'’")) + start
    if (dots := text.rfind("..", start, body)) >= 0:
        start = dots + 2
    while start < body and text[start] in "._%+-'’":
        start += 1
    return start if start < body else None


def _domain_end(text: str, at: int) -> int | None:
    match = _DOMAIN.match(text, at + 1, at + 1 + _MAX_DOMAIN)
    if match is None:
        return None
    labels = match.group().split(".")
    if len(labels) > 2 and labels[-1].istitle() and labels[-2].islower() and _is_top_level(labels[-2]):
        labels.pop()  # the first word of the next sentence, without a space before it
    # Removes labels from the right until the last one is a top-level domain: run-on text, a number, a file name.
    while len(labels) >= 2 and not _is_top_level(labels[-1]):
        if cut := _cut(labels.pop()):
            labels.append(cut)
    return at + 1 + len(".".join(labels)) if len(labels) >= 2 else None


def _cut(label: str) -> str:
    """Returns the top-level domain at the beginning of a label, before other text; "" if there is none.

    >>> [_cut(label) for label in ("com-like", "orgTel", "comwww", "com\u8c22", "shape")]
    ['com', 'org', 'com', 'com', '']
    """
    run_on = _RUN_ON.match(label)
    cuts = (label.partition("-")[0], run_on.group() if run_on else "")
    return next((cut for cut in cuts if cut != label and _is_top_level(cut)), "")


def _is_other(text: str, start: int, at: int, end: int) -> bool:
    """Returns whether this is a user name of a URL or of the fediverse, a message ID, an scp or Git path, or code."""
    if text[start - 1 : start] == "@" and not text[max(0, start - 2) : start - 1].isalnum():
        return True
    if _is_user_of_url(text, start) or _is_message(text, start, at):
        return True
    if text[start:at] in _REMOTE_USERS and _REMOTE_PATH.match(text, end):
        return True
    return any(text.endswith(method, at, end + 1) for method in _METHODS)


def _is_message(text: str, start: int, at: int) -> bool:
    """Returns whether this is a message ID (RFC 5322, section 3.6.4), by its form or the label before it."""
    if text[start - 1 : start] == "$" and _HEXADECIMAL.fullmatch(text, start, at):
        return True
    if _MESSAGE.fullmatch(text, start, at):
        return True
    if text[start - 1 : start] == "=" and _MESSAGE_BEFORE.search(text, max(0, start - 100), start):
        return True
    return _MESSAGE_LABEL.search(text, max(0, start - 24), start) is not None


def _is_user_of_url(text: str, start: int) -> bool:
    """Returns whether `start` is in the user name or password of a URL: after "//", or after ":" in the same URL."""
    slashes = text.rfind("://", max(0, start - _LONGEST_USER), start)
    if slashes < 0 or not (slashes + 3 == start or text[start - 1] == ":") or _NO_USER.search(text, slashes + 3, start):
        return False
    scheme = _SCHEME.search(text, max(0, slashes - 20), slashes)
    return scheme is not None and scheme.group().lower() not in _MAIL_SCHEMES


def _is_top_level(label: str) -> bool:
    return label[:4].lower() == "xn--" or (len(label) >= 2 and label.lower() in _top_level())


@lru_cache(maxsize=1)
def _top_level() -> frozenset[str]:
    import tldextract

    # Uses the list that ships with the library, neither the network nor a cache on disk.
    suffixes = tldextract.TLDExtract(suffix_list_urls=(), cache_dir=None).tlds
    return frozenset(suffix.rpartition(".")[2] for suffix in suffixes) | _SPECIAL
