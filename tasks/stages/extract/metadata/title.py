"""Title of a page: the one on which its headings, structured data, Open Graph and title element agree most.

Reads the texts that `page_metadata` takes from a page, and the names of its site; writes nothing. No single source is
right on all pages: the only main heading is the name of the blog or of the section on some, the title element ends or
begins with the name of the site, and Open Graph has a text for social networks. So each text is a candidate, without
the name of the site, and is supported by each source that has the same words, or has them among others.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

MAX_TITLE = 500
_SHORTEST_PART = 12  # letters of a part of a title that a lower heading repeats
_MAX_SITE = 100
_SHORTEST_NAME = 3
_SECOND_LEVEL = frozenset(("co", "com", "org", "net", "gov", "ac", "edu", "or", "ne", "gv"))
_MAX_NAMES_BEHIND = 3  # names that are removed from one text: "Title - Section | Site"
# Characters between a title and the name of the site, with a space beside them; some stand without one.
_SEPARATORS = r"|\-–—»«•·:/<>@_ㅣ｜：\\"
_SEPARATOR = re.compile(rf"(?:(?<=\s)[{_SEPARATORS}]|[{_SEPARATORS}](?=\s)|[|_ㅣ｜：])")
_EDGE = f" {_SEPARATORS}".replace("\\-", "-").replace("\\\\", "\\")
_PART = re.compile(r"(?<=\S)\s+(?:[|\-–—»«•·:/]+)\s+")
_WORD = re.compile(r"[^\W_]+")
# Texts of publishing systems for pages whose author gave no title, or only the place of the page in its site.
_NO_TITLES = frozenset(
    (
        *("untitled", "untitleddocument", "unbenannt", "notitle", "home", "homepage", "startseite", "accueil"),
        *("inicio", "index"),
    )
)
# A source that has the words of a candidate among others supports it by half. Readers see a heading: the only one of a
# page outweighs another source, if it is not just the name of a section, and so does one that its class or microdata
# calls the title.
_AMONG_OTHERS, _ONLY, _ONLY_PHRASE, _NAMED = 0.5, 0.3, 1.2, 0.8
_WORDS_OF_PHRASE = 3


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
    def of(cls, text: str) -> "_Candidate":
        folded = _folded(text)
        return cls(text, folded, folded.replace(" ", ""))


def choose_title(
    headings: list[Heading], stated: str, headline: str, declared: str, names: frozenset[str] = frozenset()
) -> str:
    """Returns the title of a page, "" if there is none.

    Args:
        headings: those that may be the title, main ones first.
        stated: the title element.
        headline: the headline of the page's article in JSON-LD.
        declared: Open Graph's title or that of another meta element.
        names: names of the site, by `site_names`.

    >>> choose_title([Heading("Quiet News"), Heading("The harbour", is_named=True)], "Quiet News: The harbour", "", "")
    'The harbour'
    """
    visible = _headings(headings, names, (stated, headline, declared))
    others = [[_Candidate.of(without_site(text, names))] if text else [] for text in (headline, declared, stated)]
    others = [[_with_preference(one, visible) for one in source] for source in others]
    sources = [visible, *others]
    pool = [one for source in sources for one in source if one.tight not in names and one.tight not in _NO_TITLES]
    if not pool:
        return stated or declared or next((heading.text for heading in headings if heading.is_main), "")
    is_site_first = _is_site_first(stated)
    if len(pool) == 1 and not visible and stated and not declared:
        return [part for part in _PART.split(pool[0].text) if tight(part)][-is_site_first]
    best = max(
        ((n, one) for n, source in enumerate(sources) for one in source if one in pool),
        key=lambda ranked: (_support(ranked[1], sources), -ranked[0], _place(ranked[1], stated, is_site_first)),
    )[1]
    return max((one.text for one in pool if one.tight == best.tight), key=lambda text: len(_folded(text)))


def _with_preference(one: _Candidate, visible: list[_Candidate]) -> _Candidate:
    """Returns a candidate with the preference of the heading that has it behind the name of a section."""
    behind = (heading.preference for heading in visible if one.tight == tight(_SEPARATOR.split(heading.text)[-1]))
    return replace(one, preference=max(behind, default=0.0))


def _is_site_first(stated: str) -> bool:
    """Whether a title element begins with the name of the site, by its separator: "Blog: Title", "Blog » Title"."""
    found = _SEPARATOR.search(stated)
    return found is not None and found[0] in ":»"


def _place(one: _Candidate, stated: str, is_site_first: bool) -> int:
    """Returns the higher number for the candidate that is further from the name of the site in the title element."""
    place = _folded(stated).find(one.folded)
    return place if is_site_first else -(place % (MAX_TITLE + 1))


def heading_of(title: str, headings: list[Heading]) -> Any:
    """Returns the element of the heading with the title, or else of the first main heading; None without both."""
    same = (heading.element for heading in headings if tight(heading.text) == tight(title))
    return next(same, next((heading.element for heading in headings if heading.is_main), None))


def _headings(headings: list[Heading], names: frozenset[str], elsewhere: tuple[str, ...]) -> list[_Candidate]:
    """Returns the headings that can be the title.

    One of several, as on a page with many entries, needs to be in another source.
    """
    known = [f" {_folded(text)} " for text in elsewhere]
    mains = {text for heading in headings if heading.is_main and (text := tight(heading.text)) and text not in names}
    named = {tight(heading.text) for heading in headings if heading.is_named}
    # A lower heading that is a part of the title element makes the main one the name of the site, or the reverse.
    parts = parts_of(elsewhere[:1]) - names
    has_lower = any(not heading.is_main and tight(heading.text) in parts - mains for heading in headings)
    found = []
    for heading in headings:
        one = _Candidate.of(heading.text)
        is_only = one.tight in mains and (len(mains) == 1 or (heading.is_named and len(named) == 1))
        is_elsewhere = any(f" {one.folded} " in text for text in known)
        if one.tight and (is_elsewhere or is_only or named == {one.tight}):
            is_phrase = one.folded.count(" ") + 1 >= _WORDS_OF_PHRASE
            only = (_ONLY_PHRASE if is_phrase else _ONLY) * (is_only and not has_lower)
            found.append(replace(one, preference=only + _NAMED * heading.is_named))
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
    # The domain has one more label below a suffix like co.uk.
    domain = max(0, len(labels) - (3 if len(labels) > 2 and labels[-2] in _SECOND_LEVEL else 2))
    ends = (domain + 1, len(labels))
    parts = ["".join(labels[start:end]) for end in ends for start in range(domain + 1)]
    return frozenset(name for text in (*parts, *stated) if len(name := tight(text[:_MAX_SITE])) >= _SHORTEST_NAME)


def parts_of(texts: Iterable[str]) -> frozenset[str]:
    """Returns the parts of titles between separators, as far as they are long enough for a title, as by `tight`."""
    parts = (tight(part) for text in texts for part in (text, *_SEPARATOR.split(text)))
    return frozenset(part for part in parts if len(part) >= _SHORTEST_PART)


def without_site(text: str, names: frozenset[str]) -> str:
    """Returns a title without names of the site before or after it; a text that is only such a name stays.

    >>> without_site("The harbour | Quiet News", frozenset({"quietnews"}))
    'The harbour'
    """
    for _ in range(_MAX_NAMES_BEHIND):
        cuts = [match.span() for match in _SEPARATOR.finditer(text)]
        for start, end in cuts:
            before, after = text[:start].strip(_EDGE), text[end:].strip(_EDGE)
            if before and len(after) <= _MAX_SITE and tight(after) in names:
                text = before
                break
            if after and start <= _MAX_SITE and tight(before) in names:
                text = after
                break
        else:
            break
    return text


def _folded(text: str) -> str:
    return " ".join(_WORD.findall(text.casefold()))


def tight(text: str) -> str:
    """Returns the letters and digits of a text: the form in which titles and names are compared."""
    return "".join(_WORD.findall(text.casefold()))
