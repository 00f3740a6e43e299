"""Documents that are zip files with many members, such as EPUB and DOCX: members by path, within limits.

Reads the bytes of a file. Nothing is written, so a path of a member is only a name. A member is unpacked up to what the
package has left of its limit, whatever the zip file states about its size: deflate expands data a thousandfold, and a
small file must not fill the memory.
"""

import io
import posixpath
import struct
import zipfile
from typing import Any
from urllib.parse import unquote

from lxml import etree

from tasks.formats.documents.external_files import zip_errors, zip_files

_ENTRY = b"PK\x01\x02"  # the beginning of each entry of the directory
_ENCRYPTED = 1


class PackageError(Exception):
    """A package cannot be read.

    Attributes:
        reason: an identifier: "damaged", "encrypted" or "too_large".
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class ZipPackage:
    """The members of a zip file.

    Args:
        data: the file.
        max_members: number of members, with those of zip files that are stored in it as they are.
        max_bytes: bytes of all members that are read, unpacked.

    Attributes:
        names: paths of the members with "/", in the order of the directory.

    Raises:
        PackageError: it is no zip file, its directory is damaged, members overlap, or it has too many.
    """

    def __init__(self, data: bytes, max_members: int, max_bytes: int) -> None:
        if data.count(_ENTRY) > max_members:
            raise PackageError("too_large")
        self._left = max_bytes
        try:
            with zip_errors():
                self._archive = zipfile.ZipFile(io.BytesIO(data))
            entries = zip_files(self._archive, len(data))
        except (OSError, struct.error) as error:
            raise PackageError("damaged") from error
        self._entries = {entry.filename.replace("\\", "/"): entry for entry in entries}
        self._by_lower = {name.lower(): entry for name, entry in self._entries.items()}
        self.names = tuple(self._entries)

    def read(self, path: str) -> bytes | None:
        """Returns a member; None if there is none of this path, in any case of letters.

        Raises:
            PackageError: the member is damaged or encrypted, or exceeds what is left of the limit.
        """
        entry = self._entries.get(path) or self._by_lower.get(path.lower())
        if entry is None:
            return None
        if entry.flag_bits & _ENCRYPTED:
            raise PackageError("encrypted")
        if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise PackageError("damaged")  # EPUB and DOCX allow no other, and zipfile unpacks it without a limit
        try:
            with zip_errors(), self._archive.open(entry) as stream:
                data = stream.read(self._left + 1)
        except (OSError, struct.error) as error:
            raise PackageError("damaged") from error
        self._left -= len(data)
        if self._left < 0:
            raise PackageError("too_large")
        return data

    def xml(self, path: str) -> Any:
        """Returns the root element (lxml) of a member that is XML; None if there is none, or no XML.

        Entities are not expanded, nothing is fetched, and damaged XML is read as far as it goes.
        """
        data = self.read(path)
        return None if data is None else parse_xml(data)


def parse_xml(data: bytes) -> Any:
    """Returns the root element (lxml) of an XML document, read as `ZipPackage.xml` does; None if it has none."""
    parser = etree.XMLParser(
        resolve_entities=False, no_network=True, load_dtd=False, remove_comments=True, remove_pis=True, recover=True
    )
    try:
        return etree.fromstring(data, parser)
    except (etree.XMLSyntaxError, ValueError):
        return None


def member_path(base: str, reference: str) -> str:
    """Returns the path of a member that another member refers to.

    Args:
        base: path of the member with the reference.
        reference: a relative URL, percent-encoded, or a path from the root of the package.

    >>> member_path("OEBPS/book.opf", "text/a%20b.xhtml#part"), member_path("word/document.xml", "/word/styles.xml")
    ('OEBPS/text/a b.xhtml', 'word/styles.xml')
    """
    path = unquote(reference.partition("#")[0].partition("?")[0])
    return posixpath.normpath(posixpath.join("/", posixpath.dirname(base), path)).lstrip("/")
