"""The hosts file: operators' settings for single hosts, separate from the recipe and its version.

Reads TOML from a local path or an object store (`[crawl] hosts_file`):

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
"""

import os
import re
import tomllib
from datetime import datetime
from typing import Any

from pydantic import AwareDatetime, Field, field_validator, model_validator

from tasks.core.config import Config, parse
from tasks.core.digest import sha256_of
from tasks.core.errors import InputError, RecipeError
from tasks.core.store import read_outside
from tasks.formats.web.canonical_url import canonical
from tasks.formats.web.url import authority, host_and_port

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
            "put it back, an empty one if nothing is to be said, or correct [crawl] hosts_file",
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
