"""robots.txt and tdmrep.json: permission to fetch a URL, crawl delay, AI opt-out, terms of use, reservations.

Reads the bytes of one file. robots.txt (RFC 9309) is parsed line by line, like Google's parser does. Lines that are not
rules are skipped, so an HTML page sent with status 200 disallows nothing. Rules end a list of names; unknown lines do
not. Field names are recognized by prefix and in common misspellings. The colon may be missing between two words.

Where RFC 9309 and Google differ, the stricter one applies. Rules with percent signs or non-ASCII characters are matched
once literally (Google) and once with escapes equivalent to the characters they encode (RFC 9309, 2.2.2); a URL must
pass both. A file that contains NUL is interpreted in two ways; a URL must pass both. For Google a group for "*FooBot"
does not apply to FooBot; here a URL must pass it too.

tdmrep.json is the file of the TDM Reservation Protocol (W3C community group, final report of 2024-05-10, section "TDM
File on the Origin Server"): an array of rules, of which the first with a matching location applies. Locations are
patterns as in robots.txt, with escapes equivalent to the characters they encode.
"""

import json
import math
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple
from urllib.parse import quote

MAX_BYTES = 512 << 10
# Google's parser reads this much of a line: eight times 2083 characters of a URL, less the string terminator.
_MAX_LINE = 2083 * 8 - 1

_RULES = ("allow", "disallow")
_SIGNALS = ("content-signal", "content-usage")
_LICENSE = "license"
_AGENT, _DELAY, _SITEMAP = "agent", "delay", "sitemap"

# A field is recognized by its prefix, as in Google's parser ("Disallowed: /x").
_FIELDS = (
    (_AGENT, (b"user-agent", b"useragent", b"user agent")),
    (_RULES[0], (b"allow",)),
    (_RULES[1], (b"disallow", b"dissallow", b"dissalow", b"disalow", b"diasllow", b"disallaw")),
    (_DELAY, (b"crawl-delay", b"crawl delay", b"crawldelay")),
    (_SITEMAP, (b"sitemap", b"site-map")),
    *((field, (field.encode(),)) for field in (*_SIGNALS, _LICENSE)),
)
_BYTE_ORDER_MARKS = (b"\xef\xbb\xbf", b"\xef\xbb", b"\xef")
_LINE_END = re.compile(rb"\r\n|\r|\n")
_CUT_LINE = re.compile(rb"\0[^\r\n]*")
_BLANK = b" \t\v\f"
# Accepted instead of a colon.
_GAP = re.compile(rb"[ \t]+")
# The end of a group's name: a blank (Google), a version, a comment.
_NAME_END = re.compile(rb"[\s/(;,]")

_ESCAPE = re.compile(r"%[0-9a-fA-F]{2}")
# Escapes that are equivalent to their character; in patterns a literal "$" or "*" must be escaped.
_EQUIVALENT = re.compile(r"%(?:4[1-9A-F]|5[0-9A]|6[1-9A-F]|7[0-9A]|3[0-9]|2[DEA4]|5F|7E)", re.I)
_PATH_START = re.compile(r"[/?;]")

_SAFE = "!$&'()*+,-./:;=?@[\\]_~%#"
"""Characters that a URL parser does not escape in path and query."""

AI_AGENTS = frozenset(
    {
        *("gptbot", "ccbot", "google-extended", "applebot-extended", "claudebot", "anthropic-ai", "claude-web"),
        *("bytespider", "meta-externalagent", "facebookbot", "amazonbot", "cohere-ai", "cohere-training-data-crawler"),
        *("diffbot", "omgili", "omgilibot", "webzio-extended", "perplexitybot", "ai2bot", "ai2bot-dolma"),
        *("imagesiftbot", "timpibot", "img2dataset", "laion-huggingface-processor", "pangubot", "friendlycrawler"),
    }
)
"""Product tokens, in lower case, of crawlers and controls that collect text for AI. A rule for one of them in
robots.txt is an AI opt-out. Sources: the documentation of the crawlers of OpenAI, Common Crawl, Google, Apple,
Anthropic, ByteDance, Meta, Amazon, Cohere, Diffbot, Webz.io, Perplexity and Ai2; the list
ai-robots-txt/ai.robots.txt on GitHub (2026-11)."""

_MOST_TERMS = 50
_TOKEN = re.compile(r"[a-zA-Z_-]+")
_UNESCAPED = re.compile(rb"[\x00-\x20\"<>^`{|}\x7f]")
_TRAINING = re.compile(r"(?:^|[\s,;])(?:ai-train|train-ai)\s*=\s*(no|n|yes|y)\b", re.I)

_Normalization = Callable[[str], str]

TDMREP = "/.well-known/tdmrep.json"
_TDM_PROPERTIES = ("tdm-reservation", "tdm-policy")
_MAX_VALUE = 1000


@dataclass
class _RobotsGroup:
    """One group of the file.

    Attributes:
        names: user agents in lower case (b"*" for all) and their positions in the list. A leading star ("*FooBot") is
            part of the name.
        rules: ("allow" or "disallow", path pattern) in file order.
        numbers: 1-based line number of each rule.
        delays: (number of names above the line, value) of every Crawl-delay.
        signals: (number of names above the line, field, value) of every Content-Signal or Content-Usage.
        closed: whether a rule has ended the list of names.
    """

    names: dict[bytes, int] = field(default_factory=dict)
    rules: list[tuple[str, bytes]] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)
    delays: list[tuple[int, bytes]] = field(default_factory=list)
    signals: list[tuple[int, str, bytes]] = field(default_factory=list)
    closed: bool = False

    def names_any(self, names: set[bytes], above: int) -> bool:
        """Returns whether one of `names` is among the first `above` names of the group."""
        return any(self.names.get(name, above) < above for name in names)


def complete_lines(body: bytes) -> bytes:
    """Returns the complete lines in the first 512 KiB of a file; a cut rule may match everything ("Disallow: /")."""
    if len(body) <= MAX_BYTES:
        return body
    end = max(body.rfind(b"\n", 0, MAX_BYTES), body.rfind(b"\r", 0, MAX_BYTES))
    return body[: end if end > 0 else MAX_BYTES]


def _interpretations(body: bytes) -> tuple[bytes, ...]:
    """Returns the possible texts of a file in UTF-8: one, or two if it contains NUL. A URL must pass both.

    The first omits NUL, as a person would read the file. In the second NUL ends a line, as in Google's parser.
    """
    text = _utf8(complete_lines(body))
    return (text.replace(b"\0", b""), _CUT_LINE.sub(b"", text)) if b"\0" in text else (text,)


def _parse(text: bytes) -> tuple[list[_RobotsGroup], tuple[str, ...], tuple[str, ...]]:
    """Returns the groups of one of the `_interpretations`, and its sitemap and license URLs as written."""
    groups: list[_RobotsGroup] = [_RobotsGroup()]
    urls: dict[str, list[str]] = {_SITEMAP: [], _LICENSE: []}
    for number, kind, value in _lines(text):
        group = groups[-1]
        if kind in urls:
            urls[kind].append(value.decode("utf-8", "replace"))
        elif kind == _AGENT:
            if group.closed:
                group = _RobotsGroup()
                groups.append(group)
            group.names.setdefault(_field_name(value), len(group.names))
        elif kind in _SIGNALS:
            group.signals.append((len(group.names), kind, value))
        elif kind == _DELAY:
            group.delays.append((len(group.names), value))
        elif kind in _RULES and group.names:
            group.closed = True
            group.rules.append((kind, value))
            group.numbers.append(number)
    return groups, tuple(dict.fromkeys(urls[_SITEMAP])), tuple(dict.fromkeys(urls[_LICENSE]))


def _utf8(body: bytes) -> bytes:
    if body[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return body.decode("utf-16", "replace").encode("utf-8", "replace")
    # Google's parser also skips a partial byte order mark.
    return next((body.removeprefix(mark) for mark in _BYTE_ORDER_MARKS if body.startswith(mark)), body)


def _lines(text: bytes) -> Iterator[tuple[int, str, bytes]]:
    """Yields (1-based number, kind of field, value) of every recognized line."""
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


def _field_name(value: bytes) -> bytes:
    if value[:1] == b"*" and (len(value) == 1 or value[1:2].isspace()):
        return b"*"
    name = _NAME_END.split(value, maxsplit=1)[0].lower()
    # A star is significant only at the start of a name.
    return name[:1] + name[1:].replace(b"*", b"")


@dataclass(frozen=True, slots=True)
class _Pattern:
    """A path pattern: `parts` are the texts between the stars; `end` anchors the last one at the end of the path."""

    parts: tuple[str, ...]
    end: bool

    def matches(self, path: str) -> bool:
        """Returns whether the pattern matches a path in the same normalization."""
        first, *rest = self.parts
        if not path.startswith(first):
            return False
        if not rest:
            return not self.end or len(path) == len(first)
        last = rest.pop() if self.end else ""
        position = len(first)
        # The leftmost match of each part leaves the most text for the others: linear time without backtracking.
        for part in rest:
            position = path.find(part, position)
            if position < 0:
                return False
            position += len(part)
        return not self.end or (len(path) - len(last) >= position and path.endswith(last))


def _split(pattern: str) -> tuple[list[str], bool]:
    """Returns the texts between the stars of a pattern, not normalized, and whether it is anchored at the end.

    >>> _split("/a/**/b*.pdf$")
    (['/a/', '/b', '.pdf'], True)
    """
    end = pattern.endswith("$")
    first, *rest = (pattern[:-1] if end else pattern).split("*")
    # Consecutive stars are equivalent to one; an empty last part is kept, because it allows a longer path.
    return [first, *(part for part in rest[:-1] if part), *rest[-1:]], end


def _literal(text: str) -> str:
    """Normalizes for literal matching: escapes in upper case, and characters escaped that a URL parser would escape."""
    if text.isascii() and "%" not in text:
        return quote(text, safe=_SAFE)
    pieces = re.split(r"([^\x00-\x7f]+)", _ESCAPE.sub(lambda match: match[0].upper(), text))
    return "".join(piece if index % 2 else quote(piece, safe=_SAFE) for index, piece in enumerate(pieces))


def _equivalent(text: str) -> str:
    """Normalizes for RFC 9309: escapes are equivalent to the characters they encode."""
    plain = _EQUIVALENT.sub(lambda match: chr(int(match[0][1:], 16)), text)
    return quote(_ESCAPE.sub(lambda match: match[0].upper(), plain).encode("utf-8", "surrogatepass"), safe=_SAFE)


def _path_of(url: str) -> str:
    """Returns path, parameters and query of a URL, which may lack scheme and host; "/" if it has no path."""
    start = 2 if url.startswith("//") else 0
    early = _PATH_START.search(url, start)
    scheme = url.find("://", start)
    if scheme >= 0 and not (early and early.start() < scheme):
        start = scheme + 3
    begin = _PATH_START.search(url, start)
    url = url.partition("#")[0]
    if begin is None or begin.start() >= len(url):
        return "/"
    path = url[begin.start() :]
    return path if path[0] == "/" else f"/{path}"


@dataclass(frozen=True, slots=True)
class _Rule(_Pattern):
    """One Allow or Disallow rule; the matching rule with the highest priority decides."""

    allow: bool
    priority: int


_RuleCache = dict[tuple[str, bytes, _Normalization], list[_Rule]]


class _RuleSet:
    """The rules of some groups in both normalizations, in order of precedence: the first match decides.

    The result for the last path is cached, because several crawlers of a file share their rules.

    Args:
        groups: the groups.
        cache: parsed rules by line, shared by all sets of one file.
    """

    def __init__(self, groups: list[_RobotsGroup], cache: _RuleCache) -> None:
        lines = dict.fromkeys(line for group in groups for line in group.rules)
        self.escaped = any(b"%" in value or not value.isascii() for _, value in lines)
        self._literal = _sorted_rules(lines, cache, _literal)
        self._equivalent = _sorted_rules(lines, cache, _equivalent) if self.escaped else self._literal
        self._last: dict[_Normalization, tuple[str, _Rule | None]] = {}

    def first(self, path: str, form: _Normalization) -> _Rule | None:
        """Returns the first rule that matches a normalized path, or None."""
        cached = self._last.get(form)
        if cached is None or cached[0] != path:
            rules = self._literal if form is _literal else self._equivalent
            cached = self._last[form] = path, next((rule for rule in rules if rule.matches(path)), None)
        return cached[1]


class _Rules:
    """The rules that apply to one crawler."""

    def __init__(self, sets: list[_RuleSet]) -> None:
        self._sets = sets
        self._escaped = any(rules.escaped for rules in sets)

    def allow(self, url: str) -> bool:
        path = _path_of(url)
        if not self._allows_form(_literal(path), _literal):
            return False
        if not self._escaped and "%" not in path and path.isascii():
            return True
        return self._allows_form(_equivalent(path), _equivalent)

    def _allows_form(self, path: str, form: _Normalization) -> bool:
        firsts = [rule for rules in self._sets if (rule := rules.first(path, form))]
        return min(firsts, key=_precedence).allow if firsts else True


class Robots:
    """The rules of one robots.txt for one crawler.

    Args:
        body: the bytes of the file; lines after the first 512 KiB are ignored (RFC 9309, 2.5).
        agent: the crawler's product token. Only rules for it and for AI crawlers are stored, which bounds the memory
            for many hosts, and for a file with 18,000 names above 18,000 rules.
    """

    def __init__(self, body: bytes, agent: str) -> None:
        texts = _interpretations(body)
        groups, self.sitemaps, licenses = _parse(texts[0])
        files = [groups, *(_parse(text)[0] for text in texts[1:])]
        cache: _RuleCache = {}
        self._rules = [
            _Rules([_RuleSet(matching, cache)]) for file in files for matching in _matching_groups(agent, file)
        ]
        self._ai_rules = [rules for file in files for rules in _ai_rules(file, cache)]
        names = _names_of(agent, groups)
        own = [group for group in groups if names & group.names.keys()]
        self._delay = _longest_delay(_matching_groups(agent, groups)[0], names or {b"*"})
        # If the crawler is named without a training signal, the signals for "*" apply.
        self._signals = _signals(own, names) or _signals(groups, {b"*"})
        # Terms of all groups for this crawler or for "*". The list is limited, because it is searched for every page.
        self._signal_lines = list(islice(_signal_lines(groups, names | {b"*"}), _MOST_TERMS))
        self._licenses = licenses[:_MOST_TERMS]

    def allows(self, url: str) -> bool:
        """Returns whether the crawler may fetch `url`."""
        return all(rules.allow(url) for rules in self._rules)

    def crawl_delay(self) -> float | None:
        """Returns the Crawl-delay for the crawler in seconds (the longest of several), or None."""
        return self._delay

    def ai_optout(self, url: str) -> bool:
        """Returns whether the site excludes `url` from AI training.

        A site does if a group names one of `AI_AGENTS` ("*" alone does not count) and disallows the URL, or if the
        Content-Signal (contentsignals.org) or Content-Usage (IETF aipref) for this crawler has ai-train=no. Of several
        signals the one with the longest path applies, then the one that refuses.
        """
        if any(not rules.allow(url) for rules in self._ai_rules):
            return True
        path = _path_of(url)
        return next((says_no for start, says_no in self._signals if path.startswith(start)), False)

    def terms(self, url: str) -> list[tuple[str, str]]:
        """Returns the terms of use for `url` as (field in lower case, value), one for each line.

        License (RSL 1.0) applies to the whole site, regardless of its group.
        """
        if not (self._signal_lines or self._licenses):
            return []
        path = _path_of(url)
        terms = [(name, text) for name, text in self._signal_lines if path.startswith(_signal_prefix(text))]
        return terms + [(_LICENSE, address) for address in self._licenses]


class Decision(NamedTuple):
    """The rule that decides about a URL.

    Attributes:
        allowed: whether the URL may be fetched.
        line: 1-based line number of the rule; 0 if no rule matches.
        rule: the rule as parsed, "Disallow: /a"; "" if no rule matches.
        group: names of the rule's group, separated by commas.
    """

    allowed: bool
    line: int = 0
    rule: str = ""
    group: str = ""


def deciding_rule(body: bytes, agent: str, url: str) -> Decision:
    """Returns the rule of a robots.txt that decides whether a crawler may fetch `url`; agrees with `Robots.allows`."""
    files = (_parse(text)[0] for text in _interpretations(body))
    decisions = [_decision(matching, url) for groups in files for matching in _matching_groups(agent, groups)]
    return next((decision for decision in decisions if not decision.allowed), decisions[0])


def ai_optout_rule(body: bytes, url: str) -> Decision:
    """Returns the rule for an AI crawler that disallows `url`, or an allowing decision if there is none."""
    files = (_parse(text)[0] for text in _interpretations(body))
    decisions = (_decision(matching, url) for groups in files for matching in _ai_groups(groups))
    return next((decision for decision in decisions if not decision.allowed), Decision(allowed=True))


def _decision(groups: list[_RobotsGroup], url: str) -> Decision:
    path, decisions = _path_of(url), [Decision(allowed=True)]
    for form in (_literal, _equivalent):
        candidates = [
            (rule, number, f"{verb.capitalize()}: {value.decode('utf-8', 'replace')}", group)
            for group in groups
            for (verb, value), number in zip(group.rules, group.numbers, strict=True)
            for rule in _rules(verb == _RULES[0], value, form)
        ]
        candidates.sort(key=lambda candidate: (-candidate[0].priority, not candidate[0].allow))
        for rule, number, text, group in candidates:
            if rule.matches(form(path)):
                names = b", ".join(group.names).decode("latin-1")
                decisions.append(Decision(rule.allow, number, text, names))
                break
    # A URL must pass in both normalizations.
    return next((decision for decision in decisions if not decision.allowed), decisions[-1])


def _matching_groups(agent: str, groups: list[_RobotsGroup]) -> list[list[_RobotsGroup]]:
    """Returns the groups that apply to `agent`, as lists: the rules of each list must allow a URL."""
    names = _names_of(agent, groups)
    starred = {b"*" + _token(name) for name in names or {agent.encode("utf-8", "replace")}}
    own = [group for group in groups if names & group.names.keys()]
    starred_groups = [group for group in groups if starred & group.names.keys() - {b"*"}]
    lists = [own or [group for group in groups if b"*" in group.names]]
    return [*lists, starred_groups] if starred_groups else lists


def _names_of(agent: str, groups: list[_RobotsGroup]) -> set[bytes]:
    """Returns the names in the file that match `agent`.

    A product token is compared as in Google's parser: up to the first character that a token cannot contain. Any other
    agent (with a version, a comment, other letters) matches the longest name that occurs in it.
    """
    token = agent.strip().encode("utf-8", "replace").lower()
    every = {name for group in groups for name in group.names if name != b"*"}
    if _TOKEN.fullmatch(agent.strip()):
        return {name for name in every if _token(name) == token}
    if not token or (re.search(rb"\s", token) and b"/" not in token):
        return set()  # a name with a blank and no version is not a product token: only "*" applies
    inside = [name for name in every if name in token]
    return {max(inside, key=len)} if inside else set()


def _token(name: bytes) -> bytes:
    match = _TOKEN.match(name.decode("latin-1"))
    return match[0].encode() if match else b""


def _ai_rules(groups: list[_RobotsGroup], cache: _RuleCache) -> list[_Rules]:
    """Returns the rules for every AI crawler that the file names.

    Groups for the same crawlers share one set, so that the cost does not grow with the number of crawlers.
    """
    shared: dict[frozenset[str], list[_RobotsGroup]] = {}
    for group in groups:
        if agents := _ai_agents(group):
            shared.setdefault(agents, []).append(group)
    sets = {agents: _RuleSet(members, cache) for agents, members in shared.items()}
    of_agent: dict[str, list[frozenset[str]]] = {}
    for agents in sets:
        for agent in agents:
            of_agent.setdefault(agent, []).append(agents)
    return [_Rules([sets[agents] for agents in keys]) for keys in set(map(tuple, of_agent.values()))]


def _ai_agents(group: _RobotsGroup) -> frozenset[str]:
    return frozenset(name.decode("latin-1").removeprefix("*") for name in group.names) & AI_AGENTS


def _ai_groups(groups: list[_RobotsGroup]) -> list[list[_RobotsGroup]]:
    """Returns the groups of every AI crawler that the file names, without duplicate lists."""
    of_agent: dict[str, list[int]] = {}
    for number, group in enumerate(groups):
        for agent in _ai_agents(group):
            of_agent.setdefault(agent, []).append(number)
    return [[groups[number] for number in numbers] for numbers in sorted(set(map(tuple, of_agent.values())))]


def _longest_delay(groups: list[_RobotsGroup], names: set[bytes]) -> float | None:
    delays = []
    for group in groups:
        for value in (value for above, value in group.delays if group.names_any(names, above)):
            try:
                delay = float(value.replace(b",", b".").split()[0])
            except (ValueError, IndexError):
                continue
            if math.isfinite(delay) and delay >= 0:
                delays.append(delay)
    return max(delays, default=None)


def _signals(groups: list[_RobotsGroup], names: set[bytes]) -> list[tuple[str, bool]]:
    """Returns (path prefix, whether training is refused) of every signal, in order of precedence."""
    signals = []
    for _, text in _signal_lines(groups, names):
        answers = [answer.lower() for answer in _TRAINING.findall(text)]
        if answers:
            signals.append((_signal_prefix(text), bool({"no", "n"} & set(answers))))
    return sorted(signals, key=lambda signal: (-len(signal[0]), not signal[1]))


def _signal_lines(groups: list[_RobotsGroup], names: set[bytes]) -> Iterator[tuple[str, str]]:
    """Yields (field, value) of every signal for a crawler with one of `names`, or above all groups."""
    for group in groups:
        for above, name, value in group.signals:
            if not above or group.names_any(names, above):
                yield name, value.decode("latin-1")


def _signal_prefix(text: str) -> str:
    """Returns the path prefix to which a signal applies."""
    return text.split()[0] if text.startswith("/") else "/"


def _sorted_rules(lines: Iterable[tuple[str, bytes]], cache: _RuleCache, form: _Normalization) -> list[_Rule]:
    """Returns the rules in order of precedence: longest first, Allow before Disallow."""
    rules: list[_Rule] = []
    for verb, value in lines:
        parsed_rules = cache.get((verb, value, form))
        if parsed_rules is None:
            parsed_rules = cache[verb, value, form] = _rules(verb == _RULES[0], value, form)
        rules += parsed_rules
    return sorted(rules, key=_precedence)


def _precedence(rule: _Rule) -> tuple[int, bool]:
    return -rule.priority, not rule.allow


def _rules(allow: bool, value: bytes, form: _Normalization) -> list[_Rule]:
    if not value or (allow and form is _literal and _UNESCAPED.search(value)):
        return []  # an empty rule matches nothing; nor does a literal character that a URL has only as an escape
    pattern = quote(value, safe=_SAFE)
    if not allow and pattern[0] not in "/*":
        pattern = f"/{pattern}"  # "Disallow: private" was meant as a path
    rules = [_rule(allow, pattern, form)]
    if not allow and pattern.endswith("$"):
        # A "$" may be meant literally; for a Disallow both interpretations apply.
        rules.append(_Rule(tuple(form(pattern).split("*")), False, allow=False, priority=len(pattern)))
    directory, slash, name = pattern.rpartition("/")
    if allow and slash and name.startswith("index.htm"):
        rules.append(_rule(True, f"{directory}/$", form))  # as Google: allowing the index page allows its folder
    return rules


def _rule(allow: bool, pattern: str, form: _Normalization) -> _Rule:
    parts, end = _split(pattern)
    return _Rule(tuple(map(form, parts)), end, allow, len(pattern))


class Reservations:
    """The reservations of one tdmrep.json.

    Args:
        body: the bytes of the file.

    Raises:
        ValueError: the file is not a JSON array.

    >>> file = Reservations(b'[{"location": "/*.jpg$", "tdm-reservation": 0}, {"location": "/", "tdm-reservation": 1}]')
    >>> file.reserves("http://h/a"), file.reserves("http://h/a.jpg")
    (True, False)
    """

    def __init__(self, body: bytes) -> None:
        try:
            rules = json.loads(body)
        except RecursionError:
            raise ValueError("it is nested too deeply") from None
        except ValueError as error:
            raise ValueError(f"it is no JSON: {error}") from None
        if not isinstance(rules, list):
            raise ValueError("it is no array")
        self._rules: list[tuple[_Pattern, bool, tuple[tuple[str, str], ...]]] = []
        for rule in rules:
            location = rule.get("location") if isinstance(rule, dict) else None
            if isinstance(location, str):
                properties = tuple((name, str(rule[name])[:_MAX_VALUE]) for name in _TDM_PROPERTIES if name in rule)
                self._rules.append((_location_pattern(location), _is_one(rule.get("tdm-reservation")), properties))

    def reserves(self, url: str) -> bool:
        """Returns whether the file reserves `url` from mining; False if no rule matches."""
        path = _equivalent(_path_of(url))
        return next((reserved for pattern, reserved, _ in self._rules if pattern.matches(path)), False)

    def terms(self, url: str) -> tuple[tuple[str, str], ...]:
        """Returns the properties of the rule for `url`, as (property, value): reservation and policy."""
        path = _equivalent(_path_of(url))
        return next((properties for pattern, _, properties in self._rules if pattern.matches(path)), ())


def _location_pattern(location: str) -> _Pattern:
    parts, end = _split(location)
    return _Pattern(tuple(map(_equivalent, parts)), end)


def _is_one(value: object) -> bool:
    return isinstance(value, int | str) and str(value).strip() == "1"
