"""Metadata of a page: title, author, site, language, date, canonical URL, license and robots directives.

Reads the parsed page and its URL. Fields come from markup (meta tags, JSON-LD, `<time>`, link relations, headings). If
markup gives no date or author, the URL, elements with typical class names, lines below the heading and lines of few
words are read; other body text is not. A field that the page does not state is empty. `tasks.stages.extract.metadata`
chooses among several texts.
"""

import html
import json
import re
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from urllib.parse import urljoin

from resiliparse.parse.html import HTMLTree

from tasks.formats.documents.text import clean
from tasks.formats.web.url import MAX_CANONICAL_URL, host_of
from tasks.stages.extract.metadata.author import authors
from tasks.stages.extract.metadata.date import published_date
from tasks.stages.extract.metadata.elements import SITES, TITLES, DocumentElements, HeadElements, one_line
from tasks.stages.extract.metadata.headings import read_headings
from tasks.stages.extract.metadata.title import MAX_TITLE, choose_title, heading_of, parts_of, site_names

_RIGHTS = ("dcterms.license", "dc.rights.license", "license", "licence", "dcterms.rights", "dc.rights", "rights")
_COMMONS = re.compile(r"https?://(?:www\.)?creativecommons\.org/(?:licenses|publicdomain)/[a-z0-9./+-]+", re.I)

_MAX_LANGUAGE = 35
_MAX_LICENCE = 300
_MAX_SITE = 100
_MAX_ESCAPED = 4_000
_MAX_JSON = 1 << 20
_READ_OF_JSON = tuple(
    f'"{key}"' for key in ("datePublished", "dateCreated", "uploadDate", "license", "author", "headline", "name")
)
_MAX_OBJECTS = 1_000
_MAX_KINDS = 10
# Keys of the objects that describe the page itself.
_MAIN = ("@graph", "mainEntity")
_WRAPPED_START = re.compile(r"\A(?:\s|<!--|-->|<!\[CDATA\[|//>?|/\*|\*/)++")
_WRAPPED_END = re.compile(r"\A(?:\s|>--|>\]\](?:!<)?|//|/\*|\*/|;)++")
"""What stands around JSON in a script; the end is matched backwards, from the last character."""
# Matches most canonical URLs: absolute URLs that do not change when they are joined with the page's URL.
_PLAIN_ADDRESS = re.compile(r"https?://[a-z0-9.-]+/[A-Za-z0-9._~/-]*")


@dataclass(frozen=True)
class PageMetadata:
    """Metadata of a page; "" or None for fields that the page does not state.

    Attributes:
        title: the text on which headings, JSON-LD, Open Graph and the title element agree most, without the name of
            the site; at most 500 characters.
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
    root, head, body = document.first_element_child, HeadElements(tree), DocumentElements(document)
    objects = sorted(_objects(body.json_ld), key=lambda node: not _is_article(node))
    titles = _titles(head, objects)
    headings, logos = read_headings(document, body.h1, url, parts_of(titles))
    names = site_names(host_of(url), [*(head.metas.get(name, "") for name in SITES), *_sites(objects), *logos])
    title = choose_title(headings, *titles, names) or next(filter(None, logos), "")
    heading = heading_of(title, headings)
    site = one_line(head.metas.get("og:site_name", ""), _MAX_SITE)
    return PageMetadata(
        title=title,
        stated_title=titles[0],
        author=authors(document, heading, head, objects, site),
        site=site,
        language=one_line(
            (root.getattr("lang") if root else "") or head.metas.get("content-language", ""), _MAX_LANGUAGE
        ),
        published=published_date(head.metas, objects, body.times, tree, heading, url, fetched_at),
        canonical=absolute_url(head.links.get("canonical", ""), head.base, url),
        licence=_licence(head, objects, body.licences),
        robots=tuple(body.robots),
    )


def _titles(head: HeadElements, objects: list[dict[str, Any]]) -> tuple[str, str, str]:
    """Returns the title element, the headline of the article in JSON-LD and Open Graph's title."""
    headlines = (text for node in objects if isinstance(text := node.get("headline"), str) and text.strip())
    # These two are often escaped twice.
    headline, declared = (html.unescape(text[:_MAX_ESCAPED]) for text in (next(headlines, ""), head.first(TITLES)))
    return one_line(head.title, MAX_TITLE), one_line(headline, MAX_TITLE), one_line(declared, MAX_TITLE)


def _sites(objects: list[dict[str, Any]]) -> Iterator[str]:
    """Yields the names of the site in JSON-LD: those of its publisher and of the site itself."""
    for node in objects:
        publisher = node.get("publisher")
        for named in (publisher, node if "WebSite" in _kinds(node) else None):
            if isinstance(named, dict) and isinstance(name := named.get("name"), str):
                yield name


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


def _licence(head: HeadElements, objects: list[dict[str, Any]], links: list[tuple[bool, str]]) -> str:
    candidates = [head.links.get("license", ""), *(href for is_licence, href in links if is_licence)]
    candidates += [value for node in objects if isinstance(value := node.get("license"), str)]
    candidates += [head.metas[name] for name in _RIGHTS if name in head.metas]
    candidates += [href for _, href in links if _COMMONS.match(href)]
    return next((line for text in candidates if (line := one_line(text, _MAX_LICENCE))), "")


def _objects(scripts: list[str]) -> Iterator[dict[str, Any]]:
    """Yields the top-level objects of JSON-LD, and those in lists and graphs; nested ones describe other things."""
    for text in scripts:
        if len(text) > _MAX_JSON or not any(name in text for name in _READ_OF_JSON):
            continue
        try:
            queue = deque([json.loads(_unwrapped(text), strict=False)])
        except (ValueError, RecursionError):
            continue
        while queue:
            node = queue.popleft()
            if isinstance(node, list):
                queue += node[:_MAX_OBJECTS]
            elif isinstance(node, dict) and not _is_of_readers(node):
                yield node
                queue += [node[name] for name in _MAIN if name in node]


def _unwrapped(text: str) -> str:
    r"""Returns the content of a script without the comment or CDATA section around it, which hid it from old browsers.

    >>> _unwrapped("//<![CDATA[\n{}\n//]]>"), _unwrapped("<!-- [] -->"), _unwrapped("/* <![CDATA[ */ {} /* ]]> */")
    ('{}', '[]', '{}')
    """
    return _WRAPPED_END.sub("", _WRAPPED_START.sub("", text, count=1)[::-1], count=1)[::-1]


def _kinds(node: dict[str, Any]) -> list[str]:
    kinds = node.get("@type")
    return [str(kind) for kind in (kinds if isinstance(kinds, list) else [kinds])[:_MAX_KINDS]]


def _is_article(node: dict[str, Any]) -> bool:
    return any(kind.endswith(("Article", "Posting", "Report")) for kind in _kinds(node))


def _is_of_readers(node: dict[str, Any]) -> bool:
    """Whether an object is a comment, an answer or a review by a reader; reviews by critics have a publisher."""
    kinds = _kinds(node)
    return any(kind.endswith(("Comment", "Comments", "Answer")) for kind in kinds) or (
        any(kind.endswith("Review") for kind in kinds) and "publisher" not in node
    )
