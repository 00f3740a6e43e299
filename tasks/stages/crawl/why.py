"""Explains why a URL is crawled or not: the facts about it, the obstacles to fetching it, and both as text.

Reads the hosts file and committed artifacts: the seeds, and the fetch list, segment and crawl DB of the partition that
owns the URL. The crawl DB contains the robots.txt, tdmrep.json and licenses of its site. All artifacts are the newest
ones, or those of one version. Sends no requests to sites, so the current rules of a site may differ.
"""

import json
import re
import tempfile
import uuid
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from functools import cached_property
from typing import Any

import duckdb

from tasks.core.artifact import Artifact
from tasks.core.errors import InputError, SluiceError
from tasks.core.ledger import at_version
from tasks.core.queries import connect
from tasks.core.store import Store
from tasks.formats.documents import tombstones
from tasks.formats.documents.tombstones import DOCUMENT, TAKEDOWN, Tombstone, Tombstones
from tasks.formats.web.canonical_url import canonical
from tasks.formats.web.domain import domain_of, link
from tasks.formats.web.robots import ai_optout_rule, deciding_rule
from tasks.formats.web.scope import Scope
from tasks.formats.web.url import authority, is_trap, origin_of
from tasks.stages.crawl.config import CrawlConfig
from tasks.stages.crawl.generate import attach_due_times
from tasks.stages.crawl.hosts.politeness import min_delay_s
from tasks.stages.crawl.hosts.rules import MAX_AGE, rules_from
from tasks.stages.crawl.http.address import Grants, refusal
from tasks.stages.crawl.inject import REJECTED_FILE, SEEDS, file_of, member, number_of, scope_from, scope_of
from tasks.stages.crawl.policy import HOST_DENIED, HOST_DROPPED, HostsFile, Policy, hosts_file_in, read_hosts_file
from tasks.stages.crawl.storage import crawldb, duck, fetchlist
from tasks.stages.crawl.storage.duck import Lookup
from tasks.stages.crawl.storage.segment import LINK, LOG

Facts = dict[str, Any]
"""See `why_all`."""
Obstacle = dict[str, Any]
"""{by, says, waits}: the code of the obstacle, a text, and whether it goes away without a change of settings."""

_SCHEME = re.compile(r"[a-z][a-z\d+.-]*:(?://|[^\d/?])", re.I)
# Facts that exist only about URLs that the crawl knows.
_KNOWN_BY = ("seed", "known", "tried", "listed", "set_aside")

_SCOPE = {
    "include_hosts": "include_hosts does not name {host}",
    "include_prefixes": "include_prefixes has prefixes on {host}, and none of them matches it",
    "include_pattern": "it does not match include_pattern",
    "exclude_pattern": "it matches exclude_pattern",
}
_ADDRESS = {
    "port": "its port is neither 80 nor 443, and allow_hosts does not grant it",
    "private_address": "its host is at a private address, and neither allow_loopback nor allow_hosts grants it",
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
# Maximum number of link files that are searched for pages that link to a URL; each takes some milliseconds.
_MAX_LINK_FILES = 500
_WITH_DUE_TIME = (
    f"SELECT {', '.join(f'p.{name}' for name in _KNOWN)}, t.next_due AS due, t.again_since "
    "FROM previous p JOIN timed t USING (key)"
)
_BY_KEY = "SELECT * FROM stored WHERE key = CAST(? AS UUID)"
_BY_HOST = "SELECT * FROM stored WHERE host = ?"

_DAY_S = 86400
_LABEL_WIDTH = 12


class Sources:
    """The sources of facts about the URLs of a recipe, opened once for all URLs.

    Args:
        store: the store of the artifacts.
        recipe: name of the recipe.
        config: settings of its crawl.
        version: version of the artifacts; "": the newest of each kind.
    """

    def __init__(self, store: Store, recipe: str, config: CrawlConfig, version: str) -> None:
        self.config = config
        self._store = store
        self._recipe = recipe
        self._version = version
        self._opened: dict[str, dict[str, Artifact]] = {}

    @cached_property
    def tombstones(self) -> list[tombstones.Tombstone]:
        """The takedowns in force for the recipe."""
        return tombstones.read(tombstones.in_force(self._store, self._recipe))

    @cached_property
    def hosts_file(self) -> HostsFile | None:
        """The current hosts file; None if it cannot be read here."""
        try:
            return read_hosts_file(self.config.hosts_file)[0]
        except (SluiceError, OSError):
            return None

    def of(self, name: str) -> dict[str, Artifact]:
        """Returns the existing artifacts of a partition, by kind (seeds, fetchlist, segment, crawldb).

        Raises:
            InputError: the version has no artifact, or the files of its crawl DB were removed.
        """
        if name not in self._opened:
            artifacts = {}
            for kind in ("seeds", "fetchlist", "segment", "crawldb"):
                path = f"{self._recipe}/{kind}" + ("" if kind == "seeds" else f"/{name}")
                artifact = at_version(self._store, path, self._version)
                if artifact is not None:
                    artifacts[kind] = artifact
            if self._version and not artifacts:
                cycle = f"{self._recipe}@{self._version}"
                raise InputError(f"no cycle {cycle} is in {self._store.root}", "name another version, or none")
            self._opened[name] = artifacts
        return self._opened[name]


class FactReader:
    """Reads the facts about one URL.

    Args:
        sources: the artifacts and the hosts file.
        spelling: the URL as the user wrote it.
        url: the canonical URL.
        now: time for which due times and ages are computed.

    Attributes:
        artifacts: artifacts of its partition; see `Sources.of`.
        policy: the hosts file.
        policy_from: text on where the hosts file was read, or "".
        tombstones: the takedowns in force for the recipe.

    Raises:
        InputError: see `Sources.of`.
    """

    def __init__(self, sources: Sources, spelling: str, url: str, now: datetime) -> None:
        self._config = sources.config
        self._spelling = spelling
        self._link = link(url)
        self._now = now
        self._member = member(self._link.owner % self._config.partitions)
        self.artifacts = sources.of(self._member)
        self.policy, self.policy_from = self._read_policy(sources)
        self.tombstones = sources.tombstones

    def read(self) -> Facts:
        """Returns the facts, as described in `why_all`, without verdict and obstacles."""
        with tempfile.TemporaryDirectory() as scratch, connect(scratch) as connection:
            lookup = Lookup(connection, self.artifacts)
            return {
                "asked": self._spelling,
                "url": self._link.url,
                "artifacts": {kind: str(artifact.address) for kind, artifact in self.artifacts.items()},
                "partition": self._member,
                "host": self._link.host,
                "domain": domain_of(self._link.host),
                **self._seed(lookup),
                "found_on": self._found_on(lookup),
                "known": self._known(connection),
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
        """Returns the current hosts file, or its copy in the last fetch list if it cannot be read here."""
        if not self._config.hosts_file:
            return Policy(), ""
        listed = self.artifacts.get("fetchlist")
        listed_at = listed.record.finished if listed else None
        if sources.hosts_file is not None:
            return Policy(sources.hosts_file, listed_at=listed_at), self._config.hosts_file
        unreadable = f"{self._config.hosts_file}, which cannot be read here"
        if listed is None:
            return Policy(), unreadable
        return Policy(hosts_file_in(listed), listed_at=listed_at), f"{unreadable}; the copy in {listed.address}"

    def _site_rules(self) -> Facts | None:
        if not self.policy_from:
            return None
        host, config = self._link.host, self._config
        rewritten = self.policy.rewritten(self._link)
        return {
            "from": self.policy_from,
            "denied_by": self.policy.denial(host),
            "delay_s": self.policy.delay_s(host, config.delay_s),
            "max_pages": self.policy.max_pages(host, config.max_pages_per_host),
            "paused": self.policy.pauses(host),
            "dropped": self.policy.skip_reason(host) == HOST_DROPPED,
            "interval_s": self.policy.interval_s(host),
            "written_as": rewritten.url if rewritten.key != self._link.key else "",
            "headers": self.policy.header_names_for(host),
        }

    def _seed(self, lookup: Lookup) -> Facts:
        """Returns whether the URL is a seed, and the rejected line of a seed file with it."""
        query = "SELECT * EXCLUDE (file_row_number) FROM stored WHERE text IN (?, ?)"
        rejected = lookup.one("seeds", lookup.files("seeds", REJECTED_FILE), query, self._spelling, self._link.url)
        is_seed = lookup.one("seeds", self._seeds(lookup), _BY_KEY, self._key) is not None
        return {"seed": is_seed, "set_aside": rejected}

    def _seeds(self, lookup: Lookup) -> list[str]:
        return lookup.files("seeds", file_of(number_of(self._member)))

    def _found_on(self, lookup: Lookup) -> list[str]:
        """Returns some pages of the segment that link to the URL."""
        for path in lookup.files("segment", LINK)[:_MAX_LINK_FILES]:
            row = lookup.one("segment", [path], _BY_KEY, self._key)
            if row is not None:
                log = lookup.files("segment", path.replace(LINK, LOG, 1))
                query = "SELECT url FROM stored WHERE list_contains(?, file_row_number) ORDER BY url LIMIT 3"
                return [page["url"] for page in lookup.rows("segment", log, query, row["sources"])]
        return []

    def _known(self, connection: duckdb.DuckDBPyConnection) -> Facts | None:
        """Returns the row of the crawl DB, with its due time (`due`) by the hosts file (`generate`)."""
        if "crawldb" not in self.artifacts:
            return None
        duck.view(connection, "urls", [(self.artifacts["crawldb"], crawldb.URLS_FILE)])
        connection.execute("CREATE TABLE previous AS SELECT * FROM urls WHERE key = CAST(? AS UUID)", [self._key])
        seeds = [(self.artifacts["seeds"], file_of(number_of(self._member)))] if "seeds" in self.artifacts else []
        duck.view(connection, "seeds", seeds, SEEDS)
        attach_due_times(connection, self.policy, self._now)
        rows = duck.rows(connection, _WITH_DUE_TIME)
        record = f"urn:uuid:{rows[0]['record_id']}" if rows and rows[0]["record_id"] else ""
        return {**rows[0], "record_id": record} if rows else None

    def _tried(self, lookup: Lookup) -> Facts | None:
        row = lookup.one("segment", lookup.files("segment", LOG), _BY_KEY, self._key)
        return {name: row.get(name) for name in _TRIED} if row else None

    def _listed(self, lookup: Lookup) -> Facts | None:
        row = lookup.one("fetchlist", lookup.files("fetchlist", fetchlist.URLS_FILE), _BY_KEY, self._key)
        if row is None:
            return None
        length = self.artifacts["fetchlist"].record.rows_out
        return {"place": row["file_row_number"] + 1, "of": length, "score": row["score"]}

    def _rules(self, lookup: Lookup) -> Facts | None:
        """Returns the rules of the files of the site for the URL, if the crawl DB has them."""
        url, config = self._link.url, self._config
        origin = origin_of(url)
        files = lookup.files("crawldb", crawldb.ROBOTS_FILE)
        row = lookup.one("crawldb", files, "SELECT * FROM stored WHERE origin = ?", origin)
        if row is None:
            return None
        body = bytes(row["body"] or b"")
        rules = rules_from(origin, body, config.user_agent, dict(row["files"]))
        ruling = rules.ruling(url, config.ai_optouts)
        return {
            "origin": origin,
            "robots_txt": row["status"],
            "fetched_at": row["fetched_at"],
            "holds": self._now - row["fetched_at"] < MAX_AGE,
            "decision": deciding_rule(body, config.user_agent, url)._asdict(),
            "ai_optout": "robots" in config.ai_optouts and rules.robots.ai_optout(url),
            "ai_rule": ai_optout_rule(body, url)._asdict(),
            "reserved": ruling.reserved,
            "unlicensed": ruling.licensed is False,
            "terms": {file: list(terms) for file, terms in ruling.terms.items()},
        }

    def _pace(self, lookup: Lookup) -> Facts:
        """Returns the delay and back-off of the host, and its requests in the last fetch."""
        host, config = self._link.host, self._config
        row = lookup.one("crawldb", lookup.files("crawldb", crawldb.HOSTS_FILE), _BY_HOST, host) or {}
        listed = lookup.one("fetchlist", lookup.files("fetchlist", fetchlist.HOSTS_FILE), _BY_HOST, host)
        query = (
            "SELECT reason, count(*) AS urls, count(*) FILTER (requested) AS requests FROM stored "
            "WHERE host = ? GROUP BY 1"
        )
        counts = lookup.rows("segment", lookup.files("segment", LOG), f"{query} ORDER BY urls DESC, reason", host)
        floor = min_delay_s(host, config, self.policy)
        return {
            "delay_s": max(
                floor, row.get("crawl_delay_s") or 0.0, config.latency_factor * (row.get("latency_s") or 0.0)
            ),
            **{name: row.get(name) for name in ("crawl_delay_s", "latency_s", "failures", "backoff_until", "traps")},
            "cap": listed["cap"] if listed else self.policy.max_pages(host, config.max_pages_per_host),
            "requests": sum(count["requests"] for count in counts),
            "reasons": {count["reason"] or "captured": count["urls"] for count in counts},
        }


def why(
    store: Store, recipe: str, config: CrawlConfig, url: str, version: str = "", now: datetime | None = None
) -> Facts:
    """Returns the facts about one URL; see `why_all`."""
    (facts,) = why_all(store, recipe, config, [url], version, now)
    return facts


def why_all(
    store: Store, recipe: str, config: CrawlConfig, urls: Iterable[str], version: str = "", now: datetime | None = None
) -> Iterator[Facts]:
    """Yields the facts about URLs, and the obstacles to fetching them.

    Args:
        store: the store of the artifacts.
        recipe: name of the recipe.
        config: settings of its crawl.
        urls: URLs as the user wrote them; without a scheme, https is tried first, then http.
        version: version of the artifacts; "": the newest of each kind.
        now: time for which due times and ages are computed; the current time by default.

    Yields:
        {asked, url, verdict, obstacles: [{by, says, waits}]} and, unless `url` is None because it is invalid:
        {artifacts, partition, host, domain, seed, set_aside, found_on, known, tried, listed, rules, policy, pace};
        unknown values are None or empty. Obstacles are in the order in which a cycle checks them; obstacles with
        `waits` go away without a change of settings.

    Raises:
        InputError: the recipe does not crawl, or the version has no artifact.
    """
    if not config.active:
        raise InputError(f"the recipe {recipe} does not crawl", "set [crawl] enabled, or name another recipe")
    sources = Sources(store, recipe, config, version)
    for url in urls:
        candidates = [_facts_of(sources, spelling, now or datetime.now(UTC)) for spelling in _spellings(url.strip())]
        yield next((facts for facts in candidates if any(facts.get(name) for name in _KNOWN_BY)), candidates[0])


def _spellings(url: str) -> tuple[str, ...]:
    """Returns the URLs that a user may mean."""
    return (url,) if _SCHEME.match(url) else (f"https://{url}", f"http://{url}")


def _facts_of(sources: Sources, spelling: str, now: datetime) -> Facts:
    url, config = canonical(spelling), sources.config
    if url is None:
        says = "not an http or https URL without user name and password, or longer than 4,096 characters"
        obstacles = [_obstacle("url", says)]
        return {"asked": spelling, "url": None, "verdict": f"never: it is {says}", "obstacles": obstacles}
    reader = FactReader(sources, spelling, url, now)
    facts = reader.read()
    scope = _scope(reader, config)
    obstacles = [*_recipe_obstacles(reader, config, scope, facts), *_site_obstacles(facts["rules"])]
    if config.recrawl:
        obstacles += _cycle_obstacles(facts, now)
    return {**facts, "obstacles": obstacles, "verdict": _verdict(facts, obstacles, config.recrawl)}


def _obstacle(by: str, says: str, *, waits: bool = False) -> Obstacle:
    return {"by": by, "says": says, "waits": waits}


def _scope(reader: FactReader, config: CrawlConfig) -> Scope:
    if "seeds" in reader.artifacts:
        return scope_of(config, reader.artifacts["seeds"])
    return scope_from(config, (authority(seed) for seed in map(canonical, config.seeds) if seed))


def _recipe_obstacles(reader: FactReader, config: CrawlConfig, scope: Scope, facts: Facts) -> list[Obstacle]:
    url, host, obstacles = facts["url"], facts["host"], _takedown_obstacles(reader, facts["url"])
    if setting := scope.refusal(url):
        no_seed = setting == "include_hosts" and not config.include_hosts
        says = f"no seed is on {host}" if no_seed else _SCOPE[setting].format(host=host)
        obstacles.append(_obstacle("scope", says))
    if refused := refusal(host, Grants(config.allow_hosts, allow_loopback=config.allow_loopback)):
        obstacles.append(_obstacle(refused, _ADDRESS[refused]))
    if entry := reader.policy.denial(host):
        obstacles.append(_obstacle(HOST_DENIED, f'the hosts file denies "{entry}" ({reader.policy_from})'))
    obstacles += _policy_obstacles(facts["policy"])
    if is_trap(url):
        obstacles.append(_obstacle("trap_path", "its path repeats itself, or has more than 20 segments"))
    return obstacles


def _policy_obstacles(policy: Facts | None) -> list[Obstacle]:
    if policy is None:
        return []
    obstacles = []
    if policy["written_as"]:
        obstacles.append(_obstacle("rewritten", f"the hosts file rewrites it to {policy['written_as']}"))
    if policy["paused"]:
        obstacles.append(_obstacle("paused", f"the hosts file pauses its host ({policy['from']})", waits=True))
    if policy["dropped"]:
        says = "the hosts file drops the queued URLs of its host in the last cycle; the next cycle lists it"
        obstacles.append(_obstacle(HOST_DROPPED, says, waits=True))
    return obstacles


def _takedown_obstacles(reader: FactReader, url: str) -> list[Obstacle]:
    causes = Tombstones.of(reader.tombstones).causes(url)
    stones = {stone.value: stone for stone in reader.tombstones if stone.kind != DOCUMENT}
    return [_obstacle(TAKEDOWN, _takedown_text(stones[cause])) for cause in causes[:1]]


def _takedown_text(stone: Tombstone) -> str:
    reason = f" ({stone.reason})" if stone.reason else ""
    return f"{stone.value} is taken down by {stone.takedown}{f' of {stone.date}' if stone.date else ''}{reason}"


def _site_obstacles(rules: Facts | None) -> list[Obstacle]:
    if rules is None:
        return []
    obstacles, decision, ai_rule = [], rules["decision"], rules["ai_rule"]
    if not decision["allowed"]:
        obstacles.append(_obstacle("robots_denied", _rule_text(decision)))
    if rules["ai_optout"]:
        signal = "Content-Signal or Content-Usage of robots.txt refuses training"
        obstacles.append(_obstacle("ai_optout", signal if ai_rule["allowed"] else _rule_text(ai_rule)))
    if rules["reserved"]:
        says = "tdmrep.json reserves it, unless its header or meta element says otherwise"
        obstacles.append(_obstacle("ai_optout", says))
    if rules["unlicensed"]:
        says = "the license that robots.txt names does not permit training, unless the page names another one"
        obstacles.append(_obstacle("ai_optout", says))
    return obstacles


def _cycle_obstacles(facts: Facts, now: datetime) -> list[Obstacle]:
    """Returns the obstacles that result from earlier cycles."""
    known, pace = facts["known"], facts["pace"]
    obstacles: list[Obstacle] = []
    if known and known["due"] and known["due"] > now:
        obstacles.append(_not_due(known))
    if pace["backoff_until"] and pace["backoff_until"] > now:
        says = f"its host must not be requested until {time_of(pace['backoff_until'])}"
        obstacles.append(_obstacle("host_backoff", says, waits=True))
    if pace["requests"] >= pace["cap"] and not facts["tried"]:
        says = f"its host has used all {pace['cap']} requests of a cycle"
        obstacles.append(_obstacle("cap", says, waits=True))
    return obstacles


def _not_due(known: Facts) -> Obstacle:
    due, last = time_of(known["due"]), time_of(known["last_fetch"])
    if known["fails"]:
        times = f"{known['fails']} times in a row" if known["fails"] > 1 else "once"
        says = f"it failed {times}, most recently {last}; it is tried again after {due}"
        return _obstacle(known["reason"], says, waits=True)
    if known["status"] == crawldb.GONE:
        says = f"that was the result of its last try, {last}; it is tried again after {due}"
        return _obstacle(known["reason"], says, waits=True)
    return _obstacle("not due", f"it was fetched {last}, and is due again after {due}", waits=True)


def _verdict(facts: Facts, obstacles: list[Obstacle], recrawl: bool) -> str:
    known, listed, tried = facts["known"], facts["listed"], facts["tried"]
    if obstacles:
        first = obstacles[0]
        return f"{'not now' if first['waits'] else 'no'}: {first['by']}: {first['says']}"
    if known is None:
        return _new_url_verdict(facts)
    if not recrawl:
        return f"{known['status']}; no cycle fetches it again, because recrawl is false"
    since = f"due since {time_of(known['due'])}" if known["due"] else "due since its takedown was lifted"
    if known["again_since"]:
        since = f"due, because the hosts file requests it again as of {time_of(known['again_since'])}"
    if listed and not tried:
        return f"{since}; it was listed but not tried: the requests or the time box were used up before its turn"
    return f"{since}: the next cycle lists it, unless better URLs use up the requests of the cycle or of its host"


def _new_url_verdict(facts: Facts) -> str:
    """Returns the verdict on a URL that is in no crawl DB."""
    listed, tried, rejected = facts["listed"], facts["tried"], facts["set_aside"]
    if tried:
        return f"{tried['reason'] or tried['status']} in {facts['artifacts']['segment']}, not in a crawl DB yet"
    if listed:
        return f"listed, place {listed['place']:,} of {listed['of']:,}; that fetch is not complete"
    if rejected:
        return f"no: {rejected['file']}, line {rejected['line']}: it {rejected['why']}"
    if facts["seed"]:
        return "a seed, which the next cycle lists"
    if "crawldb" not in facts["artifacts"]:
        return "no cycle is complete yet; the recipe covers it"
    return "unknown: no page, sitemap or feed that was read links to it; the recipe covers it"


def _rule_text(decision: Facts) -> str:
    """Returns a rule of robots.txt with its line number."""
    return f"robots.txt, line {decision['line']}, for {decision['group']}: {decision['rule']}"


def time_of(when: datetime | None) -> str:
    """Returns a time as text."""
    return f"{when.astimezone(UTC):%Y-%m-%d %H:%M} UTC" if when else "at an unknown time"


def render(facts: Facts) -> str:
    """Returns the result of `why` as text."""
    lines = [facts["url"] or facts["asked"], _line("verdict", facts["verdict"])]
    if facts["url"] is None:
        return "\n".join(lines)
    lines += [_line("", f"also: {obstacle['by']}: {obstacle['says']}") for obstacle in facts["obstacles"][1:]]
    partition = f"{facts['partition']}, host {facts['host']}, domain {facts['domain']}"
    lines += ["", _line("partition", partition), *_origin_lines(facts), *_known_lines(facts["known"])]
    lines += [*_tried_lines(facts), *_listed_lines(facts), ""]
    lines += [*_rule_lines(facts["rules"]), *_policy_lines(facts["policy"]), *_pace_lines(facts["pace"])]
    artifacts = ", ".join(facts["artifacts"].values()) or "no artifact: nothing was crawled yet"
    return "\n".join([*lines, "", f"read from: {artifacts}"])


def verdict(facts: Facts) -> str:
    """Returns the URL and its verdict, separated by a tab."""
    return f"{facts['url'] or facts['asked']}\t{facts['verdict']}"


def _line(label: str, text: str) -> str:
    return f"  {label:<{_LABEL_WIDTH}}{text}".rstrip()


def _origin_lines(facts: Facts) -> list[str]:
    lines = [_line("seed", "yes")] if facts["seed"] else []
    if rejected := facts["set_aside"]:
        lines.append(_line("rejected", f"{rejected['file']}, line {rejected['line']}: it {rejected['why']}"))
    if facts["found_on"]:
        lines.append(_line("found on", ", ".join(facts["found_on"])))
    return lines


def _known_lines(known: Facts | None) -> list[str]:
    if known is None:
        return [_line("crawl DB", "does not contain it")]
    reason = f" ({known['reason']})" if known["reason"] else ""
    origin = f"depth {known['depth']}, first seen {time_of(known['first_seen'])}"
    lines = [_line("crawl DB", f"{known['status']}{reason}, {known['kind']}, {origin}")]
    if known["last_fetch"]:
        lines.append(_line("last try", f"{time_of(known['last_fetch'])}, failures in a row: {known['fails']}"))
    every = f", every {known['interval_s'] / _DAY_S:.3g} days" if known["interval_s"] else ""
    lines.append(_line("due", f"{time_of(known['due'])}{every}"))
    if known["warc_path"]:
        record = f"{time_of(known['captured_at'])}, {known['record_id']}"
        lines.append(_line("capture", f"{known['warc_path']} at byte {known['warc_offset']:,}, {record}"))
    if known["canonical"]:
        lines.append(_line("canonical", f"the page gives {known['canonical']} as its URL"))
    if known["takedown"]:
        lines.append(_line("takedown", f"the capture may no longer be kept: {known['takedown']}"))
    if known["terms"]:
        lines.append(_line("terms", _pairs(json.loads(known["terms"]))))
    return lines


def _tried_lines(facts: Facts) -> list[str]:
    tried = facts["tried"]
    if tried is None:
        return []
    status = f" {tried['http_status']}" if tried["http_status"] and not tried["reason"].startswith("http_") else ""
    not_requested = "" if tried["requested"] else ", without a request"
    error = f": {tried['error']}" if tried["error"] else ""
    redirect = f" to {tried['redirect']}" if tried["redirect"] else ""
    result = f"{tried['reason'] or tried['status']}{status}{redirect}{not_requested}"
    return [_line("last cycle", f"{facts['artifacts']['segment']}: {result}, {time_of(tried['fetched_at'])}{error}")]


def _listed_lines(facts: Facts) -> list[str]:
    listed = facts["listed"]
    if listed is None:
        return []
    position = f"place {listed['place']:,} of {listed['of']:,}, score {listed['score']:.3g}"
    return [_line("listed", f"{facts['artifacts']['fetchlist']}: {position}")]


def _rule_lines(rules: Facts | None) -> list[str]:
    if rules is None:
        return [_line("robots.txt", "not in the crawl DB")]
    decision = rules["decision"]
    verb = "allowed" if decision["allowed"] else "forbidden"
    rule = f" by line {decision['line']}, for {decision['group']}: {decision['rule']}" if decision["line"] else ""
    if rules["robots_txt"] != "ok":
        rule = " (there is none)"
    stale = "" if rules["holds"] else "; older than a day, so it is fetched again before the next page"
    lines = [_line("robots.txt", f"{verb}{rule}, read {time_of(rules['fetched_at'])}{stale}")]
    terms = {f"{file}.{name}": value for file, pairs in rules["terms"].items() for name, value in pairs}
    return [*lines, _line("terms", _pairs(terms))] if terms else lines


def _policy_lines(policy: Facts | None) -> list[str]:
    if policy is None:
        return []
    denied = f"denied by {policy['denied_by']}; " if policy["denied_by"] else ""
    headers = f", sent: {', '.join(policy['headers'])}" if policy["headers"] else ""
    every = f", every {policy['interval_s'] / _DAY_S:.3g} days" if policy["interval_s"] else ""
    limits = f"{denied}pause {policy['delay_s']:g} s, at most {policy['max_pages']:,} pages a cycle{every}{headers}"
    return [_line("hosts file", f"{limits} ({policy['from']})")]


def _pace_lines(pace: Facts) -> list[str]:
    times = [f"pause {pace['delay_s']:.3g} s"]
    times += [
        f"{name} {pace[field]:.3g} s"
        for name, field in (("Crawl-delay", "crawl_delay_s"), ("latency", "latency_s"))
        if pace[field]
    ]
    until: datetime | None = pace["backoff_until"]
    backoff = f", backed off until {time_of(until)}" if until else ""
    failures = f", failures in a row: {pace['failures']}" if pace["failures"] else ""
    lines = [_line("host", f"{', '.join(times)}{failures}{backoff}")]
    if pace["reasons"]:
        counts = ", ".join(f"{reason} {count:,}" for reason, count in pace["reasons"].items())
        lines.append(_line("", f"last cycle: {pace['requests']:,} of {pace['cap']:,} requests ({counts})"))
    return lines


def _pairs(values: dict[str, str]) -> str:
    return "; ".join(f"{name}: {value}" for name, value in values.items())
