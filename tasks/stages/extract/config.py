"""Settings of the extract stage.

A file source adds documents to the corpus without a crawl: a folder of text, a dump of rows, foreign WARC files, or the
descriptions of the installed packages.
"""

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, ValidationInfo, field_validator, model_validator

from tasks.core.config import Config, Problems, nearest, require_absolute
from tasks.formats.tokens.labels import SourceName
from tasks.stages.extract import parser

WEB = "web"
"""Source of the crawl's documents."""


PLACEHOLDERS = {"{stdlib}": "stdlib", "{site_packages}": "purelib"}
"""Prefixes of a path, and their names in `sysconfig`."""


def _absolute(path: str) -> str:
    return path if path.startswith(tuple(PLACEHOLDERS)) else require_absolute(path)


KINDS = ("text", "jsonl", "parquet", "metadata", "warc")
"""Kinds of files that need no parser."""


class FileSource(Config):
    """Local files that enter the corpus as one source."""

    name: SourceName
    """Name in mixtures and reports, and host in the URLs of its documents."""

    kind: str
    """Content of a file: one text (`text`), one document per row (`jsonl`: JSON lines or arrays; `parquet`), a package
    description (`metadata`), or WARC records (`warc`); or the name of a parser, which reads the file whole: `pdf`, or
    one of an installed package.

    WARC files give the captured pages, WET files, which are WARC files too, the texts. ARC files, the web's archives
    before 2009, are detected by their first bytes.
    """

    path: Annotated[str, AfterValidator(_absolute)]
    """Absolute glob (`**` for any depth), on this machine or as a URL on an object store (s3://bucket/folder/*.gz).

    {stdlib} and {site_packages} are those of the running Python. Files may be compressed with gzip, zstd or bzip2,
    those of rows of JSON also with zip, whatever their names.
    """

    exclude: tuple[str, ...] = ()
    """Globs below the fixed folder of `path`; files that match are left out ("test/**", "*_pb2.py")."""

    max_files: int | None = Field(default=None, ge=1)
    """Take at most so many files: a sample by hash of the path, the same on every machine; None takes all."""

    max_bytes: int | None = Field(default=None, ge=1)
    """Take files of that sample only while their sizes sum up to this many bytes; None takes all."""

    max_file_bytes: int = Field(default=4_000_000, ge=1)
    """A larger text, description or file for a parser is rejected: it is data, not prose or code. Rows have no such
    cap."""

    text_field: str = "text"
    """Rows (jsonl, parquet): the field that holds the text."""

    url_field: str = "url"
    """Rows: the field that holds the URL; a row without one gets a URL made of file and row number."""

    metadata_fields: tuple[str, ...] | None = None
    """Rows: the fields kept as `metadata`; None keeps all except text and URL, an empty list none."""

    max_metadata_bytes: int = Field(default=65_536, ge=2)
    """Rows: bytes of `metadata` at most, as JSON; the longest fields are left out until it fits."""

    @field_validator("kind")
    @classmethod
    def _is_known(cls, kind: str) -> str:
        if kind not in (known := [*KINDS, *parser.parser_names()]):
            raise Problems([f'no kind "{kind}": {nearest(kind, known)}'])
        return kind


class ExtractConfig(Config):
    """Extraction of documents from captures and files."""

    extractor: Literal["blocks", "resiliparse", "trafilatura", "visible"] = "blocks"
    """Extractor of the main text of a page.

    `blocks` classifies the lines of `resiliparse`, for articles and posts; `resiliparse` alone is the fastest;
    `trafilatura`, an extra (pip install 'sluice[careful]'), takes ten times as long. `visible` takes all visible text,
    including menus.
    """

    comments: bool = False
    """Keep readers' comments. Off: they cost 0.9 points of F1 on pages with hand-made main text."""

    min_main_share: float = Field(default=0.05, ge=0, le=1)
    """Below this share of all visible text, main text of less than 1,000 characters counts as not found.

    The whole page is taken instead. Of 91 pages with hand-made main text none falls below it, so the rule
    costs nothing there; it saves pages laid out without any mark of what is content (tables, old documentation).
    """

    min_chars: int = Field(default=200, ge=1)
    """Shorter texts are rejected as `too_short`."""

    max_payload_bytes: int = Field(default=16_000_000, ge=1)
    """Larger payloads, after decompression, are rejected as `too_large`; a bomb is unpacked no further."""

    max_page_cpu_s: float = Field(default=10.0, gt=0)
    """Limit of CPU seconds per page; a page that exceeds it is quarantined as poison."""

    honour_noindex: bool = True
    """Reject pages with a noindex directive in meta robots or X-Robots-Tag."""

    jsonl: bool = False
    """Write the documents also as JSON lines, `jsonl/<part>.jsonl.gz`, for readers without Parquet."""

    files: tuple[FileSource, ...] = ()
    """Sources beside the crawl."""

    parsers: dict[str, dict[str, Any]] = Field(default={}, validate_default=True)
    """Parsers with their settings, such as `[extract.parsers.pdf] max_pages = 100`: for captured bodies of their media
    types, and for files of that kind. Those that files name need not stand here."""

    parts: int = Field(default=0, ge=0)
    """How many output parts; 0 chooses by `part_bytes`, and at least 8 where there are as many files."""

    part_bytes: int = Field(default=64_000_000, ge=1)
    """Input per part when `parts` is 0; what is compressed counts four times its size. A file of rows that is larger
    goes into several parts."""

    @field_validator("parsers")
    @classmethod
    def _complete(cls, settings: dict[str, dict[str, Any]], info: ValidationInfo) -> dict[str, dict[str, Any]]:
        if "files" not in info.data:
            return settings  # the error in `files` is already reported
        if own := sorted(set(settings) & set(KINDS)):
            raise Problems([f'"{name}" is a kind of files that needs no parser: take it out' for name in own])
        return parser.complete_settings((file.kind for file in info.data["files"] if file.kind not in KINDS), settings)

    @model_validator(mode="after")
    def _names_differ(self) -> "ExtractConfig":
        names = [source.name for source in self.files]
        if twice := sorted({name for name in names if names.count(name) > 1 or name == WEB}):
            raise ValueError(f'file sources need names of their own, other than "{WEB}": {", ".join(twice)}')
        return self
