"""Explanation of why a URL is crawled or not: the facts about it, the obstacles to fetching it, and both as text.

Reads the hosts file and committed artifacts: the seeds, and of the partition that owns the URL the fetch list, the
segment and the crawl DB with the robots.txt and tdmrep.json of its site; each the newest there is, or those of one
version. Sends no requests, so the current rules of a site may differ.
"""

import json
import re
import tempfile
import uuid
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from functools import cached_property
from typing import Any

from tasks.core.artifact import Artifact, ArtifactId
from tasks.core.errors import InputError, SluiceError
from tasks.core.ledger import newest
from tasks.core.store import Store
from tasks.formats.documents import tombstones
from tasks.formats.documents.tombstones import DOCUMENT, TAKEDOWN, Tombstone, Tombstones
from tasks.formats.web.canonical_url import canonical
from tasks.formats.web.domain import domain_of, link
from tasks.formats.web.robots import Reservations, Robots, ai_optout_rule, deciding_rule
from tasks.formats.web.scope import Scope
from tasks.formats.web.url import host_and_port, is_trap, origin_of
from tasks.stages.crawl.config import CrawlConfig, is_loopback
from tasks.stages.crawl.generate import due_of
from tasks.stages.crawl.hosts.rules import MAX_AGE
from tasks.stages.crawl.http.address import Grants, refusal
from tasks.stages.crawl.inject import REJECTED_FILE, file_of, member, number_of, scope_of
from tasks.stages.crawl.policy import HOST_DENIED, HOST_DROPPED, HostsFile, Policy, hosts_file_in, read_hosts_file
from tasks.stages.crawl.storage import crawldb, duck, fetchlist
from tasks.stages.crawl.storage.duck import Lookup
from tasks.stages.crawl.storage.segment import LINK, LOG

Facts = dict[str, Any]

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

_KNOWN = (
    *("status", "reason", "kind", "depth", "first_seen", "last_fetch", "next_due", "interval_s", "fails", "canonical"),
    *("warc_path", "warc_offset", "record_id", "captured_at", "takedown", "terms"),
)
_TRIED = (
    "status",
    "reason",
    "http_status",
    "requested",
    "fetched_at",
    "mime",
    "redirect",
    "warc_file",
    "error",
    "terms",
)
# Files of links that are looked into for pages that lead to a URL: each takes some milliseconds.
_MOST_FILES = 500
_BY_KEY = "SELECT * FROM stored WHERE key = CAST(? AS UUID)"
_BY_HOST = "SELECT * FROM stored WHERE host = ?"

_DAY_S = 86400
_LEFT = 12


class Sources:
    """What the facts about any URL of a recipe are read from; opened once for all URLs that are asked for.

    Args:
        store: the store of the artifacts.
        recipe: name of the recipe.
        config: its crawl.
        version: one cycle; "": the newest artifact of each kind.
    """

    def __init__(self, store: Store, recipe: str, config: CrawlConfig, version: str) -> None:
        self.config = config
        self._store = store
        self._recipe = recipe
        self._version = version
        self._opened: dict[str, dict[str, Artifact]] = {}

    @cached_property
    def tombstones(self) -> list[tombstones.Tombstone]:
        """What is taken down in the recipe."""
        return tombstones.read(tombstones.in_force(self._store, self._recipe))

    @cached_property
    def hosts_file(self) -> HostsFile | None:
        """The hosts file as it is now; None where it cannot be read here."""
        try:
            return read_hosts_file(self.config.hosts_file)[0]
        except (SluiceError, OSError):
            return None

    def of(self, name: str) -> dict[str, Artifact]:
        """Returns the artifacts about a partition by kind (seeds, fetchlist, segment, crawldb), those that are there.

        Raises:
            InputError: nothing of the version is there, or the files of its crawl DB were removed.
        """
        if name not in self._opened:
            artifacts = {}
            for kind in ("seeds", "fetchlist", "segment", "crawldb"):
                found = self._find(f"{self._recipe}/{kind}" + ("" if kind == "seeds" else f"/{name}"))
                if found is not None:
                    artifacts[kind] = found
            if self._version and not artifacts:
                which = f"{self._recipe}@{self._version}"
                raise InputError(f"no cycle {which} is in {self._store.root}", "name another version, or none")
            if "crawldb" in artifacts:
                crawldb.require(artifacts["crawldb"])
            self._opened[name] = artifacts
        return self._opened[name]

    def _find(self, name: str) -> Artifact | None:
        if self._version:
            return Artifact.find(self._store, ArtifactId(name, self._version))
        return newest(self._store, name)


class FactReader:
    """One URL, and the artifacts with rows about it.

    Args:
        sources: what is read.
        asked: the URL as the user wrote it.
        url: the same, canonical.
        now: the moment to judge for.

    Attributes:
        artifacts: those about its partition; see `Sources.of`.
        policy: the hosts file.
        tombstones: what is taken down in the recipe.

    Raises:
        InputError: see `Sources.of`.
    """

    def __init__(self, sources: Sources, asked: str, url: str, now: datetime) -> None:
        self._config = sources.config
        self._asked = asked
        self._link = link(url)
        self._now = now
        self._member = member(self._link.owner % self._config.partitions)
        self.artifacts = sources.of(self._member)
        self.policy, self.policy_from = self._read_policy(sources)
        self.tombstones = sources.tombstones

    def gathered(self) -> Facts:
        """Returns everything that is known, as `why` describes it."""
        with tempfile.TemporaryDirectory() as scratch, duck.connect(scratch) as connection:
            lookup = Lookup(connection, self.artifacts)
            return {
                "asked": self._asked,
                "url": self._link.url,
                "artifacts": {kind: str(one.address) for kind, one in self.artifacts.items()},
                "partition": self._member,
                "host": self._link.host,
                "domain": domain_of(self._link.host),
                **self._seed(lookup),
                "found_on": self._found_on(lookup),
                "known": self._known(lookup),
                "tried": self._tried(lookup),
                "listed": self._listed(lookup),
                "rules": self._rules(lookup),
                "policy": self._site_rules(),
                "pace": self._pace(lookup),
            }

    @property
    def _key(self) -> str:
        return str(uuid.UUID(bytes=self._link.key))

    def _read_policy(self, sources: Sources) -> tuple[Policy, str]:
        """Returns the current hosts file, or the copy in the last fetch list where it cannot be read here."""
        if not self._config.hosts_file:
            return Policy(), ""
        listed = self.artifacts.get("fetchlist")
        listed_at = listed.record.finished if listed else None
        if sources.hosts_file is not None:
            return Policy(sources.hosts_file, listed_at=listed_at), self._config.hosts_file
        where = f"{self._config.hosts_file}, which cannot be read here"
        if listed is None:
            return Policy(), where
        return Policy(hosts_file_in(listed), listed_at=listed_at), f"{where}; as {listed.address} holds it"

    def _site_rules(self) -> Facts | None:
        if not self.policy_from:
            return None
        host, config = self._link.host, self._config
        sent = self.policy.header_names_for(host)
        return {
            "from": self.policy_from,
            "denied_by": self.policy.denial(host),
            "delay_s": self.policy.delay_s(host, config.delay_s),
            "max_pages": self.policy.max_pages(host, config.max_pages_per_host),
            "paused": self.policy.pauses(host),
            "dropped": self.policy.skip_reason(host) == HOST_DROPPED,
            "interval_s": self.policy.interval_s(host),
            "again_since": self.policy.again_since(self._link.url),
            "written_as": written if (written := self.policy.rewritten(self._link).url) != self._link.url else "",
            "headers": sent,
        }

    def _seed(self, lookup: Lookup) -> Facts:
        """Returns whether it is a seed, and the line of a seed file that was set aside for it."""
        query = "SELECT * EXCLUDE (file_row_number) FROM stored WHERE text IN (?, ?)"
        aside = lookup.one("seeds", lookup.files("seeds", REJECTED_FILE), query, self._asked, self._link.url)
        return {"seed": lookup.one("seeds", self._seeds(lookup), _BY_KEY, self._key) is not None, "set_aside": aside}

    def _seeds(self, lookup: Lookup) -> list[str]:
        return lookup.files("seeds", file_of(number_of(self._member)))

    def _found_on(self, lookup: Lookup) -> list[str]:
        """Returns some of the pages of the segment that lead to it."""
        for path in lookup.files("segment", LINK)[:_MOST_FILES]:
            row = lookup.one("segment", [path], _BY_KEY, self._key)
            if row is not None:
                log = lookup.files("segment", path.replace(LINK, LOG, 1))
                query = "SELECT url FROM stored WHERE list_contains(?, file_row_number) ORDER BY url LIMIT 3"
                return [one["url"] for one in lookup.rows("segment", log, query, row["sources"])]
        return []

    def _known(self, lookup: Lookup) -> Facts | None:
        row = lookup.one("crawldb", lookup.files("crawldb", crawldb.URLS_FILE), _BY_KEY, self._key)
        if row is None:
            return None
        record = f"urn:uuid:{row['record_id']}" if row["record_id"] else ""
        seed = lookup.one("seeds", self._seeds(lookup), _BY_KEY, self._key) or {}
        due, asked = due_of(row, self.policy, self._now, seed.get("interval_s"))
        return {**{name: row.get(name) for name in _KNOWN}, "record_id": record, "due": due, "asked_again": asked}

    def _tried(self, lookup: Lookup) -> Facts | None:
        row = lookup.one("segment", lookup.files("segment", LOG), _BY_KEY, self._key)
        return {name: row.get(name) for name in _TRIED} if row else None

    def _listed(self, lookup: Lookup) -> Facts | None:
        row = lookup.one("fetchlist", lookup.files("fetchlist", fetchlist.URLS_FILE), _BY_KEY, self._key)
        if row is None:
            return None
        most = self.artifacts["fetchlist"].record.rows_out
        return {"place": row["file_row_number"] + 1, "of": most, "score": row["score"]}

    def _rules(self, lookup: Lookup) -> Facts | None:
        """Returns the rules of the site's robots.txt and tdmrep.json for it, where the crawl DB has them."""
        url, config = self._link.url, self._config
        origin = origin_of(url)
        files = lookup.files("crawldb", crawldb.ROBOTS_FILE)
        row = lookup.one("crawldb", files, "SELECT * FROM stored WHERE origin = ?", origin)
        if row is None:
            return None
        body, tdm = bytes(row["body"] or b""), bytes(row.get("tdm") or b"")
        reserved = bool(tdm) and "tdm" in config.ai_optouts and Reservations(tdm).reserves(url)
        robots = Robots(body, config.user_agent)
        return {
            "origin": origin,
            "robots_txt": row["status"],
            "fetched_at": row["fetched_at"],
            "holds": self._now - row["fetched_at"] < MAX_AGE,
            "decision": deciding_rule(body, config.user_agent, url)._asdict(),
            "ai_optout": "robots" in config.ai_optouts and robots.ai_optout(url),
            "ai_rule": ai_optout_rule(body, url)._asdict(),
            "reserved": reserved,
            "terms": {"robots": robots.terms(url), "tdmrep": list(Reservations(tdm).terms(url)) if tdm else []},
        }

    def _pace(self, lookup: Lookup) -> Facts:
        """Returns the host's pause and back-off, and its requests in the last fetch."""
        host, config = self._link.host, self._config
        row = lookup.one("crawldb", lookup.files("crawldb", crawldb.HOSTS_FILE), _BY_HOST, host) or {}
        listed = lookup.one("fetchlist", lookup.files("fetchlist", fetchlist.HOSTS_FILE), _BY_HOST, host)
        query = (
            "SELECT reason, count(*) AS urls, count(*) FILTER (requested) AS requests FROM stored "
            "WHERE host = ? GROUP BY 1"
        )
        counts = lookup.rows("segment", lookup.files("segment", LOG), f"{query} ORDER BY urls DESC, reason", host)
        delay = self.policy.delay_s(host, config.delay_s)
        floor = delay if is_loopback(host_and_port(self._link.url)[0]) else max(1.0, delay)
        slow = config.latency_factor * (row.get("latency_s") or 0.0)
        return {
            "delay_s": max(floor, row.get("crawl_delay_s") or 0.0, slow),
            **{name: row.get(name) for name in ("crawl_delay_s", "latency_s", "failures", "backoff_until", "traps")},
            "cap": listed["cap"] if listed else self.policy.max_pages(host, config.max_pages_per_host),
            "requests": sum(count["requests"] for count in counts),
            "reasons": {count["reason"] or "captured": count["urls"] for count in counts},
        }


def why(
    store: Store, recipe: str, config: CrawlConfig, url: str, version: str = "", now: datetime | None = None
) -> Facts:
    """Returns the facts about one URL; see `why_all`."""
    (found,) = why_all(store, recipe, config, [url], version, now)
    return found


def why_all(
    store: Store, recipe: str, config: CrawlConfig, urls: Iterable[str], version: str = "", now: datetime | None = None
) -> Iterator[Facts]:
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


def _about(sources: Sources, url: str, now: datetime) -> Facts:
    plain, config = canonical(url), sources.config
    if plain is None:
        says = "no http or https URL without user name and password, or longer than 4,096 characters"
        return {"asked": url, "url": None, "verdict": f"never: it is {says}", "obstacles": [_by("url", says)]}
    facts = FactReader(sources, url, plain, now)
    found = facts.gathered()
    scope = _scope(facts, config)
    obstacles = [*_by_recipe(facts, config, scope, found), *_by_site(found["rules"])]
    if config.recrawl:
        obstacles += _by_cycles(found, now)
    return {**found, "obstacles": obstacles, "verdict": _verdict(found, obstacles, config.recrawl)}


def _by(what: str, says: str, *, waits: bool = False) -> Facts:
    return {"by": what, "says": says, "waits": waits}


def _scope(facts: FactReader, config: CrawlConfig) -> Scope:
    if "seeds" in facts.artifacts:
        return scope_of(config, facts.artifacts["seeds"])
    seeds = [seed for seed in map(canonical, config.seeds) if seed]
    patterns = (config.include_pattern, config.exclude_pattern)
    return Scope.of(config.include_hosts, seeds, config.include_prefixes, *patterns)


def _by_recipe(facts: FactReader, config: CrawlConfig, scope: Scope, found: Facts) -> list[Facts]:
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


def _by_hosts_file(policy: Facts | None) -> list[Facts]:
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


def _by_takedown(facts: FactReader, url: str) -> list[Facts]:
    causes = Tombstones.of(facts.tombstones).causes(url)
    stones = {stone.value: stone for stone in facts.tombstones if stone.kind != DOCUMENT}
    return [_by(TAKEDOWN, _taken_down(stones[cause])) for cause in causes[:1]]


def _taken_down(stone: Tombstone) -> str:
    reason = f" ({stone.reason})" if stone.reason else ""
    return f"{stone.value} is taken down by {stone.takedown}{f' of {stone.date}' if stone.date else ''}{reason}"


def _by_site(rules: Facts | None) -> list[Facts]:
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


def _by_cycles(found: Facts, now: datetime) -> list[Facts]:
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


def _waits(known: Facts) -> tuple[str, str]:
    due, last = time_of(known["due"]), time_of(known["last_fetch"])
    if known["fails"]:
        times = f"{known['fails']} times in a row" if known["fails"] > 1 else "once"
        return (known["reason"], f"it failed {times}, at last {last}; it is tried again after {due}")
    if known["status"] == crawldb.GONE:
        return (known["reason"], f"so ended its last try, {last}; it is looked at again after {due}")
    return ("not due", f"it was fetched {last}, and is due again after {due}")


def _verdict(found: Facts, obstacles: list[Facts], recrawl: bool) -> str:
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


def _new(found: Facts) -> str:
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


def _ruled(decision: Facts) -> str:
    """Returns a rule of robots.txt, with its line."""
    return f"robots.txt, line {decision['line']}, for {decision['group']}: {decision['rule']}"


def time_of(when: datetime | None) -> str:
    """Returns a time as text."""
    return f"{when.astimezone(UTC):%Y-%m-%d %H:%M} UTC" if when else "at no known time"


def render(found: Facts) -> str:
    """Returns the text of what `tasks.stages.crawl.why.why` returned."""
    lines = [found["url"] or found["asked"], _line("verdict", found["verdict"])]
    if found["url"] is None:
        return "\n".join(lines)
    lines += [_line("", f"also: {one['by']}: {one['says']}") for one in found["obstacles"][1:]]
    place = f"{found['partition']}, host {found['host']}, domain {found['domain']}"
    lines += ["", _line("partition", place), *_origin(found), *_known(found["known"]), *_tried(found), *_listed(found)]
    lines += ["", *_rules(found["rules"]), *_policy(found["policy"]), *_pace(found["pace"])]
    read = ", ".join(found["artifacts"].values()) or "no artifact: nothing was crawled yet"
    return "\n".join([*lines, "", f"read from: {read}"])


def verdict(found: Facts) -> str:
    """Returns the URL and its verdict in one line, with a tab between."""
    return f"{found['url'] or found['asked']}\t{found['verdict']}"


def _line(name: str, says: str) -> str:
    return f"  {name:<{_LEFT}}{says}".rstrip()


def _origin(found: Facts) -> list[str]:
    lines = [_line("seed", "yes")] if found["seed"] else []
    if aside := found["set_aside"]:
        lines.append(_line("set aside", f"{aside['file']}, line {aside['line']}: it {aside['why']}"))
    if found["found_on"]:
        lines.append(_line("found on", ", ".join(found["found_on"])))
    return lines


def _known(known: Facts | None) -> list[str]:
    if known is None:
        return [_line("crawl DB", "does not hold it")]
    why = f" ({known['reason']})" if known["reason"] else ""
    seen = f"depth {known['depth']}, first seen {time_of(known['first_seen'])}"
    lines = [_line("crawl DB", f"{known['status']}{why}, {known['kind']}, {seen}")]
    if known["last_fetch"]:
        lines.append(_line("last try", f"{time_of(known['last_fetch'])}, failures in a row: {known['fails']}"))
    every = f", every {known['interval_s'] / _DAY_S:.3g} days" if known["interval_s"] else ""
    lines.append(_line("due", f"{time_of(known['due'])}{every}"))
    if known["warc_path"]:
        when = f"{time_of(known['captured_at'])}, {known['record_id']}"
        lines.append(_line("capture", f"{known['warc_path']} at byte {known['warc_offset']:,}, {when}"))
    if known["canonical"]:
        lines.append(_line("canonical", f"the page names {known['canonical']} as its own address"))
    if known["takedown"]:
        lines.append(_line("takedown", f"the capture may no longer be kept: {known['takedown']}"))
    if known["terms"]:
        lines.append(_line("terms", _pairs(json.loads(known["terms"]))))
    return lines


def _tried(found: Facts) -> list[str]:
    tried = found["tried"]
    if tried is None:
        return []
    status = f" {tried['http_status']}" if tried["http_status"] and not tried["reason"].startswith("http_") else ""
    not_requested = "" if tried["requested"] else ", its host was not asked"
    error = f": {tried['error']}" if tried["error"] else ""
    redirect = f" to {tried['redirect']}" if tried["redirect"] else ""
    says = (
        f"{tried['reason'] or tried['status']}{status}{redirect}{not_requested}, {time_of(tried['fetched_at'])}{error}"
    )
    return [_line("last cycle", f"{found['artifacts']['segment']}: {says}")]


def _listed(found: Facts) -> list[str]:
    listed = found["listed"]
    if listed is None:
        return []
    where = found["artifacts"]["fetchlist"]
    return [_line("listed", f"{where}: place {listed['place']:,} of {listed['of']:,}, score {listed['score']:.3g}")]


def _rules(rules: Facts | None) -> list[str]:
    if rules is None:
        return [_line("robots.txt", "of its site is not in the crawl DB")]
    decision = rules["decision"]
    verb = "allowed" if decision["allowed"] else "forbidden"
    where = f" by line {decision['line']}, for {decision['group']}: {decision['rule']}" if decision["line"] else ""
    if rules["robots_txt"] != "ok":
        where = " (there is none)"
    stale = "" if rules["holds"] else "; older than a day, so it is fetched anew before the next page"
    lines = [_line("robots.txt", f"{verb}{where}, read {time_of(rules['fetched_at'])}{stale}")]
    stated = {f"{place}.{name}": value for place, terms in rules["terms"].items() for name, value in terms}
    return [*lines, _line("states", _pairs(stated))] if stated else lines


def _policy(policy: Facts | None) -> list[str]:
    if policy is None:
        return []
    denied = f"denied by {policy['denied_by']}; " if policy["denied_by"] else ""
    sent = f", sent: {', '.join(policy['headers'])}" if policy["headers"] else ""
    every = f", every {policy['interval_s'] / _DAY_S:.3g} days" if policy["interval_s"] else ""
    says = f"{denied}pause {policy['delay_s']:g} s, at most {policy['max_pages']:,} pages a cycle{every}{sent}"
    return [_line("hosts file", f"{says} ({policy['from']})")]


def _pace(pace: Facts) -> list[str]:
    learned = [
        f"{name} {pace[field]:.3g} s"
        for name, field in (("Crawl-delay", "crawl_delay_s"), ("answers in", "latency_s"))
        if pace[field]
    ]
    until: datetime | None = pace["backoff_until"]
    away = f", to be left alone until {time_of(until)}" if until else ""
    failed = f", failures in a row: {pace['failures']}" if pace["failures"] else ""
    lines = [_line("host", f"pause {pace['delay_s']:.3g} s{''.join(f', {one}' for one in learned)}{failed}{away}")]
    if pace["reasons"]:
        counts = ", ".join(f"{reason} {count:,}" for reason, count in pace["reasons"].items())
        lines.append(_line("", f"last cycle: {pace['requests']:,} of {pace['cap']:,} requests ({counts})"))
    return lines


def _pairs(values: dict[str, str]) -> str:
    return "; ".join(f"{name}: {value}" for name, value in values.items())
