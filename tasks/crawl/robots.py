"""robots.txt: may this crawler fetch that URL, and how long must it wait (RFC 9309).

Used by fetch. Protego matches; a normaliser in front of it brings the file into a form on which Protego agrees with
Google's parser. Trade-off: rules with percent signs or other letters than ASCII are matched twice, once as RFC 9309
reads them (escapes are equal to what they stand for) and once letter by letter as Google does; a URL must pass both,
so where the two readings differ the stricter one counts.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from urllib.parse import quote

from protego import Protego

MAX_BYTES = 512 << 10
# Google's parser reads this much of a line (2083 characters of URL, eight times over).
_MAX_LINE = 2083 * 8

_USER_AGENT = {"user-agent", "useragent", "user agent"}
_ALLOW = {"allow"}
_DISALLOW = {"disallow", "dissallow", "dissalow", "disalow", "diasllow", "disallaw"}
_DELAY = {"crawl-delay", "crawl delay", "crawldelay"}
_SITEMAP = {"sitemap", "sitemaps", "site-map"}
_FIELDS = sorted(_USER_AGENT | _ALLOW | _DISALLOW | _DELAY | _SITEMAP, key=len, reverse=True)
_LINE = re.compile(rf"({'|'.join(map(re.escape, _FIELDS))})(?:\s*:|\s)\s*(.*)", re.I | re.S)
# Google stops a group's name at the first blank; "/" begins a version and "(" a remark.
_NAME_END = re.compile(r"[\s/(;,]")
_ESCAPE = re.compile(r"%[0-9a-fA-F]{2}")
# A misspelt rule ("Disalow: /private", "Noindex: /old") ends a list of names as the rule it was meant to be.
_PATH_LINE = re.compile(r"[^\s:/][^:/]*:\s*/.*", re.S)
# What a URL parser leaves as it is in path and query.
_KEEP = "!$&'()*+,-./:;=?@[\\]_~%#"


@dataclass
class _Group:
    names: dict[str, None] = field(default_factory=dict)
    rules: list[tuple[str, str]] = field(default_factory=list)
    delays: dict[tuple[str, ...], str] = field(default_factory=dict)
    closed: bool = False


class Robots:
    """What one robots.txt says to one crawler.

    Args:
        body: the file's bytes; what is above 512 KiB is cut off (RFC 9309, 2.5).
        agent: the crawler's product token. Groups that cannot mean it are dropped at once: that keeps the memory of
            many hosts small, and a file of 18,000 names over 18,000 rules harmless.
    """

    def __init__(self, body: bytes, agent: str) -> None:
        self._agent = _token(agent)
        groups, sitemaps = _groups(_text(body[:MAX_BYTES]), self._agent.lower())
        self.sitemaps = tuple(sitemaps)
        self._equal = Protego.parse(_render(groups, literal=False))
        self._has_escapes = any("%" in value for group in groups for _, value in group.rules)
        self._literal = Protego.parse(_render(groups, literal=True)) if self._has_escapes else self._equal

    def allows(self, url: str) -> bool:
        """Tells whether the crawler may fetch `url`."""
        if not self._equal.can_fetch(url, self._agent):
            return False
        if not self._has_escapes and "%" not in url and url.isascii():
            return True
        return bool(self._literal.can_fetch(_literal_url(url), self._agent))

    def crawl_delay(self) -> float | None:
        """Returns the seconds between requests that the file asks of the crawler, or None."""
        delay = self._equal.crawl_delay(self._agent)
        return None if delay is None else float(delay)


def _text(body: bytes) -> str:
    if body[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return body.decode("utf-16", "replace")
    # Bytes that are no UTF-8 survive as surrogates and are escaped as the bytes they were.
    return body.removeprefix(b"\xef\xbb\xbf").decode("utf-8", "surrogateescape")


def _groups(text: str, agent: str) -> tuple[list[_Group], list[str]]:
    """Splits the file into groups as Google does: rules end a list of names, unknown lines do not."""
    groups: list[_Group] = [_Group()]
    sitemaps: list[str] = []
    for name, value in _lines(text):
        if name in _SITEMAP:
            sitemaps.append(value)
        elif name in _USER_AGENT:
            if groups[-1].closed:
                groups.append(_Group())
            name = _group_name(value)
            if name and (name == "*" or name.lower() in agent):
                groups[-1].names[name] = None
        elif name == "":
            groups[-1].closed = True
        elif name in _DELAY and groups[-1].names:
            groups[-1].delays[tuple(groups[-1].names)] = value
        elif groups[-1].names:
            groups[-1].closed = True
            groups[-1].rules.append(("Allow" if name in _ALLOW else "Disallow", _escaped(value)))
    return groups, sitemaps


def _lines(text: str) -> Iterator[tuple[str, str]]:
    """Yields (field in lower case, value) of every known line, and ("", "") for a line that was meant as a rule."""
    for line in re.split(r"\r\n|\r|\n", text):
        stripped = line[:_MAX_LINE].partition("#")[0].strip(" \t\v\f\0")
        found = _LINE.fullmatch(stripped)
        if found is not None:
            yield found[1].lower(), found[2].strip()
        elif _PATH_LINE.fullmatch(stripped):
            yield "", ""


def _group_name(value: str) -> str:
    if value.startswith("*") and (len(value) == 1 or value[1].isspace()):
        return "*"
    # Protego takes stars in names for nothing.
    return _NAME_END.split(value, maxsplit=1)[0].strip("\0").replace("*", "")


def _render(groups: list[_Group], *, literal: bool) -> str:
    lines: list[str] = []
    for group in groups:
        if group.rules:
            lines += [f"User-agent: {name}" for name in group.names]
            lines += [f"{verb}: {_doubled(value) if literal else value}" for verb, value in group.rules]
    # Delays come last, each under its own names: between names and rules they would split a group.
    for names, delay in (entry for group in groups for entry in group.delays.items()):
        lines += [f"User-agent: {name}" for name in names]
        lines.append(f"Crawl-delay: {' '.join(delay.split())}")
    return "\n".join(lines)


def _escaped(value: str) -> str:
    upper = _ESCAPE.sub(lambda found: found[0].upper(), value)
    return quote(upper.encode("utf-8", "surrogateescape"), safe=_KEEP)


def _doubled(value: str) -> str:
    # "%62" becomes "%2562", which Protego no longer takes for "b"; "%24" is how a "$" that is no anchor is written.
    return value.replace("%", "%25")


def _literal_url(url: str) -> str:
    head, slash, path = _split(url)
    parts = re.split(r"([^\x00-\x7f]+)", _ESCAPE.sub(lambda found: found[0].upper(), path))
    escaped = [part if index % 2 else quote(part, safe=_KEEP) for index, part in enumerate(parts)]
    return head + slash + _doubled("".join(escaped))


def _split(url: str) -> tuple[str, str, str]:
    scheme, mark, rest = url.partition("://")
    if not mark:
        return "", "", url
    host, slash, path = rest.partition("/")
    return f"{scheme}://{host}", slash, path


def _token(agent: str) -> str:
    # A name with a blank and no version is no product token: only "*" speaks to it.
    return "*" if re.search(r"\s", agent.strip()) and "/" not in agent else agent
