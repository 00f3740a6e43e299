"""robots.txt and tdmrep.json: permission to fetch a URL, crawl delay, AI opt-out, terms of use, reservations.

Reads the bytes of one file. robots.txt (RFC 9309) is read as Google's parser does, line by line: anything but a rule is
skipped, so that an HTML page sent with status 200 forbids nothing; rules end a list of names, unknown lines do not;
field names are recognised by prefix and in common misspellings; a colon may be missing between two words.

Where RFC 9309 and Google differ the stricter one applies. Rules with percent signs or non-ASCII characters are matched
once letter by letter (Google) and once with escapes equal to the character they encode (RFC 9309, 2.2.2), and a URL
must pass both. A file that holds NUL is read in two ways, and a URL must pass both. A group for "*FooBot" is none of
FooBot for Google; a URL must pass it as well.

tdmrep.json is the file of the TDM Reservation Protocol (W3C community group, final report of 2024-05-10, section "TDM
File on the Origin Server"): an array of rules, of which the first whose location matches counts. Locations are patterns
as in robots.txt, with escapes equal to the character they encode.
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
# Google's parser keeps this much of a line (2083 characters of URL, eight times over, less the end of the string).
_MAX_LINE = 2083 * 8 - 1

_RULES = ("allow", "disallow")
_SIGNALS = ("content-signal", "content-usage")
_LICENSE = "license"
_AGENT, _DELAY, _SITEMAP = "agent", "delay", "sitemap"

# A field is recognised by its prefix, as Google does ("Disallowed: /x").
_FIELDS = (
    (_AGENT, (b"user-agent", b"useragent", b"user agent")),
    (_RULES[0], (b"allow",)),
    (_RULES[1], (b"disallow", b"dissallow", b"dissalow", b"disalow", b"diasllow", b"disallaw")),
    (_DELAY, (b"crawl-delay", b"crawl delay", b"crawldelay")),
    (_SITEMAP, (b"sitemap", b"site-map")),
    *((field, (field.encode(),)) for field in (*_SIGNALS, _LICENSE)),
)
_MARKS = (b"\xef\xbb\xbf", b"\xef\xbb", b"\xef")
_LINE_END = re.compile(rb"\r\n|\r|\n")
_CUT_LINE = re.compile(rb"\0[^\r\n]*")
_BLANK = b" \t\v\f"
# What may stand in place of a colon.
_GAP = re.compile(rb"[ \t]+")
# The end of a group's name: a blank (Google), a version, a remark.
_NAME_END = re.compile(rb"[\s/(;,]")

_ESCAPE = re.compile(r"%[0-9a-fA-F]{2}")
# Escapes of these are equal to the character; "$" and "*" have to be escaped in patterns to mean themselves.
_EQUAL = re.compile(r"%(?:4[1-9A-F]|5[0-9A]|6[1-9A-F]|7[0-9A]|3[0-9]|2[DEA4]|5F|7E)", re.I)
_PATH_START = re.compile(r"[/?;]")

_KEEP = "!$&'()*+,-./:;=?@[\\]_~%#"
"""Characters that a URL parser does not escape in path and query."""

AI_AGENTS = frozenset(
    {
        *("gptbot", "ccbot", "google-extended", "applebot-extended", "claudebot", "anthropic-ai", "claude-web"),
        *("bytespider", "meta-externalagent", "facebookbot", "amazonbot", "cohere-ai", "cohere-training-data-crawler"),
        *("diffbot", "omgili", "omgilibot", "webzio-extended", "perplexitybot", "ai2bot", "ai2bot-dolma"),
        *("imagesiftbot", "timpibot", "img2dataset", "laion-huggingface-processor", "pangubot", "friendlycrawler"),
    }
)
"""Product tokens, in lower case, of crawlers and controls that gather text for AI: a rule for one of them in robots.txt
is an AI opt-out. Sources: the pages of OpenAI, Common Crawl, Google, Apple, Anthropic, ByteDance, Meta, Amazon, Cohere,
Diffbot, Webz.io, Perplexity and Ai2 about their crawlers; the list ai-robots-txt/ai.robots.txt on GitHub (2026-11)."""

_MOST_TERMS = 50
_TOKEN = re.compile(r"[a-zA-Z_-]+")
_UNESCAPED = re.compile(rb"[\x00-\x20\"<>^`{|}\x7f]")
_TRAINING = re.compile(r"(?:^|[\s,;])(?:ai-train|train-ai)\s*=\s*(no|n|yes|y)\b", re.I)

_Form = Callable[[str], str]

TDMREP = "/.well-known/tdmrep.json"
_STATED = ("tdm-reservation", "tdm-policy")
_MAX_VALUE = 1000


@dataclass
class _Group:
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


def _readings(body: bytes) -> tuple[bytes, ...]:
    """Returns the texts that a file stands for, in UTF-8: one, or two where it holds NUL; a URL must pass both.

    The first has no NUL, as a person would read the file. In the second NUL ends a line, as in Google's parser.
    """
    text = _utf8(beginning(body))
    return (text.replace(b"\0", b""), _CUT_LINE.sub(b"", text)) if b"\0" in text else (text,)


def _parsed(text: bytes) -> tuple[list[_Group], tuple[str, ...], tuple[str, ...]]:
    """Returns the groups of one of the `_readings`, and the URLs of its sitemaps and licences as written."""
    groups: list[_Group] = [_Group()]
    named: dict[str, list[str]] = {_SITEMAP: [], _LICENSE: []}
    for number, kind, value in _lines(text):
        group = groups[-1]
        if kind in named:
            named[kind].append(value.decode("utf-8", "replace"))
        elif kind == _AGENT:
            if group.closed:
                group = _Group()
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
    return groups, tuple(dict.fromkeys(named[_SITEMAP])), tuple(dict.fromkeys(named[_LICENSE]))


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


def _field_name(value: bytes) -> bytes:
    if value[:1] == b"*" and (len(value) == 1 or value[1:2].isspace()):
        return b"*"
    name = _NAME_END.split(value, maxsplit=1)[0].lower()
    # A star inside a name has no meaning.
    return name[:1] + name[1:].replace(b"*", b"")


@dataclass(frozen=True, slots=True)
class _Pattern:
    """One pattern: `parts` are the texts between the stars; `end` means that the last one ends the path."""

    parts: tuple[str, ...]
    end: bool

    def matches(self, path: str) -> bool:
        """Returns whether the pattern matches a path of the same form."""
        first, *rest = self.parts
        if not path.startswith(first):
            return False
        if not rest:
            return not self.end or len(path) == len(first)
        last = rest.pop() if self.end else ""
        at = len(first)
        # The leftmost match of every part leaves the most room for the following ones: no backtracking, linear time.
        for part in rest:
            at = path.find(part, at)
            if at < 0:
                return False
            at += len(part)
        return not self.end or (len(path) - len(last) >= at and path.endswith(last))


def _split(text: str) -> tuple[list[str], bool]:
    """Returns the texts between the stars of a pattern, not normalised yet, and whether it has an end.

    >>> _split("/a/**/b*.pdf$")
    (['/a/', '/b', '.pdf'], True)
    """
    end = text.endswith("$")
    first, *rest = (text[:-1] if end else text).split("*")
    # Stars in a row are one; an empty last part is kept, as it allows a longer path.
    return [first, *(part for part in rest[:-1] if part), *rest[-1:]], end


def _literal(text: str) -> str:
    """Returns the letter-by-letter form: escapes in capitals, and what a URL parser would escape, escaped."""
    if text.isascii() and "%" not in text:
        return quote(text, safe=_KEEP)
    pieces = re.split(r"([^\x00-\x7f]+)", _ESCAPE.sub(lambda found: found[0].upper(), text))
    return "".join(piece if index % 2 else quote(piece, safe=_KEEP) for index, piece in enumerate(pieces))


def _equal(text: str) -> str:
    """Returns the form in which escapes are equal to the character they encode."""
    plain = _EQUAL.sub(lambda found: chr(int(found[0][1:], 16)), text)
    return quote(_ESCAPE.sub(lambda found: found[0].upper(), plain).encode("utf-8", "surrogatepass"), safe=_KEEP)


def _path_of(url: str) -> str:
    """Returns path, parameters and query of a URL, also of one without scheme or host; "/" where it has none."""
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
    """One Allow or Disallow; of those that match the one of the highest priority decides."""

    allow: bool
    priority: int


_Known = dict[tuple[str, bytes, _Form], list[_Rule]]


class _RuleSet:
    """The rules of some groups in both forms, in the order in which the first match decides.

    It remembers the answer for the last path: several crawlers of a file share their rules.

    Args:
        groups: those groups.
        known: rules by line, shared by all sets of one file.
    """

    def __init__(self, groups: list[_Group], known: _Known) -> None:
        lines = dict.fromkeys(line for group in groups for line in group.rules)
        self.escaped = any(b"%" in value or not value.isascii() for _, value in lines)
        self._literal = _sorted(lines, known, _literal)
        self._equal = _sorted(lines, known, _equal) if self.escaped else self._literal
        self._last: dict[_Form, tuple[str, _Rule | None]] = {}

    def first(self, path: str, form: _Form) -> _Rule | None:
        """Returns the first rule that matches a path of a form, or None."""
        known = self._last.get(form)
        if known is None or known[0] != path:
            rules = self._literal if form is _literal else self._equal
            known = self._last[form] = path, next((rule for rule in rules if rule.matches(path)), None)
        return known[1]


class _Rules:
    """The rules that apply to one crawler."""

    def __init__(self, sets: list[_RuleSet]) -> None:
        self._sets = sets
        self._escaped = any(one.escaped for one in sets)

    def allow(self, url: str) -> bool:
        path = _path_of(url)
        if not self._decided(_literal(path), _literal):
            return False
        if not self._escaped and "%" not in path and path.isascii():
            return True
        return self._decided(_equal(path), _equal)

    def _decided(self, path: str, form: _Form) -> bool:
        firsts = [rule for one in self._sets if (rule := one.first(path, form))]
        return min(firsts, key=_order).allow if firsts else True


class Robots:
    """The rules of one robots.txt for one crawler.

    Args:
        body: the file's bytes; lines above 512 KiB are not read (RFC 9309, 2.5).
        agent: the crawler's product token. Only rules for it and for AI crawlers are kept: this bounds the memory
            for many hosts, and for a file of 18,000 names over 18,000 rules.
    """

    def __init__(self, body: bytes, agent: str) -> None:
        texts = _readings(body)
        groups, self.sitemaps, licenses = _parsed(texts[0])
        files = [groups, *(_parsed(text)[0] for text in texts[1:])]
        known: _Known = {}
        self._rules = [_Rules([_RuleSet(chosen, known)]) for file in files for chosen in _chosen(agent, file)]
        self._against_ai = [rules for file in files for rules in _against_ai(file, known)]
        names = _names_of(agent, groups)
        own = [group for group in groups if names & group.names.keys()]
        self._delay = _delay(_chosen(agent, groups)[0], names or {b"*"})
        # For a crawler that is named without a training signal the signals for "*" apply.
        self._signals = _signals(own, names) or _signals(groups, {b"*"})
        # Terms of all groups for this crawler or for "*". The list is limited, as it is searched for every page.
        self._stated = list(islice(_stated(groups, names | {b"*"}), _MOST_TERMS))
        self._licenses = licenses[:_MOST_TERMS]

    def allows(self, url: str) -> bool:
        """Returns whether the crawler may fetch `url`."""
        return all(rules.allow(url) for rules in self._rules)

    def crawl_delay(self) -> float | None:
        """Returns the Crawl-delay for the crawler in seconds (the longest of several), or None."""
        return self._delay

    def ai_optout(self, url: str) -> bool:
        """Returns whether the site excludes `url` from AI training.

        Either a group names one of `AI_AGENTS` (never "*" alone) and disallows the URL to it, or the Content-Signal
        (contentsignals.org) or Content-Usage (IETF aipref) that applies to this crawler says ai-train=no. Of several
        signals the one with the longest path counts, then the one that refuses.
        """
        if any(not rules.allow(url) for rules in self._against_ai):
            return True
        path = _path_of(url)
        return next((says_no for start, says_no in self._signals if path.startswith(start)), False)

    def terms(self, url: str) -> list[tuple[str, str]]:
        """Returns the terms of use for `url`, as (field in lower case, value) of each line.

        License (RSL 1.0) applies to the whole site, whatever group it is in.
        """
        if not (self._stated or self._licenses):
            return []
        path = _path_of(url)
        terms = [(name, text) for name, text in self._stated if path.startswith(_start_of(text))]
        return terms + [(_LICENSE, address) for address in self._licenses]


class Decision(NamedTuple):
    """The rule that decides about a URL.

    Attributes:
        allowed: whether it may be fetched.
        line: number of the rule's line, from 1; 0 where no rule matches.
        rule: the rule as parsed, "Disallow: /a"; "" where no rule matches.
        group: names of the rule's group, as one text.
    """

    allowed: bool
    line: int = 0
    rule: str = ""
    group: str = ""


def decided_by(body: bytes, agent: str, url: str) -> Decision:
    """Returns which rule of a robots.txt decides whether a crawler may fetch `url`; agrees with `Robots.allows`."""
    decisions = [_decision(chosen, url) for text in _readings(body) for chosen in _chosen(agent, _parsed(text)[0])]
    return next((decision for decision in decisions if not decision.allowed), decisions[0])


def ai_optout_by(body: bytes, url: str) -> Decision:
    """Returns the rule for an AI crawler that forbids `url`; an allowing decision if there is none."""
    files = (_parsed(text)[0] for text in _readings(body))
    decisions = (_decision(chosen, url) for groups in files for chosen in _for_ai(groups))
    return next((decision for decision in decisions if not decision.allowed), Decision(allowed=True))


def _decision(groups: list[_Group], url: str) -> Decision:
    path, known = _path_of(url), [Decision(allowed=True)]
    for form in (_literal, _equal):
        candidates = [
            (rule, number, f"{verb.capitalize()}: {value.decode('utf-8', 'replace')}", group)
            for group in groups
            for (verb, value), number in zip(group.rules, group.numbers, strict=True)
            for rule in _rules(verb == _RULES[0], value, form)
        ]
        candidates.sort(key=lambda candidate: (-candidate[0].priority, not candidate[0].allow))
        for rule, number, text, group in candidates:
            if rule.matches(form(path)):
                listed = b", ".join(group.names).decode("latin-1")
                known.append(Decision(rule.allow, number, text, listed))
                break
    # A URL must pass both forms.
    return next((decision for decision in known if not decision.allowed), known[-1])


def _chosen(agent: str, groups: list[_Group]) -> list[list[_Group]]:
    """Returns the groups that apply to `agent`, in lists: a URL must be allowed by the rules of each list."""
    names = _names_of(agent, groups)
    starred = {b"*" + _token(name) for name in names or {agent.encode("utf-8", "replace")}}
    own = [group for group in groups if names & group.names.keys()]
    meant = [group for group in groups if starred & group.names.keys() - {b"*"}]
    chosen = [own or [group for group in groups if b"*" in group.names]]
    return [*chosen, meant] if meant else chosen


def _names_of(agent: str, groups: list[_Group]) -> set[bytes]:
    """Returns the names in the file that mean `agent`.

    A product token is compared as Google does: equal up to the first character that a token cannot contain. Any other
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
    found = _TOKEN.match(name.decode("latin-1"))
    return found[0].encode() if found else b""


def _against_ai(groups: list[_Group], known: _Known) -> list[_Rules]:
    """Returns the rules for every AI crawler that the file names.

    Groups for the same crawlers are one set, so that the work grows with the file, not with the file times crawlers.
    """
    shared: dict[frozenset[str], list[_Group]] = {}
    for group in groups:
        if agents := _ai_agents(group):
            shared.setdefault(agents, []).append(group)
    sets = {agents: _RuleSet(members, known) for agents, members in shared.items()}
    of_agent: dict[str, list[frozenset[str]]] = {}
    for agents in sets:
        for agent in agents:
            of_agent.setdefault(agent, []).append(agents)
    return [_Rules([sets[one] for one in several]) for several in set(map(tuple, of_agent.values()))]


def _ai_agents(group: _Group) -> frozenset[str]:
    return frozenset(name.decode("latin-1").removeprefix("*") for name in group.names) & AI_AGENTS


def _for_ai(groups: list[_Group]) -> list[list[_Group]]:
    """Returns the groups of every AI crawler that the file names, each list once."""
    of_agent: dict[str, list[int]] = {}
    for number, group in enumerate(groups):
        for agent in _ai_agents(group):
            of_agent.setdefault(agent, []).append(number)
    return [[groups[number] for number in numbers] for numbers in sorted(set(map(tuple, of_agent.values())))]


def _delay(groups: list[_Group], names: set[bytes]) -> float | None:
    delays = []
    for group in groups:
        for value in (value for above, value in group.delays if group.addresses(names, above)):
            try:
                delay = float(value.replace(b",", b".").split()[0])
            except (ValueError, IndexError):
                continue
            if math.isfinite(delay) and delay >= 0:
                delays.append(delay)
    return max(delays, default=None)


def _signals(groups: list[_Group], names: set[bytes]) -> list[tuple[str, bool]]:
    """Returns (path prefix, whether training is refused) of every signal, in order of precedence."""
    signals = []
    for _, text in _stated(groups, names):
        answers = [answer.lower() for answer in _TRAINING.findall(text)]
        if answers:
            signals.append((_start_of(text), bool({"no", "n"} & set(answers))))
    return sorted(signals, key=lambda signal: (-len(signal[0]), not signal[1]))


def _stated(groups: list[_Group], names: set[bytes]) -> Iterator[tuple[str, str]]:
    """Yields (field, value) of every signal for a crawler of one of `names`, or above all groups."""
    for group in groups:
        for above, name, value in group.signals:
            if not above or group.addresses(names, above):
                yield name, value.decode("latin-1")


def _start_of(text: str) -> str:
    """Returns the prefix of the paths to which a signal applies."""
    return text.split()[0] if text.startswith("/") else "/"


def _sorted(lines: Iterable[tuple[str, bytes]], known: _Known, form: _Form) -> list[_Rule]:
    """Returns the rules in the order in which the first match decides: longest first, Allow before Disallow."""
    rules: list[_Rule] = []
    for verb, value in lines:
        parsed_rules = known.get((verb, value, form))
        if parsed_rules is None:
            parsed_rules = known[verb, value, form] = _rules(verb == _RULES[0], value, form)
        rules += parsed_rules
    return sorted(rules, key=_order)


def _order(rule: _Rule) -> tuple[int, bool]:
    return -rule.priority, not rule.allow


def _rules(allow: bool, value: bytes, form: _Form) -> list[_Rule]:
    if not value or (allow and form is _literal and _UNESCAPED.search(value)):
        return []  # an empty rule matches nothing; nor does, letter by letter, what a URL has only as an escape
    pattern = quote(value, safe=_KEEP)
    if not allow and pattern[0] not in "/*":
        pattern = f"/{pattern}"  # "Disallow: private" was meant as a path
    rules = [_rule(allow, pattern, form)]
    if not allow and pattern.endswith("$"):
        # A "$" may be meant literally; of a Disallow both readings apply.
        rules.append(_Rule(tuple(form(pattern).split("*")), False, allow=False, priority=len(pattern)))
    directory, slash, name = pattern.rpartition("/")
    if allow and slash and name.startswith("index.htm"):
        rules.append(_rule(True, f"{directory}/$", form))  # as Google: allowing the index page allows its folder
    return rules


def _rule(allow: bool, pattern: str, form: _Form) -> _Rule:
    parts, end = _split(pattern)
    return _Rule(tuple(map(form, parts)), end, allow, len(pattern))


class Reservations:
    """The reservations of one tdmrep.json.

    Args:
        body: the file's bytes.

    Raises:
        ValueError: it is not a JSON array.

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
                stated = tuple((name, str(rule[name])[:_MAX_VALUE]) for name in _STATED if name in rule)
                self._rules.append((_location(location), _is_one(rule.get("tdm-reservation")), stated))

    def reserves(self, url: str) -> bool:
        """Returns whether the file reserves `url` from mining; False where no rule matches."""
        path = _equal(_path_of(url))
        return next((reserved for pattern, reserved, _ in self._rules if pattern.matches(path)), False)

    def terms(self, url: str) -> tuple[tuple[str, str], ...]:
        """Returns the properties of the rule for `url`, as (property, value): reservation and policy."""
        path = _equal(_path_of(url))
        return next((stated for pattern, _, stated in self._rules if pattern.matches(path)), ())


def _location(location: str) -> _Pattern:
    parts, end = _split(location)
    return _Pattern(tuple(map(_equal, parts)), end)


def _is_one(value: object) -> bool:
    return isinstance(value, int | str) and str(value).strip() == "1"
