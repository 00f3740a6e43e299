"""Host policy: the hosts file as applied by one task of a cycle.

Reads the hosts file (`hosts_file`), and the copy of the previous stage: generate writes `policy.json` into the fetch
list, fetch `policy/<attempt>.json` into the segment. Pauses, caps and headers are those of the copy: a resumed fetch
continues as it began. Denied hosts are read repeatedly from the file: a denial applies at once, its removal with the
next cycle.
"""

import asyncio
import contextlib
import json
import logging
import os
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from tasks.core.artifact import Artifact
from tasks.core.errors import InputError, SluiceError
from tasks.core.stage import Part
from tasks.formats.url import authority, host_and_port
from tasks.stages.crawl.config import CrawlConfig
from tasks.stages.crawl.hosts_file import HostSettings, HostsFile, read

log = logging.getLogger("sluice.crawl")

FILE = "policy.json"
_FILES = "policy"
HOST_DENIED = "host_denied"
EVERY_S = 10.0
"""Seconds between two reads of the hosts file."""

_NO_SETTINGS = HostSettings()
_WWW = "www."


@dataclass(frozen=True)
class Sent:
    """Additional headers of requests to one host.

    Attributes:
        headers: name and value.
        secret: names in lower case whose values are not stored.
    """

    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    secret: frozenset[str] = frozenset()


_NOTHING = Sent()


class Policy:
    """Settings and denials of hosts; a host is its `authority`.

    Args:
        settled: the hosts file as the cycle began.
        path: its current location; "" if it is not to be read again.
    """

    def __init__(self, settled: HostsFile | None = None, path: str = "") -> None:
        self._settled = settled or HostsFile()
        self._path = path
        self._deny = frozenset(self._settled.deny)
        self._settings = self._settled.hosts
        self._sent: dict[str, tuple[Sent, bool]] = {}
        self._read = ""
        self._history: list[dict[str, Any]] = []
        self._failing = False

    @classmethod
    def of(cls, config: CrawlConfig, before: Artifact) -> "Policy":
        """Returns the policy for a task on a fetch list or a segment.

        Raises:
            SluiceError: the hosts file cannot be read, so the denied hosts are unknown.
        """
        policy = cls(held_in(before), config.hosts_file)
        policy.look()
        return policy

    def denies(self, host: str) -> bool:
        """Returns whether requests to a host are denied."""
        return bool(self._deny) and any(name in self._deny for name in _names(host))

    def denial(self, host: str) -> str:
        """Returns the entry by which a host is denied, or ""."""
        return next((name for name in _names(host) if name in self._deny), "")

    def delay_s(self, host: str, default: float) -> float:
        """Returns the pause between two requests to a host, in seconds."""
        return next((one.delay_s for one in self._of(host) if one.delay_s is not None), default)

    def max_pages(self, host: str, default: int) -> int:
        """Returns how many requests a host may get in a cycle."""
        return next((one.max_pages for one in self._of(host) if one.max_pages is not None), default)

    def sent_to(self, url: str) -> Sent:
        """Returns the additional headers for a canonical URL; credentials only for exactly their host."""
        if not self._settings:
            return _NOTHING
        host = authority(url)
        languages = next((one.accept_language for one in self._of(host) if one.accept_language), None)
        headers = {"Accept-Language": languages} if languages else {}
        sent, over_http = self._sent.get(host, (_NOTHING, False))
        if url.startswith("https://") or over_http:
            return Sent({**headers, **sent.headers}, sent.secret)
        return Sent(headers)

    def names_sent_to(self, host: str) -> list[str]:
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
                self._sent[host] = (Sent(headers, frozenset(map(str.lower, headers))), one.over_http)

    def look(self) -> None:
        """Reads the denied hosts from the hosts file again.

        Raises:
            SluiceError: it cannot be read, or is invalid; the previous state is kept.
        """
        if not self._path:
            return
        file, content = read(self._path)
        if content == self._read:
            return
        denied = frozenset(file.deny)
        if added := sorted(denied - self._deny):
            log.warning("denied from now on: %s", ", ".join(added))
        self._deny |= denied
        self._read = content
        self._history.append({"at": datetime.now(UTC).isoformat(), "sha256": content, "denied": added})

    @contextlib.asynccontextmanager
    async def watched(self) -> AsyncIterator[None]:
        """Reads the hosts file every ten seconds."""
        task = asyncio.ensure_future(self._watch()) if self._path else None
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

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(EVERY_S)
            try:
                await asyncio.to_thread(self.look)
            except (SluiceError, OSError) as error:
                if not self._failing:
                    log.error("who is denied stays as it was read before: %s", error)
                self._failing = True
            else:
                self._failing = False

    def _of(self, host: str) -> Iterable[HostSettings]:
        """Returns the settings for a host, the closest first."""
        if not self._settings:
            return ()
        return [self._settings[name] for name in _names(host) if name in self._settings]


def settle(config: CrawlConfig, part: Part) -> Policy:
    """Reads the hosts file for a cycle and writes it to the fetch list; raises SluiceError."""
    if not config.hosts_file:
        return Policy()
    file, content = read(config.hosts_file)
    _write(part, FILE, {"file": file, "sha256": content})
    return Policy(file)


def held_in(artifact: Artifact) -> HostsFile | None:
    """Returns the copy of the hosts file in a fetch list or segment; None where the recipe names none."""
    found = artifact.files(_FILES)
    return HostsFile.model_validate(json.loads(artifact.read(found[0]))["file"]) if found else None


def _write(part: Part, path: str, content: dict[str, Any]) -> None:
    plain = {**content, "file": content["file"].model_dump(mode="json", exclude_defaults=True)}
    with part.file(path) as file:
        file.write(json.dumps(plain, indent=1, sort_keys=True).encode())


def _names(host: str) -> list[str]:
    """Returns the entries for a host, the most specific first: the host, without its port, its domains."""
    name = host_and_port(f"http://{host}/")[0]
    named = [alike for one in dict.fromkeys((host, name)) for alike in _alike(one)]
    labels = [] if name.startswith("[") else name.split(".")
    return named + [f"*.{'.'.join(labels[at:])}" for at in range(len(labels))]


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
