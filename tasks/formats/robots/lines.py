"""Parser of a robots.txt into groups: user agents, rules, delays and signals.

Splits a file as Google's parser does: rules end a list of names, unknown lines do not; field names are recognised by
prefix and in common misspellings; a colon may be missing between two words. A file that holds NUL is read in two ways.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

MAX_BYTES = 512 << 10
# Google's parser keeps this much of a line (2083 characters of URL, eight times over, less the end of the string).
_MAX_LINE = 2083 * 8 - 1

RULES = ("allow", "disallow")
SIGNALS = ("content-signal", "content-usage")
LICENSE = "license"
_AGENT, _DELAY, _SITEMAP = "agent", "delay", "sitemap"

# A field is recognised by its prefix, as Google does ("Disallowed: /x").
_FIELDS = (
    (_AGENT, (b"user-agent", b"useragent", b"user agent")),
    (RULES[0], (b"allow",)),
    (RULES[1], (b"disallow", b"dissallow", b"dissalow", b"disalow", b"diasllow", b"disallaw")),
    (_DELAY, (b"crawl-delay", b"crawl delay", b"crawldelay")),
    (_SITEMAP, (b"sitemap", b"site-map")),
    *((field, (field.encode(),)) for field in (*SIGNALS, LICENSE)),
)
_MARKS = (b"\xef\xbb\xbf", b"\xef\xbb", b"\xef")
_LINE_END = re.compile(rb"\r\n|\r|\n")
_CUT_LINE = re.compile(rb"\0[^\r\n]*")
_BLANK = b" \t\v\f"
# What may stand in place of a colon.
_GAP = re.compile(rb"[ \t]+")
# The end of a group's name: a blank (Google), a version, a remark.
_NAME_END = re.compile(rb"[\s/(;,]")


@dataclass
class Group:
    """One group of the file.

    Attributes:
        names: user agents, in lower case, b"*" for all; with the position of each in the list. A name with a star in
            front ("*FooBot") keeps it.
        rules: ("allow" or "disallow", path pattern) in file order.
        numbers: the line of each rule, from 1.
        delays: (number of names above the line, value) of every Crawl-delay.
        signals: (number of names above the line, field, value) of every Content-Signal or Content-Usage.
        closed: a rule has ended the list of names.
    """

    names: dict[bytes, int] = field(default_factory=dict)
    rules: list[tuple[str, bytes]] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)
    delays: list[tuple[int, bytes]] = field(default_factory=list)
    signals: list[tuple[int, str, bytes]] = field(default_factory=list)
    closed: bool = False

    def addresses(self, names: set[bytes], above: int) -> bool:
        """Returns whether one of `names` is among the first `above` names of the group."""
        return any(self.names.get(name, above) < above for name in names)


def beginning(body: bytes) -> bytes:
    """Returns the first 512 KiB of a file in whole lines: part of a rule may match everything ("Disallow: /")."""
    if len(body) <= MAX_BYTES:
        return body
    end = max(body.rfind(b"\n", 0, MAX_BYTES), body.rfind(b"\r", 0, MAX_BYTES))
    return body[: end if end > 0 else MAX_BYTES]


def readings(body: bytes) -> tuple[bytes, ...]:
    """Returns the texts that a file stands for, in UTF-8: one, or two where it holds NUL; a URL must pass both.

    The first has no NUL, as a person would read the file. In the second NUL ends a line, as in Google's parser.
    """
    text = _utf8(beginning(body))
    return (text.replace(b"\0", b""), _CUT_LINE.sub(b"", text)) if b"\0" in text else (text,)


def parsed(text: bytes) -> tuple[list[Group], tuple[str, ...], tuple[str, ...]]:
    """Returns the groups of one of the `readings`, and the URLs of its sitemaps and licences as written."""
    groups: list[Group] = [Group()]
    named: dict[str, list[str]] = {_SITEMAP: [], LICENSE: []}
    for number, kind, value in _lines(text):
        group = groups[-1]
        if kind in named:
            named[kind].append(value.decode("utf-8", "replace"))
        elif kind == _AGENT:
            if group.closed:
                group = Group()
                groups.append(group)
            group.names.setdefault(_name(value), len(group.names))
        elif kind in SIGNALS:
            group.signals.append((len(group.names), kind, value))
        elif kind == _DELAY:
            group.delays.append((len(group.names), value))
        elif kind in RULES and group.names:
            group.closed = True
            group.rules.append((kind, value))
            group.numbers.append(number)
    return groups, tuple(dict.fromkeys(named[_SITEMAP])), tuple(dict.fromkeys(named[LICENSE]))


def _utf8(body: bytes) -> bytes:
    if body[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return body.decode("utf-16", "replace").encode("utf-8", "replace")
    # Google's parser skips a part of the mark, too.
    return next((body.removeprefix(mark) for mark in _MARKS if body.startswith(mark)), body)


def _lines(text: bytes) -> Iterator[tuple[int, str, bytes]]:
    """Yields (number from 1, kind of field, value) of every line that is recognised."""
    for number, line in enumerate(_LINE_END.split(text), 1):
        content = line[:_MAX_LINE].partition(b"#")[0].strip(_BLANK)
        name, colon, value = content.partition(b":")
        if not colon:
            words = _GAP.split(content)
            if len(words) != 2:
                continue
            name, value = words
        name, value = name.strip(_BLANK).lower(), value.strip(_BLANK)
        kind = next((kind for kind, starts in _FIELDS if name.startswith(starts)), None)
        if kind is not None:
            yield number, kind, value


def _name(value: bytes) -> bytes:
    if value[:1] == b"*" and (len(value) == 1 or value[1:2].isspace()):
        return b"*"
    name = _NAME_END.split(value, maxsplit=1)[0].lower()
    # A star inside a name has no meaning.
    return name[:1] + name[1:].replace(b"*", b"")
