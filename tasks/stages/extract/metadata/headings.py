"""The headings of a page that may be its title, and those that are the name of its site.

Reads headings of the parsed page and the page's URL; returns them as `Heading` for `title`.
"""

from typing import Any
from urllib.parse import urljoin, urlsplit

from tasks.stages.extract.metadata.elements import among_comments, one_line
from tasks.stages.extract.metadata.title import MAX_TITLE, Heading, tight

# Names of classes in the templates of blogs and news (WordPress, Blogger, TypePad, Drupal, Joomla, Serendipity, hAtom,
# h-entry): of the title of an entry, and of the name of a site.
_TITLES = frozenset(
    (
        *("entry-title", "post-title", "posttitle", "post_title", "article-title", "p-name", "entry-header", "title"),
        *("headline", "asset-name", "node-title", "contentheading", "serendipity_title", "page-title"),
        *("article__title", "article__headline", "story-title"),
    )
)
_SITES = frozenset(
    (
        *("site-title", "site-name", "sitename", "blog-title", "blogtitle", "site-header", "site-branding"),
        *("branding", "masthead", "logo", "brand"),
    )
)
_LOWER = 'h2, h3, h4, a[rel~="home" i]'
_MAX_HEADINGS = 40
_MAX_CLASSES = 1_000  # characters of a class attribute that are read
_LEVELS_OF_LOGO = 3


def read_headings(document: Any, h1: list[Any], url: str, parts: frozenset[str]) -> tuple[list[Heading], list[str]]:
    """Returns the headings of a page that may be the title, and texts that are the name of its site.

    At most 40 main headings and 40 lower ones are read. Lower headings are those that are named as titles, or have a
    part of a title that is stated elsewhere.

    Args:
        document: root element of the page.
        h1: its main headings.
        url: address of the page.
        parts: parts of other titles, as by `title.parts_of`.
    """
    found, names = [], []
    for element in (*h1[:_MAX_HEADINGS], *document.query_selector_all(_LOWER)[:_MAX_HEADINGS]):
        tag, text = element.tag, (element.text or "")[: 4 * MAX_TITLE]
        is_main, is_named = tag == "h1", _is_named(element)
        if not (is_main or is_named or tag == "a" or tight(text) in parts):
            continue
        text = one_line(text, MAX_TITLE).rstrip("¶# ")
        if tag == "a" or _is_of_site(element, url):
            names.append(text)
        elif text and not among_comments(element):
            found.append(Heading(text, is_main, is_named, element))
    return found, names


def _is_named(heading: Any) -> bool:
    classes = (heading.getattr("class") or "")[:_MAX_CLASSES].lower().split()
    return "headline" in (heading.getattr("itemprop") or "").lower() or not _TITLES.isdisjoint(classes)


def _is_of_site(heading: Any, url: str) -> bool:
    """Whether a heading is the name of the site: linked with the home page, or in an element named after the logo."""
    parent = heading.parent
    link = heading.query_selector("a[href]") or (parent if parent is not None and parent.tag == "a" else None)
    if link is not None and _is_home(link.getattr("href") or "", url):
        return True
    for _ in range(_LEVELS_OF_LOGO):
        if heading is None or heading.tag in ("body", "html", "article", "main"):
            return False
        names = (heading.getattr("class") or "")[:_MAX_CLASSES].lower().split()
        identity = (heading.getattr("id") or "").lower()
        if identity == "header" or not _SITES.isdisjoint((identity, *names)):
            return True
        heading = heading.parent
    return False


def _is_home(href: str, url: str) -> bool:
    """Whether a reference of a page at `url` leads to the home page of its site or to the first folder of its path."""
    try:
        link, page = urlsplit(urljoin(url, href.strip())), urlsplit(url)
    except ValueError:
        return False
    if not href.strip() or link.netloc.removeprefix("www.") != page.netloc.removeprefix("www.") or link.query:
        return False
    folder, path = link.path.strip("/"), page.path.strip("/")
    return not link.fragment and (not folder or ("/" not in folder and path.startswith(f"{folder}/")))
