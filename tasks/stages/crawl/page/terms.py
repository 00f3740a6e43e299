"""Terms of use of a page at the time of its fetch, as one text that is stored with the capture.

Only records; `optout` and `hosts.rules` decide. Opt-outs and permissions are stored as stated, so that they can be
evaluated later without the original site. Sources and names:

- `robots.*`: Content-Signal (contentsignals.org), Content-Usage (IETF aipref) and License (RSL 1.0) of robots.txt;
- `tdmrep.*`: tdm-reservation and tdm-policy of the rule of tdmrep.json for the page;
- `header.*`: Content-Signal, Content-Usage, TDM-Reservation, TDM-Policy, Crawler-Price, X-Robots-Tag with an opt-out
  from AI, and `Link: <...>; rel="license"` (RSL 1.0) of the response;
- `page.*`: the same as meta elements, and `<link rel="license">`.
"""

import json
import re
from collections.abc import Iterable

from tasks.formats.web.url import MAX_CRAWLED_URL
from tasks.stages.crawl.http.response import Headers

Terms = Iterable[tuple[str, str]]
"""(name, value) of all statements; a name may occur several times."""

_READ = frozenset({"content-signal", "content-usage", "tdm-reservation", "tdm-policy", "crawler-price"})
_NOAI = re.compile(r"\bno(?:ai|ml)\b", re.I)
_LINK = re.compile(rf"<([^<>]{{1,{MAX_CRAWLED_URL}}})>([^<]{{0,1000}})")
_LICENSE = re.compile(r";\s{0,9}rel\s{0,9}=\s{0,9}(?:\"[^\"]{0,200}\blicense\b|license\b)", re.I)
_MAX_VALUE, _MAX_NAMES = 1000, 20
_CONTROL = re.compile(r"[\x00-\x1f\x7f]+")


def header_terms(headers: Headers) -> list[tuple[str, str]]:
    """Returns the terms in the headers of a response.

    >>> header_terms((("Content-Usage", "train-ai=n"), ("Link", '</l.xml>; rel="license"'), ("Server", "x")))
    [('content-usage', 'train-ai=n'), ('license', '/l.xml')]
    """
    found = []
    for written, value in headers:
        name = written.lower()
        if name in _READ or (name == "x-robots-tag" and _NOAI.search(value)):
            found.append((name, value))
        elif name == "link":
            found += [("license", one[1]) for one in _LINK.finditer(value) if _LICENSE.search(one[2])]
    return found


def kept(**places: Terms) -> str:
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


def also(before: str, **places: Terms) -> str:
    """Returns terms that are kept, with more of them from other places."""
    more = kept(**places)
    if not (before and more):
        return before or more
    return json.dumps(dict(sorted({**json.loads(before), **json.loads(more)}.items())))
