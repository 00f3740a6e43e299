"""Interface and registry of parsers, which extract text from file formats such as PDF.

`Parser` is the interface; the modules in `OWN` implement it, and so do installed packages, which register entry points
(`tasks.core.extensions`). A recipe names parsers with their settings; this module finds the parsers and validates the
settings. Bodies are parsed in the child process of `guard`, which is killed if it exceeds its limits.
"""

import importlib.util
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import version
from typing import Any, ClassVar

from tasks.core import extensions
from tasks.core.child_process import limit_cpu
from tasks.core.config import Config, Problems
from tasks.core.errors import InputError
from tasks.formats.documents.structure import Form
from tasks.stages.extract.row import Content, Rejected

__all__ = ["Content", "Parser", "Rejected"]

OWN = {
    "docx": "tasks.stages.extract.parsers.docx",
    "epub": "tasks.stages.extract.parsers.epub",
    "pdf": "tasks.stages.extract.parsers.pdf",
}
"""Modules of Sluice's own parsers."""

_REASON = re.compile(r"[a-z][a-z0-9_]{0,63}")
"""Pattern of reasons, which become names of metrics."""


class Parser(Config):
    """Extracts the text of a file or body; the fields are the settings that affect the text.

    Its module is imported when a DAG is parsed, so expensive imports belong in `parse`.
    """

    media_types: ClassVar[tuple[str, ...]] = ()
    """Media types of captured bodies that it parses, in lower case: "application/pdf". File sources name their parser
    by `kind`."""

    library: ClassVar[str] = ""
    """For parsers of Sluice: the package that determines the text; its version is part of the fingerprint."""

    extra: ClassVar[str] = ""
    """For parsers of Sluice: the extra of Sluice that installs the library; "" if Sluice always does."""

    revision: ClassVar[int] = 1
    """For parsers of Sluice: increased when the text of the same body changes. Part of the fingerprint from 2 on."""

    modules: ClassVar[tuple[str, ...]] = ()
    """Modules that the child process of `guard` imports before its first body, because their import takes long."""

    @classmethod
    def libraries(cls, settings: Mapping[str, Any]) -> str:
        """Returns the packages that determine the text under these settings, with their versions, for fingerprints."""
        revision = f", revision {cls.revision}" if cls.revision > 1 else ""
        return f"{cls.library} {version(cls.library)}{revision}" if cls.library else ""

    def check_installed(self) -> None:
        """Raises InputError if a package that the settings need is not installed."""
        if self.extra and importlib.util.find_spec(self.library) is None:
            raise InputError(f"the recipe has a parser that needs {self.library}", _install(self.extra))

    @property
    def needed_modules(self) -> tuple[str, ...]:
        """The `modules` that these settings need."""
        return self.modules

    @property
    def memory_bytes(self) -> int | None:
        """Bytes of address space that the child process may allocate; None for the limit of pages."""
        return None

    @property
    def recognizes(self) -> bool:
        """Whether it gives the confidence of pages that it has read from bitmaps."""
        return False

    @property
    def cpu_s(self) -> float | None:
        """Limit of CPU seconds per body; None for the limit of pages."""
        return None

    @property
    def wait_s(self) -> float:
        """Seconds for which the parsing of one body may wait for other programs."""
        return 0.0

    def parse(self, data: bytes, name: str) -> Content:
        """Returns the text and the metadata of a body.

        Args:
            data: the decompressed body.
            name: the path of a file below the fixed folder of its pattern, or the URL of a captured body.

        Raises:
            Rejected: the body gives no document; the reason is an identifier, such as "pdf_encrypted". With any other
                exception the body is quarantined as poison.
        """
        raise NotImplementedError


def parser_names() -> list[str]:
    """Returns the names of all parsers, Sluice's own and those of installed packages."""
    return extensions.names(extensions.PARSERS, OWN)


def find_parser(name: str, settings: Mapping[str, Any]) -> Parser:
    """Returns the parser `name` with `settings`; raises Problems with all errors in them."""
    kind, package = _kind(name)
    if extra := missing_extra(name):
        raise Problems([f'the parser "{name}" needs {kind.library}: {_install(extra)}'])
    return extensions.configure(kind, name, settings, package or kind.libraries(settings))


def _kind(name: str) -> tuple[type[Parser], str]:
    """Returns the class of a parser, and the package that provides it; "" for a parser of Sluice."""
    module, package = extensions.module_of(extensions.PARSERS, "parser", name, OWN)
    for member in vars(module).values():
        if isinstance(member, type) and issubclass(member, Parser) and member.__module__ == module.__name__:
            return member, package
    raise Problems([f'the module of the parser "{name}" of {package} defines no Parser'])


def missing_extra(name: str) -> str:
    """Returns the extra of Sluice without which a parser cannot be used; "" if it can."""
    kind, _ = _kind(name)
    return kind.extra if kind.extra and importlib.util.find_spec(kind.library) is None else ""


def _install(extra: str) -> str:
    return f"install it wherever Sluice runs (pip install 'sluice[{extra}]')"


def package_of(name: str) -> str:
    """Returns the package that provides the parser `name`, with its version; "" for a parser of Sluice."""
    return extensions.module_of(extensions.PARSERS, "parser", name, OWN)[1]


def complete_settings(kinds: Iterable[str], settings: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Returns the settings of all parsers in use, with all defaults, and with package and version.

    Args:
        kinds: names of parsers that are kinds of file sources.
        settings: settings by name of the parser; these parsers read captured bodies as well.

    Raises:
        Problems: a parser does not exist, its settings are invalid, or two parsers read the same media type.
    """
    complete: dict[str, dict[str, Any]] = {}
    messages: list[str] = []
    readers: dict[str, str] = {}
    for name in dict.fromkeys((*kinds, *settings)):
        try:
            parser = find_parser(name, settings.get(name, {}))
            dumped = parser.model_dump(mode="json")
            complete[name] = {**dumped, extensions.PACKAGE: package_of(name) or parser.libraries(dumped)}
            for media_type in parser.media_types:
                if (other := readers.setdefault(media_type, name)) != name:
                    messages.append(f'"{other}" and "{name}" both read {media_type}: leave one of them out')
        except Problems as problems:
            messages += problems.messages
    if messages:
        raise Problems(messages)
    return dict(sorted(complete.items()))


def by_media_type(parsers: Mapping[str, Mapping[str, Any]]) -> dict[str, tuple[str, str]]:
    """Returns name and settings (as JSON, for the child process) of the parser for each media type."""
    return {
        kind: (name, json.dumps(settings))
        for name, settings in parsers.items()
        for kind in find_parser(name, settings).media_types
    }


def parse_body(
    name: str, settings: str, data: bytes, location: str, form: Form = "plain", most_rows: int | None = None
) -> Content:
    """Parses a body; the texts of the result are clean and its date is in UTC.

    Args:
        name: name of the parser.
        settings: settings of the parser as JSON.
        data: the body.
        location: the path of a file, or the URL of a captured body.
        form: the form of the text that is written from the blocks of the result.
        most_rows: rows of a table that are kept; a row after them says how many others it has. None for all.

    Raises:
        Rejected: the body gives no document.
        TypeError, ValueError: the result of the parser, or its reason for a rejection, is invalid.
    """
    try:
        parser = _load(name, settings)
        if parser.cpu_s is not None:
            limit_cpu(parser.cpu_s)
        return _validated(parser.parse(data, location), form, most_rows)
    except Rejected as rejected:
        reason = str(rejected.reason)
        if not _REASON.fullmatch(reason):
            raise ValueError(
                f'the parser "{name}" rejects with {reason!r}, which is not an identifier like "{name}_empty"'
            ) from None
        raise Rejected(reason, rejected.pages) from None  # a subclass of the package might not be picklable


def _validated(content: Content, form: Form, most_rows: int | None) -> Content:
    """Returns the result of a parser with clean texts and its date in UTC; raises TypeError for invalid types."""
    from tasks.formats.documents.structure import with_first_rows, written
    from tasks.formats.documents.text import clean, clean_code

    if not isinstance(content, Content):
        raise TypeError(f"a parser must return Content, not {type(content).__name__}")
    if not isinstance(content.published, datetime | None):
        raise TypeError(f"published must be a datetime or None, not {type(content.published).__name__}")
    published = content.published
    if published is not None:
        published = published.astimezone(UTC) if published.tzinfo else published.replace(tzinfo=UTC)
    if content.blocks:
        text, layout = written((with_first_rows(block, most_rows) for block in content.blocks), form)
        content = replace(content, text=text, layout=layout, form=form)
    texts = ("text", "title", "language_hint", "canonical", "licence", "author", "site")
    cleaned = {field: clean(getattr(content, field)) for field in texts}
    if content.blocks:
        cleaned["text"] = clean_code(content.text)
    if content.layout and cleaned["text"] != content.text:
        raise ValueError("the text of a parser with a layout must be as tasks.formats.documents.text.clean returns it")
    return replace(content, published=published, blocks=(), **cleaned)  # type: ignore[arg-type]


@cache
def _load(name: str, settings: str) -> Parser:
    return find_parser(name, json.loads(settings))
