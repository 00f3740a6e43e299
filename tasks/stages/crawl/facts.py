"""Facts about one URL: rows of the crawl's artifacts, the hosts file, and robots.txt and tdmrep.json of its site.

Reads the hosts file and committed artifacts: the seeds, and of the partition that owns the URL the fetch list, the
segment and the crawl DB, each the newest there is, or those of one version.
"""

import tempfile
import uuid
from datetime import datetime
from functools import cached_property
from typing import Any

from tasks.core.artifact import Artifact, ArtifactId
from tasks.core.errors import InputError, SluiceError
from tasks.core.ledger import newest
from tasks.core.store import Store
from tasks.formats.documents import tombstones
from tasks.formats.robots.robotstxt import Robots, ai_optout_by, decided_by
from tasks.formats.robots.tdmrep import Reservations
from tasks.formats.web.domain import domain_of, link
from tasks.formats.web.url import host_and_port, origin_of
from tasks.stages.crawl.config import CrawlConfig, is_loopback
from tasks.stages.crawl.generate import due_of
from tasks.stages.crawl.hosts.rules import LIFE
from tasks.stages.crawl.inject import REJECTED_FILE, file_of, member, number_of
from tasks.stages.crawl.policy import HOST_DROPPED, HostsFile, Policy, held_in, read_hosts_file
from tasks.stages.crawl.storage import crawldb, duck, fetchlist
from tasks.stages.crawl.storage.duck import Lookup
from tasks.stages.crawl.storage.segment import LINK, LOG

Found = dict[str, Any]

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


class Facts:
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

    def gathered(self) -> Found:
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
        return Policy(held_in(listed), listed_at=listed_at), f"{where}; as {listed.address} holds it"

    def _site_rules(self) -> Found | None:
        if not self.policy_from:
            return None
        host, config = self._link.host, self._config
        sent = self.policy.names_sent_to(host)
        return {
            "from": self.policy_from,
            "denied_by": self.policy.denial(host),
            "delay_s": self.policy.delay_s(host, config.delay_s),
            "max_pages": self.policy.max_pages(host, config.max_pages_per_host),
            "paused": self.policy.pauses(host),
            "dropped": self.policy.withheld(host) == HOST_DROPPED,
            "interval_s": self.policy.interval_s(host),
            "again_since": self.policy.again_since(self._link.url),
            "written_as": written if (written := self.policy.rewritten(self._link).url) != self._link.url else "",
            "headers": sent,
        }

    def _seed(self, lookup: Lookup) -> Found:
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

    def _known(self, lookup: Lookup) -> Found | None:
        row = lookup.one("crawldb", lookup.files("crawldb", crawldb.URLS_FILE), _BY_KEY, self._key)
        if row is None:
            return None
        record = f"urn:uuid:{row['record_id']}" if row["record_id"] else ""
        seed = lookup.one("seeds", self._seeds(lookup), _BY_KEY, self._key) or {}
        due, asked = due_of(row, self.policy, self._now, seed.get("interval_s"))
        return {**{name: row.get(name) for name in _KNOWN}, "record_id": record, "due": due, "asked_again": asked}

    def _tried(self, lookup: Lookup) -> Found | None:
        row = lookup.one("segment", lookup.files("segment", LOG), _BY_KEY, self._key)
        return {name: row.get(name) for name in _TRIED} if row else None

    def _listed(self, lookup: Lookup) -> Found | None:
        row = lookup.one("fetchlist", lookup.files("fetchlist", fetchlist.URLS_FILE), _BY_KEY, self._key)
        if row is None:
            return None
        most = self.artifacts["fetchlist"].record.rows_out
        return {"place": row["file_row_number"] + 1, "of": most, "score": row["score"]}

    def _rules(self, lookup: Lookup) -> Found | None:
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
            "holds": self._now - row["fetched_at"] < LIFE,
            "decision": decided_by(body, config.user_agent, url)._asdict(),
            "ai_optout": "robots" in config.ai_optouts and robots.ai_optout(url),
            "ai_rule": ai_optout_by(body, url)._asdict(),
            "reserved": reserved,
            "terms": {"robots": robots.terms(url), "tdmrep": list(Reservations(tdm).terms(url)) if tdm else []},
        }

    def _pace(self, lookup: Lookup) -> Found:
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
