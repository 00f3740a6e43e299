"""Authors of a page: stated by JSON-LD or meta elements, or else the byline; never those of readers' comments.

Reads objects of JSON-LD, contents of meta elements and elements of the parsed page; returns names.
"""

import html
import re
from itertools import islice
from typing import Any

from tasks.stages.extract.metadata.elements import AUTHORS, HeadElements, among_comments, lines_after, one_line

_AUTHOR_LINK = 'a[rel~="author" i], [itemprop~="author" i]'
_BYLINE = (
    ':is(span, p, div, a, li, small, address, em, b, strong, h2, h3, h4):is([class~="author" i], [class*="byline" i], '
    '[class*="author-name" i], [class*="_author" i], [class*="-author" i], [class~="authors" i], [class*="autor" i], '
    '[class~="auteur" i], [class~="auteurs" i], [class~="contributor" i])'
)
_MAX_LIKELY = 20
_LINES_AFTER, _NODES_AT_HEADING = 12, 60
_MAX_AUTHOR, _MAX_AUTHORS, _MAX_NAME_WORDS, _MAX_BYLINE = 80, 20, 8, 500
# "Text und Fotos: ", "Written by ", "Von ".
_BY = re.compile(
    r"(?:(?:text|photos?|fotos?)(?:\s*(?:and|und|&|,)\s*(?:text|photos?|fotos?))*\s*(?::|by\b|von\b)"
    r"|(?:(?:written|posted|published|geschrieben|verfasst|eingestellt|veröffentlicht|erstellt|escrito|publicado|écrit"
    r"|publié|scritto|pubblicato|geschreven|geplaatst|postado)\s+)?"
    r"(?:by|von|vom|par|por|door|av|di|authors?|autore?|autorin|auteur)\b)\s*:?\s*(?=\S)",
    re.I,
)
# Text after a name: a separator, the date, or what the person said.
_BEHIND_NAME = re.compile(
    r"\s*(?:[|•·–—]|\s-\s|,?\s(?:am|on|vom|le|el)\s|(?:\b(?:mo|di|mi|do|fr|sa|so|mon|tue|wed|thu|fri|sat|sun)\b)?[., ]*"
    r"\b\d\d?[. ]|\bfollow\b).*$",
    re.I,
)
# A name has capitals in scripts that have them: not "by the way".
_CAPITALS = re.compile(
    r"(?=[^a-zà-ÿ])\S+(?:\s(?:(?:von|van|der|de|den|zu|di|da|del|la|le|al|bin|und|and|et|y|e)\b|[^a-z\W]\S*))*$"
)
_ADDRESS = re.compile(r"\s*[<(\[]?[^\s<(\[@]++@\S++")
_NO_NAME = re.compile(r"(?:https?:|www\.|/|@).*|\S+\.(?:[a-z]{2,3}|info)(?:/\S*)?", re.I)
_SAYS = re.compile(
    r".*\b(?:says|said|writes|wrote|sagte?|schrie?b|schreibt|meint|a dit|dijo|dice|disse|scrive)[:.…]*", re.I
)
_LETTERS = re.compile(r"[\W\d_]+")
_NOBODY = frozenset(
    (
        *("admin", "administrator", "name", "autor", "author", "unknown", "editor", "webmaster", "guest"),
        *("anonymous", "anonym", "root", "user", "moderator", "by", "superuser", "sysadmin", "wordpress"),
        *("none", "null", "undefined", "default", "siteadmin", "websiteadmin"),
    )
)


def authors(document: Any, heading: Any, head: HeadElements, objects: list[dict[str, Any]], site: str) -> str:
    """Returns the names of a page's authors, separated by "; ": at most 20 of 80 characters, without that of the site.

    Args:
        document: root element of the page.
        heading: element of the main heading, or None.
        head: elements of the head.
        objects: objects of JSON-LD, those of articles first, without comments.
        site: name of the site.
    """
    by_id = {node["@id"]: node for node in objects if isinstance(node.get("@id"), str)}
    for names in (
        *(_names(node["author"], by_id) for node in objects if "author" in node),
        *(head.authors[name] for name in AUTHORS if name in head.authors),
        _of_card(head.metas),
    ):
        if people := _people(names, site):
            return "; ".join(people)
    return _by_link(document, site) or _at_heading(heading, site) or _by_class(document, site)


def _of_card(metas: dict[str, str]) -> list[str]:
    """Returns the author of a preview card, which has pairs of labels and texts ("Written by", "Eva Roth")."""
    pairs = [(metas.get(f"twitter:label{n}", ""), metas.get(f"twitter:data{n}", "")) for n in (1, 2)]
    return [text for label, text in pairs if _is_by(label[:_MAX_AUTHOR])]


def _is_by(line: str) -> bool:
    """Whether a line is only what stands before a name."""
    found = _BY.match(f"{line} x")
    return found is not None and found.end() > len(line)


def _by_link(document: Any, site: str) -> str:
    """Returns the names of the first links to authors, and of those beside the first."""
    found: list[Any] = []
    for element in document.query_selector_all(_AUTHOR_LINK)[:_MAX_LIKELY]:
        if not among_comments(element) and (not found or element.parent == found[0].parent):
            found += [element] if _people([_text(element)], site) else []
    return "; ".join(_people([_text(element) for element in found], site))


def _by_class(document: Any, site: str) -> str:
    for element in document.query_selector_all(_BYLINE)[:_MAX_LIKELY]:
        if not among_comments(element) and (people := _people([_text(element)], site)):
            return people[0]
    return ""


def _at_heading(heading: Any, site: str) -> str:
    """Returns the name in a line at the heading that begins like "By", or in the next line if there is no more."""
    nodes = lines_after(heading, _NODES_AT_HEADING) if heading is not None else iter(())
    lines = list(islice(nodes, _LINES_AFTER))
    for place, line in enumerate(lines):
        if len(line) > _MAX_AUTHOR or not _BY.match(f"{line} x"):
            continue
        people = _people([f"{line} {lines[place + 1]}" if _is_by(line) and place + 1 < len(lines) else line], site)
        if people and _CAPITALS.match(people[0]):
            return people[0]
    return ""


def _text(element: Any) -> str:
    return (element.text or "") or (element.getattr("content") or "")


def _people(texts: list[str], site: str) -> list[str]:
    names = dict.fromkeys(filter(None, map(_person, texts[:_MAX_AUTHORS])))
    return [name for name in names if name.casefold() != site.casefold()]


def _person(text: str) -> str:
    """Returns the name in a byline; "" if the text is not a name."""
    line = one_line(html.unescape(text[: 4 * _MAX_BYLINE]), _MAX_BYLINE)
    line = _ADDRESS.sub("", line)
    by = _BY.match(line)
    name = _BEHIND_NAME.sub("", line[by.end() :] if by else line).strip(" ,:|-–—")
    if len(name) > _MAX_AUTHOR or len(name.split()) > _MAX_NAME_WORDS:
        return ""
    is_nobody = _NO_NAME.fullmatch(name) or _SAYS.fullmatch(name) or _LETTERS.sub("", name.casefold()) in _NOBODY
    return "" if is_nobody or not _LETTERS.sub("", name) else name


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
