"""The pages' HTML: templates of this folder, and the pieces that stand inside cells of tables.

Everything that is shown was crawled from a hostile web or typed by somebody. So templates and pieces escape every
value, and the pages carry no script at all (the Content-Security-Policy forbids it).
"""

from typing import Any
from urllib.parse import quote, urlencode

from markupsafe import Markup

from tasks.core.pages import template

ROOT = "/sluice"
"""Where the pages are mounted."""

HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; form-action 'self'; "
    "frame-ancestors 'self'; base-uri 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


def page(name: str, title: str, **values: Any) -> str:
    """Returns a whole document made by `templates/<name>.html`."""
    return template(__package__, f"templates/{name}.html").render(title=title, root=ROOT, link=link, **values)


def link(label: object, path: str, **query: str) -> Markup:
    """Returns a link to a page of ours."""
    asked = f"?{urlencode(query)}" if query else ""
    return Markup('<a href="{}{}">{}</a>').format(quote(path), asked, label)


def outside(label: str, url: str) -> str:
    """Returns a link that leaves the page, or only its label where the address is not a web address."""
    if not url.startswith(("http://", "https://")):
        return label
    return Markup('<a href="{}" target="_blank" rel="noopener noreferrer">{}</a>').format(url, label)


def bar(share: float, *, lost: bool = False) -> Markup:
    """Returns a bar, `share` (0..1) of 16 rem wide."""
    width = 16 * min(max(share, 0.0), 1.0)
    return Markup('<span class="bar{}" style="width:{:.2f}rem"></span>').format(" lost" if lost else "", width)
