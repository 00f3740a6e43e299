"""Settings of the crawl: the recipe's sections [crawl], shared by the stages of the crawl, and [crawl.render].

Light to import, because the Airflow dag-processor does. Validates everything that can be checked without the network.
"""

import ipaddress
import re
from functools import lru_cache
from typing import Literal, Self

from pydantic import Field, field_validator, model_validator

from tasks.core.config import Config, Problems, SecretReference, require_absolute
from tasks.core.stage_spec import MOST_MEMBERS
from tasks.formats.web.url import web_parts

METADATA_NAMES = frozenset(
    {"metadata", "metadata.goog", "metadata.google.internal", "instance-data", "instance-data.ec2.internal"}
)
"""Host names of cloud metadata services."""

_PRIVATE = tuple(
    map(ipaddress.ip_network, ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "fc00::/7"))
)

_TOKEN = re.compile(r"[A-Za-z_-]+")
_DIRECTORY = re.compile(r"https://[a-z0-9.-]+(?::\d{1,5})?")
_SCOPE = re.compile(r"(\*\.)?[a-z0-9._:\[\]-]+")
_ONE_HOST = re.compile(r"([a-z0-9_-]+(?:\.[a-z0-9_-]+)*|\[[0-9a-f:]+\])(?::(\d{1,5}))?")
_CONTACT = re.compile(r"(https?://[^\s/]+\S*|mailto:[^\s@]+@[^\s@]+)")


class RenderConfig(Config):
    """Whether to render pages that need a browser, and the limits per page."""

    enabled: bool = False
    """Render the pages that fetch found to need a browser. Needs Chromium and the Python package playwright."""

    chromium: str = ""
    """Path of the browser; empty means chromium, chromium-browser or google-chrome on PATH."""

    max_pages: int = Field(default=100, ge=1)
    """Maximum number of pages rendered in one cycle by one partition."""

    concurrency: int = Field(default=2, ge=1, le=64)
    """Pages rendered concurrently (one per host), each in its own browser with about 0.5 GB of memory."""

    pages_per_part: int = Field(default=20, ge=1)
    """Pages per committed part; a kill loses at most the open part."""

    timeout_s: float = Field(default=20.0, gt=0.0, le=600.0)
    """Seconds for a page to load and settle; after that its current state is captured."""

    settle_ms: int = Field(default=1000, ge=0, le=60_000)
    """A page is complete after this time (milliseconds) without network activity."""

    max_requests: int = Field(default=200, ge=1)
    """Maximum number of requests of a page; further ones fail."""

    max_bytes: int = Field(default=32 << 20, ge=1024)
    """Bytes that a page may receive over all its requests; after that it is offline."""

    max_dom_bytes: int = Field(default=8 << 20, ge=1024)
    """Maximum size of the rendered page (characters); larger pages are dropped."""

    max_memory_bytes: int = Field(default=2 << 30, ge=256 << 20)
    """Maximum memory of any process of a page's browser; above, the browser is killed."""

    blocked: tuple[Literal["image", "media", "font", "stylesheet", "texttrack", "manifest"], ...] = (
        "image",
        "media",
        "font",
    )
    """Kinds of resources that are not requested: they contain no text."""


class SignatureConfig(Config):
    """Web Bot Auth: every request over TLS is signed with your key, so that sites can verify who sends it."""

    key: SecretReference = ""
    """Reference to the private Ed25519 key, as PEM (PKCS #8) or JWK: "env:NAME" of the task's environment (in Airflow:
    a secret of the deployment), or "file:/path". Empty: requests are not signed."""

    directory: str = ""
    """Web origin at which you serve the key directory, such as "https://crawler.example.org"; the command
    `key-directory` writes it."""

    agent_form: Literal["dictionary", "string"] = "dictionary"
    """Form of the header Signature-Agent: that of the draft of September 2026, or "string" for verifiers that only know
    its earlier versions."""

    @field_validator("directory")
    @classmethod
    def _is_origin(cls, value: str) -> str:
        if value and not _DIRECTORY.fullmatch(value):
            raise ValueError(f"{value!r} is not an origin such as https://crawler.example.org, without a path")
        return value

    @model_validator(mode="after")
    def _is_complete(self) -> "SignatureConfig":
        if bool(self.key) != bool(self.directory):
            raise ValueError("set both key and directory, or neither")
        return self


class CrawlConfig(Config):
    """Scope, limits and politeness of the crawl."""

    enabled: bool = True
    """Whether the recipe crawls. If false, there is no crawl DAG, and the corpus comes from `[[extract.files]]`."""

    seeds: tuple[str, ...] = ()
    """URLs from which the crawl starts (http or https)."""

    seed_files: tuple[str, ...] = ()
    """Local text files with further seeds, one URL per line ("#" begins a comment)."""

    max_bad_seeds: float = Field(default=0.5, ge=0.0, le=1.0)
    """Maximum share of invalid lines in `seed_files`. Invalid lines are rejected and listed; above this share the stage
    fails, because the file is probably not a list of seeds."""

    contact: str = ""
    """A page or "mailto:" address for webmasters; sent with every request. Required outside loopback."""

    user_agent: str = "sluice"
    """Product token, by which robots.txt files address the crawler (letters, "-" and "_")."""

    hosts_file: str = ""
    """TOML file, local or in an object store, in which operators deny hosts and set pauses, caps and headers of single
    hosts (`tasks.stages.crawl.policy`). Read by every cycle; pauses and denials are read again during a fetch."""

    include_hosts: tuple[str, ...] = ()
    """Hosts that may be crawled: "host", "host:port" or "*.domain"; empty means the hosts of the seeds.
    A leading "www." makes no difference."""

    include_prefixes: tuple[str, ...] = ()
    """URL prefixes, such as "https://example.org/docs/"; on a host with a prefix, no other URLs are crawled."""

    include_pattern: str = ""
    """Regular expression that must match somewhere in a URL; empty matches all."""

    exclude_pattern: str = ""
    """Regular expression that must not match anywhere in a URL; empty excludes none."""

    partitions: int = Field(default=2, ge=1, le=MOST_MEMBERS)
    """Number of fetch partitions; a registered domain belongs to one. Fixed for the life of a crawl DB."""

    max_pages: int = Field(default=1000, ge=1)
    """Maximum number of requested URLs in one cycle, over all partitions."""

    max_pages_per_host: int = Field(default=500, ge=1)
    """Maximum number of requested URLs of one host in one cycle."""

    max_pages_per_domain: int = Field(default=5000, ge=1)
    """Maximum number of requested URLs of one registered domain in one cycle."""

    max_hosts_per_domain: int = Field(default=200, ge=1)
    """Maximum number of hosts of one registered domain in one cycle; endless generated host names are a trap."""

    max_queries_per_path: int = Field(default=100, ge=1)
    """Maximum number of query strings per path of a host that only recombine known values: more are permutations of
    filters, not pages. For query strings with a new value, the maximum is ten times as high."""

    max_depth: int = Field(default=10, ge=0)
    """Maximum number of links from a seed."""

    delay_s: float = Field(default=1.0, ge=0.0, le=3600.0)
    """Seconds between the end of one request to a host and the start of the next. Below 1 only on loopback hosts."""

    ip_delay_s: float | None = Field(default=None, ge=0.0, le=3600.0)
    """Seconds between the starts of two requests of a fetch task to one IP address, for all hosts at that address.
    Unset: 0.25 for public addresses, and none for loopback."""

    latency_factor: float = Field(default=2.0, ge=0.0, le=100.0)
    """The delay is at least this many times the host's average response time."""

    max_backoff_s: float = Field(default=60.0, gt=0.0, le=86400.0)
    """A host that requires a longer pause than this (Retry-After, back-off) is left for the next cycle."""

    timeout_s: float = Field(default=30.0, gt=0.0, le=600.0)
    """Seconds for one request, including name resolution and the body."""

    max_body_bytes: int = Field(default=8 << 20, ge=1024)
    """Maximum bytes of one body, both as received and after decompression; longer bodies are truncated and marked."""

    time_box_s: float = Field(default=3600.0, gt=0.0)
    """Time limit of one fetch task in seconds; remaining URLs are left for the next cycle. If it is reached, the set of
    captured pages depends on the speed of the sites."""

    concurrency: int = Field(default=64, ge=1, le=4096)
    """Slots for requests in one fetch task, with one request per host. A request that lasts longer than a second frees
    its slot, so that slow and silent hosts do not block others."""

    warc_pages_per_file: int = Field(default=1000, ge=1)
    """Captures per WARC file. A file is the unit of commit: a kill loses at most the open one."""

    warc_compression: Literal["gzip", "zstd"] = "gzip"
    """Compression of each record of a WARC file. Sizes are similar; every tool reads gzip, newer ones read zstd."""

    buffer_bytes: int = Field(default=4 << 30, ge=1 << 20)
    """Maximum bytes of captures on the local disk while the store does not answer; when it is full, fetching pauses."""

    sitemaps: bool = True
    """Fetch the sitemaps that robots.txt names, and follow the URLs that they list."""

    guess_sitemaps: bool | None = Field(default=None, exclude_if=lambda guess: guess is None)
    """Try /sitemap.xml, and if there is none /sitemap_index.xml, of sites whose robots.txt names no sitemap. Unset: of
    public hosts, and not of loopback."""

    feeds: bool = True
    """Follow RSS and Atom feeds that pages name."""

    ai_optouts: tuple[Literal["robots", "header", "meta", "tdm", "rsl"], ...] = (
        "robots",
        "header",
        "meta",
        "tdm",
        "rsl",
    )
    """Opt-outs from AI training that are respected: groups for AI crawlers, Content-Usage and Content-Signal in
    robots.txt; the latter two as headers, and X-Robots-Tag noai; robots meta noai; TDM reservation (header, meta, and a
    file that costs a request per site); RSL licenses (a request for each). An opt-out that addresses other AI crawlers
    by name is respected, too."""

    name_servers: tuple[str, ...] = ()
    """Name servers (IP addresses), in the order of preference; empty means those of this machine."""

    score_every: int = Field(default=5, ge=1)
    """Number of cycles between two computations of host scores."""

    priorities: str = Field(default="", exclude_if=lambda id_: not id_)
    """Id of an artifact with factors of the scores of hosts, such as "web/priorities@2026-11", which the stage
    prioritize has proposed. Naming a version accepts it; no proposal is ever read because it is the newest."""

    mime_types: tuple[str, ...] = ("text/html", "application/xhtml+xml", "text/plain", "application/pdf")
    """Content types that are kept; responses without a type are kept, too."""

    recrawl: bool = False
    """Start from the crawl DB of the previous cycle: only due pages are fetched again. If false, every version is an
    independent crawl."""

    allow_hosts: dict[str, tuple[str, ...]] = {}
    """Hosts that may be requested on ports other than 80 and 443, or at a private address: "host" or
    "host:port", and the networks to which it may resolve, such as { "wiki.corp:8080" = ["10.20.0.0/16"] }; [] means
    public addresses only. A grant applies to one host only."""

    render: RenderConfig = RenderConfig()
    """Rendering of pages that show their text only in a browser."""

    signature: SignatureConfig = Field(default=SignatureConfig(), exclude_if=lambda one: not one.key)
    """Signatures of requests (Web Bot Auth)."""

    allow_loopback: bool = False
    """Lets the crawl reach this machine (127.0.0.0/8, ::1, *.localhost) on any port. For demos and tests."""

    @field_validator("user_agent")
    @classmethod
    def _is_token(cls, value: str) -> str:
        if not _TOKEN.fullmatch(value):
            raise ValueError(f"{value!r} is not a product token; use letters, '-' and '_' only (RFC 9309, 2.2.1)")
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
        if problems := [f"the seed {seed!r} is not an http or https URL" for seed in value if not _host_of(seed)]:
            raise Problems(problems)
        return value

    @field_validator("priorities")
    @classmethod
    def _is_one_proposal(cls, value: str) -> str:
        name, _, version = value.partition("@")
        if value and (not name.endswith("/priorities") or not version or version == "previous"):
            raise ValueError(f'{value!r} names no proposal: write the one to accept, such as "web/priorities@2026-11"')
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
                raise ValueError(f"{host!r} is not a host; write host, host:port or *.domain in lower case")
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
            raise ValueError(f"{value!r} is not a regular expression: {error}") from None
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
        problems = []
        if self.delay_s < 1.0 and not self.allow_loopback:
            problems.append(f"delay_s = {self.delay_s} is below 1 second, which is allowed for loopback hosts only")
        hosts = [_host_of(seed) for seed in self.seeds]
        hosts += [_host_of(f"http://{entry.removeprefix('*.')}/") for entry in self.include_hosts]
        hosts += [_host_of(prefix) for prefix in self.include_prefixes]
        public = sorted({host for host in hosts if not is_loopback(host)})
        if public and not self.contact:
            problems.append(
                f"contact is missing: webmasters of {public[0]} must be able to reach you; "
                "set contact to a page or to mailto:name@host"
            )
        local = [seed for seed in self.seeds if is_loopback(_host_of(seed))]
        if local and not self.allow_loopback:
            problems.append(f"the seed {local[0]!r} is on this machine; set allow_loopback = true to allow that")
        if problems:
            raise Problems(problems)
        return self


@lru_cache(maxsize=1 << 14)
def is_loopback(host: str) -> bool:
    """Returns whether a host (without port) denotes this machine: a loopback address or a .localhost name.

    An IPv4 address written as IPv6 denotes none; Python 3.13 would say that it does, earlier ones not.

    >>> is_loopback("docs.localhost"), is_loopback("127.0.0.9"), is_loopback("[::1]"), is_loopback("localhost.com")
    (True, True, True, False)
    """
    name = host.strip("[]").rstrip(".").lower()
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        address = ipaddress.ip_address(name)
        return address.is_loopback and not getattr(address, "ipv4_mapped", None)
    except ValueError:
        return False


def _check_host(host: str) -> None:
    match = _ONE_HOST.fullmatch(host)
    if match is None:
        raise ValueError(f"{host!r} is not a single host; write host or host:port in lower case")
    name, port = match[1], match[2]
    if name.startswith("[") and str(ipaddress.IPv6Address(name.strip("[]"))) != name.strip("[]"):
        raise ValueError(f"{host!r}: write the address in its short form")
    if port in ("80", "443"):
        raise ValueError(f"{host!r}: omit the port; 80 and 443 are allowed for every host")
    if is_loopback(name):
        raise ValueError(f"{host!r} is this machine; set allow_loopback = true instead")
    if name in METADATA_NAMES:
        raise ValueError(f"{host!r} is a cloud metadata service, which is never requested")


def _check_network(network: str) -> None:
    try:
        parsed = ipaddress.ip_network(network)
    except ValueError as error:
        raise ValueError(f"{network!r} is not a network ({error}); write one such as 10.20.0.0/16") from None
    private = (outer for outer in _PRIVATE if outer.version == parsed.version)
    if not any(parsed.subnet_of(outer) for outer in private):  # type: ignore[arg-type]
        raise ValueError(f"{network!r} is not in a private network ({', '.join(map(str, _PRIVATE))})")


def _host_of(url: str) -> str:
    parts = web_parts(url.strip())
    return parts.host if parts else ""
