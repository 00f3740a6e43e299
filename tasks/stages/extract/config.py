"""Settings of the extract stage.

A file source adds documents to the corpus without a crawl: text files, files of rows, external WARC files, or the
descriptions of the installed packages. A stream does so too: the messages of a Kafka topic, which the stage `stream`
reads before `extract`; and an archive: the captures of some domains by Common Crawl, which the stage `archive` fetches.
"""

import re
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, AwareDatetime, Field, ValidationInfo, field_validator, model_validator

from tasks.core.clients import hub
from tasks.core.config import Config, Problems, SectionCopy, nearest, require_absolute
from tasks.core.errors import InputError
from tasks.formats.documents.structure import Form
from tasks.formats.lakes import DELTA, FORMATS, ICEBERG, TableAddress
from tasks.formats.tokens.labels import SourceName
from tasks.stages.extract import parser
from tasks.stages.extract.row import ExtractOptions

WEB = "web"
"""Name of the source of crawled documents."""

PLACEHOLDERS = {"{stdlib}": "stdlib", "{site_packages}": "purelib"}
"""Placeholders at the beginning of a path, and the names of these paths in `sysconfig`."""


def _absolute(path: str) -> str:
    if hub.is_hub(path):
        try:
            hub.parse(path)
        except InputError as error:
            raise ValueError(str(error)) from None
    return path if path.startswith(tuple(PLACEHOLDERS)) else require_absolute(path)


# A label has no upper case: the names are compared with those of the index.
_HOST = re.compile(r"^([a-z0-9_]([a-z0-9_-]*[a-z0-9_])?\.)*[a-z0-9]([a-z0-9-]*[a-z0-9])?$")


def _url_prefix(prefix: str) -> str:
    parts = urlsplit(prefix)
    if parts.scheme not in ("http", "https") or not _HOST.match(parts.netloc.partition(":")[0]):
        raise ValueError(f'"{prefix}" is not the beginning of a URL: write https://example.org/docs/')
    return prefix


def _archive_root(root: str) -> str:
    require_absolute(root)
    if "@" in urlsplit(root).netloc or "?" in root:
        raise ValueError("the root has credentials or a query: set them in the environment")
    return root


def _glob_problem(glob: str) -> str:
    """Returns why a glob cannot match the name of a file below a folder, with the remedy; "" if it can."""
    if glob.startswith(("/", "./", "../", "{")) or "://" in glob:
        return "matches no file: write it as below the fixed folder of path, such as test/**"
    if not glob or glob.endswith("/"):
        return "matches no file: add ** for all files of a folder"
    if "[" in re.sub(r"\[!?+\]?+[^]]*+\]", "", glob):
        return "has a [ without ]: close it, or write [[] for the character itself"
    return ""


FILES, LICENSE = "files:", "license:"
"""Prefixes of roles in records: of the files of a source, and of the license that the card of its dataset states."""

MESSAGES = "messages"
"""Kind of the sources that are streams."""

ORIGIN = "kafka"
"""Field of a message with its topic, partition, offset and time; it replaces a field of this name."""

WARC = "warc"
"""Kind of files of captures; also that of the sources that are archives."""

HTML = "html"
"""Kind of files of pages."""

KINDS = ("text", HTML, "jsonl", "parquet", "metadata", WARC, *FORMATS)
"""Kinds of files that need no parser."""


class FileSource(Config):
    """Local files that enter the corpus as one source."""

    name: SourceName
    """Name in mixtures and reports, and host in the URLs of its documents."""

    kind: str
    """Content of a file: one text (`text`), one page (`html`, read as a capture is), one document per row (`jsonl`:
    JSON lines or arrays; `parquet`), a package description (`metadata`), or WARC records (`warc`); one document per row
    of a table (`delta`, `iceberg`); or the name of a parser, which reads the file whole: `pdf`, `epub`, `docx`, or one
    of an installed package.

    WARC files give captured pages; WET files, which are WARC files as well, give texts. ARC files, the format of web
    archives before 2009, and WACZ files, which are zip files with WARC files, are detected by their first bytes.
    """

    path: Annotated[str, AfterValidator(_absolute)]
    """Absolute glob (`**` for any depth), on this machine, as a URL on an object store (s3://bucket/folder/*.gz), or in
    a dataset of the Hugging Face hub (hf://datasets/owner/name@revision/data/*.parquet). A version reads one commit of
    a dataset: that of the revision, or of the default branch, when the version was begun.

    Of a table its folder or URL; of an Iceberg table also its metadata file (ends with .json), or
    catalog://<catalog>/<namespace>.<table>.

    {stdlib} and {site_packages} are those of the running Python. Files may be compressed with gzip, zstd or bzip2, and
    JSON files also with zip; compression is detected by content, not by name.
    """

    version: int | None = Field(default=None, ge=0, exclude_if=lambda version: version is None)
    """Delta: the version to read. None: the newest one when the version of the recipe is begun, which keeps it."""

    snapshot: int | None = Field(default=None, exclude_if=lambda snapshot: snapshot is None)
    """Iceberg: id of the snapshot to read. None: as for `version`."""

    timestamp: AwareDatetime | None = Field(default=None, exclude_if=lambda timestamp: timestamp is None)
    """Tables: the newest version at this time is read, such as 2026-11-21T09:30:00Z."""

    exclude: tuple[str, ...] = ()
    """Globs of names below the fixed folder of `path`; files that match are left out ("test/**", "*_pb2.py").

    `*` matches "/" too. A glob that matches no file is reported when the stage runs.
    """

    max_files: int | None = Field(default=None, ge=1)
    """Maximum number of files, sampled by hash of the path: the same files on every machine; None for all."""

    max_bytes: int | None = Field(default=None, ge=1)
    """Maximum total size of the files in that sample; None for no limit."""

    max_file_bytes: int = Field(default=4_000_000, ge=1)
    """Larger texts, descriptions and files for a parser are rejected, since they are data rather than prose or code.
    Files of rows have no such limit."""

    text_field: str = "text"
    """Rows (jsonl, parquet): the field that holds the text."""

    url_field: str = "url"
    """Rows: the field that holds the URL; the URL of a row without one consists of file and row number."""

    metadata_fields: tuple[str, ...] | None = None
    """Rows: the fields kept as `metadata`; None keeps all except text and URL, an empty list none."""

    max_metadata_bytes: int = Field(default=65_536, ge=2)
    """Rows: maximum bytes of `metadata` as JSON; the longest fields are left out to meet the limit."""

    @field_validator("kind")
    @classmethod
    def _is_known(cls, kind: str) -> str:
        if kind not in (kinds := [*KINDS, *parser.parser_names()]):
            raise Problems([f'no kind "{kind}": {nearest(kind, kinds)}'])
        return kind

    @model_validator(mode="after")
    def _is_pinned_once(self) -> "FileSource":
        given = {"version": DELTA, "snapshot": ICEBERG, "timestamp": " or ".join(FORMATS)}
        pins = [name for name in given if getattr(self, name) is not None]
        for name in pins:
            if self.kind not in given[name].split(" or "):
                raise ValueError(f'{name} is of kind = "{given[name]}", and this is {self.kind}: remove it')
        if len(pins) > 1:
            raise ValueError(f"{' and '.join(pins)} name two versions of the table: remove one")
        return self

    def table(self) -> TableAddress | None:
        """Returns the table that the source reads; None for other files."""
        if self.kind not in FORMATS:
            return None
        version = self.version if self.kind == DELTA else self.snapshot
        moment = self.timestamp.isoformat() if self.timestamp else None
        return TableAddress(self.kind, self.path, version, moment, f'the file source "{self.name}"')

    @field_validator("exclude")
    @classmethod
    def _can_match(cls, globs: tuple[str, ...]) -> tuple[str, ...]:
        if problems := [f'the glob "{glob}" {problem}' for glob in globs if (problem := _glob_problem(glob))]:
            raise Problems(problems)
        return globs


class Topic(Config):
    """A Kafka topic, and how much of it a version reads."""

    name: SourceName
    """Name of the source in mixtures and reports."""

    topic: str = Field(pattern=r"^[A-Za-z0-9._-]+$", max_length=249)
    """Name of the topic. Servers and credentials are in `[place] stream_conn_id` or SLUICE_KAFKA, not in the recipe."""

    most: int | None = Field(default=None, ge=1)
    """Maximum number of offsets that a version reads, evenly from the partitions; None for all."""

    gone: Literal["refuse", "skip"] = "refuse"
    """What to do if the broker has deleted messages that no version has read: fail, or go on with the oldest left."""


class StreamSource(Topic):
    """A Kafka topic that enters the corpus as one source. Each message is a JSON object, and gives one document."""

    text_field: str = "text"
    """The field that holds the text."""

    url_field: str = "url"
    """The field that holds the URL; the URL of a message without one has its topic, partition and offset."""

    metadata_fields: tuple[str, ...] | None = None
    """The fields kept as `metadata`; None keeps all except text and URL, an empty list none."""

    max_metadata_bytes: int = Field(default=65_536, ge=2)
    """Maximum bytes of `metadata` as JSON; the longest fields are left out to meet the limit."""


class MessageFiles(FileSource):
    """The files of a stream, as the stage `stream` has written them."""


def _topics(streams: tuple[StreamSource, ...]) -> tuple[Topic, ...]:
    return tuple(Topic(**{field: getattr(stream, field) for field in Topic.model_fields}) for stream in streams)


class StreamConfig(Config):
    """Topics that the stage `stream` reads; the recipe fills them in.

    They lack the fields of a message, so that a change of these extracts the same messages again.
    """

    topics: tuple[Topic, ...] | None = Field(default=None, exclude_if=lambda topics: topics is None)
    """Those of `[[extract.streams]]`."""

    COPIED = {"topics": SectionCopy("extract.streams", when="extract.streams", convert=_topics)}

    @property
    def active(self) -> bool:
        """Whether the recipe has streams."""
        return bool(self.topics)


class Archive(Config):
    """Captures of some sites by Common Crawl, which enter the corpus as one source."""

    name: SourceName
    """Name of the source in mixtures and reports."""

    crawls: tuple[Annotated[str, Field(pattern=r"^CC-MAIN-[0-9-]+$")], ...] = Field(min_length=1)
    """Crawls by their ids, such as CC-MAIN-2026-43. A page that several of them have captured with the same content is
    read from the first of these in this order, so that a later crawl adds the pages that are new or have changed."""

    domains: tuple[Annotated[str, Field(pattern=_HOST.pattern)], ...] = ()
    """Hosts, each with all hosts below it: example.org. An internationalized name is in its ASCII form (xn--...)."""

    prefixes: tuple[Annotated[str, AfterValidator(_url_prefix)], ...] = ()
    """Beginnings of URLs: https://example.org/docs/; http and https are the same, and so is a host with "www."."""

    languages: tuple[Annotated[str, Field(pattern=r"^[a-z]{3}$")], ...] = ()
    """Main languages as Common Crawl detected them (ISO 639-3: eng); () for all. Captures without one are left out."""

    mime: tuple[str, ...] = ("text/html", "application/xhtml+xml")
    """Media types as detected from the content; () for all."""

    most: int | None = Field(default=None, ge=1)
    """Maximum number of captures, sampled by hash of the URL; None for all."""

    root: Annotated[str, AfterValidator(_archive_root)] = "s3://commoncrawl"
    """Where the files of Common Crawl are: s3://commoncrawl with the credentials of the place, a copy of a part of it,
    or https://data.commoncrawl.org."""

    contact: str = ""
    """Page or address in the user agent, by which the operators of a web server can reach you; required with https."""

    @model_validator(mode="after")
    def _is_bounded(self) -> "Archive":
        if not self.domains and not self.prefixes:
            raise ValueError("an archive needs domains or prefixes: a whole crawl has some hundred terabytes")
        if len(set(self.crawls)) < len(self.crawls):
            raise ValueError("crawls names a crawl twice: remove it")
        if self.root.startswith(("http://", "https://")) and not self.contact:
            raise ValueError(f"contact is missing: it is in the requests to {self.root}")
        return self


class ArchiveConfig(Config):
    """Captures that the stage `archive` fetches; the recipe fills them in."""

    sources: tuple[Archive, ...] | None = Field(default=None, exclude_if=lambda sources: sources is None)
    """Those of `[[extract.archives]]`."""

    COPIED = {"sources": SectionCopy("extract.archives", when="extract.archives")}

    @property
    def active(self) -> bool:
        """Whether the recipe has archives."""
        return bool(self.sources)


class ArchiveFiles(FileSource):
    """The WARC files of an archive, as the stage `archive` has written them."""


class ExtractConfig(Config):
    """Extraction of documents from captures, files and messages."""

    extractor: Literal["blocks", "resiliparse", "trafilatura", "visible"] = "blocks"
    """Extractor of the main text of a page.

    `blocks` classifies the blocks of a page, and is best for articles and posts; `resiliparse` finds the main text
    fastest; `trafilatura`, an extra (pip install 'sluice[careful]'), takes more than three times as long as `blocks`.
    `visible` extracts all visible text, including menus.
    """

    text: Form = "plain"
    """Text of pages: `plain`, or `markdown`, with the marks of headings, lists, tables, quotes and code. Filters
    measure the plain text in both cases."""

    max_table_rows: int = Field(default=1_000, ge=2)
    """Rows of a data table of a page or a file that are kept; a line after them says how many others it has."""

    comments: bool = False
    """Keep readers' comments. They lower F1 by 0.9 points on pages with manually extracted main text."""

    min_main_share: float = Field(default=0.05, ge=0, le=1)
    """Main text of less than 1,000 characters and less than this share of all visible text counts as not found.

    All visible text is used instead. None of 91 pages with manually extracted main text is below the default, so the
    rule costs nothing there; it helps with pages whose markup does not show what is content (tables, old manuals).
    """

    min_chars: int = Field(default=200, ge=1)
    """Shorter texts are rejected as `too_short`."""

    max_payload_bytes: int = Field(default=16_000_000, ge=1)
    """Larger payloads, after decompression, are rejected as `too_large`; decompression stops at this size."""

    max_page_cpu_s: float = Field(default=10.0, gt=0)
    """Limit of CPU seconds per page; a page that exceeds it is quarantined as poison."""

    honour_noindex: bool = True
    """Reject pages with a noindex directive in meta robots or X-Robots-Tag."""

    jsonl: bool = False
    """Write the documents also as JSON lines, `jsonl/<part>.jsonl.gz`, for readers without Parquet."""

    files: tuple[FileSource, ...] = ()
    """Sources in addition to the crawl."""

    streams: tuple[StreamSource, ...] = Field(default=(), exclude_if=lambda streams: not streams)
    """Kafka topics in addition to the crawl and the files; a version has the messages that no earlier one has read."""

    archives: tuple[Archive, ...] = Field(default=(), exclude_if=lambda archives: not archives)
    """Captures by Common Crawl, in addition to the other sources."""

    parsers: dict[str, dict[str, Any]] = Field(default={}, validate_default=True)
    """Parsers with their settings, such as `[extract.parsers.pdf] max_pages = 100`: for captured bodies of their media
    types, and for files of that kind. A parser that is the kind of a file source need not be listed here."""

    parts: int = Field(default=0, ge=0)
    """Number of output parts; 0 computes it from `part_bytes`, with at least 8 parts for 8 or more files."""

    part_bytes: int = Field(default=64_000_000, ge=1)
    """Input bytes per part if `parts` is 0; compressed files count with four times their size. A larger file of rows is
    split into several parts."""

    @property
    def source_names(self) -> tuple[str, ...]:
        """The names of all sources except the crawl."""
        return (
            *(source.name for source in self.files),
            *(stream.name for stream in self.streams),
            *(archive.name for archive in self.archives),
        )

    def options(self) -> ExtractOptions:
        """Returns the settings that the child process needs."""
        return ExtractOptions(
            extractor=self.extractor,
            text=self.text,
            max_table_rows=self.max_table_rows,
            comments=self.comments,
            min_main_share=self.min_main_share,
            max_payload_bytes=self.max_payload_bytes,
            honour_noindex=self.honour_noindex,
            parsers=parser.by_media_type(self.parsers),
        )

    @field_validator("parsers")
    @classmethod
    def _complete(cls, settings: dict[str, dict[str, Any]], info: ValidationInfo) -> dict[str, dict[str, Any]]:
        if "files" not in info.data:
            return settings  # the error in `files` is already reported
        if own := sorted(set(settings) & {*KINDS, MESSAGES}):
            raise Problems([f'"{name}" is a kind of file that needs no parser: remove it' for name in own])
        return parser.complete_settings((file.kind for file in info.data["files"] if file.kind not in KINDS), settings)

    @model_validator(mode="after")
    def _names_differ(self) -> "ExtractConfig":
        names = self.source_names
        if twice := sorted({name for name in names if names.count(name) > 1 or name == WEB}):
            raise ValueError(f'names of sources must be unique and not "{WEB}": {", ".join(twice)}')
        return self
