"""Settings of the crawl: the recipe's sections [crawl], shared by its stages, and [crawl.render].

Light to import, for the Airflow dag-processor. Validates everything that can be checked without the network.
"""

import ipaddress
import re
from functools import lru_cache
from typing import Literal, Self

from pydantic import Field, field_validator, model_validator

from tasks.core.config import Config, Problems, require_absolute
from tasks.formats.web.url import web_parts

METADATA_NAMES = frozenset(
    {"metadata", "metadata.goog", "metadata.google.internal", "instance-data", "instance-data.ec2.internal"}
)
"""Host names of cloud metadata services."""

_PRIVATE = tuple(
    map(ipaddress.ip_network, ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "fc00::/7"))
)

_TOKEN = re.compile(r"[A-Za-z_-]+")
_SCOPE = re.compile(r"(\*\.)?[a-z0-9._:\[\]-]+")
_ONE_HOST = re.compile(r"([a-z0-9_-]+(?:\.[a-z0-9_-]+)*|\[[0-9a-f:]+\])(?::(\d{1,5}))?")
_CONTACT = re.compile(r"(https?://[^\s/]+\S*|mailto:[^\s@]+@[^\s@]+)")


class RenderConfig(Config):
    """Whether pages that need a browser get one, and what one page may cost."""

    enabled: bool = False
    """Render the pages that fetch found to need a browser. Needs Chromium and the Python package playwright."""

    chromium: str = ""
    """The browser's program; empty means chromium, chromium-browser or google-chrome on PATH."""

    max_pages: int = Field(default=100, ge=1)
    """Pages rendered at most in one cycle by one partition."""

    concurrency: int = Field(default=2, ge=1, le=64)
    """Pages rendered at one time (one per host); each has a browser of its own: about 0.5 GB of memory."""

    pages_per_part: int = Field(default=20, ge=1)
    """Pages per committed part: a kill loses at most the open one."""

    timeout_s: float = Field(default=20.0, gt=0.0, le=600.0)
    """Seconds a page may load and settle. Whatever it shows then is taken."""

    settle_ms: int = Field(default=1000, ge=0, le=60_000)
    """A page is done when nothing has been under way for so long (milliseconds)."""

    max_requests: int = Field(default=200, ge=1)
    """Requests a page may make; further ones fail."""

    max_bytes: int = Field(default=32 << 20, ge=1024)
    """Bytes a page may receive over all its requests; then the network ends for it."""

    max_dom_bytes: int = Field(default=8 << 20, ge=1024)
    """Size of the finished page above which it is dropped (characters)."""

    max_memory_bytes: int = Field(default=2 << 30, ge=256 << 20)
    """Memory of any one process of a page's browser; above, the browser is killed."""

    blocked: tuple[Literal["image", "media", "font", "stylesheet", "texttrack", "manifest"], ...] = (
        "image",
        "media",
        "font",
    )
    """Kinds of resources that are not requested: they contain no text."""


class CrawlConfig(Config):
    """What to crawl, how far, and how politely."""

    enabled: bool = True
    """Whether the recipe crawls at all. Off: no crawl DAG, and the corpus comes from `[[extract.files]]` alone."""

    seeds: tuple[str, ...] = ()
    """URLs the crawl starts from (http or https)."""

    seed_files: tuple[str, ...] = ()
    """Local text files with a URL per line ("#" begins a remark), beside `seeds`."""

    max_bad_seeds: float = Field(default=0.5, ge=0.0, le=1.0)
    """Share of the lines of `seed_files` that may be no seeds; these are set aside and listed. Above it, the file is
    taken for something else than a list of seeds."""

    contact: str = ""
    """A page or "mailto:" address for webmasters; sent with every request. Required outside loopback."""

    user_agent: str = "sluice"
    """Product token: what robots.txt files address (letters, "-" and "_")."""

    hosts_file: str = ""
    """TOML file, here or on an object store, in which operators deny hosts and set pauses, caps and headers of single
    ones (`tasks.stages.crawl.policy`). Read by every cycle; denied hosts are read again during a fetch."""

    include_hosts: tuple[str, ...] = ()
    """Hosts that may be crawled: "host", "host:port" or "*.domain"; empty means the hosts of the seeds.
    A leading "www." makes no difference."""

    include_prefixes: tuple[str, ...] = ()
    """URL prefixes, such as "https://example.org/docs/"; of a host that one of them names, nothing else is crawled."""

    include_pattern: str = ""
    """Regular expression that must match somewhere in a URL; empty admits all."""

    exclude_pattern: str = ""
    """Regular expression that must not match anywhere in a URL; empty excludes none."""

    partitions: int = Field(default=2, ge=1, le=1024)
    """Number of fetch partitions; a registered domain belongs to one. Fixed for the life of a crawl DB."""

    max_pages: int = Field(default=1000, ge=1)
    """URLs requested at most in one cycle, over all partitions."""

    max_pages_per_host: int = Field(default=500, ge=1)
    """URLs requested at most from one host in one cycle."""

    max_pages_per_domain: int = Field(default=5000, ge=1)
    """URLs requested at most from all hosts of one registered domain in one cycle."""

    max_hosts_per_domain: int = Field(default=200, ge=1)
    """Hosts of one registered domain that are crawled at most in one cycle: names made up without end are a trap."""

    max_queries_per_path: int = Field(default=100, ge=1)
    """Query strings that only recombine values seen before, tried at most for one path of a host: more are permutations
    of filters, not pages. Of those that bring a new value ten times as many are tried."""

    max_depth: int = Field(default=10, ge=0)
    """Links followed at most from a seed."""

    delay_s: float = Field(default=1.0, ge=0.0, le=3600.0)
    """Seconds between the end of one request to a host and the start of the next. Below 1 only on loopback hosts."""

    ip_delay_s: float | None = Field(default=None, ge=0.0, le=3600.0)
    """Seconds between the starts of two requests of a fetch task to one IP address, whichever of its hosts they go to.
    Unset: 0.25 for public addresses, and none for loopback."""

    latency_factor: float = Field(default=2.0, ge=0.0, le=100.0)
    """The delay is at least this many times the host's average answer time."""

    max_backoff_s: float = Field(default=60.0, gt=0.0, le=86400.0)
    """A host that requires a longer pause than this (Retry-After, back-off) waits for the next cycle."""

    timeout_s: float = Field(default=30.0, gt=0.0, le=600.0)
    """Seconds for one whole request, name resolution and body included."""

    max_body_bytes: int = Field(default=8 << 20, ge=1024)
    """Bytes taken of one body, on the wire and again after decompression; the rest is cut off and marked."""

    time_box_s: float = Field(default=3600.0, gt=0.0)
    """Time limit of one fetch task in seconds; the rest waits for the next cycle. A box that closes makes the set of
    captured pages depend on the speed of the sites."""

    concurrency: int = Field(default=64, ge=1, le=4096)
    """Places for requests in one fetch task, one request per host. One that lasts longer than a second gives its place
    up, so that hosts that are slow or silent take none from the others."""

    warc_pages_per_file: int = Field(default=1000, ge=1)
    """Captures per WARC file. A file is the unit of commit: a kill loses at most the open one."""

    warc_compression: Literal["gzip", "zstd"] = "gzip"
    """How every record of a WARC file is compressed. At equal size gzip is read by every tool, zstd by newer ones."""

    buffer_bytes: int = Field(default=4 << 30, ge=1 << 20)
    """While the store does not answer, captures wait on the local disk up to so many bytes; then fetching pauses."""

    sitemaps: bool = True
    """Fetch the sitemaps that robots.txt names, and follow what they list."""

    feeds: bool = True
    """Follow RSS and Atom feeds that pages name."""

    ai_optouts: tuple[Literal["robots", "header", "meta", "tdm"], ...] = ("robots", "header", "meta", "tdm")
    """Which opt-outs from AI training are honoured: groups for AI crawlers and Content-Signal in robots.txt;
    X-Robots-Tag noai; robots meta noai; TDM reservation (header, meta, and a file that costs a request per
    site). An opt-out addressed to named crawlers is respected."""

    name_servers: tuple[str, ...] = ()
    """Name servers (IP addresses), the next one when one does not answer; empty means those of this machine."""

    score_every: int = Field(default=5, ge=1)
    """Cycles between two computations of the host scores from the links between hosts."""

    mime_types: tuple[str, ...] = ("text/html", "application/xhtml+xml", "text/plain", "application/pdf")
    """Content types that are kept; an answer without a type is kept too."""

    recrawl: bool = False
    """Start from the crawl DB of the previous cycle: due pages are fetched again, others are left out. Off, every
    version is a crawl of its own."""

    allow_hosts: dict[str, tuple[str, ...]] = {}
    """Hosts that may be requested on other ports than 80 and 443, or at a private address: "host" or
    "host:port", and the networks to which it may resolve, such as { "wiki.corp:8080" = ["10.20.0.0/16"] }; with []
    public addresses only. Grants to one host open nothing for another."""

    render: RenderConfig = RenderConfig()
    """Pages that show their text only in a browser."""

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
        if wrong := [f"the seed {seed!r} is no http or https address" for seed in value if not _host_of(seed)]:
            raise Problems(wrong)
        return value

    @field_validator("hosts_file")
    @classmethod
    def _is_absolute(cls, value: str) -> str:
        return require_absolute(value) if value else value

    @field_validator("include_hosts")
    @classmethod
    def _are_hosts(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for host in value:
            if not _SCOPE.fullmatch(host):
                raise ValueError(f"{host!r} is no host; write host, host:port or *.domain in lower case")
        return value

    @field_validator("allow_hosts")
    @classmethod
    def _are_grants(cls, value: dict[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
        for host, networks in value.items():
            _check_host(host)
            for network in networks:
                _check_network(network)
        return value

    @field_validator("include_pattern", "exclude_pattern")
    @classmethod
    def _is_pattern(cls, value: str) -> str:
        try:
            re.compile(value)
        except re.error as error:
            raise ValueError(f"{value!r} is no regular expression: {error}") from None
        return value

    @field_validator("name_servers")
    @classmethod
    def _are_addresses(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for server in value:
            ipaddress.ip_address(server)
        return value

    @classmethod
    def absent(cls) -> Self:
        """Returns the settings of a recipe that does not crawl."""
        return cls(enabled=False)

    @property
    def active(self) -> bool:
        """Whether the recipe crawls."""
        return self.enabled

    @model_validator(mode="after")
    def _is_polite(self) -> "CrawlConfig":
        wrong = []
        if self.delay_s < 1.0 and not self.allow_loopback:
            wrong.append(f"delay_s = {self.delay_s} is below 1 second, which only loopback hosts may get")
        named = [_host_of(seed) for seed in self.seeds]
        named += [_host_of(f"http://{entry.removeprefix('*.')}/") for entry in self.include_hosts]
        named += [_host_of(prefix) for prefix in self.include_prefixes]
        public = sorted({host for host in named if not is_loopback(host)})
        if public and not self.contact:
            wrong.append(
                f"contact is missing: webmasters of {public[0]} must be able to reach you; "
                "set contact to a page or to mailto:name@host"
            )
        local = [seed for seed in self.seeds if is_loopback(_host_of(seed))]
        if local and not self.allow_loopback:
            wrong.append(f"the seed {local[0]!r} is on this machine; set allow_loopback = true if you mean it")
        if wrong:
            raise Problems(wrong)
        return self


@lru_cache(maxsize=1 << 14)
def is_loopback(host: str) -> bool:
    """Returns whether the spelling of `host` (no port) denotes this machine: a loopback literal or a .localhost name.

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


def _check_host(host: str) -> None:
    found = _ONE_HOST.fullmatch(host)
    if found is None:
        raise ValueError(f"{host!r} is no single host; write host or host:port in lower case")
    name, port = found[1], found[2]
    if name.startswith("[") and str(ipaddress.IPv6Address(name.strip("[]"))) != name.strip("[]"):
        raise ValueError(f"{host!r}: write the address in its short form")
    if port in ("80", "443"):
        raise ValueError(f"{host!r}: leave the port out, 80 and 443 are open to every host")
    if is_loopback(name):
        raise ValueError(f"{host!r} is this machine; allow_loopback = true admits it")
    if name in METADATA_NAMES:
        raise ValueError(f"{host!r} is a cloud metadata service, which is never requested")


def _check_network(network: str) -> None:
    try:
        found = ipaddress.ip_network(network)
    except ValueError as error:
        raise ValueError(f"{network!r} is no network ({error}); write one such as 10.20.0.0/16") from None
    inside = (outer for outer in _PRIVATE if outer.version == found.version)
    if not any(found.subnet_of(outer) for outer in inside):  # type: ignore[arg-type]
        raise ValueError(f"{network!r} lies in no private network ({', '.join(map(str, _PRIVATE))})")


def _host_of(url: str) -> str:
    parts = web_parts(url.strip())
    return parts.host if parts else ""
