"""Host policy: operators' settings for single hosts, separate from the recipe and its version.

Operators write the hosts file (`HostsFile`), TOML at a local path or in an object store (`[crawl] hosts_file`):

    deny = ["example.org", "*.shop.example", "example.net:8080"]

    [hosts."*.example.com"]
    delay_s = 10.0
    max_pages = 50
    accept_language = "de, en;q=0.5"

    [hosts."wiki.corp:8080"]
    headers = { Authorization = "env:WIKI_AUTHORIZATION" }
    cookies = { session = "file:/run/secrets/wiki-session" }

    [again]
    "https://example.org/news/*" = 2026-11-24T10:00:00Z

Values of headers and cookies may be credentials: the file only has references to them, so that it can be stored in
artifacts unchanged.

`Policy` is the file as applied by one task of a cycle. It reads the file, and the copy of the previous stage: generate
writes `policy.json` into the fetch list, fetch `policy/<attempt>.json` into the segment. Headers and rewriting rules
are those of the copy: a resumed fetch continues as it began. What slows a host down or stops it is read repeatedly from
the file and applies at once: denials (their removal with the next cycle), delays, pauses, dropped queues, and caps that
are lower than those of the copy.
"""

import asyncio
import contextlib
import json
import logging
import os
import re
import tomllib
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

from pydantic import AwareDatetime, Field, field_validator, model_validator

from tasks.core.artifact import Artifact
from tasks.core.config import Config, parse
from tasks.core.digest import sha256_of
from tasks.core.errors import InputError, RecipeError, SluiceError
from tasks.core.stage import Part
from tasks.core.store import read_outside
from tasks.formats.web.canonical_url import canonical
from tasks.formats.web.domain import Link, link
from tasks.formats.web.url import authority, host_and_port
from tasks.stages.crawl.config import CrawlConfig

log = logging.getLogger("sluice.crawl")

FILE = "policy.json"
HOST_DENIED = "host_denied"
HOST_DROPPED = "host_dropped"
HOST_PAUSED = "host_paused"
"""A page that is not rendered, since its host is paused when its turn comes."""
EVERY_S = 10.0
"""Seconds between two reads of the hosts file."""
_FILES = "policy"
# What a running fetch takes over from the file.
_AT_ONCE = frozenset({"delay_s", "max_pages", "pause", "drop_before"})
_WWW = "www."

_ENTRY = re.compile(r"(\*\.)?([a-z0-9._-]+|\[[0-9a-f:.]+\])(:\d+)?")
# RFC 9110, 5.6.2.
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_REFERENCE = re.compile(r"env:[A-Za-z_][A-Za-z0-9_]*|file:/.+")
_LANGUAGES = re.compile(r"[A-Za-z0-9*;=,. -]{1,200}")
_PARAMETER = re.compile(r"[^&=#*\s]*\*?")
_OWN_FIELDS = {"accept-language": "accept_language", "cookie": "cookies"}
# Headers that define the request or identify its sender cannot be set per host.
_FIXED = frozenset(
    {
        *("accept-encoding", "connection", "content-length", "expect", "host", "if-modified-since", "if-none-match"),
        *("keep-alive", "proxy-authorization", "proxy-connection", "range", "te", "trailer", "transfer-encoding"),
        *("upgrade", "user-agent"),
    }
)


class Rewrite(Config):
    """One rule by which URLs are written anew."""

    match: str
    """Regular expression, looked for in the whole canonical URL."""

    to: str
    """What is put in its place; \\1 is its first group."""

    @model_validator(mode="after")
    def _can_be_applied(self) -> "Rewrite":
        try:
            re.compile(self.match).sub(self.to, "")
        except (re.error, IndexError) as error:
            raise ValueError(f"{self.match!r} to {self.to!r} is no rule: {error}") from None
        return self


class HostSettings(Config):
    """Settings of one host, or of all hosts of a domain; None means the recipe's value."""

    delay_s: float | None = Field(default=None, ge=0.0, le=86400.0)
    """In place of the recipe's `delay_s`; not below 1 outside loopback."""

    max_pages: int | None = Field(default=None, ge=1)
    """In place of the recipe's `max_pages_per_host`."""

    pause: bool | None = None
    """While true no visit begins; what waits of the host goes on waiting, and no cycle lists it."""

    drop_before: AwareDatetime | None = None
    """What fetch lists made before this moment hold of the host, and what they lead to, is left for the next cycle."""

    interval_s: int | None = Field(default=None, ge=60, le=366 * 86400)
    """Pages that were fetched are due again so many seconds later, whatever their changes were."""

    drop_parameters: tuple[str, ...] | None = None
    """Query parameters that its URLs lose, by name; "*" at the end of a name stands for any ending."""

    rewrite: tuple[Rewrite, ...] | None = None
    """Rules by which its URLs are written anew, one after the other, before parameters are dropped."""

    accept_language: str | None = None
    """Requested languages, as in the header Accept-Language."""

    headers: dict[str, str] = {}
    """Further request headers; each value is "env:NAME" or "file:/path", where the real one is found."""

    cookies: dict[str, str] = {}
    """Cookies, their values in the same way."""

    over_http: bool = False
    """Sends headers and cookies over http, too, and not over https alone."""

    @field_validator("accept_language")
    @classmethod
    def _is_list(cls, value: str | None) -> str | None:
        if value is not None and not _LANGUAGES.fullmatch(value):
            raise ValueError(f'{value!r} is no list of languages; write it as "de, en;q=0.5"')
        return value

    @field_validator("drop_parameters")
    @classmethod
    def _are_parameters(cls, value: tuple[str, ...] | None) -> tuple[str, ...] | None:
        for name in value or ():
            if not name or not _PARAMETER.fullmatch(name):
                raise ValueError(f"{name!r} is no parameter; write its name, or the beginning of names and *")
        return value

    @field_validator("headers", "cookies", mode="before")
    @classmethod
    def _are_references(cls, given: Any) -> Any:
        # Before any other check: an error of another kind would show the value.
        for name, value in given.items() if isinstance(given, dict) else ():
            if not _TOKEN.fullmatch(name):
                raise ValueError(f"{name!r} is no name of a header or cookie")
            if not (isinstance(value, str) and _REFERENCE.fullmatch(value)):
                raise ValueError(f'{name} is no reference: instead of its value write "env:NAME" or "file:/path"')
        return given

    @field_validator("headers")
    @classmethod
    def _may_be_set(cls, given: dict[str, str]) -> dict[str, str]:
        for name in given:
            if name.lower() in _FIXED:
                raise ValueError(f"{name} cannot be set")
            if name.lower() in _OWN_FIELDS:
                raise ValueError(f"{name} has a field of its own, {_OWN_FIELDS[name.lower()]}")
        return given


_NO_SETTINGS = HostSettings()


class HostsFile(Config):
    """A hosts file as it is read."""

    deny: tuple[str, ...] = ()
    """Hosts to which no request is sent: "host" (on every port, with and without "www."), "host:port" or
    "*.domain" (the domain itself and all below it)."""

    hosts: dict[str, HostSettings] = {}
    """Settings by host, written in the same way; of several entries for a host the closest that sets a field counts."""

    again: dict[str, AwareDatetime] = {}
    """What is due although its time has not come, unless it was tried after the moment named: a URL, URLs that begin
    alike ("https://example.org/news/*"), or a host or domain as in `deny`."""

    @field_validator("deny")
    @classmethod
    def _are_hosts(cls, given: tuple[str, ...]) -> tuple[str, ...]:
        for entry in given:
            _check_entry(entry)
        return given

    @field_validator("again")
    @classmethod
    def _are_pages_or_hosts(cls, given: dict[str, datetime]) -> dict[str, datetime]:
        for entry in given:
            if "://" not in entry:
                _check_entry(entry)
            elif canonical(url := entry.removesuffix("*")) != url:
                raise ValueError(f"{entry!r} is no URL in canonical form; write {canonical(url)!r}, or a host")
        return given

    @model_validator(mode="after")
    def _go_to_one_host(self) -> "HostsFile":
        for entry, settings in self.hosts.items():
            _check_entry(entry)
            if entry.startswith("*.") and (settings.headers or settings.cookies):
                raise ValueError(f"headers and cookies go to one host only: name the hosts of {entry!r} one by one")
        return self


def read_hosts_file(path: str) -> tuple[HostsFile, str]:
    """Returns the hosts file at a local path or URL, and the sha256 of its bytes.

    Raises:
        InputError: it cannot be read.
        RecipeError: it is not TOML, or is invalid.
    """
    try:
        data = read_outside(path)
        settings = tomllib.loads(data.decode("utf-8-sig"))
    except OSError as error:
        raise InputError(
            f"the hosts file {path} cannot be read ({error.strerror or error})",
            "put it back, an empty one if there is nothing to set, or correct [crawl] hosts_file",
        ) from None
    except (ValueError, RecursionError) as error:
        raise RecipeError(f"the hosts file {path} is not TOML: {error}", "mend the line") from None
    return parse(HostsFile, settings, f"hosts file {os.path.basename(path)}"), sha256_of(data)


def _check_entry(entry: str) -> None:
    """Raises ValueError unless it is a host in the form of canonical URLs."""
    url = canonical(f"http://{entry.removeprefix('*.')}/")
    if not _ENTRY.fullmatch(entry) or url is None or authority(url) != entry.removeprefix("*."):
        raise ValueError(f"{entry!r} is no host; write host, host:port or *.domain in lower case, names in ASCII")
    if entry.startswith("*.") and host_and_port(url)[1] is not None:
        raise ValueError(f"{entry!r}: a domain has no port")


@dataclass(frozen=True)
class HostHeaders:
    """Additional headers of requests to one host.

    Attributes:
        headers: name and value.
        secret: names in lower case whose values are not stored.
    """

    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    secret: frozenset[str] = frozenset()


_NOTHING = HostHeaders()


class Policy:
    """Settings and denials of hosts; a host is its `authority`.

    Args:
        settled: the hosts file as the cycle began.
        path: its current location; "" if it is not to be read again.
        listed_at: when the fetch list was made; None: what waits was listed just now.
    """

    def __init__(self, settled: HostsFile | None = None, path: str = "", listed_at: datetime | None = None) -> None:
        self._settled = self._current = settled or HostsFile()
        self._path = path
        self._listed_at = listed_at
        self._deny = frozenset(self._settled.deny)
        self._settings = self._settled.hosts
        self._rewrites = any(one.rewrite or one.drop_parameters for one in self._settled.hosts.values())
        self._sent: dict[str, tuple[HostHeaders, bool]] = {}
        self._read = ""
        self._history: list[dict[str, Any]] = []
        self._failing = False

    @classmethod
    def of(cls, config: CrawlConfig, before: Artifact) -> "Policy":
        """Returns the policy for a task on a fetch list or a segment.

        Raises:
            SluiceError: the hosts file cannot be read, so the denied hosts are unknown.
        """
        policy = cls(held_in(before), config.hosts_file, before.record.finished)
        policy.look()
        return policy

    def denies(self, host: str) -> bool:
        """Returns whether requests to a host are denied."""
        return bool(self._deny) and any(name in self._deny for name in _names(host))

    def denial(self, host: str) -> str:
        """Returns the entry by which a host is denied, or ""."""
        return next((name for name in _names(host) if name in self._deny), "")

    def skip_reason(self, host: str) -> str:
        """Returns why nothing of a host is tried in this cycle (HOST_DENIED, HOST_DROPPED), or ""."""
        if self.denies(host):
            return HOST_DENIED
        dropped = next((one.drop_before for one in self._now(host) if one.drop_before is not None), None)
        return HOST_DROPPED if dropped and self._listed_at and self._listed_at < dropped else ""

    def pauses(self, host: str) -> bool:
        """Returns whether a host is not to be visited for now."""
        return bool(next((one.pause for one in self._now(host) if one.pause is not None), False))

    def delay_s(self, host: str, default: float) -> float:
        """Returns the pause between two requests to a host, in seconds."""
        known = (one.delay_s for one in (*self._now(host), *self._of(host)) if one.delay_s is not None)
        return next(known, default)

    def max_pages(self, host: str, default: int) -> int:
        """Returns how many requests a host may get in a cycle: as it began, or fewer."""
        most = next((one.max_pages for one in self._of(host) if one.max_pages is not None), default)
        return min(most, next((one.max_pages for one in self._now(host) if one.max_pages is not None), most))

    def interval_s(self, host: str) -> int | None:
        """Returns after how many seconds a host's pages are due again; None where that depends on their changes."""
        return next((one.interval_s for one in self._of(host) if one.interval_s is not None), None)

    @property
    def has_intervals(self) -> bool:
        """Whether it sets the interval of any host."""
        return any(one.interval_s is not None for one in self._settings.values())

    @property
    def again(self) -> Mapping[str, datetime]:
        """What is to be tried again if it was not tried since (`HostsFile.again`)."""
        return self._settled.again

    def again_since(self, url: str) -> datetime | None:
        """Returns the moment since which a canonical URL is to be tried again; None if `again` does not name it."""
        begun = (at for entry, at in self.again.items() if entry[-1] == "*" and url.startswith(entry[:-1]))
        found = [*begun, *filter(None, (self.again.get(url), self.host_again_since(authority(url))))]
        return max(found, default=None)

    def host_again_since(self, host: str) -> datetime | None:
        """Returns the moment since which all URLs of a host are to be tried again; None if `again` does not name it."""
        return max((self.again[name] for name in _names(host) if name in self.again), default=None)

    def rewritten(self, found: Link) -> Link:
        """Returns a link as the rules for its host write it; unchanged where that is no URL that can be crawled."""
        if not self._rewrites:
            return found
        settings = list(self._of(found.host))
        url = found.url
        for rule in next((one.rewrite for one in settings if one.rewrite is not None), ()):
            url = re.sub(rule.match, rule.to, url)
        names = next((one.drop_parameters for one in settings if one.drop_parameters is not None), ())
        new = canonical(_without(url, names) if names else url)
        return found if new is None or new == found.url else link(new)

    @property
    def rewrites(self) -> bool:
        """Whether it has rules for any host's URLs."""
        return self._rewrites

    def headers_for(self, url: str) -> HostHeaders:
        """Returns the additional headers for a canonical URL; credentials only for exactly their host."""
        if not self._settings:
            return _NOTHING
        host = authority(url)
        languages = next((one.accept_language for one in self._of(host) if one.accept_language), None)
        headers = {"Accept-Language": languages} if languages else {}
        sent, over_http = self._sent.get(host, (_NOTHING, False))
        if url.startswith("https://") or over_http:
            return HostHeaders({**headers, **sent.headers}, sent.secret)
        return HostHeaders(headers)

    def header_names_for(self, host: str) -> list[str]:
        """Returns the names of the headers and cookies that the hosts file sets for a host, without their values."""
        one = self._settled.hosts.get(host, _NO_SETTINGS)
        languages = ["Accept-Language"] if any(entry.accept_language for entry in self._of(host)) else []
        return [*languages, *sorted(one.headers), *(f"Cookie {name}" for name in sorted(one.cookies))]

    def unlock(self, mine: Callable[[str], bool]) -> None:
        """Resolves the headers and cookies of hosts for which `mine` is true; for others none are sent.

        Raises:
            InputError: one is missing at the place that the hosts file names.
        """
        for host, one in self._settled.hosts.items():
            if (one.headers or one.cookies) and mine(host):
                headers = {name: _found(reference, host, name) for name, reference in sorted(one.headers.items())}
                cookies = [f"{name}={_found(reference, host, name)}" for name, reference in sorted(one.cookies.items())]
                if cookies:
                    headers["Cookie"] = "; ".join(cookies)
                self._sent[host] = (HostHeaders(headers, frozenset(map(str.lower, headers))), one.over_http)

    def look(self) -> bool:
        """Reads the hosts file again; returns whether it has changed.

        Raises:
            SluiceError: it cannot be read, or is invalid; the previous state is kept.
        """
        if not self._path:
            return False
        file, content = read_hosts_file(self._path)
        if content == self._read:
            return False
        denied = frozenset(file.deny)
        if added := sorted(denied - self._deny):
            log.warning("denied from now on: %s", ", ".join(added))
        before, after = _at_once(self._current), _at_once(file)
        changed = {
            host: after.get(host, {}) for host in sorted({*before, *after}) if before.get(host) != after.get(host)
        }
        if changed and self._read:
            log.warning("settings of hosts from now on: %s", json.dumps(changed))
        self._deny |= denied
        self._current, self._read = file, content
        self._history.append(
            {"at": datetime.now(UTC).isoformat(), "sha256": content, "denied": added, "hosts": changed}
        )
        return True

    @contextlib.asynccontextmanager
    async def watched(self, changed: Callable[[], None] = lambda: None) -> AsyncIterator[None]:
        """Reads the hosts file every ten seconds, and calls `changed` in this event loop when it has changed."""
        task = asyncio.ensure_future(self._watch(changed)) if self._path else None
        try:
            yield
        finally:
            if task is not None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)

    def write(self, part: Part) -> None:
        """Writes the applied policy, with all denials and the time of each change of the hosts file."""
        if self._path:
            settled = self._settled.model_copy(update={"deny": tuple(sorted(self._deny))})
            _write(part, f"{_FILES}/{part.attempt}.json", {"file": settled, "read": self._history})

    async def _watch(self, changed: Callable[[], None]) -> None:
        while True:
            await asyncio.sleep(EVERY_S)
            try:
                if await asyncio.to_thread(self.look):
                    changed()
            except (SluiceError, OSError) as error:
                if not self._failing:
                    log.error("the settings of hosts stay as they were read before: %s", error)
                self._failing = True
            else:
                self._failing = False

    def _of(self, host: str) -> Iterable[HostSettings]:
        """Returns the settings for a host as the cycle began, the closest first."""
        return _closest(self._settings, host)

    def _now(self, host: str) -> Iterable[HostSettings]:
        """Returns the settings for a host as the file has them by now, the closest first."""
        return _closest(self._current.hosts, host)


def settle(config: CrawlConfig, part: Part) -> Policy:
    """Reads the hosts file for a cycle and writes it to the fetch list; raises SluiceError."""
    if not config.hosts_file:
        return Policy()
    file, content = read_hosts_file(config.hosts_file)
    _write(part, FILE, {"file": file, "sha256": content})
    return Policy(file)


def held_in(artifact: Artifact) -> HostsFile | None:
    """Returns the copy of the hosts file in a fetch list or segment; None where the recipe names none."""
    found = artifact.files(_FILES)
    return HostsFile.model_validate(json.loads(artifact.read(found[0]))["file"]) if found else None


def _closest(settings: Mapping[str, HostSettings], host: str) -> Iterable[HostSettings]:
    return [settings[name] for name in _names(host) if name in settings] if settings else ()


def _at_once(file: HostsFile) -> dict[str, dict[str, Any]]:
    """Returns what of the file a running fetch takes over, by entry."""
    rows = (
        (host, one.model_dump(mode="json", include=set(_AT_ONCE), exclude_none=True))
        for host, one in file.hosts.items()
    )
    return {host: row for host, row in rows if row}


def _without(url: str, names: tuple[str, ...]) -> str:
    """Returns a URL without the query parameters of some names; see `HostSettings.drop_parameters`."""
    path, mark, query = url.partition("?")
    exact = frozenset(names)
    begun = tuple(name[:-1] for name in names if name.endswith("*"))

    def stays(field: str) -> bool:
        name = field.partition("=")[0]
        return name not in exact and not (begun and name.startswith(begun))

    kept = [field for field in query.split("&") if stays(field)]
    return f"{path}?{'&'.join(kept)}" if mark and any(kept) else path


def _write(part: Part, path: str, content: dict[str, Any]) -> None:
    plain = {**content, "file": content["file"].model_dump(mode="json", exclude_defaults=True)}
    with part.file(path) as file:
        file.write(json.dumps(plain, indent=1, sort_keys=True).encode())


# Some 20 MB when full.
@lru_cache(maxsize=1 << 15)
def _names(host: str) -> tuple[str, ...]:
    """Returns the entries for a host, the most specific first: the host, without its port, its domains."""
    name = host_and_port(f"http://{host}/")[0]
    named = [alike for one in dict.fromkeys((host, name)) for alike in _alike(one)]
    labels = [] if name.startswith("[") else name.split(".")
    return (*named, *(f"*.{'.'.join(labels[at:])}" for at in range(len(labels))))


def _alike(host: str) -> tuple[str, str]:
    # A site that answers on its bare name and on "www." redirects from one to the other.
    return (host, host.removeprefix(_WWW)) if host.startswith(_WWW) else (host, _WWW + host)


def _found(reference: str, host: str, name: str) -> str:
    kind, _, place = reference.partition(":")
    try:
        if kind == "env":
            value = os.environ[place]
        else:
            with open(place, encoding="utf-8") as file:
                value = file.read()
    except (OSError, KeyError, UnicodeDecodeError):
        raise InputError(
            f"hosts file: the value of {name} for {host} is not found at {reference}", "set it where the crawl runs"
        ) from None
    value = value.strip()
    if not value or not value.isascii() or not value.isprintable():
        raise InputError(
            f"hosts file: the value of {name} for {host} at {reference} is no header value",
            "it must be one line of printable ASCII",
        )
    return value
