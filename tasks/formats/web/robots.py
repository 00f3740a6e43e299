"""robots.txt: permission to fetch a URL, crawl delay, sitemaps, AI opt-out, terms of use, licenses.

Reads the bytes of one file. robots.txt (RFC 9309) is parsed line by line, like Google's parser does. Lines that are not
rules are skipped, so an HTML page sent with status 200 disallows nothing. Rules end a list of names; unknown lines do
not. Field names are recognized by prefix and in common misspellings. The colon may be missing between two words.

Where RFC 9309 and Google differ, the stricter one applies. Rules with percent signs or non-ASCII characters are matched
once literally (Google) and once with escapes equivalent to the characters they encode (RFC 9309, 2.2.2); a URL must
pass both. A file that contains NUL is interpreted in two ways; a URL must pass both. For Google a group for "*FooBot"
does not apply to FooBot; here a URL must pass it too.

Content-Usage and Content-Signal (`usage_preference`) may begin with a path pattern. By draft-ietf-aipref-attach-05
(August 2026), section 3, it is matched like that of Allow and Disallow, and the longest one applies; of equal ones, the
one that refuses. Without a pattern the line applies to all paths. Each field is a statement of its own, and one that
refuses suffices.

License (RSL 1.0, 4.4): the lines of the crawler's group apply; without any, those above all groups. Without these
either, those of other groups apply, as do opt-outs that address other crawlers by name.
"""

import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple
from urllib.parse import quote

from tasks.formats.web.path_pattern import SAFE, Normalization, PathPattern, equivalent, literal, path_of, split_pattern
from tasks.formats.web.usage_preference import FIELDS as SIGNALS
from tasks.formats.web.usage_preference import training_preference

MAX_BYTES = 512 << 10
# Google's parser reads this much of a line: eight times 2083 characters of a URL, less the string terminator.
_MAX_LINE = 2083 * 8 - 1

_RULES = ("allow", "disallow")
_LICENSE = "license"
_AGENT, _DELAY, _SITEMAP = "agent", "delay", "sitemap"

# A field is recognized by its prefix, as in Google's parser ("Disallowed: /x").
_FIELDS = (
    (_AGENT, (b"user-agent", b"useragent", b"user agent")),
    (_RULES[0], (b"allow",)),
    (_RULES[1], (b"disallow", b"dissallow", b"dissalow", b"disalow", b"diasllow", b"disallaw")),
    (_DELAY, (b"crawl-delay", b"crawl delay", b"crawldelay")),
    (_SITEMAP, (b"sitemap", b"site-map")),
    *((field, (field.encode(),)) for field in (*SIGNALS, _LICENSE)),
)
_BYTE_ORDER_MARKS = (b"\xef\xbb\xbf", b"\xef\xbb", b"\xef")
_LINE_END = re.compile(rb"\r\n|\r|\n")
_CUT_LINE = re.compile(rb"\0[^\r\n]*")
_BLANK = b" \t\v\f"
# Accepted instead of a colon.
_GAP = re.compile(rb"[ \t]+")
# The end of a group's name: a blank (Google), a version, a comment.
_NAME_END = re.compile(rb"[\s/(;,]")

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
        licenses: (number of names above the line, URL) of every License.
        closed: whether a rule has ended the list of names.
    """

    names: dict[bytes, int] = field(default_factory=dict)
    rules: list[tuple[str, bytes]] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)
    delays: list[tuple[int, bytes]] = field(default_factory=list)
    signals: list[tuple[int, str, bytes]] = field(default_factory=list)
    licenses: list[tuple[int, str]] = field(default_factory=list)
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


def _parse(text: bytes) -> tuple[list[_RobotsGroup], tuple[str, ...]]:
    """Returns the groups of one of the `_interpretations`, and its sitemap URLs as written.

    The first group has the lines above all names.
    """
    groups: list[_RobotsGroup] = [_RobotsGroup()]
    sitemaps: list[str] = []
    for number, kind, value in _lines(text):
        group = groups[-1]
        if kind == _SITEMAP:
            sitemaps.append(value.decode("utf-8", "replace"))
        elif kind == _LICENSE:
            group.licenses.append((len(group.names), value.decode("utf-8", "replace")))
        elif kind == _AGENT:
            if group.closed:
                group = _RobotsGroup()
                groups.append(group)
            group.names.setdefault(_field_name(value), len(group.names))
        elif kind in SIGNALS:
            group.signals.append((len(group.names), kind, value))
        elif kind == _DELAY:
            group.delays.append((len(group.names), value))
        elif kind in _RULES and group.names:
            group.closed = True
            group.rules.append((kind, value))
            group.numbers.append(number)
    return groups, tuple(dict.fromkeys(sitemaps))


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
class _Rule(PathPattern):
    """One Allow or Disallow rule; the matching rule with the highest priority decides."""

    allow: bool
    priority: int


_RuleCache = dict[tuple[str, bytes, Normalization], list[_Rule]]


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
        self.literal = _sorted_rules(lines, cache, literal)
        self.equivalent = _sorted_rules(lines, cache, equivalent) if self.escaped else self.literal
        self._last: dict[Normalization, tuple[str, _Rule | None]] = {}

    def first(self, path: str, form: Normalization) -> _Rule | None:
        """Returns the first rule that matches a normalized path, or None."""
        cached = self._last.get(form)
        if cached is None or cached[0] != path:
            rules = self.literal if form is literal else self.equivalent
            cached = self._last[form] = path, next((rule for rule in rules if rule.matches(path)), None)
        return cached[1]


class _Rules:
    """The rules that apply to one crawler."""

    def __init__(self, sets: list[_RuleSet]) -> None:
        self._sets = sets
        self._escaped = any(rules.escaped for rules in sets)

    def allow(self, url: str) -> bool:
        path = path_of(url)
        if not self._allows_form(literal(path), literal):
            return False
        if not self._escaped and "%" not in path and path.isascii():
            return True
        return self._allows_form(equivalent(path), equivalent)

    def _allows_form(self, path: str, form: Normalization) -> bool:
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
        groups, self.sitemaps = _parse(texts[0])
        files = [groups, *(_parse(text)[0] for text in texts[1:])]
        cache: _RuleCache = {}
        self._rules = [
            _Rules([_RuleSet(matching, cache)]) for file in files for matching in _matching_groups(agent, file)
        ]
        self._ai_rules = [rules for file in files for rules in _ai_rules(file, cache)]
        names = _names_of(agent, groups)
        self._delay = _longest_delay(_matching_groups(agent, groups)[0], names or {b"*"})
        self._preferences = [preferences for file in files for preferences in _preferences(agent, file)]
        # Terms of all groups for this crawler or for "*". The list is limited, because it is searched for every page.
        lines = islice(_signal_lines(groups, names | {b"*"}), _MOST_TERMS)
        self._stated = [_Statement.of(name, value) for name, value in lines]
        self.licenses = _licenses(groups, names)[:_MOST_TERMS]

    def allows(self, url: str) -> bool:
        """Returns whether the crawler may fetch `url`."""
        return all(rules.allow(url) for rules in self._rules)

    def crawl_delay(self) -> float | None:
        """Returns the Crawl-delay for the crawler in seconds (the longest of several), or None."""
        return self._delay

    def ai_optout(self, url: str) -> bool:
        """Returns whether the site excludes `url` from AI training.

        A site does if a group names one of `AI_AGENTS` ("*" alone does not count) and disallows the URL, or if the
        Content-Signal (contentsignals.org) or Content-Usage (IETF aipref) for this crawler, or for one of these,
        refuses.
        """
        if any(not rules.allow(url) for rules in self._ai_rules):
            return True
        path = path_of(url)
        return any(preferences.refuse(path) for preferences in self._preferences)

    def terms(self, url: str) -> list[tuple[str, str]]:
        """Returns the terms of use for `url` as (field in lower case, value as written), one for each line."""
        if not (self._stated or self.licenses):
            return []
        path = path_of(url)
        forms: dict[Normalization, str] = {form: form(path) for form in (literal, equivalent)}
        terms = [(one.field, one.text) for one in self._stated if one.matches(forms)]
        return terms + [(_LICENSE, address) for address in self.licenses]


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
    path, decisions = path_of(url), [Decision(allowed=True)]
    for form in (literal, equivalent):
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


def _preferences(agent: str, groups: list[_RobotsGroup]) -> list["_Preferences"]:
    """Returns the usage preferences for a crawler, and those for the AI crawlers that the file names."""
    names = _names_of(agent, groups)
    own = [group for group in groups if names & group.names.keys()]
    # If the crawler is named without a training preference, those for "*" apply.
    found = [_Preferences(_signal_lines(own, names)) or _Preferences(_signal_lines(groups, {b"*"}))]
    with_signals = [group for group in groups if group.signals]
    agents = sorted({agent.encode() for group in with_signals for agent in _ai_agents(group)})
    lines = (tuple(_signal_lines(with_signals, {agent, b"*" + agent})) for agent in agents)
    found += map(_Preferences, dict.fromkeys(lines))
    return [preferences for preferences in found if preferences]


def _signal_lines(groups: list[_RobotsGroup], names: set[bytes]) -> Iterator[tuple[str, bytes]]:
    """Yields (field, value) of every signal for a crawler with one of `names`, or above all groups."""
    for group in groups:
        for above, name, value in group.signals:
            if not above or group.names_any(names, above):
                yield name, value


def _licenses(groups: list[_RobotsGroup], names: set[bytes]) -> tuple[str, ...]:
    """Returns the license URLs for a crawler as written: of its groups, above all groups, or else of any group."""
    lines = [(group, above, url) for group in groups for above, url in group.licenses]
    own = [url for group, above, url in lines if group.names_any(names or {b"*"}, above)]
    return tuple(dict.fromkeys(own or [url for _, above, url in lines if not above] or [url for *_, url in lines]))


def _signal_parts(value: bytes) -> tuple[bytes, str]:
    """Returns the path pattern of a signal, b"" if it has none, and its preferences.

    >>> _signal_parts(b"/*.html train-ai=n"), _signal_parts(b"train-ai=n")
    ((b'/*.html', 'train-ai=n'), (b'', 'train-ai=n'))
    """
    first, _, rest = value.replace(b"\t", b" ").partition(b" ")
    # A key of a dictionary may begin with a star, too.
    has_pattern = first.startswith(b"/") or (first.startswith(b"*") and b"=" not in first)
    return (first, rest.strip().decode("latin-1")) if has_pattern else (b"", value.decode("latin-1"))


class _Preferences:
    """The training preferences of some lines, by field and normalization, in order of precedence."""

    def __init__(self, lines: Iterable[tuple[str, bytes]]) -> None:
        self._rules: dict[tuple[str, Normalization], list[_Rule]] = {}
        for name, value in dict.fromkeys(lines):
            pattern, text = _signal_parts(value)
            permits = training_preference(name, text)
            if permits is not None:
                for form in (literal, equivalent):
                    self._rules.setdefault((name, form), []).extend(_pattern_rules(permits, pattern or b"/", form))
        for rules in self._rules.values():
            rules.sort(key=lambda rule: (-rule.priority, rule.allow))

    def __bool__(self) -> bool:
        return bool(self._rules)

    def refuse(self, path: str) -> bool:
        """Returns whether the longest matching pattern of a field refuses training, in either normalization."""
        forms: dict[Normalization, str] = {form: form(path) for form in (literal, equivalent)}
        firsts = (
            next((rule for rule in rules if rule.matches(forms[form])), None)
            for (_, form), rules in self._rules.items()
        )
        return any(rule is not None and not rule.allow for rule in firsts)


@dataclass(frozen=True, slots=True)
class _Statement:
    """A line with Content-Signal or Content-Usage, whatever it states, as it is recorded."""

    field: str
    text: str
    patterns: tuple[tuple[Normalization, "_Rule"], ...]

    @classmethod
    def of(cls, name: str, value: bytes) -> "_Statement":
        pattern = _signal_parts(value)[0] or b"/"
        # Patterns as for a refusal: rather one term too many.
        rules = ((form, rule) for form in (literal, equivalent) for rule in _pattern_rules(False, pattern, form))
        return cls(name, value.decode("latin-1"), tuple(rules))

    def matches(self, forms: dict[Normalization, str]) -> bool:
        """Returns whether the line applies to a path, given in all normalizations."""
        return any(rule.matches(forms[form]) for form, rule in self.patterns)


def _sorted_rules(lines: Iterable[tuple[str, bytes]], cache: _RuleCache, form: Normalization) -> list[_Rule]:
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


def _rules(allow: bool, value: bytes, form: Normalization) -> list[_Rule]:
    """Returns what one Allow or Disallow means."""
    rules = _pattern_rules(allow, value, form)
    directory, slash, name = quote(value, safe=SAFE).rpartition("/")
    if rules and allow and slash and name.startswith("index.htm"):
        rules.append(_rule(True, f"{directory}/$", form))  # as Google: allowing the index page allows its folder
    return rules


def _pattern_rules(allow: bool, value: bytes, form: Normalization) -> list[_Rule]:
    """Returns what a path pattern means that allows or forbids; in doubt it forbids more and allows less."""
    if not value or (allow and form is literal and _UNESCAPED.search(value)):
        return []  # an empty rule matches nothing; nor does a literal character that a URL has only as an escape
    pattern = quote(value, safe=SAFE)
    if not allow and pattern[0] not in "/*":
        pattern = f"/{pattern}"  # "Disallow: private" was meant as a path
    rules = [_rule(allow, pattern, form)]
    if not allow and pattern.endswith("$"):
        # A "$" may be meant literally; for a Disallow both interpretations apply.
        rules.append(_Rule(tuple(form(pattern).split("*")), False, allow=False, priority=len(pattern)))
    return rules


def _rule(allow: bool, pattern: str, form: Normalization) -> _Rule:
    parts, end = split_pattern(pattern)
    return _Rule(tuple(map(form, parts)), end, allow, len(pattern))
