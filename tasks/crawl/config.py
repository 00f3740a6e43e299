"""Settings of the crawl, shared by its four stages (the recipe's [crawl] section).

Light on purpose: the Airflow dag-processor imports it. What can be refused without the network is refused here.
"""

import ipaddress
import re
from urllib.parse import urlsplit

from pydantic import Field, field_validator, model_validator

from tasks.config import Config

_TOKEN = re.compile(r"[A-Za-z_-]+")
_SCOPE = re.compile(r"(\*\.)?[a-z0-9._:\[\]-]+")
_CONTACT = re.compile(r"(https?://[^\s/]+\S*|mailto:[^\s@]+@[^\s@]+)")


def is_loopback(host: str) -> bool:
    """Tells whether `host` (no port) is this machine by its spelling alone: a loopback literal or a .localhost name.

    >>> is_loopback("docs.localhost"), is_loopback("127.0.0.9"), is_loopback("[::1]"), is_loopback("localhost.com")
    (True, True, True, False)
    """
    name = host.strip("[]").rstrip(".").lower()
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


class CrawlConfig(Config):
    """What to crawl, how far, and how politely."""

    seeds: tuple[str, ...] = ()
    """URLs the crawl starts from (http or https)."""

    contact: str = ""
    """A page or "mailto:" address for webmasters; sent with every request. Required outside loopback."""

    user_agent: str = "sluice"
    """Product token: what robots.txt files address (letters, "-" and "_")."""

    include_hosts: tuple[str, ...] = ()
    """Hosts that may be crawled: "host", "host:port" or "*.domain"; empty means the hosts of the seeds.
    A leading "www." makes no difference."""

    partitions: int = Field(default=2, ge=1, le=1024)
    """Number of fetch partitions; a registered domain belongs to one. Fixed for the life of a crawl DB."""

    max_pages: int = Field(default=1000, ge=1)
    """URLs requested at most in one cycle, over all partitions."""

    max_pages_per_host: int = Field(default=500, ge=1)
    """URLs requested at most from one host in one cycle."""

    max_depth: int = Field(default=10, ge=0)
    """Links followed at most from a seed."""

    delay_s: float = Field(default=1.0, ge=0.0, le=3600.0)
    """Seconds between the end of one request to a host and the start of the next. Below 1 only on loopback hosts."""

    latency_factor: float = Field(default=2.0, ge=0.0, le=100.0)
    """The delay is at least this many times the host's average answer time."""

    max_backoff_s: float = Field(default=60.0, gt=0.0, le=86400.0)
    """A host that asks for a longer pause than this (Retry-After, back-off) waits for the next cycle."""

    timeout_s: float = Field(default=30.0, gt=0.0, le=600.0)
    """Seconds for one whole request, name resolution and body included."""

    max_body_bytes: int = Field(default=8 << 20, ge=1024)
    """Bytes taken of one body, on the wire and again after decompression; the rest is cut off and marked."""

    time_box_s: float = Field(default=3600.0, gt=0.0)
    """Seconds one fetch task works; what is left waits for the next cycle. A box that closes makes the set of
    captured pages depend on the speed of the sites."""

    concurrency: int = Field(default=64, ge=1, le=4096)
    """Requests under way at one time in one fetch task (one per host)."""

    warc_pages_per_file: int = Field(default=1000, ge=1)
    """Captures per WARC file. A file is the unit of commit: a kill loses at most the open one."""

    mime_types: tuple[str, ...] = ("text/html", "application/xhtml+xml", "text/plain", "application/pdf")
    """Content types that are kept; an answer without a type is kept too."""

    recrawl: bool = False
    """Start from the crawl DB of the cycle before: what is due is fetched again, what is not is left out. Off, every
    version is a crawl of its own."""

    allow_loopback: bool = False
    """Lets the crawl reach this machine (127.0.0.0/8, ::1, *.localhost) on any port. For demos and tests."""

    @field_validator("user_agent")
    @classmethod
    def _is_token(cls, value: str) -> str:
        if not _TOKEN.fullmatch(value):
            raise ValueError(f"{value!r} is no product token; use letters, '-' and '_' only (RFC 9309, 2.2.1)")
        return value

    @field_validator("contact")
    @classmethod
    def _is_contact(cls, value: str) -> str:
        if value and not _CONTACT.fullmatch(value):
            raise ValueError(f"{value!r} is neither a web address nor mailto:name@host")
        return value

    @field_validator("seeds")
    @classmethod
    def _are_urls(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for seed in value:
            if _host_of(seed) is None:
                raise ValueError(f"the seed {seed!r} is no http or https address")
        return value

    @field_validator("include_hosts")
    @classmethod
    def _are_hosts(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for host in value:
            if not _SCOPE.fullmatch(host):
                raise ValueError(f"{host!r} is no host; write host, host:port or *.domain in lower case")
        return value

    @model_validator(mode="after")
    def _is_polite(self) -> "CrawlConfig":
        if self.delay_s < 1.0 and not self.allow_loopback:
            raise ValueError(f"delay_s = {self.delay_s} is below 1 second, which only loopback hosts may get")
        named = [_host_of(seed) or "" for seed in self.seeds]
        named += [_host_of(f"http://{entry.removeprefix('*.')}/") or "" for entry in self.include_hosts]
        public = sorted({host for host in named if not is_loopback(host)})
        if public and not self.contact:
            raise ValueError(
                f"contact is missing: webmasters of {public[0]} must be able to reach you; "
                "set contact to a page or to mailto:name@host"
            )
        local = [seed for seed in self.seeds if is_loopback(_host_of(seed) or "")]
        if local and not self.allow_loopback:
            raise ValueError(f"the seed {local[0]!r} is on this machine; set allow_loopback = true if you mean it")
        return self


def _host_of(url: str) -> str | None:
    try:
        parts = urlsplit(url.strip())
        return parts.hostname if parts.scheme.lower() in ("http", "https") else None
    except ValueError:
        return None
