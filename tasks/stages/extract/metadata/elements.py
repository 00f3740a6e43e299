"""The elements of a page that carry metadata, and whether an element belongs to readers' comments.

Reads the parsed page; returns the texts and attributes of meta, link and script elements, main headings and dates for
`page_metadata` and its neighbors.
"""

import re
from collections.abc import Iterator
from typing import Any

from resiliparse.parse.html import HTMLTree, NodeType

from tasks.formats.documents.text import clean

# Names of meta elements, the most reliable first: Open Graph's article (ogp.me), schema.org, Dublin Core (RFC 5013),
# Google Scholar, and those of publishing systems.
AUTHORS = (
    *("parsely-author", "sailthru.author", "author", "article:author", "og:article:author", "citation_author"),
    *("dc.creator", "dcterms.creator", "byl"),
)
TITLES = ("og:title", "twitter:title", "citation_title", "parsely-title", "dc.title", "dcterms.title", "title")
SITES = ("og:site_name", "application-name")
# Two queries, each with one selector per element name: a query traverses the tree once, in time proportional to
# selectors times elements. Elements with other names are skipped at once, whatever the length of `:is`.
_HEAD = (
    'title, base[href], link:is([rel~="canonical" i], [rel~="license" i]), '
    'meta:is([http-equiv="content-language" i], [property*="publi" i], [name*="publi" i], [name*="dat" i], '
    '[name^="dcterms" i], [itemprop], [name*="licen" i], [name*="rights" i], [property*="title" i], [name*="title" i], '
    '[property="og:site_name" i], [name="application-name" i], [name*="author" i], [property*="author" i], '
    '[name*="creator" i], [name="byl" i], [name^="twitter:label" i], [name^="twitter:data" i])'
)
# Elements anywhere in the page: dates by RDFa or microdata, h-entry (microformats.org) or the obsolete `pubdate`;
# robots tags, which browsers move into the body of a page whose head ends too early; headings for the title. Not every
# `time`: pages have thousands with other dates, and the number of elements that are read is limited.
_ANYWHERE = (
    'h1, meta[name*="robots" i], script[type="application/ld+json" i], '
    'a[href]:is([rel~="license" i], [href*="creativecommons.org/"]), '
    'time:is([pubdate], [itemprop~="datePublished"], [class~="dt-published"], [class~="entry-date"])'
)
_MAX_ELEMENTS = 2_000
_SPACE = re.compile(r"\s+")

_MAX_LEVELS = 32  # ancestors of an element that are examined
_NAME_PARTS = re.compile(r"[a-z]+")
_MAX_NAMES = 1_000  # characters of a class or id attribute that are read
# Words in the names of classes around comments of readers, in the languages of large blog systems.
_COMMENT_WORDS = frozenset(
    (
        *("comment", "comments", "commentlist", "commentlists", "commentarea", "commentmetadata"),
        *("commentform", "commentthread", "usercomment", "usercomments", "recentcomments", "kommentare"),
        *("leserkommentar", "leserkommentare", "commentaire", "commentaires", "comentario", "comentarios"),
        *("commenti", "reactie", "reacties", "kommentarer", "komentarze", "disqus", "respond", "replies"),
        *("guestbook", "reviews"),
    )
)
# Names that begin or end with these words tell something else: the section of the page, or whether comments are open.
_OTHER_BEFORE = frozenset(("category", "tag", "tone", "section", "type", "has", "no", "with"))
_OTHER_BEHIND = frozenset(("open", "closed", "count", "counts", "enabled", "disabled", "link", "number"))
_READERS = frozenset(("customer", "customers", "user", "reader", "guest", "visitor"))
# Elements that are examined: those with a part of such a word, or with microdata.
_STEMS = ("omment", "comentario", "reacti", "komentar", "disqus", "respond", "replies", "guestbook", "review")
_MAYBE_COMMENT = ", ".join(
    (*(f'[{name}*="{stem}" i]' for stem in _STEMS for name in ("class", "id")), "[itemprop]", "[itemtype]")
)
OF_READERS = ", ".join(
    f':is(div, ol, ul, li, dl, dt, dd, section, p, small, span)[{name}*="{stem}" i]'
    for stem in _STEMS
    for name in ("class", "id")
)
"""Selector of elements that may hold comments, for use where a wrong one costs little."""
_COMMENT_ITEMS = re.compile(r"comment|review|suggestedAnswer|acceptedAnswer")
_COMMENT_TYPES = ("/Comment", "/UserComments", "/Answer", "/UserReview")
_UNREAD = frozenset(("script", "style", "template", "nav", "aside", "footer", "form", "select"))


class HeadElements:
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
                if name in AUTHORS:
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

    def first(self, names: tuple[str, ...]) -> str:
        """Returns the content of the first of some meta elements that has one."""
        return next((content for name in names if (content := self.metas.get(name, "").strip())), "")


class DocumentElements:
    """The relevant elements anywhere in a page."""

    def __init__(self, document: Any) -> None:
        self.robots: list[str] = []
        self.h1: list[Any] = []
        self.json_ld: list[str] = []
        self.times: list[str] = []
        self.licences: list[tuple[bool, str]] = []
        for element in document.query_selector_all(_ANYWHERE)[:_MAX_ELEMENTS]:
            tag = element.tag
            if tag == "meta":
                if (element.getattr("name") or "").strip().lower() == "robots":
                    self.robots.append(element.getattr("content") or "")
            elif tag == "h1":
                self.h1.append(element)
            elif tag == "script":
                self.json_ld.append(element.text or "")
            elif tag == "time":
                self.times.append(element.getattr("datetime") or "")
            else:
                is_licence = "license" in (element.getattr("rel") or "").lower().split()
                self.licences.append((is_licence, (element.getattr("href") or "").strip()))


def among_comments(element: Any) -> bool:
    """Whether an element belongs to comments, answers or reviews by readers, judged by its nearest ancestors."""
    for _ in range(_MAX_LEVELS):
        element = element.closest(_MAYBE_COMMENT)
        if element is None or element.tag in ("body", "html"):
            return False
        if _is_comment(element):
            return True
        element = element.parent
        if element is None or element.type != NodeType.ELEMENT:
            return False
    return False


def _is_comment(element: Any) -> bool:
    if element.type != NodeType.ELEMENT:
        return False
    attribute = element.getattr
    item, kind = attribute("itemprop"), attribute("itemtype")
    if (item and _COMMENT_ITEMS.fullmatch(item)) or (kind and kind[:_MAX_NAMES].strip().endswith(_COMMENT_TYPES)):
        return True
    for name in f"{attribute('class') or ''} {attribute('id') or ''}"[:_MAX_NAMES].lower().split():
        parts = _NAME_PARTS.findall(name)
        is_named = not _COMMENT_WORDS.isdisjoint(parts) or ("review" in parts and not _READERS.isdisjoint(parts))
        if is_named and parts[0] not in _OTHER_BEFORE and parts[-1] not in _OTHER_BEHIND:
            return True
    return False


def lines_after(element: Any, limit: int) -> Iterator[str]:
    """Yields the text nodes after an element, none of menus, footers and comments.

    `limit` is the number of nodes that are examined.
    """
    node = element
    for _ in range(limit):
        node = _next(node, skip=node is element or node.tag in _UNREAD or _is_comment(node))
        if node is None:
            return
        if node.type == NodeType.TEXT and (text := (node.value or "").strip()):
            yield text[:_MAX_NAMES]


def _next(node: Any, *, skip: bool) -> Any:
    """Returns the next node of a document; `skip` leaves out the children of `node`."""
    if not skip and (child := node.first_child) is not None:
        return child
    while node is not None and node.tag != "body":
        if (sibling := node.next) is not None:
            return sibling
        node = node.parent
    return None


def one_line(text: str, limit: int) -> str:
    """Returns a text in one line, cleaned, cut to a number of characters."""
    return _SPACE.sub(" ", clean(text)).strip()[:limit]
