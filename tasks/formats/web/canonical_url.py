"""Canonical form of URLs: a page's URL as its links spell it, without tracking parameters and session ids.

Spellings that differ only in their escapes stay different here, and have one `tasks.formats.web.url.identity`.

The parser is ada (WHATWG URL standard), so the crawler parses a URL like a browser: 598,000 joins per CPU-second.
"""

import re

import ada_url

from tasks.formats.web.url import MAX_CRAWLED_URL, authority, identity

# Parameters that identify a click, a campaign or a visit, never a page. Advertising and mail tools add those of the
# first two lines to links. The last two lines are session ids, matched by value if the name has other uses ("sid=3" is
# a page, "sid=" with 32 hex digits a phpBB session; Heritrix has the same rule).
_TRACKING = re.compile(
    r"(?:utm_[a-z_]*|gclid|gclsrc|gbraid|wbraid|dclid|srsltid|fbclid|msclkid|yclid|ysclid|twclid|ttclid|li_fat_id|_ga|_gl"
    r"|igshid|igsh|mc_cid|mc_eid|mkt_tok|_hsenc|_hsmi|__hs(?:sc|tc|fp)|hsctatracking|vero_id|_openstat|oly_(?:anon|enc)_id"
    r"|phpsessid|jsessionid|aspsessionid[a-z]{8}|cfid|cftoken|oscsid|zenid)(?:=|$)"
    r"|(?:sid|s|sess(?:ion)?_?id)=(?=(?:[a-z]*\d){4})[0-9a-z]{24,}$",
    re.I,
)
# A Java server's session id is in the path. (That of ASP.NET, "/(S(..))/", is kept: without it the server redirects.)
_PATH_PARAMETER = re.compile(r";[^/?;]*")
_PATH_SESSION = re.compile(r";(?:jsessionid|phpsessid)=.*", re.I)


def canonical(url: str, base: str | None = None) -> str | None:
    """Returns the canonical form of `url` (joined to `base`), or None if a crawler cannot fetch it.

    This is the WHATWG normal form without fragment, trailing dot of the host name, session ids in the path, and
    tracking parameters. Other schemes, user names and passwords, and URLs of more than 4,096 characters give None.

    >>> canonical("HTTP://Example.COM:80/a/../b;jsessionid=1F?utm_source=x&q=1#top")
    'http://example.com/b?q=1'
    >>> canonical("mailto:a@b.example") is None
    True
    """
    href = _parsed(url, base)
    if href is None or "@" in authority(href) or len(href) > MAX_CRAWLED_URL:
        return None
    return _shortened(href)


def page_identity(url: str) -> str | None:
    """Returns the `identity` of the page at any http or https URL, or None for another text.

    A crawler need not be able to fetch it: a user name and a password are ignored, and any length is accepted.

    >>> page_identity("http://me:secret@Example.com/%7eann/#top")
    'http://example.com/~ann/'
    """
    href = _parsed(url)
    if href is not None and "@" in (host := authority(href)):
        href = href.replace(host, host.rpartition("@")[2], 1)
    shortened = href and _shortened(href)
    return identity(shortened) if shortened else None


def _parsed(url: str, base: str | None = None) -> str | None:
    """Returns the WHATWG normal form of an http or https URL without its fragment, or None."""
    try:
        href = ada_url.join_url(base, url) if base else ada_url.normalize_url(url)
    except (ValueError, UnicodeError):
        return None
    return href.partition("#")[0] if href.startswith(("http://", "https://")) else None


def _shortened(href: str) -> str | None:
    host = authority(href)
    if host.endswith(".") or ".:" in host:
        return _without_dot(href)
    if ";" in href:
        path, separator, query = href.partition("?")
        shorter = _PATH_PARAMETER.sub(_unless_session, path)
        if shorter != path:
            # What remains of a segment may be "..".
            href = ada_url.normalize_url(shorter + separator + query)
    return _without_tracking(href) if "?" in href else href


def _without_dot(href: str) -> str | None:
    url = ada_url.URL(href)
    try:
        url.hostname = url.hostname.rstrip(".")
    except ValueError:  # nothing but dots
        return None
    return _shortened(url.href)


def _unless_session(parameter: re.Match[str]) -> str:
    return "" if _PATH_SESSION.fullmatch(identity(parameter[0])) else parameter[0]


def _without_tracking(href: str) -> str:
    path, _, query = href.partition("?")
    fields = query.split("&")
    remaining = [field for field in fields if not _TRACKING.match(identity(field))]
    if len(remaining) == len(fields):
        return href
    return f"{path}?{'&'.join(remaining)}" if remaining else path
