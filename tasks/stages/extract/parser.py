"""Parsers: extraction of text from a kind of file or captured body that needs a reader of its own.

`Parser` is the interface, implemented by `pdf` and by installed packages, whose metadata are read
(`tasks.core.extensions`). A recipe names parsers with their settings, which are looked up and validated here. Bodies
are parsed in the process of `guard`, which may be killed over them.
"""

import json
import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import version
from typing import Any, ClassVar

from tasks.core import extensions
from tasks.core.child_process import limit_cpu
from tasks.core.config import Config, Problems
from tasks.stages.extract.row import Content, Rejected

__all__ = ["Content", "Parser", "Rejected"]

OWN = {"pdf": "tasks.stages.extract.pdf"}
"""Modules of Sluice's own parsers."""

_REASON = re.compile(r"[a-z][a-z0-9_]{0,63}")
"""Reasons become names of metrics."""


class Parser(Config):
    """Extracts the text of a file or body; its fields are the settings that affect the text.

    The module is imported at DAG parse time, so expensive imports belong into `parse`.
    """

    media_types: ClassVar[tuple[str, ...]] = ()
    """Media types of captured bodies that it reads, in lower case: "application/pdf". Files name their parser by
    kind."""

    library: ClassVar[str] = ""
    """Package that the text depends on, of a parser of Sluice; its version is part of the fingerprint."""

    revision: ClassVar[int] = 1
    """Of a parser of Sluice: raised where it gives another text of the same body. Part of the fingerprint from 2 on."""

    modules: ClassVar[tuple[str, ...]] = ()
    """What the process of `guard` imports before its first body, because it takes long."""

    @property
    def cpu_s(self) -> float | None:
        """CPU seconds that one body may take; None for those of a page."""
        return None

    @property
    def wait_s(self) -> float:
        """Seconds that one body may wait for other programs."""
        return 0.0

    def parse(self, data: bytes, name: str) -> Content:
        """Returns the text and the metadata of a body.

        Args:
            data: the body, unpacked.
            name: the path of a file below the fixed folder of its pattern, or the URL of a captured body.

        Raises:
            Rejected: it gives no document, for a reason in machine words, such as "pdf_encrypted". Any other exception
                sets the body aside as poison, with its cause.
        """
        raise NotImplementedError


def parser_names() -> list[str]:
    """Returns the names of all parsers, Sluice's own and those of installed packages."""
    return extensions.names(extensions.PARSERS, OWN)


def find_parser(name: str, settings: Mapping[str, Any]) -> Parser:
    """Returns the parser `name` with `settings`; raises Problems with all errors in them."""
    module, package = extensions.module_of(extensions.PARSERS, "parser", name, OWN)
    for one in vars(module).values():
        if isinstance(one, type) and issubclass(one, Parser) and one.__module__ == module.__name__:
            return extensions.configured(one, name, settings, package or _library(one))
    raise Problems([f'the module of the parser "{name}" of {package} holds no Parser'])


def package_of(name: str) -> str:
    """Returns the package that brings the parser `name`, with its version; "" for one of Sluice."""
    return extensions.module_of(extensions.PARSERS, "parser", name, OWN)[1]


def _library(kind: type[Parser]) -> str:
    """Returns the library of one of Sluice's own parsers with its version, and the parser's revision."""
    revision = f", revision {kind.revision}" if kind.revision > 1 else ""
    return f"{kind.library} {version(kind.library)}{revision}" if kind.library else ""


def complete_settings(used: Iterable[str], given: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Returns the settings of all parsers in use, defaults, package and version written out.

    Args:
        used: names of parsers that kinds of files name.
        given: settings by name; a parser that is named here alone reads captured bodies.

    Raises:
        Problems: a parser is not there or its settings are wrong, or two parsers read the same media type.
    """
    found: dict[str, dict[str, Any]] = {}
    wrong: list[str] = []
    readers: dict[str, str] = {}
    for name in dict.fromkeys((*used, *given)):
        try:
            one = find_parser(name, given.get(name, {}))
            package = package_of(name) or _library(type(one))
            found[name] = {**one.model_dump(mode="json"), extensions.PACKAGE: package}
            for kind in one.media_types:
                if (other := readers.setdefault(kind, name)) != name:
                    wrong.append(f'"{other}" and "{name}" both read {kind}: leave one of them out')
        except Problems as problems:
            wrong += problems.messages
    if wrong:
        raise Problems(wrong)
    return dict(sorted(found.items()))


def by_media_type(parsers: Mapping[str, Mapping[str, Any]]) -> dict[str, tuple[str, str]]:
    """Returns for each media type which parser reads it, and its settings as JSON: small, for another process."""
    return {
        kind: (name, json.dumps(settings))
        for name, settings in parsers.items()
        for kind in find_parser(name, settings).media_types
    }


def parse_body(name: str, settings: str, data: bytes, place: str) -> Content:
    """Returns what a parser makes of a body, its texts cleaned and its date in UTC.

    Args:
        name: the parser.
        settings: its settings, as JSON.
        data: the body.
        place: the path of a file, or the URL of a captured body.

    Raises:
        Rejected: the body gives no document.
        TypeError, ValueError: the parser returns, or gives as its reason, what it may not.
    """
    try:
        one = _load(name, settings)
        if one.cpu_s is not None:
            limit_cpu(one.cpu_s)
        return _validated(one.parse(data, place))
    except Rejected as rejected:
        reason = str(rejected.reason)
        if not _REASON.fullmatch(reason):
            raise ValueError(
                f'the parser "{name}" rejects for {reason!r}, which is no word like "{name}_empty"'
            ) from None
        raise Rejected(reason, rejected.pages) from None  # a class of the package might not survive the way back


def _validated(content: Content) -> Content:
    """Returns what a parser has found as documents are stored; raises TypeError where it is of other types."""
    from tasks.formats.documents.text import clean

    if not isinstance(content, Content):
        raise TypeError(f"a parser returns Content, and this one {type(content).__name__}")
    if not isinstance(content.published, datetime | None):
        raise TypeError(f"published is a datetime or None, and here {type(content.published).__name__}")
    published = content.published
    if published is not None:
        published = published.astimezone(UTC) if published.tzinfo else published.replace(tzinfo=UTC)
    texts = ("text", "title", "language_hint", "canonical", "licence", "author", "site")
    cleaned = {field: clean(getattr(content, field)) for field in texts}
    if content.layout and cleaned["text"] != content.text:
        raise ValueError("a parser that gives a layout gives its text as tasks.formats.documents.text.clean returns it")
    return Content(published=published, layout=content.layout, pages=content.pages, **cleaned)


@cache
def _load(name: str, settings: str) -> Parser:
    return find_parser(name, json.loads(settings))
