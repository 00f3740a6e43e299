"""Resolution of a page's URLs to canonical links.

Links are looked up in a table first: the menu of a site is the same on all its pages, so most links cost one look-up
instead of a parse and two hashes.
"""

import codecs
import re
from collections.abc import Iterable
from functools import lru_cache
from urllib.parse import quote_from_bytes

from tasks.formats.web.canonical_url import canonical
from tasks.formats.web.domain import Link, link
from tasks.formats.web.url import MAX_CRAWLED_URL, origin_of
from tasks.stages.crawl.page.defuse import as_written

MAX_LINKS = 5000
_MAX_CACHED = 256
_NO_PAGES = ("mailto:", "javascript:", "tel:", "data:")
# References that no URL parser changes but for "../" in front: joining strings gives the canonical form. Of hosts those
# whose names it does not look into: no numbers, which may be addresses, and no encoded letters.
_SEGMENTS = r"(?:[\w~-][\w.~-]*/)*(?:[\w~-][\w.~-]*)?"
_PLAIN = re.compile(rf"(?:/|(?=[a-zA-Z0-9])){_SEGMENTS}", re.A)
_PORT = r"(?::(?!80/|443/)(?:[1-9]\d{1,3}|[1-5]\d{4}))?"
_PLAIN_URL = re.compile(rf"https?://(?!\S*xn--)(?:[a-z0-9-]+\.)+[a-z][a-z-]*{_PORT}/{_SEGMENTS}", re.A)
_PLAIN_ABOVE = re.compile(rf"((?:\.\./)+)((?=[a-zA-Z0-9]){_SEGMENTS}|)", re.A)
_BEYOND_ASCII = re.compile(r"[^\x00-\x7f]+")
_AS_REFERENCE = "sluice.as_reference"
# ASCII that a URL's query contains unescaped, but that in some encodings is part of a multibyte character.
_AS_IT_IS = "!$%&()*+,/:;=?@[\\]^`{|}"


def links_of(hrefs: Iterable[str], base: str, encoding: str = "utf-8") -> tuple[Link, ...]:
    """Returns links in the order of the page, each once, the first 5,000.

    Args:
        hrefs: values of attributes, of a page that was made harmless (`defuse`).
        base: the canonical URL that relative ones are meant from.
        encoding: of the page, for letters in queries; see `query_in`.
    """
    folder = base.partition("?")[0].rpartition("/")[0] + "/"
    origin = origin_of(base)
    links: dict[bytes, Link] = {}
    # Menus name the same address several times over; each is looked up once.
    for href in dict.fromkeys([href.partition("#")[0].strip() for href in hrefs]):
        if not href:
            continue
        if encoding != "utf-8" and not href.isascii():
            href = query_in(href, encoding)
        # As little of the base as the result depends on, so that one entry serves many pages.
        start = href[0]
        if start == "/":
            known = origin
        elif ":" in href:
            if href.lower().startswith(_NO_PAGES):
                continue
            known = "" if href.startswith(("https://", "http://")) else base
        else:
            known = folder if start.isalnum() or start == "." else base
        found = _resolved(known, href) if len(href) <= _MAX_CACHED else _resolved.__wrapped__(known, href)
        if found is not None and found.key not in links:
            links[found.key] = found
            if len(links) >= MAX_LINKS:
                break
    return tuple(links.values())


# Some 30 MB when full, and at worst 70 MB.
@lru_cache(maxsize=1 << 16)
def _resolved(base: str, href: str) -> Link | None:
    url = _joined(base, href) if len(base) + len(href) <= MAX_CRAWLED_URL else None
    url = url or canonical(as_written(href), base)
    return link(url) if url is not None else None


def _joined(base: str, href: str) -> str | None:
    """Returns the URL that a plain reference means, or None: only a parser knows.

    Args:
        base: an origin for references with "/" in front, "" for whole URLs, and else a folder.
        href: the reference.
    """
    if not base:
        return href if _PLAIN_URL.fullmatch(href) else None
    if _PLAIN.fullmatch(href):
        return base + href
    above = _PLAIN_ABOVE.fullmatch(href)
    if above is None:
        return None
    origin = origin_of(base)
    folders = base[len(origin) : -1].split("/")
    up = min(len(above[1]) // 3, len(folders) - 1)
    return f"{origin}{'/'.join(folders[: len(folders) - up])}/{above[2]}"


def address(href: str, base: str, encoding: str = "utf-8") -> str | None:
    """Returns the canonical address that one attribute means, or None; arguments as for `links_of`."""
    return canonical(query_in(as_written(href), encoding), base)


def query_in(href: str, encoding: str) -> str:
    """Returns an address with its query in the encoding of its page, as browsers do (URL Standard, "query state").

    Characters that the encoding lacks are encoded as in forms, "&#1055;", percent-encoded.

    >>> query_in("/д?q=д", "cp1251"), query_in("/?q=ж", "iso8859-1")
    ('/д?q=%E4', '/?q=%26%231078%3B')
    """
    path, mark, query = href.partition("?")
    if encoding == "utf-8" or query.isascii():
        return href

    def written(letters: re.Match[str]) -> str:
        return quote_from_bytes(letters[0].encode(encoding, _AS_REFERENCE), _AS_IT_IS)

    query, hash_, fragment = query.partition("#")
    return path + mark + _BEYOND_ASCII.sub(written, query) + hash_ + fragment


def _reference(error: UnicodeError) -> tuple[str, int]:
    """Writes letters that an encoding lacks as references; half a character is none."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    codes = map(ord, error.object[error.start : error.end])
    return "".join(f"%26%23{0xFFFD if 0xD800 <= code < 0xE000 else code}%3B" for code in codes), error.end


codecs.register_error(_AS_REFERENCE, _reference)
