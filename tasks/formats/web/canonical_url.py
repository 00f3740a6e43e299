"""Canonical form of URLs: one spelling per page, without parameters that only name a visit.

The parser is ada (WHATWG URL standard), so that the crawler parses a URL as a browser does; 598,000 joins per
CPU-second.
"""

import re

import ada_url

from tasks.formats.web.url import MAX_CRAWLED_URL, authority

# Parameters that name a click, a campaign or a visit, never a page. The first two lines are written by advertising and
# mail tools into every link that they send out; the last two are session ids, recognised by their value where the name
# is also used otherwise ("sid=3" is a page, "sid=" with 32 hex digits a phpBB session; Heritrix has the same rule).
_TRACKING = re.compile(
    r"(?:utm_[a-z_]*|gclid|gclsrc|gbraid|wbraid|dclid|srsltid|fbclid|msclkid|yclid|ysclid|twclid|ttclid|li_fat_id|_ga|_gl"
    r"|igshid|igsh|mc_cid|mc_eid|mkt_tok|_hsenc|_hsmi|__hs(?:sc|tc|fp)|hsctatracking|vero_id|_openstat|oly_(?:anon|enc)_id"
    r"|phpsessid|jsessionid|aspsessionid[a-z]{8}|cfid|cftoken|oscsid|zenid)(?:=|$)"
    r"|(?:sid|s|sess(?:ion)?_?id)=(?=(?:[a-z]*\d){4})[0-9a-z]{24,}$",
    re.I,
)
# A Java server's session id is in the path. (An ASP.NET one, "/(S(..))/", is kept: without it the server redirects.)
_PATH_SESSION = re.compile(r";(?:jsessionid|phpsessid)=[^/?;]*", re.I)


def canonical(url: str, base: str | None = None) -> str | None:
    """Returns the canonical form of `url` (joined to `base`), or None when a crawler cannot fetch it.

    WHATWG normal form without fragment, without the dot after a host name, without session ids in the path, and
    without query parameters that only track visits. Refused: other schemes, user names and passwords, more than 4,096
    characters.

    >>> canonical("HTTP://Example.COM:80/a/../b;jsessionid=1F?utm_source=x&q=1#top")
    'http://example.com/b?q=1'
    >>> canonical("mailto:a@b.example") is None
    True
    """
    try:
        href = ada_url.join_url(base, url) if base else ada_url.normalize_url(url)
    except (ValueError, UnicodeError):
        return None
    if not href.startswith(("http://", "https://")):
        return None
    href = href.partition("#")[0]
    host = authority(href)
    if "@" in host or len(href) > MAX_CRAWLED_URL:
        return None
    if host.endswith(".") or ".:" in host:
        return _without_dot(href)
    if ";" in href:
        path, mark, query = href.partition("?")
        href = _PATH_SESSION.sub("", path) + mark + query
    return _without_tracking(href) if "?" in href else href


def _without_dot(href: str) -> str | None:
    parsed = ada_url.URL(href)
    try:
        parsed.hostname = parsed.hostname.rstrip(".")
    except ValueError:  # nothing but dots
        return None
    return canonical(parsed.href)


def _without_tracking(href: str) -> str:
    path, _, query = href.partition("?")
    fields = query.split("&")
    kept = [field for field in fields if not _TRACKING.match(field)]
    if len(kept) == len(fields):
        return href
    return f"{path}?{'&'.join(kept)}" if kept else path
