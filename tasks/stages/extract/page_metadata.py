"""Metadata of a page: title, author, site, language, date, canonical URL, license and robots directives.

Reads the parsed page and its URL. Fields come from markup (meta tags, JSON-LD, `<time>`, link relations, main
headings). If markup gives no date or author, the URL and elements with typical class names are read; body text is not.
A field that the page does not state is empty.
"""

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from itertools import chain
from typing import Any
from urllib.parse import urljoin

from resiliparse.parse.html import HTMLTree

from tasks.formats.documents.text import clean
from tasks.formats.web.url import MAX_CANONICAL_URL

# Names of meta elements with the date of publication, the most reliable first: Open Graph's article (ogp.me),
# schema.org, Dublin Core (RFC 5013), Google Scholar, and those of publishing systems.
_DATES = (
    *("article:published_time", "datepublished", "og:published_time", "og:article:published_time"),
    *("dcterms.issued", "dcterms.created", "dc.date.issued", "dc.date.created", "dc.date", "dcterms.date"),
    *("citation_publication_date", "citation_date", "parsely-pub-date", "sailthru.date", "pubdate", "publishdate"),
    *("publish-date", "publication_date", "publish_date", "published_time", "article.published", "date"),
)
_AUTHORS = (
    *("parsely-author", "sailthru.author", "author", "article:author", "og:article:author", "citation_author"),
    *("dc.creator", "dcterms.creator", "byl"),
)
_RIGHTS = ("dcterms.license", "dc.rights.license", "license", "licence", "dcterms.rights", "dc.rights", "rights")
# Two queries, each with one selector per element name: a query traverses the tree once, in time proportional to
# selectors times elements. Elements with other names are skipped at once, whatever the length of `:is`.
_HEAD = (
    'title, base[href], link:is([rel~="canonical" i], [rel~="license" i]), '
    'meta:is([http-equiv="content-language" i], [property*="publi" i], [name*="publi" i], [name*="dat" i], '
    '[name^="dcterms" i], [itemprop], [name*="licen" i], [name*="rights" i], [property="og:title" i], '
    '[property="og:site_name" i], [name*="author" i], [property*="author" i], [name*="creator" i], [name="byl" i])'
)
# Elements anywhere in the page: dates by RDFa or microdata, h-entry (microformats.org) or the obsolete `pubdate`;
# robots tags, which browsers move into the body of a page whose head ends too early; headings for the title. Not every
# `time`: pages have thousands with other dates, and the number of elements that are read is limited.
_ANYWHERE = (
    'h1, meta[name*="robots" i], script[type="application/ld+json" i], '
    'a[href]:is([rel~="license" i], [href*="creativecommons.org/"]), '
    'time:is([pubdate], [itemprop~="datePublished"], [class~="dt-published"], [class~="entry-date"])'
)
# These selectors are used only if markup gives no date or author.
_DATE_LIKE = (
    ':is(time, span, p, div, li, small, td, abbr, em, i, b, a):is([class*="date" i], [class*="publi" i], '
    '[itemprop*="date" i])'
)
_AUTHOR_LINK = 'a[rel~="author" i], [itemprop~="author" i]'
_BYLINE = (
    ':is(span, p, div, a, li, small, address, em, b, strong, h2, h3, h4):is([class~="author" i], [class*="byline" i], '
    '[class*="author-name" i], [class*="author_name" i], [class*="-author" i], [class*="autor" i])'
)
_MAX_LIKELY = 20
_COMMONS = re.compile(r"https?://(?:www\.)?creativecommons\.org/(?:licenses|publicdomain)/[a-z0-9./+-]+", re.I)

_MAX_TITLE = 500
_MAX_HEADINGS = 20
_SHORTEST_TITLE = 4
# Separators between the title of a page and the name of its site.
_BEFORE_SITE = re.compile(r"(?<=\S)\s+(?:[|\-–—»«•·:/]+)\s+")
_MAX_LANGUAGE = 35
_MAX_LICENCE = 300
_MAX_AUTHOR, _MAX_AUTHORS, _MAX_NAME_WORDS, _MAX_SITE = 80, 20, 8, 100
_MAX_JSON = 1 << 20
_READ_OF_JSON = ('"datePublished"', '"license"', '"author"')
_MAX_OBJECTS = 1_000
_MAX_ELEMENTS = 2_000
_WRAPPED_START = re.compile(r"\A(?:\s|<!--|-->|<!\[CDATA\[|//>?|/\*|\*/)++")
_WRAPPED_END = re.compile(r"\A(?:\s|>--|>\]\](?:!<)?|//|/\*|\*/|;)++")
"""What stands around JSON in a script; the end is matched backwards, from the last character."""
_SPACE = re.compile(r"\s+")
# Matches most canonical URLs: absolute URLs that do not change when they are joined with the page's URL.
_PLAIN_ADDRESS = re.compile(r"https?://[a-z0-9.-]+/[A-Za-z0-9._~/-]*")
# Date of the first web page. Earlier dates are those of works shown on a page, or of a clock that was not set.
_FIRST_PAGE = datetime(1991, 8, 6, tzinfo=UTC)

_MONTHS = {
    name: number
    for number, names in enumerate(
        (
            "january januar jänner janvier enero gennaio januari janeiro jan ene gen janv января stycznia",
            "february februar feber février febrero febbraio februari fevereiro feb févr fév fev февраля lutego",
            "march märz maerz mars marzo maart março mar mär mrz марта marca",
            "april avril abril aprile apr avr abr апреля kwietnia",
            "may mai mayo maggio mei maio mag мая maja",
            "june juni juin junio giugno junho jun giu июня czerwca",
            "july juli juillet julio luglio julho jul juil lug июля lipca",
            "august août agosto augustus aug ago августа sierpnia",
            "september septembre septiembre settembre setembro sep sept set сентября września",
            "october oktober octobre octubre ottobre outubro oct okt ott out октября października",
            "november novembre noviembre novembro nov ноября listopada",
            "december dezember décembre diciembre dicembre dezembro dec dez déc dic декабря grudnia",
        ),
        1,
    )
    for name in names.split()
}
# 2019-11-20, 20.11.2019, "20. November 2019", "20 de noviembre de 2019", "November 20th, 2019". Not 11/12/2019.
_WRITTEN = re.compile(
    r"(?<!\d)(?:(?P<y>\d{4})[-/.](?P<m>\d\d?)[-/.](?P<d>\d\d?)"
    r"|(?P<d1>\d\d?)\.\s?(?P<m1>\d\d?)\.\s?(?P<y1>\d{4})"
    r"|(?P<d2>\d\d?)(?:st|nd|rd|th|er|º)?\.?\s(?:de\s)?(?P<m2>[^\W\d]{3,12})\.?,?\s(?:de\s)?(?P<y2>\d{4})"
    r"|(?P<m3>[^\W\d]{3,12})\.?\s(?P<d3>\d\d?)(?:st|nd|rd|th)?,?\s(?P<y3>\d{4}))(?!\d)"
)
_IN_ADDRESS = re.compile(
    r"/(?P<y>(?:19|20)\d\d)([/-])(?P<m>\d\d?)\2(?P<d>\d\d?)(?=[/-]|$)|/(?P<y1>(?:19|20)\d\d)-(?P<m1>\d\d)/(?P<d1>\d\d)/"
    r"|[/_-](?P<y2>(?:19|20)\d\d)(?P<m2>\d\d)(?P<d2>\d\d)(?=[/_-])"
)
_LONGEST_DATE = 200  # number of characters that are searched for a date
# "Text und Fotos: ", "Written by ", "Von ".
_BY = re.compile(
    r"(?:(?:text|photos?|fotos?)(?:\s*(?:and|und|&|,)\s*(?:text|photos?|fotos?))*\s*(?::|by\b|von\b)"
    r"|(?:(?:written|posted|published|geschrieben|veröffentlicht)\s+)?"
    r"(?:by|von|vom|par|por|door|av|di|authors?|autore?|autorin|auteur)\b)\s*:?\s*(?=\S)",
    re.I,
)
# Text after a name: a separator, or the date.
_BEHIND_NAME = re.compile(r"\s*(?:[|•·–—]|\s-\s|,?\s(?:am|on|vom|le|el)\s|\b\d\d?[. ]|\bfollow\b).*$", re.I)
_NO_NAME = re.compile(r"(?:https?:|/|@).*|\S+\.(?:[a-z]{2,3}|info)", re.I)
_NOBODY = frozenset(("admin", "administrator", "name", "autor", "author", "unknown", "editor", "webmaster"))


@dataclass(frozen=True)
class PageMetadata:
    """Metadata of a page; "" or None for fields that the page does not state.

    Attributes:
        title: the heading that the title element repeats, the only main heading, Open Graph's title, or the title
            element without the name of the site; at most 500 characters.
        stated_title: the title element, at most 500 characters.
        author: names separated by "; ", at most 20 names of 80 characters, without the name of the site.
        site: name of the site by Open Graph, at most 100 characters.
        language: language as stated by the root element or a meta element ("en-GB").
        published: date of publication in UTC; a time without a time zone counts as UTC.
        canonical: canonical URL, absolute.
        licence: URL or text of the license.
        robots: contents of the robots meta elements; see `tasks.formats.web.robots_tag`.
    """

    title: str = ""
    stated_title: str = ""
    author: str = ""
    site: str = ""
    language: str = ""
    published: datetime | None = None
    canonical: str = ""
    licence: str = ""
    robots: tuple[str, ...] = ()


def read_page_metadata(tree: HTMLTree, url: str = "", fetched_at: datetime | None = None) -> PageMetadata:
    """Returns the metadata of a page at `url`; dates more than a day after it was fetched are no dates."""
    document = tree.document
    if document is None:
        return PageMetadata()
    root, head, body = document.first_element_child, _HeadElements(tree), _DocumentElements(document)
    objects = sorted(_objects(body.json_ld), key=lambda node: not _is_article(node))
    stated = _line(head.title, _MAX_TITLE)
    site = _line(head.metas.get("og:site_name", ""), _MAX_SITE)
    return PageMetadata(
        title=_title(stated, body.headings, _line(head.metas.get("og:title", ""), _MAX_TITLE)),
        stated_title=stated,
        author=_author(document, head, objects, site),
        site=site,
        language=_line((root.getattr("lang") if root else "") or head.metas.get("content-language", ""), _MAX_LANGUAGE),
        published=_first(chain(_published(head, objects, body.times), _likely_dates(document, url)), fetched_at),
        canonical=absolute_url(head.links.get("canonical", ""), head.base, url),
        licence=_licence(head, objects, body.licences),
        robots=tuple(body.robots),
    )


class _HeadElements:
    """The relevant elements of a page's head."""

    def __init__(self, tree: HTMLTree) -> None:
        self.title = self.base = ""
        self.metas: dict[str, str] = {}
        self.authors: dict[str, list[str]] = {}
        self.links: dict[str, str] = {}
        # A slice, because iteration over a collection of resiliparse 2.0.0 takes 40 times as long.
        head = tree.head
        for element in head.query_selector_all(_HEAD)[:_MAX_ELEMENTS] if head is not None else ():
            tag = element.tag
            if tag == "meta":
                name = next(filter(None, map(element.getattr, ("property", "name", "itemprop", "http-equiv"))), "")
                name, content = name.lower(), element.getattr("content") or ""
                self.metas.setdefault(name, content)
                if name in _AUTHORS:
                    self.authors.setdefault(name, []).append(content)
            elif tag == "link":
                relation = "canonical" if "canonical" in (element.getattr("rel") or "").lower().split() else "license"
                self.links.setdefault(relation, (element.getattr("href") or "").strip())
            elif tag == "base":
                self.base = self.base or (element.getattr("href") or "").strip()
            else:
                # Not tree.title: in resiliparse 2.0.0 it writes past the end of its buffer on some real pages (found
                # with valgrind, in lxb_html_title_element_strict_text), and the worker crashes later, elsewhere.
                self.title = self.title or element.text or ""


class _DocumentElements:
    """The relevant elements anywhere in a page."""

    def __init__(self, document: Any) -> None:
        self.robots: list[str] = []
        self.headings: list[str] = []
        self.json_ld: list[str] = []
        self.times: list[str] = []
        self.licences: list[tuple[bool, str]] = []
        for element in document.query_selector_all(_ANYWHERE)[:_MAX_ELEMENTS]:
            tag = element.tag
            if tag == "meta":
                if (element.getattr("name") or "").strip().lower() == "robots":
                    self.robots.append(element.getattr("content") or "")
            elif tag == "h1":
                self.headings.append(element.text or "")
            elif tag == "script":
                self.json_ld.append(element.text or "")
            elif tag == "time":
                self.times.append(element.getattr("datetime") or "")
            else:
                is_licence = "license" in (element.getattr("rel") or "").lower().split()
                self.licences.append((is_licence, (element.getattr("href") or "").strip()))


def _title(stated: str, headings: list[str], open_graph: str) -> str:
    lines = [line for text in headings[:_MAX_HEADINGS] if (line := _line(text, _MAX_TITLE).rstrip("¶# "))]
    folded = stated.casefold()
    repeated = [line for line in lines if len(line) >= _SHORTEST_TITLE and line.casefold() in folded]
    if repeated:  # the first one in the title element, because the name of the site usually comes last
        return min(repeated, key=lambda heading: folded.index(heading.casefold()))
    if len(lines) == 1 and len(headings) <= _MAX_HEADINGS:
        return lines[0]
    return open_graph or _BEFORE_SITE.split(stated, maxsplit=1)[0]


def absolute_url(address: str, base: str, url: str) -> str:
    """Returns a reference of a page at `url` as an absolute URL, or "" if that is not a web URL.

    >>> absolute_url("/a?x=1", "", "https://a.example/b/c")
    'https://a.example/a?x=1'
    """
    if _PLAIN_ADDRESS.fullmatch(address):
        return address if len(address) <= MAX_CANONICAL_URL else ""
    try:
        joined = urljoin(urljoin(url, base), clean(address)) if address else ""
    except ValueError:
        return ""
    return joined if joined.startswith(("http://", "https://")) and len(joined) <= MAX_CANONICAL_URL else ""


def parse_time(text: str) -> datetime | None:
    """Parses a time in ISO 8601 or RFC 5322; returns it in UTC, truncated to milliseconds.

    Returns None for other texts, and for times before the first web page.

    >>> parse_time("2019-11-20T09:22:00+01:00").isoformat()
    '2019-11-20T08:22:00+00:00'
    >>> parse_time("11/12/2019")
    """
    text = text.strip()[:64]
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        try:
            time = parsedate_to_datetime(text)
        except (ValueError, TypeError, IndexError, OverflowError):
            return None
    try:
        time = time.replace(tzinfo=UTC) if time.tzinfo is None else time.astimezone(UTC)
    except OverflowError:
        return None
    return time.replace(microsecond=time.microsecond // 1000 * 1000) if time >= _FIRST_PAGE else None


def _first(dates: Iterable[datetime | None], fetched_at: datetime | None) -> datetime | None:
    """Returns the first date that is not in the future; a day is tolerated, for times without a time zone."""
    latest = fetched_at + timedelta(days=1) if fetched_at else None
    return next((date for date in dates if date and (latest is None or date <= latest)), None)


def _published(head: _HeadElements, objects: list[dict[str, Any]], times: list[str]) -> Iterator[datetime | None]:
    """Yields the dates that markup states, the most reliable first."""
    yield from (parse_time(head.metas[name]) for name in _DATES if name in head.metas)
    for node in objects:
        stated = node.get("datePublished")
        yield from (
            parse_time(date)
            for date in (stated if isinstance(stated, list) else [stated])[:_MAX_LIKELY]
            if isinstance(date, str)
        )
    yield from map(parse_time, times)


def _likely_dates(document: Any, url: str) -> Iterator[datetime | None]:
    """Yields the dates of the first `time` element, of the URL, and of the first elements with date-like classes."""
    if (element := document.query_selector("time[datetime]")) is not None:
        attribute, text = element.getattr("datetime") or "", element.text or ""
        if not text.strip() or any(letter.isdecimal() for letter in text[:_LONGEST_DATE]):
            yield parse_time(attribute) or parse_time(attribute[:10]) or find_date(attribute) or find_date(text)
    yield _day(_IN_ADDRESS.search(url.partition("://")[2]))
    for element in document.query_selector_all(_DATE_LIKE)[:_MAX_LIKELY]:
        yield find_date(element.text or "")


def find_date(text: str) -> datetime | None:
    """Returns the first unambiguous date in the first 200 characters of a text.

    Returns None if there is none, or if it is before the first web page.

    >>> find_date("Von Eva Roth am 3. März 2021, 14 Uhr").date().isoformat()
    '2021-03-03'
    >>> find_date("11/12/2019")
    """
    days = map(_day, _WRITTEN.finditer(text[:_LONGEST_DATE]))
    return next(filter(None, days), None)


def _day(match: re.Match[str] | None) -> datetime | None:
    if match is None:
        return None
    parts = {name[0]: value for name, value in match.groupdict().items() if value}
    month = int(parts["m"]) if parts["m"].isdecimal() else _MONTHS.get(parts["m"].lower(), 0)
    try:
        day = datetime(int(parts["y"]), month, int(parts["d"]), tzinfo=UTC)
    except ValueError:
        return None
    return day if day >= _FIRST_PAGE else None


def _author(document: Any, head: _HeadElements, objects: list[dict[str, Any]], site: str) -> str:
    by_id = {node["@id"]: node for node in objects if isinstance(node.get("@id"), str)}
    for names in (
        *(_names(node["author"], by_id) for node in objects if "author" in node),
        *(head.authors[name] for name in _AUTHORS if name in head.authors),
    ):
        if people := _people(names, site):
            return "; ".join(people)
    for selector in (_AUTHOR_LINK, _BYLINE):
        likely = document.query_selector_all(selector)[:_MAX_LIKELY]
        if people := _people([element.text or "" for element in likely], site):
            return people[0]
    return ""


def _people(texts: list[str], site: str) -> list[str]:
    names = dict.fromkeys(filter(None, map(_person, texts[:_MAX_AUTHORS])))
    return [name for name in names if name.casefold() != site.casefold()]


def _person(text: str) -> str:
    """Returns the name in a byline; "" if the text is not a name."""
    line = _line(text[: 4 * _MAX_TITLE], _MAX_TITLE)
    by = _BY.match(line)
    name = _BEHIND_NAME.sub("", line[by.end() :] if by else line).strip(" ,:|-–—")
    if len(name) > _MAX_AUTHOR or len(name.split()) > _MAX_NAME_WORDS:
        return ""
    return "" if _NO_NAME.fullmatch(name) or name.casefold() in _NOBODY else name


def _names(author: Any, by_id: dict[str, dict[str, Any]]) -> list[str]:
    """Returns the names of JSON-LD's `author`: a name, an object, a reference to one, or a list of these."""
    names = []
    for entry in (author if isinstance(author, list) else [author])[:_MAX_AUTHORS]:
        name = entry
        if isinstance(entry, dict):
            own = entry.get("name")
            name = own if own is not None else by_id.get(str(entry.get("@id")), {}).get("name")
        if isinstance(name, str):
            names.append(name)
    return names


def _licence(head: _HeadElements, objects: list[dict[str, Any]], links: list[tuple[bool, str]]) -> str:
    candidates = [head.links.get("license", ""), *(href for is_licence, href in links if is_licence)]
    candidates += [value for node in objects if isinstance(value := node.get("license"), str)]
    candidates += [head.metas[name] for name in _RIGHTS if name in head.metas]
    candidates += [href for _, href in links if _COMMONS.match(href)]
    return next((line for text in candidates if (line := _line(text, _MAX_LICENCE))), "")


def _objects(scripts: list[str]) -> Iterator[dict[str, Any]]:
    """Yields the top-level objects of JSON-LD, and those in lists and graphs; nested ones describe other things."""
    for text in scripts:
        if len(text) > _MAX_JSON or not any(name in text for name in _READ_OF_JSON):
            continue
        try:
            queue = [json.loads(_unwrapped(text), strict=False)]
        except (ValueError, RecursionError):
            continue
        while queue:
            node = queue.pop(0)
            if isinstance(node, list):
                queue += node[:_MAX_OBJECTS]
            elif isinstance(node, dict):
                yield node
                queue += [node["@graph"]] if "@graph" in node else []


def _unwrapped(text: str) -> str:
    r"""Returns the content of a script without the comment or CDATA section around it, which hid it from old browsers.

    >>> _unwrapped("//<![CDATA[\n{}\n//]]>"), _unwrapped("<!-- [] -->"), _unwrapped("/* <![CDATA[ */ {} /* ]]> */")
    ('{}', '[]', '{}')
    """
    return _WRAPPED_END.sub("", _WRAPPED_START.sub("", text, count=1)[::-1], count=1)[::-1]


def _is_article(node: dict[str, Any]) -> bool:
    kinds = node.get("@type")
    kinds = kinds if isinstance(kinds, list) else [kinds]
    return any(str(kind).endswith(("Article", "Posting", "Report")) for kind in kinds)


def _line(text: str, limit: int) -> str:
    return _SPACE.sub(" ", clean(text)).strip()[:limit]
