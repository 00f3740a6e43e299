"""Title of a page: the one on which its headings, structured data, Open Graph and title element agree most.

Reads the texts that `page_metadata` takes from a page, and the names of its site; writes nothing. No single source is
right on all pages: the only main heading is the name of the blog or of the section on some, the title element ends or
begins with the name of the site, and Open Graph has a text for social networks. So each text is a candidate, without
the name of the site, and is supported by each source that has the same words, or has them among others.
"""

import html
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

MAX_TITLE = 500
_SHORTEST_OTHER = 12  # letters of a lower heading that is the title
_MAX_SITE = 100
_SHORTEST_NAME = 3
_MAX_NAMES_BEHIND = 3  # names that are removed from one text: "Title - Section | Site"
# Characters between a title and the name of the site. Those of the second set need no space beside them.
_SEPARATORS = r"|\-–—»«•·:/<>@_ㅣ｜：\\"
_SEPARATOR = re.compile(rf"(?:(?<=\s)[{_SEPARATORS}]|[{_SEPARATORS}](?=\s)|[|_ㅣ｜：])")
_EDGE = f" {_SEPARATORS}".replace("\\-", "-").replace("\\\\", "\\")
_PART = re.compile(r"(?<=\S)\s+(?:[|\-–—»«•·:/]+)\s+")
_WORD = re.compile(r"[^\W_]+")
# Texts of publishing systems for pages whose author gave no title, or only the place of the page in its site.
_NO_TITLES = frozenset(
    (
        "untitled",
        "untitleddocument",
        "unbenannt",
        "notitle",
        "home",
        "homepage",
        "startseite",
        "accueil",
        "inicio",
        "index",
    )
)
# A source that has the words of a candidate among others supports it by half. A heading that is the only one of its
# page, or that its class or microdata calls the title, is preferred at equal support, since readers see it.
_AMONG_OTHERS, _ONLY, _NAMED = 0.5, 0.3, 0.8


@dataclass(frozen=True)
class Heading:
    """A heading of a page.

    Attributes:
        text: in one line.
        is_main: whether it is an `h1`.
        is_named: whether class or microdata call it the title or headline of an entry.
        element: its element in the parsed page.
    """

    text: str
    is_main: bool = True
    is_named: bool = False
    element: Any = None


@dataclass(frozen=True)
class _Candidate:
    text: str
    folded: str
    tight: str
    preference: float = 0.0

    @classmethod
    def of(cls, text: str, preference: float = 0.0) -> "_Candidate":
        folded = _folded(text)
        return cls(text, folded, folded.replace(" ", ""), preference)


def choose_title(
    stated: str, headings: list[Heading], headline: str, declared: str, names: frozenset[str] = frozenset()
) -> str:
    """Returns the title of a page, "" if there is none.

    Args:
        stated: the title element.
        headings: the main headings, and those that are named as titles, in the order of the page.
        headline: the headline of the page's article in JSON-LD.
        declared: Open Graph's title or that of another meta element.
        names: names of the site, by `site_names`.

    >>> choose_title("Quiet News: The harbour", [Heading("Quiet News"), Heading("The harbour", False, True)], "", "")
    'The harbour'
    """
    stated, headline, declared = (html.unescape(text)[:MAX_TITLE].strip() for text in (stated, headline, declared))
    visible = _headings(headings, names, (stated, headline, declared))
    others = [[_Candidate.of(without_site(text, names))] if text else [] for text in (headline, declared, stated)]
    sources = [visible, *others]
    pool = [one for source in sources for one in source if one.tight not in names and one.tight not in _NO_TITLES]
    if not pool:
        return stated or declared or next((heading.text for heading in headings if heading.is_main), "")
    if len(pool) == 1 and not visible and stated and not declared:
        return next(part for part in _PART.split(pool[0].text) if _tight(part))
    place = _folded(stated).find
    # Of equals, the first in the title element, because the name of the site usually comes last.
    best = max(pool, key=lambda one: (_support(one, sources), -(place(one.folded) % (MAX_TITLE + 1))))
    return max((one.text for one in pool if one.tight == best.tight), key=lambda text: len(_folded(text)))


def heading_of(title: str, headings: list[Heading]) -> Any:
    """Returns the element of the heading with the title, or else of the first main heading; None without both."""
    tight = _tight(title)
    same = (heading.element for heading in headings if _tight(heading.text) == tight)
    return next(same, next((heading.element for heading in headings if heading.is_main), None))


def _headings(headings: list[Heading], names: frozenset[str], elsewhere: tuple[str, ...]) -> list[_Candidate]:
    """Returns the headings that can be the title.

    One of several, as on a page with many entries, needs to be in another source; a lower heading that is not named
    needs to be a part of it.
    """
    known = [f" {_folded(text)} " for text in elsewhere]
    parts = {_folded(part) for text in elsewhere for part in _SEPARATOR.split(text)}
    mains = {_folded(heading.text) for heading in headings if heading.is_main}
    mains = {text for text in mains if text and text.replace(" ", "") not in names}
    named = {_folded(heading.text) for heading in headings if heading.is_named}
    found = []
    for heading in headings:
        one = _Candidate.of(heading.text, _ONLY * (mains == {_folded(heading.text)}) + _NAMED * heading.is_named)
        is_elsewhere = any(f" {one.folded} " in text for text in known)
        if heading.is_main or heading.is_named:
            is_title = is_elsewhere or mains == {one.folded} or named == {one.folded}
        else:
            is_title = len(one.tight) >= _SHORTEST_OTHER and one.folded in parts
        if one.tight and is_title:
            found.append(one)
    return found


def _support(one: _Candidate, sources: list[list[_Candidate]]) -> float:
    def by(source: list[_Candidate]) -> float:
        if any(other.tight == one.tight for other in source):
            return 1.0
        return _AMONG_OTHERS * any(f" {one.folded} " in f" {other.folded} " for other in source)

    return one.preference + sum(map(by, sources))


def site_names(host: str, stated: Iterable[str]) -> frozenset[str]:
    """Returns the names of a site in the form in which they are compared: those stated, and parts of its host.

    >>> sorted(site_names("blog.quiet-news.example", ["Quiet News"]))
    ['blogquietnews', 'blogquietnewsexample', 'quietnews', 'quietnewsexample']
    """
    labels = host.removeprefix("www.").split(".")[-5:]
    ends = range(max(1, len(labels) - 2), len(labels) + 1)
    parts = ["".join(labels[start:end]) for end in ends for start in range(min(end, len(labels) - 1))]
    return frozenset(name for text in (*parts, *stated) if len(name := _tight(text[:_MAX_SITE])) >= _SHORTEST_NAME)


def without_site(text: str, names: frozenset[str]) -> str:
    """Returns a title without names of the site before or after it; a text that is only such a name stays.

    >>> without_site("The harbour | Quiet News", frozenset({"quietnews"}))
    'The harbour'
    """
    for _ in range(_MAX_NAMES_BEHIND):
        cuts = [match.span() for match in _SEPARATOR.finditer(text)]
        for start, end in cuts:
            before, after = text[:start].strip(_EDGE), text[end:].strip(_EDGE)
            if before and len(after) <= _MAX_SITE and _tight(after) in names:
                text = before
                break
            if after and start <= _MAX_SITE and _tight(before) in names:
                text = after
                break
        else:
            break
    return text


def _folded(text: str) -> str:
    return " ".join(_WORD.findall(text.casefold()))


def _tight(text: str) -> str:
    return "".join(_WORD.findall(text.casefold()))
