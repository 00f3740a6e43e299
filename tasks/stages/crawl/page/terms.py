"""What pages and headers state of their use: opt-outs from AI training decide, all other terms are recorded.

Pure functions. Opt-outs (the recipe's `ai_optouts`; `hosts.rules` reads those of robots.txt), the conventions and their
sources:

- `header`: X-Robots-Tag with noai (DeviantArt, November 2022) or noml (noml.info); the response headers Content-Signal
  ("search=yes, ai-train=no", Cloudflare, contentsignals.org, 2025) and Content-Usage ("train-ai=n", IETF working group
  aipref, draft-ietf-aipref-attach and -vocab, 2025-2026; the labels of its older drafts are read too).
- `meta`: the same directives in robots meta elements (`links` reads them).
- `tdm`: TDM Reservation Protocol (W3C community group, final report of 2024-05-10): tdm-reservation as meta element, as
  response header, and in the site's tdmrep.json (`hosts.rules` reads it); the one nearer to the page overrides. It is
  the machine-readable reservation of article 4(3) of the EU directive 2019/790.

Where a convention is ambiguous, the stricter reading counts. Price: some permitted pages are lost.

Terms at the time of the fetch are stored with the capture as one text, as stated, so that they can be evaluated later
without the original site. Sources and names:

- `robots.*`: Content-Signal (contentsignals.org), Content-Usage (IETF aipref) and License (RSL 1.0) of robots.txt;
- `tdmrep.*`: tdm-reservation and tdm-policy of the rule of tdmrep.json for the page;
- `header.*`: Content-Signal, Content-Usage, TDM-Reservation, TDM-Policy, Crawler-Price, X-Robots-Tag with an opt-out
  from AI, and `Link: <...>; rel="license"` (RSL 1.0) of the response;
- `page.*`: the same as meta elements, and `<link rel="license">`.
"""

import json
import re
from collections.abc import Collection, Iterable

from tasks.formats.web.robots_tag import Directives
from tasks.formats.web.url import MAX_CRAWLED_URL
from tasks.stages.crawl.http.response import Headers
from tasks.stages.crawl.page.links import ParsedPage

Terms = Iterable[tuple[str, str]]
"""(name, value) of all statements; a name may occur several times."""

_OPTOUT_HEADERS = frozenset({"content-signal", "content-usage", "tdm-reservation"})
# From the narrowest use to the widest: the statement on the narrowest counts.
_TRAINING = ("train-genai", "genai", "train-ai", "ai-train", "ai", "tdm", "bots")
_REFUSED = frozenset({"n", "no", "?0"})

_TERM_HEADERS = frozenset({"content-signal", "content-usage", "tdm-reservation", "tdm-policy", "crawler-price"})
_NOAI = re.compile(r"\bno(?:ai|ml)\b", re.I)
_LINK = re.compile(rf"<([^<>]{{1,{MAX_CRAWLED_URL}}})>([^<]{{0,1000}})")
_LICENSE = re.compile(r";\s{0,9}rel\s{0,9}=\s{0,9}(?:\"[^\"]{0,200}\blicense\b|license\b)", re.I)
_MAX_VALUE, _MAX_NAMES = 1000, 20
_CONTROL = re.compile(r"[\x00-\x1f\x7f]+")


def opted_out(
    policy: Collection[str],
    headers: Iterable[tuple[str, str]],
    from_headers: Directives,
    page: ParsedPage,
    *,
    reserved: bool = False,
) -> str:
    """Returns which opt-out of `policy` keeps a page out of training data: "header", "meta", "tdm" or "".

    Args:
        policy: the recipe's `ai_optouts`.
        headers: of the response.
        from_headers: directives of its X-Robots-Tag.
        page: the parsed page; `ParsedPage()` for other types than HTML.
        reserved: whether the site's tdmrep.json reserves it.

    >>> opted_out(["header", "tdm"], [("Content-Signal", "search=yes, ai-train=no")], Directives(), Page())
    'header'
    >>> opted_out(["header", "tdm"], [("TDM-Reservation", "1")], Directives(), Page(tdm=False))
    ''
    """
    relevant = [(name.lower(), value) for name, value in headers if name.lower() in _OPTOUT_HEADERS]
    if "header" in policy and (
        from_headers.noai or any(_refuses_training(value) for name, value in relevant if name[0] == "c")
    ):
        return "header"
    if "meta" in policy and page.noai:
        return "meta"
    if "tdm" in policy:
        values = {value.strip() for name, value in relevant if name == "tdm-reservation"}
        on_site = True if "1" in values else False if "0" in values else reserved
        return "tdm" if (on_site if page.tdm is None else page.tdm) else ""
    return ""


def _refuses_training(value: str) -> bool:
    """Reads a dictionary such as "train-ai=n;x=1, search=y"; of a label given twice the last one counts."""
    stated: dict[str, str] = {}
    for member in value.lower().split(","):
        label, _, word = member.partition(";")[0].partition("=")
        stated[label.strip()] = word.strip()
    return next((stated[label] in _REFUSED for label in _TRAINING if label in stated), False)


def header_terms(headers: Headers) -> list[tuple[str, str]]:
    """Returns the terms in the headers of a response.

    >>> header_terms((("Content-Usage", "train-ai=n"), ("Link", '</l.xml>; rel="license"'), ("Server", "x")))
    [('content-usage', 'train-ai=n'), ('license', '/l.xml')]
    """
    found = []
    for written, value in headers:
        name = written.lower()
        if name in _TERM_HEADERS or (name == "x-robots-tag" and _NOAI.search(value)):
            found.append((name, value))
        elif name == "link":
            found += [("license", one[1]) for one in _LINK.finditer(value) if _LICENSE.search(one[2])]
    return found


def terms_json(**places: Terms) -> str:
    """Returns what was stated in several places as JSON, an object of texts by "place.name"; "" if nothing was.

    Several values of one name are joined by commas, as in HTTP.

    >>> kept(robots=[("license", "https://h/l.xml")], header=[("tdm-reservation", "1"), ("tdm-reservation", "0")])
    '{"header.tdm-reservation": "1, 0", "robots.license": "https://h/l.xml"}'
    """
    stated: dict[str, list[str]] = {}
    for place, terms in places.items():
        for name, value in terms:
            if plain := _CONTROL.sub(" ", value).strip():
                stated.setdefault(f"{place}.{name}", []).append(plain)
    chosen = sorted(stated)[:_MAX_NAMES]
    return json.dumps({name: ", ".join(dict.fromkeys(stated[name]))[:_MAX_VALUE] for name in chosen}) if chosen else ""


def merge_terms(before: str, **places: Terms) -> str:
    """Returns terms that are kept, with more of them from other places."""
    more = terms_json(**places)
    if not (before and more):
        return before or more
    return json.dumps(dict(sorted({**json.loads(before), **json.loads(more)}.items())))
