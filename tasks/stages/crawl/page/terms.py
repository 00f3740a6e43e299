"""Terms of use in pages and headers: opt-outs from AI training exclude a page, all other terms are only recorded.

Pure functions. Conventions for opt-outs (the recipe's `ai_optouts`; `hosts.rules` reads those of robots.txt), with
their sources:

- `header`: X-Robots-Tag with noai (DeviantArt, November 2022) or noml (noml.info); the response headers Content-Signal
  and Content-Usage (`usage_preference`).
- `meta`: the same directives in robots meta elements (`links` reads them).
- `tdm`: TDM Reservation Protocol (W3C community group, final report of 2024-05-10): tdm-reservation as meta element, as
  response header, and in the site's tdmrep.json (`hosts.rules` reads it); the most specific statement applies. It is
  the machine-readable reservation of article 4(3) of the EU directive 2019/790.
- `rsl`: licenses in RSL 1.0 (`tasks.formats.web.rsl`), which a page names in Link headers and link elements, and
  robots.txt in License lines; the page's own licenses apply before those of the site (4.9).

If a convention is ambiguous, the stricter interpretation applies. The cost: some permitted pages are lost.

The terms at the time of the fetch are stored with the capture as one text, verbatim, so that they can be evaluated
later without the original site. Sources and names:

- `robots.*`: Content-Signal (contentsignals.org), Content-Usage (IETF aipref) and License (RSL 1.0) of robots.txt, and
  what these licenses say about the page: rsl-permits, rsl-prohibits, rsl-requires;
- `tdmrep.*`: tdm-reservation and tdm-policy of the rule of tdmrep.json for the page;
- `header.*`: Content-Signal, Content-Usage, TDM-Reservation, TDM-Policy, Crawler-Price, X-Robots-Tag with an opt-out
  from AI, and `Link: <...>; rel="license"` (RSL 1.0) of the response;
- `page.*`: the same as meta elements, `<link rel="license">`, and what the page's own RSL licenses say.
"""

import json
import re
from collections.abc import Collection, Iterable

from tasks.formats.web.link_header import RSL_TYPE, links_of
from tasks.formats.web.robots_tag import Directives
from tasks.formats.web.usage_preference import FIELDS, training_preference
from tasks.stages.crawl.http.response import Headers
from tasks.stages.crawl.page.links import NOAI, ParsedPage

Terms = Iterable[tuple[str, str]]
"""Pairs of (name, value); a name may occur several times."""

_OPTOUT_HEADERS = frozenset({*FIELDS, "tdm-reservation"})

_TERM_HEADERS = frozenset({*FIELDS, "tdm-reservation", "tdm-policy", "crawler-price"})
_MAX_VALUE, _MAX_NAMES = 1000, 20
_CONTROL = re.compile(r"[\x00-\x1f\x7f]+")


def opted_out(
    policy: Collection[str],
    headers: Iterable[tuple[str, str]],
    from_headers: Directives,
    page: ParsedPage,
    *,
    reserved: bool = False,
    licensed: bool | None = None,
) -> str:
    """Returns the opt-out in `policy` that excludes a page from training data: "header", "meta", "tdm", "rsl" or "".

    Args:
        policy: the recipe's `ai_optouts`.
        headers: the response headers.
        from_headers: directives of X-Robots-Tag.
        page: the parsed page; `ParsedPage()` for types other than HTML.
        reserved: whether the site's tdmrep.json reserves the page.
        licensed: whether the RSL licenses nearest to the page permit training; None if they say nothing.

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
        if on_site if page.tdm is None else page.tdm:
            return "tdm"
    return "rsl" if "rsl" in policy and licensed is False else ""


def header_licenses(headers: Headers, url: str) -> list[str]:
    """Returns the URLs of RSL licenses in the Link headers of the page at `url` (RSL 1.0, 4.5)."""
    links = links_of([value for name, value in headers if name.lower() == "link"], url)
    return [link.url for link in links if link.url and link.type == RSL_TYPE and "license" in link.relations]


def header_terms(headers: Headers, url: str) -> list[tuple[str, str]]:
    """Returns the terms in the response headers of the page at `url`.

    >>> header_terms((("Content-Usage", "train-ai=n"), ("Link", '</l>; rel="license"'), ("Server", "x")), "http://h/a")
    [('content-usage', 'train-ai=n'), ('license', 'http://h/l')]
    """
    terms = []
    for header, value in headers:
        name = header.lower()
        if name in _TERM_HEADERS or (name == "x-robots-tag" and NOAI.search(value)):
            terms.append((name, value))
        elif name == "link":
            links = (link for link in links_of([value], url) if "license" in link.relations)
            terms += [("license", link.url or link.target) for link in links]
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
