"""Terms of use in pages and headers: opt-outs from AI training exclude a page, all other terms are only recorded.

Pure functions. Conventions for opt-outs (the recipe's `ai_optouts`; `hosts.rules` reads those of robots.txt), with
their sources:

- `header`: X-Robots-Tag with noai (DeviantArt, November 2022) or noml (noml.info); the response headers Content-Signal
  and Content-Usage (`usage_preference`).
- `meta`: the same directives in robots meta elements (`links` reads them).
- `tdm`: TDM Reservation Protocol (W3C community group, final report of 2024-05-10): tdm-reservation as meta element, as
  response header, and in the site's tdmrep.json (`hosts.rules` reads it); the most specific statement applies. It is
  the machine-readable reservation of article 4(3) of the EU directive 2019/790.

If a convention is ambiguous, the stricter interpretation applies. The cost: some permitted pages are lost.

The terms at the time of the fetch are stored with the capture as one text, verbatim, so that they can be evaluated
later without the original site. Sources and names:

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
from tasks.formats.web.usage_preference import FIELDS, training_preference
from tasks.stages.crawl.http.response import Headers
from tasks.stages.crawl.page.links import NOAI, ParsedPage

Terms = Iterable[tuple[str, str]]
"""Pairs of (name, value); a name may occur several times."""

_OPTOUT_HEADERS = frozenset({*FIELDS, "tdm-reservation"})

_TERM_HEADERS = frozenset({*FIELDS, "tdm-reservation", "tdm-policy", "crawler-price"})
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
    """Returns the opt-out in `policy` that excludes a page from training data: "header", "meta", "tdm" or "".

    Args:
        policy: the recipe's `ai_optouts`.
        headers: the response headers.
        from_headers: directives of X-Robots-Tag.
        page: the parsed page; `ParsedPage()` for types other than HTML.
        reserved: whether the site's tdmrep.json reserves the page.

    >>> opted_out(["header", "tdm"], [("Content-Signal", "search=yes, ai-train=no")], Directives(), ParsedPage())
    'header'
    >>> opted_out(["header", "tdm"], [("TDM-Reservation", "1")], Directives(), ParsedPage(tdm=False))
    ''
    """
    relevant = [(name.lower(), value) for name, value in headers if name.lower() in _OPTOUT_HEADERS]
    if "header" in policy and (
        from_headers.noai
        or any(training_preference(name, value) is False for name, value in relevant if name in FIELDS)
    ):
        return "header"
    if "meta" in policy and page.noai:
        return "meta"
    if "tdm" in policy:
        values = {value.strip() for name, value in relevant if name == "tdm-reservation"}
        on_site = True if "1" in values else False if "0" in values else reserved
        return "tdm" if (on_site if page.tdm is None else page.tdm) else ""
    return ""


def header_terms(headers: Headers) -> list[tuple[str, str]]:
    """Returns the terms in response headers.

    >>> header_terms((("Content-Usage", "train-ai=n"), ("Link", '</l.xml>; rel="license"'), ("Server", "x")))
    [('content-usage', 'train-ai=n'), ('license', '/l.xml')]
    """
    terms = []
    for header, value in headers:
        name = header.lower()
        if name in _TERM_HEADERS or (name == "x-robots-tag" and NOAI.search(value)):
            terms.append((name, value))
        elif name == "link":
            terms += [("license", match[1]) for match in _LINK.finditer(value) if _LICENSE.search(match[2])]
    return terms


def terms_json(**places: Terms) -> str:
    """Returns terms by place as a JSON object with keys "place.name"; "" if there are none.

    Several values of one name are joined by commas, as in HTTP. At most 20 names and 1,000 characters each are kept.

    >>> terms_json(robots=[("license", "https://h/l.xml")], header=[("tdm-reservation", "1"), ("tdm-reservation", "0")])
    '{"header.tdm-reservation": "1, 0", "robots.license": "https://h/l.xml"}'
    """
    values: dict[str, list[str]] = {}
    for place, terms in places.items():
        for name, value in terms:
            if plain := _CONTROL.sub(" ", value).strip():
                values.setdefault(f"{place}.{name}", []).append(plain)
    names = sorted(values)[:_MAX_NAMES]
    return json.dumps({name: ", ".join(dict.fromkeys(values[name]))[:_MAX_VALUE] for name in names}) if names else ""


def merge_terms(before: str, **places: Terms) -> str:
    """Returns the JSON of `terms_json` with the terms of further places added."""
    more = terms_json(**places)
    if not (before and more):
        return before or more
    return json.dumps(dict(sorted({**json.loads(before), **json.loads(more)}.items())))
