"""HTML of the pages: the templates of this folder, and fragments for cells of tables.

All shown values are text of the web or user input. So templates and fragments escape every value, and the pages contain
no script (the Content-Security-Policy forbids it).
"""

from typing import Any
from urllib.parse import quote, urlencode

from markupsafe import Markup

from tasks.core.pages import template

ROOT = "/sluice"
"""Path at which the pages are mounted."""

HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; form-action 'self'; "
    "frame-ancestors 'self'; base-uri 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


def page(name: str, title: str, **values: Any) -> str:
    """Returns the HTML document of `templates/<name>.html`."""
    return template(__package__, f"templates/{name}.html").render(title=title, root=ROOT, link=link, **values)


def link(label: object, path: str, **query: str) -> Markup:
    """Returns a link to a page of this application."""
    parameters = f"?{urlencode(query)}" if query else ""
    return Markup('<a href="{}{}">{}</a>').format(quote(path), parameters, label)


def outside(label: str, url: str) -> str:
    """Returns a link to another site, or only the label where the URL is not http or https."""
    if not url.startswith(("http://", "https://")):
        return label
    return Markup('<a href="{}" target="_blank" rel="noopener noreferrer">{}</a>').format(url, label)


def bar(share: float, *, lost: bool = False) -> Markup:
    """Returns a bar, `share` (0..1) of 16 rem wide."""
    width = 16 * min(max(share, 0.0), 1.0)
    return Markup('<span class="bar{}" style="width:{:.2f}rem"></span>').format(" lost" if lost else "", width)
