"""EPUB: metadata and chapters of a book, from its package document (EPUB 2.0.1 OPF and OCF, EPUB 3.3).

Reads the container, the package document and `META-INF/encryption.xml`. The spine has the reading order; documents that
it marks as not linear, the navigation and the cover are left out. Files in the wild lack parts of this: without a
container the first package document counts, and without a spine the order of the manifest.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from tasks.formats.documents.zip_package import PackageError, ZipPackage, member_path

_CONTAINER, _ENCRYPTION = "META-INF/container.xml", "META-INF/encryption.xml"
_CHAPTERS = frozenset(("application/xhtml+xml", "text/html", "text/x-oeb1-document"))
# Fonts are obfuscated with these; a text with any other algorithm cannot be read.
_OF_FONTS = frozenset(("http://www.idpf.org/2008/embedding", "http://ns.adobe.com/pdf/enc#RC"))
_NOT_READ = frozenset(("cover", "toc"))
_DATE = re.compile(r"\s*(\d{4})-(\d\d)-(\d\d)")
_FIRST_YEAR = 1450  # programs write 0101-01-01 for an unknown date
_MAX_AUTHORS = 50
_MAX_LINE = 1_000


@dataclass(frozen=True)
class Book:
    """A book.

    Attributes:
        title: its main title; like the other texts, "" if it states none.
        authors: names of its authors.
        language: its first language.
        published: date of its publication, in UTC.
        rights: its license or copyright.
        chapters: paths of the documents to read, in reading order.
    """

    title: str
    authors: tuple[str, ...]
    language: str
    published: datetime | None
    rights: str
    chapters: tuple[str, ...]


def read_book(package: ZipPackage) -> Book:
    """Returns what a book states about itself, and its chapters.

    Raises:
        PackageError: the book is encrypted ("encrypted"), or has no package document ("damaged").
    """
    _refuse_encrypted(package)
    path = _package_document(package)
    root = package.xml(path)
    if root is None:
        raise PackageError("damaged")
    title, authors, published = _title(root), _authors(root), _published(root)
    language, rights = (next(_texts(root, name), "") for name in ("language", "rights"))
    return Book(title, authors, language, published, rights, tuple(_chapters(root, path)))


def _refuse_encrypted(package: ZipPackage) -> None:
    root = package.xml(_ENCRYPTION)
    if root is not None and any(
        method.get("Algorithm") not in _OF_FONTS for method in root.iter("{*}EncryptionMethod")
    ):
        raise PackageError("encrypted")


def _package_document(package: ZipPackage) -> str:
    root = package.xml(_CONTAINER)
    if root is not None:
        for rootfile in root.iter("{*}rootfile"):
            if path := rootfile.get("full-path"):
                return member_path("", path)
    return next((name for name in package.names if name.lower().endswith(".opf")), "")


def _elements(root: Any, name: str) -> Iterator[Any]:
    """Yields the metadata elements of a name; old books have them without a namespace, or in another one."""
    metadata = next(root.iter("{*}metadata"), None)
    if metadata is not None:
        yield from metadata.iter("{*}" + name)


def _texts(root: Any, name: str) -> Iterator[str]:
    return filter(None, map(_text, _elements(root, name)))


def _text(element: Any) -> str:
    return " ".join("".join(element.itertext()).split())[:_MAX_LINE]


def _refined(root: Any, name: str) -> dict[str, str]:
    """Returns what a property of EPUB 3 says about elements, by their ids."""
    return {
        meta.get("refines", "").removeprefix("#"): _text(meta)
        for meta in _elements(root, "meta")
        if meta.get("property") == name and meta.get("refines")
    }


def _title(root: Any) -> str:
    kinds = _refined(root, "title-type")
    titles = [(kinds.get(element.get("id", ""), ""), _text(element)) for element in _elements(root, "title")]
    main = [text for kind, text in titles if kind == "main" and text]
    return next(iter((*main, *(text for _, text in titles if text))), "")


def _authors(root: Any) -> tuple[str, ...]:
    roles = _refined(root, "role")
    names: dict[str, None] = {}
    for element in _elements(root, "creator"):
        stated = (value for key, value in element.attrib.items() if key.rpartition("}")[2] == "role")
        role = next(stated, "") or roles.get(element.get("id", ""), "")
        if role in ("", "aut") and (name := _text(element)):
            names[name] = None
    return tuple(names)[:_MAX_AUTHORS]


def _published(root: Any) -> datetime | None:
    """Returns the stated day; that of a publication before others, never that of a change of the file."""
    dates: dict[str, datetime] = {}
    for element in _elements(root, "date"):
        event = next((value for key, value in element.attrib.items() if key.rpartition("}")[2] == "event"), "")
        if (day := _day(_text(element))) is not None:
            dates.setdefault(event, day)
    return next((dates[event] for event in ("publication", "original-publication", "") if event in dates), None)


def _day(text: str) -> datetime | None:
    if (match := _DATE.match(text)) is None or int(match[1]) < _FIRST_YEAR:
        return None
    try:
        return datetime(int(match[1]), int(match[2]), int(match[3]), tzinfo=UTC)
    except ValueError:
        return None


def _chapters(root: Any, path: str) -> list[str]:
    """Returns the paths of the chapters in reading order, each once."""
    items = {item.get("id", ""): item for item in root.iter("{*}item") if item.get("href")}
    texts = {
        key: member_path(path, item.get("href"))
        for key, item in items.items()
        if item.get("media-type", "").lower() in _CHAPTERS
    }
    spine = [reference for reference in root.iter("{*}itemref") if reference.get("idref") in texts]
    linear = [texts[reference.get("idref")] for reference in spine if reference.get("linear", "").lower() != "no"]
    ordered = dict.fromkeys(linear if spine else texts.values())
    left_out = {texts[key] for key, item in items.items() if key in texts and "nav" in _properties(item)}
    for reference in root.iter("{*}reference"):  # the guide of EPUB 2
        href = reference.get("href", "")
        if reference.get("type", "").lower() in _NOT_READ and "#" not in href:
            left_out.add(member_path(path, href))
    return [chapter for chapter in ordered if chapter not in left_out] or list(ordered)


def _properties(item: Any) -> list[str]:
    return list(item.get("properties", "").split())
