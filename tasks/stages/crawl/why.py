"""Explanation of why a URL is crawled or not, from recipe, hosts file and the last cycles.

Reads the facts from hosts file and artifacts (`facts`). Sends no requests, so the current rules of a site may differ.
"""

import re
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import Any

from tasks.core.errors import InputError
from tasks.core.store import Store
from tasks.formats.documents.tombstones import DOCUMENT, TAKEDOWN, Tombstone, Tombstones
from tasks.formats.web.canonical_url import canonical
from tasks.formats.web.scope import Scope
from tasks.formats.web.url import is_trap
from tasks.stages.crawl.config import CrawlConfig
from tasks.stages.crawl.facts import Facts, Sources
from tasks.stages.crawl.http.address import Grants, refusal
from tasks.stages.crawl.inject import scope_of
from tasks.stages.crawl.policy import HOST_DENIED, HOST_DROPPED
from tasks.stages.crawl.storage import crawldb

Found = dict[str, Any]

_SCHEME = re.compile(r"[a-z][a-z\d+.-]*:(?://|[^\d/?])", re.I)
# What shows that a crawl has met a URL.
_MET = ("seed", "known", "tried", "listed", "set_aside")

_SCOPE = {
    "include_hosts": "include_hosts does not name {host}",
    "include_prefixes": "include_prefixes names {host}, and none of them begins it",
    "include_pattern": "include_pattern is not found in it",
    "exclude_pattern": "exclude_pattern is found in it",
}
_ADDRESS = {
    "port": "its port is neither 80 nor 443, and allow_hosts does not grant it",
    "private_address": "its host lies inside, and neither allow_loopback nor allow_hosts grants it",
}


def why(
    store: Store, recipe: str, config: CrawlConfig, url: str, version: str = "", now: datetime | None = None
) -> Found:
    """Returns the facts about one URL; see `why_all`."""
    (found,) = why_all(store, recipe, config, [url], version, now)
    return found


def why_all(
    store: Store, recipe: str, config: CrawlConfig, urls: Iterable[str], version: str = "", now: datetime | None = None
) -> Iterator[Found]:
    """Yields the facts about URLs, and the obstacles to fetching them.

    Args:
        store: the store of the artifacts.
        recipe: name of the recipe.
        config: its crawl.
        urls: as the user wrote them; without a scheme https, unless only http is known.
        version: one cycle; "": the newest artifact of each kind.
        now: the moment to judge for; by default this one.

    Yields:
        {asked, url, verdict, obstacles: [{by, says, waits}]}, and unless `url` is None, because it is no address for a
        crawler: {artifacts, partition, host, domain, seed, set_aside, found_on, known, tried, listed, rules, policy,
        pace}; unknown values are None or empty. The first obstacle is the first that a cycle would meet; one that
        `waits` goes by itself.

    Raises:
        InputError: the recipe does not crawl, or nothing of that version is there.
    """
    if not config.active:
        raise InputError(f"the recipe {recipe} does not crawl", "set [crawl] enabled, or name another recipe")
    sources = Sources(store, recipe, config, version)
    for url in urls:
        moment = now or datetime.now(UTC)
        found = [_about(sources, one, moment) for one in _spelled(url.strip())]
        yield next((one for one in found if any(one.get(name) for name in _MET)), found[0])


def _spelled(url: str) -> tuple[str, ...]:
    """Returns the URLs that a person means."""
    return (url,) if _SCHEME.match(url) else (f"https://{url}", f"http://{url}")


def _about(sources: Sources, url: str, now: datetime) -> Found:
    plain, config = canonical(url), sources.config
    if plain is None:
        says = "no http or https URL without user name and password, or longer than 4,096 characters"
        return {"asked": url, "url": None, "verdict": f"never: it is {says}", "obstacles": [_by("url", says)]}
    facts = Facts(sources, url, plain, now)
    found = facts.gathered()
    scope = _scope(facts, config)
    obstacles = [*_by_recipe(facts, config, scope, found), *_by_site(found["rules"])]
    if config.recrawl:
        obstacles += _by_cycles(found, now)
    return {**found, "obstacles": obstacles, "verdict": _verdict(found, obstacles, config.recrawl)}


def _by(what: str, says: str, *, waits: bool = False) -> Found:
    return {"by": what, "says": says, "waits": waits}


def _scope(facts: Facts, config: CrawlConfig) -> Scope:
    if "seeds" in facts.artifacts:
        return scope_of(config, facts.artifacts["seeds"])
    seeds = [seed for seed in map(canonical, config.seeds) if seed]
    patterns = (config.include_pattern, config.exclude_pattern)
    return Scope.of(config.include_hosts, seeds, config.include_prefixes, *patterns)


def _by_recipe(facts: Facts, config: CrawlConfig, scope: Scope, found: Found) -> list[Found]:
    url, host, obstacles = found["url"], found["host"], _by_takedown(facts, found["url"])
    if outside := scope.refusal(url):
        no_seed = outside == "include_hosts" and not config.include_hosts
        obstacles.append(_by("scope", f"no seed is of {host}" if no_seed else _SCOPE[outside].format(host=host)))
    if refused := refusal(url, allow_loopback=config.allow_loopback, grants=Grants(config.allow_hosts)):
        obstacles.append(_by(refused, _ADDRESS[refused]))
    if entry := facts.policy.denial(host):
        obstacles.append(_by(HOST_DENIED, f'the hosts file denies "{entry}" ({facts.policy_from})'))
    obstacles += _by_hosts_file(found["policy"])
    if is_trap(url):
        obstacles.append(_by("trap_path", "its path repeats itself, or has more than 20 segments"))
    return obstacles


def _by_hosts_file(policy: Found | None) -> list[Found]:
    if policy is None:
        return []
    found = []
    if policy["written_as"]:
        found.append(_by("rewritten", f"the hosts file writes it as {policy['written_as']}"))
    if policy["paused"]:
        found.append(_by("paused", f"the hosts file pauses its host ({policy['from']})", waits=True))
    if policy["dropped"]:
        says = "the hosts file drops what waited of its host in the last cycle; the next one lists it"
        found.append(_by(HOST_DROPPED, says, waits=True))
    return found


def _by_takedown(facts: Facts, url: str) -> list[Found]:
    causes = Tombstones.of(facts.tombstones).causes(url)
    stones = {stone.value: stone for stone in facts.tombstones if stone.kind != DOCUMENT}
    return [_by(TAKEDOWN, _taken_down(stones[cause])) for cause in causes[:1]]


def _taken_down(stone: Tombstone) -> str:
    reason = f" ({stone.reason})" if stone.reason else ""
    return f"{stone.value} is taken down by {stone.takedown}{f' of {stone.date}' if stone.date else ''}{reason}"


def _by_site(rules: Found | None) -> list[Found]:
    if rules is None:
        return []
    obstacles, decision, against = [], rules["decision"], rules["ai_rule"]
    if not decision["allowed"]:
        obstacles.append(_by("robots_denied", _ruled(decision)))
    if rules["ai_optout"]:
        signal = "Content-Signal or Content-Usage of robots.txt refuses training"
        obstacles.append(_by("ai_optout", signal if against["allowed"] else _ruled(against)))
    if rules["reserved"]:
        obstacles.append(_by("ai_optout", "tdmrep.json reserves it, unless its header or meta element says otherwise"))
    return obstacles


def _by_cycles(found: Found, now: datetime) -> list[Found]:
    """Returns the reasons of the last cycles for which it waits."""
    known, pace = found["known"], found["pace"]
    obstacles: list[tuple[str, str]] = []
    if known and known["due"] and known["due"] > now:
        obstacles.append(_waits(known))
    if pace["backoff_until"] and pace["backoff_until"] > now:
        obstacles.append(("host_backoff", f"its host is to be left alone until {time_of(pace['backoff_until'])}"))
    if pace["requests"] >= pace["cap"] and not found["tried"]:
        obstacles.append(("cap", f"its host got all {pace['cap']} requests that it may get in a cycle"))
    return [_by(what, says, waits=True) for what, says in obstacles]


def _waits(known: Found) -> tuple[str, str]:
    due, last = time_of(known["due"]), time_of(known["last_fetch"])
    if known["fails"]:
        times = f"{known['fails']} times in a row" if known["fails"] > 1 else "once"
        return (known["reason"], f"it failed {times}, at last {last}; it is tried again after {due}")
    if known["status"] == crawldb.GONE:
        return (known["reason"], f"so ended its last try, {last}; it is looked at again after {due}")
    return ("not due", f"it was fetched {last}, and is due again after {due}")


def _verdict(found: Found, obstacles: list[Found], recrawl: bool) -> str:
    known, listed, tried = found["known"], found["listed"], found["tried"]
    if obstacles:
        first = obstacles[0]
        return f"{'not now' if first['waits'] else 'no'}: {first['by']}: {first['says']}"
    if known is None:
        return _new(found)
    if not recrawl:
        return f"{known['status']}; no cycle comes back to it, since recrawl is false"
    since = f"due since {time_of(known['due'])}" if known["due"] else "due since its takedown was lifted"
    if known["asked_again"]:
        since = f"due, since the hosts file asks for it again as of {time_of(found['policy']['again_since'])}"
    if listed and not tried:
        return f"{since}; it was listed and not tried: the requests, the time box or its host's turn ended before"
    return f"{since}: the next cycle lists it, unless better URLs use up the requests of the cycle or of its host"


def _new(found: Found) -> str:
    """Returns the verdict on a URL that is in no crawl DB."""
    listed, tried, aside = found["listed"], found["tried"], found["set_aside"]
    if tried:
        return f"{tried['reason'] or tried['status']} in {found['artifacts']['segment']}, which no crawl DB knows yet"
    if listed:
        return f"listed, place {listed['place']:,} of {listed['of']:,}; that fetch has not come to its end"
    if aside:
        return f"no: {aside['file']}, line {aside['line']}: it {aside['why']}"
    if found["seed"]:
        return "a seed, which the next cycle lists"
    if "crawldb" not in found["artifacts"]:
        return "no cycle has come to its end yet; the recipe covers it"
    return "unknown: no page, sitemap or feed that was read leads to it; the recipe would cover it"


def _ruled(decision: Found) -> str:
    """Returns a rule of robots.txt, with its line."""
    return f"robots.txt, line {decision['line']}, for {decision['group']}: {decision['rule']}"


def time_of(when: datetime | None) -> str:
    """Returns a time as text."""
    return f"{when.astimezone(UTC):%Y-%m-%d %H:%M} UTC" if when else "at no known time"
