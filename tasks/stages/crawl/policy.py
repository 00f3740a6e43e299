"""Host policy: operators' settings for single hosts, independent of the recipe and its version.

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

Values of headers and cookies may be credentials, so the file contains only references to them and can be stored in
artifacts.

`Policy` is the file as applied by one task of a cycle. It reads the file and the copy of the previous stage: generate
writes `policy.json` into the fetch list, and fetch writes `policy/<attempt>.json` into the segment. Headers and
rewriting rules come from the copy, so that a resumed fetch continues with the same ones. Settings that slow a host down
or stop it are read repeatedly from the file and apply immediately: denials (their removal applies from the next cycle),
delays, pauses, dropped queues, and caps lower than those of the copy.
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
from tasks.core.config import REFERENCE, Config, parse, read_reference
from tasks.core.digest import sha256_of
from tasks.core.errors import InputError, RecipeError, SluiceError
from tasks.core.stage import Part
from tasks.core.store import read_outside
from tasks.formats.web.canonical_url import canonical
from tasks.formats.web.domain import Link, link
from tasks.formats.web.url import authority, host_and_port, split_port
from tasks.stages.crawl.config import CrawlConfig

log = logging.getLogger("sluice.crawl")

FILE = "policy.json"
HOST_DENIED = "host_denied"
HOST_DROPPED = "host_dropped"
HOST_PAUSED = "host_paused"
"""The reason of a page that is not rendered because its host is paused at its turn."""
EVERY_S = 10.0
"""Seconds between two reads of the hosts file."""
_FILES = "policy"
# Settings that a running fetch takes from the current file.
_LIVE_FIELDS = frozenset({"delay_s", "max_pages", "pause", "drop_before"})
_WWW = "www."

_ENTRY = re.compile(r"(\*\.)?([a-z0-9._-]+|\[[0-9a-f:.]+\])(:\d+)?")
# RFC 9110, 5.6.2.
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_LANGUAGES = re.compile(r"[A-Za-z0-9*;=,. -]{1,200}")
_PARAMETER = re.compile(r"[^&=#*\s]*\*?")
_OWN_FIELDS = {"accept-language": "accept_language", "cookie": "cookies"}
# Headers that define the request or identify its sender cannot be set per host.
_FIXED = frozenset(
    {
        *("accept-encoding", "connection", "content-length", "expect", "host", "if-modified-since", "if-none-match"),
        *("keep-alive", "proxy-authorization", "proxy-connection", "range", "te", "trailer", "transfer-encoding"),
        *("signature", "signature-agent", "signature-input", "upgrade", "user-agent"),
    }
)


class Rewrite(Config):
    """A rule that rewrites URLs."""

    match: str
    """Regular expression, searched for in the canonical URL."""

    to: str
    """Replacement of all matches; \\1 is the first group."""

    @model_validator(mode="after")
    def _can_be_applied(self) -> "Rewrite":
        try:
            re.compile(self.match).sub(self.to, "")
        except (re.error, IndexError) as error:
            raise ValueError(f"{self.match!r} to {self.to!r} is not a valid rule: {error}") from None
        return self


class HostSettings(Config):
    """Settings of one host, or of all hosts of a domain; None means the recipe's value."""

    delay_s: float | None = Field(default=None, ge=0.0, le=86400.0)
    """Replaces the recipe's `delay_s`; at least 1 outside loopback."""

    max_pages: int | None = Field(default=None, ge=1)
    """Replaces the recipe's `max_pages_per_host`."""

    pause: bool | None = None
    """While true, no visit to the host begins, its queued URLs keep waiting, and no cycle lists it."""

    drop_before: AwareDatetime | None = None
    """URLs of the host in fetch lists made before this time, and links found from them, are left for the next cycle."""

    interval_s: int | None = Field(default=None, ge=60, le=366 * 86400)
    """Seconds after which fetched pages are due again, regardless of their changes."""

    drop_parameters: tuple[str, ...] | None = None
    """Names of query parameters that are removed from its URLs; "*" at the end of a name matches any ending."""

    rewrite: tuple[Rewrite, ...] | None = None
    """Rules that rewrite its URLs, applied in order before parameters are dropped."""

    accept_language: str | None = None
    """Value of the header Accept-Language."""

    headers: dict[str, str] = {}
    """Additional request headers; each value is a reference, "env:NAME" or "file:/path", to the real one."""

    cookies: dict[str, str] = {}
    """Cookies; the values are references, too."""

    over_http: bool = False
    """Whether headers and cookies are also sent over http."""

    @field_validator("accept_language")
    @classmethod
    def _is_list(cls, value: str | None) -> str | None:
        if value is not None and not _LANGUAGES.fullmatch(value):
            raise ValueError(f'{value!r} is not a list of languages; write it as "de, en;q=0.5"')
        return value

    @field_validator("drop_parameters")
    @classmethod
    def _are_parameters(cls, value: tuple[str, ...] | None) -> tuple[str, ...] | None:
        for name in value or ():
            if not name or not _PARAMETER.fullmatch(name):
                raise ValueError(f"{name!r} is not a parameter; write a name, or a prefix of names followed by *")
        return value

    @field_validator("headers", "cookies", mode="before")
    @classmethod
    def _are_references(cls, values: Any) -> Any:
        # Before the validation of types, whose error would show the value.
        for name, value in values.items() if isinstance(values, dict) else ():
            if not _TOKEN.fullmatch(name):
                raise ValueError(f"{name!r} is not a valid name of a header or cookie")
            if not (isinstance(value, str) and REFERENCE.fullmatch(value)):
                raise ValueError(f'{name} is not a reference: instead of its value write "env:NAME" or "file:/path"')
        return values

    @field_validator("headers")
    @classmethod
    def _may_be_set(cls, value: dict[str, str]) -> dict[str, str]:
        for name in value:
            if name.lower() in _FIXED:
                raise ValueError(f"{name} cannot be set")
            if name.lower() in _OWN_FIELDS:
                raise ValueError(f"{name} has its own field, {_OWN_FIELDS[name.lower()]}")
        return value


_NO_SETTINGS = HostSettings()


class HostsFile(Config):
    """The content of a hosts file."""

    deny: tuple[str, ...] = ()
    """Hosts to which no request is sent: "host" (on every port, with and without "www."), "host:port" or
    "*.domain" (the domain itself and all below it)."""

    hosts: dict[str, HostSettings] = {}
    """Settings by host or domain, as in `deny`; for each field, the most specific entry that sets it counts."""

    again: dict[str, AwareDatetime] = {}
    """URLs that are due at once, unless they were tried after the given time: a URL, a prefix of URLs
    ("https://example.org/news/*"), or a host or domain as in `deny`."""

    @field_validator("deny")
    @classmethod
    def _are_hosts(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for entry in value:
            _check_entry(entry)
        return value

    @field_validator("again")
    @classmethod
    def _are_pages_or_hosts(cls, value: dict[str, datetime]) -> dict[str, datetime]:
        for entry in value:
            if "://" not in entry:
                _check_entry(entry)
            elif canonical(url := entry.removesuffix("*")) != url:
                raise ValueError(f"{entry!r} is not a URL in canonical form; write {canonical(url)!r}, or a host")
        return value

    @model_validator(mode="after")
    def _have_one_host(self) -> "HostsFile":
        for entry, settings in self.hosts.items():
            _check_entry(entry)
            if entry.startswith("*.") and (settings.headers or settings.cookies):
                raise ValueError(f"headers and cookies go to one host only: list the hosts of {entry!r} separately")
        return self


def read_hosts_file(path: str) -> tuple[HostsFile, str]:
    """Returns the hosts file at a local path or URL, and the SHA-256 of its bytes in hex.

    Raises:
        InputError: the file cannot be read.
        RecipeError: the file is not TOML, or is invalid.
    """
    try:
        data = read_outside(path)
        settings = tomllib.loads(data.decode("utf-8-sig"))
    except OSError as error:
        raise InputError(
            f"the hosts file {path} cannot be read ({error.strerror or error})",
            "restore it, or create an empty one, or correct [crawl] hosts_file",
        ) from None
    except (ValueError, RecursionError) as error:
        raise RecipeError(f"the hosts file {path} is not TOML: {error}", "correct the line") from None
    return parse(HostsFile, settings, f"hosts file {os.path.basename(path)}"), sha256_of(data)


def _check_entry(entry: str) -> None:
    """Raises ValueError unless the entry is a host or domain in canonical form."""
    url = canonical(f"http://{entry.removeprefix('*.')}/")
    if not _ENTRY.fullmatch(entry) or url is None or authority(url) != entry.removeprefix("*."):
        raise ValueError(f"{entry!r} is not a host; write host, host:port or *.domain in lower case, names in ASCII")
    if entry.startswith("*.") and host_and_port(url)[1] is not None:
        raise ValueError(f"{entry!r}: a domain has no port")


@dataclass(frozen=True)
class HostHeaders:
    """Additional headers of requests to one host.

    Attributes:
        headers: values by name.
        secret: names (lower case) of headers whose values are not stored.
    """

    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    secret: frozenset[str] = frozenset()


_NO_HEADERS = HostHeaders()


class Policy:
    """Settings and denials of hosts, which are given as `authority`.

    Args:
        snapshot: the hosts file at the beginning of the cycle.
        path: location of the current hosts file; "" if it must not be read again.
        listed_at: when the fetch list was made; None: just now.
    """

    def __init__(self, snapshot: HostsFile | None = None, path: str = "", listed_at: datetime | None = None) -> None:
        self._snapshot = self._current = snapshot or HostsFile()
        self._path = path
        self._listed_at = listed_at
        self._deny = frozenset(self._snapshot.deny)
        self._settings = self._snapshot.hosts
        self._rewrites = any(entry.rewrite or entry.drop_parameters for entry in self._settings.values())
        # By host: headers with credentials, and whether they are also sent over http.
        self._credentials: dict[str, tuple[HostHeaders, bool]] = {}
        self._sha256 = ""
        self._history: list[dict[str, Any]] = []
        self._failing = False

    @classmethod
    def of(cls, config: CrawlConfig, artifact: Artifact) -> "Policy":
        """Returns the policy for a task that reads a fetch list or segment.

        Raises:
            SluiceError: the hosts file cannot be read, so the denied hosts are unknown.
        """
        policy = cls(hosts_file_in(artifact), config.hosts_file, artifact.record.finished)
        policy.reload()
        return policy

    def denies(self, host: str) -> bool:
        """Returns whether requests to a host are denied."""
        return bool(self._deny) and any(name in self._deny for name in _entries_for(host))

    def denial(self, host: str) -> str:
        """Returns the entry that denies a host, or ""."""
        return next((name for name in _entries_for(host) if name in self._deny), "")

    def skip_reason(self, host: str) -> str:
        """Returns why no URL of a host is tried in this cycle (HOST_DENIED, HOST_DROPPED), or ""."""
        if self.denies(host):
            return HOST_DENIED
        dropped = next((entry.drop_before for entry in self._live(host) if entry.drop_before is not None), None)
        return HOST_DROPPED if dropped and self._listed_at and self._listed_at < dropped else ""

    def pauses(self, host: str) -> bool:
        """Returns whether visits to a host are paused."""
        return bool(next((entry.pause for entry in self._live(host) if entry.pause is not None), False))

    def delay_s(self, host: str, default: float) -> float:
        """Returns the pause between two requests to a host, in seconds."""
        delays = (entry.delay_s for entry in (*self._live(host), *self._cycle(host)) if entry.delay_s is not None)
        return next(delays, default)

    def max_pages(self, host: str, default: int) -> int:
        """Returns the maximum number of requests to a host in a cycle; it can only be lowered during the cycle."""
        cap = next((entry.max_pages for entry in self._cycle(host) if entry.max_pages is not None), default)
        return min(cap, next((entry.max_pages for entry in self._live(host) if entry.max_pages is not None), cap))

    def interval_s(self, host: str) -> int | None:
        """Returns the seconds after which a host's pages are due again; None if that depends on their changes."""
        return next((entry.interval_s for entry in self._cycle(host) if entry.interval_s is not None), None)

    @property
    def has_intervals(self) -> bool:
        """Whether the interval of any host is set."""
        return any(entry.interval_s is not None for entry in self._settings.values())

    @property
    def again(self) -> Mapping[str, datetime]:
        """URLs and hosts to be fetched again, with the time since which (`HostsFile.again`)."""
        return self._snapshot.again

    def host_again_since(self, host: str) -> datetime | None:
        """Returns the time since which all URLs of a host are to be fetched again; None if `again` does not name it."""
        return max((self.again[name] for name in _entries_for(host) if name in self.again), default=None)

    def rewritten(self, target: Link) -> Link:
        """Returns a link rewritten by the rules for its host; unchanged if the result is not a valid URL."""
        if not self._rewrites:
            return target
        settings = list(self._cycle(target.host))
        url = target.url
        for rule in next((entry.rewrite for entry in settings if entry.rewrite is not None), ()):
            url = re.sub(rule.match, rule.to, url)
        names = next((entry.drop_parameters for entry in settings if entry.drop_parameters is not None), ())
        new = canonical(_without(url, names) if names else url)
        return target if new is None or new == target.url else link(new)

    @property
    def rewrites(self) -> bool:
        """Whether there are rules for the URLs of any host."""
        return self._rewrites

    def headers_for(self, url: str) -> HostHeaders:
        """Returns the additional headers for a canonical URL; credentials are sent to exactly their host only."""
        if not self._settings:
            return _NO_HEADERS
        host = authority(url)
        languages = next((entry.accept_language for entry in self._cycle(host) if entry.accept_language), None)
        headers = {"Accept-Language": languages} if languages else {}
        credentials, over_http = self._credentials.get(host, (_NO_HEADERS, False))
        if url.startswith("https://") or over_http:
            return HostHeaders({**headers, **credentials.headers}, credentials.secret)
        return HostHeaders(headers)

    def header_names_for(self, host: str) -> list[str]:
        """Returns the names of the headers and cookies that the hosts file sets for a host."""
        entry = self._settings.get(host, _NO_SETTINGS)
        languages = ["Accept-Language"] if any(settings.accept_language for settings in self._cycle(host)) else []
        return [*languages, *sorted(entry.headers), *(f"Cookie {name}" for name in sorted(entry.cookies))]

    def load_credentials(self, needs: Callable[[str], bool]) -> None:
        """Reads the values of headers and cookies of the hosts for which `needs` returns True.

        Raises:
            InputError: a value is missing or invalid.
        """
        for host, entry in self._settings.items():
            if (entry.headers or entry.cookies) and needs(host):
                headers = {name: _value_of(ref, host, name) for name, ref in sorted(entry.headers.items())}
                cookies = [f"{name}={_value_of(ref, host, name)}" for name, ref in sorted(entry.cookies.items())]
                if cookies:
                    headers["Cookie"] = "; ".join(cookies)
                secret = frozenset(map(str.lower, headers))
                self._credentials[host] = (HostHeaders(headers, secret), entry.over_http)

    def reload(self) -> bool:
        """Reads the hosts file again; returns whether it has changed.

        Raises:
            SluiceError: the file cannot be read, or is invalid; the previous state is kept.
        """
        if not self._path:
            return False
        file, sha256 = read_hosts_file(self._path)
        if sha256 == self._sha256:
            return False
        denied = frozenset(file.deny)
        if added := sorted(denied - self._deny):
            log.warning("denied from now on: %s", ", ".join(added))
        before, after = _live_settings(self._current), _live_settings(file)
        changed = {
            host: after.get(host, {}) for host in sorted({*before, *after}) if before.get(host) != after.get(host)
        }
        if changed and self._sha256:
            log.warning("settings of hosts from now on: %s", json.dumps(changed))
        self._deny |= denied
        self._current, self._sha256 = file, sha256
        self._history.append({"at": datetime.now(UTC).isoformat(), "sha256": sha256, "denied": added, "hosts": changed})
        return True

    @contextlib.asynccontextmanager
    async def watch(self, changed: Callable[[], None] = lambda: None) -> AsyncIterator[None]:
        """Reads the hosts file every `EVERY_S` seconds, and calls `changed` in this event loop if it has changed."""
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
            applied = self._snapshot.model_copy(update={"deny": tuple(sorted(self._deny))})
            _write(part, f"{_FILES}/{part.attempt}.json", {"file": applied, "read": self._history})

    async def _watch(self, changed: Callable[[], None]) -> None:
        while True:
            await asyncio.sleep(EVERY_S)
            try:
                if await asyncio.to_thread(self.reload):
                    changed()
            except (SluiceError, OSError) as error:
                if not self._failing:
                    log.error("the settings of hosts remain as they were last read: %s", error)
                self._failing = True
            else:
                self._failing = False

    def _cycle(self, host: str) -> Iterable[HostSettings]:
        """Returns the settings for a host at the beginning of the cycle, the most specific entry first."""
        return _matching(self._settings, host)

    def _live(self, host: str) -> Iterable[HostSettings]:
        """Returns the current settings for a host, the most specific entry first."""
        return _matching(self._current.hosts, host)


def snapshot(config: CrawlConfig, part: Part) -> Policy:
    """Reads the hosts file for a cycle and writes it to the fetch list; raises SluiceError."""
    if not config.hosts_file:
        return Policy()
    file, sha256 = read_hosts_file(config.hosts_file)
    _write(part, FILE, {"file": file, "sha256": sha256})
    return Policy(file)


def hosts_file_in(artifact: Artifact) -> HostsFile | None:
    """Returns the copy of the hosts file in a fetch list or segment; None if the recipe names no hosts file."""
    paths = artifact.files(_FILES)
    return HostsFile.model_validate(json.loads(artifact.read(paths[0]))["file"]) if paths else None


def _matching(settings: Mapping[str, HostSettings], host: str) -> Iterable[HostSettings]:
    return [settings[name] for name in _entries_for(host) if name in settings] if settings else ()


def _live_settings(file: HostsFile) -> dict[str, dict[str, Any]]:
    """Returns the settings that a running fetch takes from the file, by entry."""
    rows = (
        (host, entry.model_dump(mode="json", include=set(_LIVE_FIELDS), exclude_none=True))
        for host, entry in file.hosts.items()
    )
    return {host: row for host, row in rows if row}


def _without(url: str, names: tuple[str, ...]) -> str:
    """Returns a URL without the query parameters in `names`; see `HostSettings.drop_parameters`."""
    path, mark, query = url.partition("?")
    exact = frozenset(names)
    prefixes = tuple(name[:-1] for name in names if name.endswith("*"))

    def is_allowed(field: str) -> bool:
        name = field.partition("=")[0]
        return name not in exact and not (prefixes and name.startswith(prefixes))

    fields = [field for field in query.split("&") if is_allowed(field)]
    return f"{path}?{'&'.join(fields)}" if mark and any(fields) else path


def _write(part: Part, path: str, content: dict[str, Any]) -> None:
    plain = {**content, "file": content["file"].model_dump(mode="json", exclude_defaults=True)}
    with part.file(path) as file:
        file.write(json.dumps(plain, indent=1, sort_keys=True).encode())


# Some 20 MB when full.
@lru_cache(maxsize=1 << 15)
def _entries_for(host: str) -> tuple[str, ...]:
    """Returns the entries that match a host, the most specific first: the host, without its port, its domains."""
    name = split_port(host)[0]
    hosts = [variant for entry in dict.fromkeys((host, name)) for variant in _www_variants(entry)]
    labels = [] if name.startswith("[") else name.split(".")
    return (*hosts, *(f"*.{'.'.join(labels[at:])}" for at in range(len(labels))))


def _www_variants(host: str) -> tuple[str, str]:
    # Sites usually redirect from their bare name to "www.", or the other way round.
    return (host, host.removeprefix(_WWW)) if host.startswith(_WWW) else (host, _WWW + host)


def _value_of(reference: str, host: str, name: str) -> str:
    """Returns the value of a header or cookie, "env:NAME" or "file:/path"; raises InputError."""
    try:
        value = read_reference(reference)
    except (OSError, KeyError, UnicodeDecodeError):
        raise InputError(
            f"hosts file: the value of {name} for {host} is not found at {reference}", "set it where the crawl runs"
        ) from None
    value = value.strip()
    if not value or not value.isascii() or not value.isprintable():
        raise InputError(
            f"hosts file: the value of {name} for {host} at {reference} is not a valid header value",
            "it must be one line of printable ASCII",
        )
    return value
