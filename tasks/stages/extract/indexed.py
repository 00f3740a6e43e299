"""Identities of the captures of a WARC file from its index, which saves a pass over the crawl.

Reads one CDXJ file of a crawl (`tasks.stages.crawl.storage.warc` writes it beside its WARC file).
"""

import io
from typing import BinaryIO

from tasks.formats.warc.archive import index_entry
from tasks.formats.warc.record import PAGE_STATUSES
from tasks.stages.extract.captures import capture_url, url_refusal
from tasks.stages.extract.config import WEB
from tasks.stages.extract.identity import NONE, Identity, identity

_PAGE_STATUSES = frozenset(map(str, PAGE_STATUSES))


def indexed_identities(file: BinaryIO, records: int) -> list[Identity] | None:
    """Returns the identities of all captures in the order of the WARC file, equal to those of a quick pass over it.

    One exception: a body too large for extraction has an identity here. It is rejected for its size all the same.

    Returns:
        the identities; None if the index does not suffice: it is damaged, it does not list as many `records` as were
        published, or it lists conversions, which replace other captures only if they are small enough.
    """
    try:
        entries = [index_entry(line) for line in io.TextIOWrapper(file, "utf-8")]
        entries.sort(key=lambda entry: int(entry["offset"]))
        found = [_identity(entry) for entry in entries]
    except (ValueError, LookupError, TypeError):
        return None
    return None if len(found) != records or None in found else [one for one in found if one is not None]


def _identity(entry: dict[str, str]) -> Identity | None:
    if entry["status"] == "-":
        return NONE if entry["mime"] == "warc/revisit" else None
    url = capture_url(entry["url"])
    is_page = entry["status"] in _PAGE_STATUSES and not url_refusal(url)
    return identity(url, f"sha1:{entry['digest']}", WEB) if is_page else NONE
