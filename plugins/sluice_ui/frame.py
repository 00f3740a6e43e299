"""The frame of every page: navigation, breadcrumbs, tabs of a version, tables that sort and page on the server.

Displayed values are text from the web or user input, so templates and fragments escape every value, and the
Content-Security-Policy forbids scripts other than those in `static/` and Plotly's, which its package brings.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any
from urllib.parse import quote, urlencode

from markupsafe import Markup

from tasks.core.pages import template
from tasks.formats.documents.languages import language_tag

ROOT = "/sluice"
"""Path at which the pages are mounted."""

HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'self' 'unsafe-inline'; script-src 'self'; "
    "connect-src 'self'; img-src 'self' data:; form-action 'self'; frame-ancestors 'self'; base-uri 'none'",
    "X-Content-Type-Options": "nosniff",
    # Nothing to other hosts; with "no-referrer" browsers would also hide the origin of the forms of these pages.
    "Referrer-Policy": "same-origin",
    "Cache-Control": "no-store",
}

PER_PAGE = 50
"""Rows of a table on one page."""

TABS = {
    "overview": ("Overview", "/recipe/{recipe}"),
    "lineage": ("Lineage", "/lineage"),
    "compare": ("Compare", "/compare"),
    "documents": ("Documents", "/corpus"),
    "filters": ("Filters", "/filters"),
    "canaries": ("Canaries", "/canaries"),
    "training": ("Training", "/training"),
    "trace": ("Trace", "/trace"),
    "explain": ("Explain", "/explain"),
    "why": ("Why", "/why"),
}
"""Pages of a version: title and path."""

RECIPE_TABS = {
    "versions": ("Versions", "/recipe/{recipe}"),
    "months": ("Months", "/months"),
    "crawl": ("Crawl", "/crawl"),
    "takedowns": ("Takedowns", "/takedowns"),
    "costs": ("Cost and disk", "/costs"),
}
"""Pages of a recipe: title and path."""


@dataclass(frozen=True)
class Address:
    """The address of a page: its path below ROOT, and its query."""

    path: str
    query: Mapping[str, str]

    def href(self, **changes: str | None) -> str:
        """Returns the address with some parameters changed, or removed where the value is None."""
        query = {name: value for name, value in {**self.query, **changes}.items() if value is not None}
        return quote(ROOT + self.path) + (f"?{urlencode(query)}" if query else "")


@dataclass(frozen=True)
class Version:
    """The version that a page is about.

    Attributes:
        recipe: name of the recipe.
        version: the version; "" for the newest one of each artifact.
        tab: the page, one of TABS, or of RECIPE_TABS if it is not about a version; "" for other pages.
        crawls: whether the recipe has a crawl.
    """

    recipe: str
    version: str
    tab: str = ""
    crawls: bool = True

    @property
    def query(self) -> dict[str, str]:
        """Parameters of its pages."""
        return {"recipe": self.recipe, "version": self.version}

    @property
    def tabs(self) -> list[tuple[str, str, bool]]:
        """Title, address and whether it is the current one, of each tab."""
        if not self.version:
            return [
                (title, Address(path.format(recipe=self.recipe), self._query_of_recipe(path)).href(), name == self.tab)
                for name, (title, path) in RECIPE_TABS.items()
                if name != "crawl" or self.crawls
            ]
        return [
            (title, Address(path.format(recipe=self.recipe), self._query_of(name)).href(), name == self.tab)
            for name, (title, path) in TABS.items()
            if name != "why" or self.crawls
        ]

    def _query_of(self, tab: str) -> dict[str, str]:
        return {"version": self.version} if tab == "overview" else self.query

    def _query_of_recipe(self, path: str) -> dict[str, str]:
        return {} if "{recipe}" in path else {"recipe": self.recipe}


def page(name: str, title: str, at: Address, of: Version | None = None, /, **values: Any) -> str:
    """Returns the HTML document of `templates/<name>.html`.

    Args:
        name: of the template.
        title: heading of the page.
        at: address of the page, from which tables take their order and page.
        of: the version with its breadcrumbs and tabs; None for a page of the store.
        values: further values of the template.
    """
    return template(__package__, f"templates/{name}.html").render(
        title=title, root=ROOT, at=at, of=of, link=link, coded=coded, table=partial(table, at), **values
    )


def coded(text: str) -> Markup:
    """Returns a message in which what stands between backticks is shown as code.

    >>> coded("run `sluice gc`")
    Markup('run <code>sluice gc</code>')
    """
    return Markup("").join(
        Markup("<code>{}</code>").format(part) if at % 2 else part for at, part in enumerate(text.split("`"))
    )


def lang(code: str) -> Markup:
    """Returns the attribute `lang` for a text with this code of the annotator `language`; "" for no language."""
    tag = language_tag(code)
    return Markup(' lang="{}"').format(tag) if tag else Markup("")


def table(
    at: Address, name: str, head: Sequence[str], rows: Sequence[Sequence[object]], most: int = PER_PAGE
) -> Markup:
    """Returns a table that is sorted and paged by links.

    Args:
        at: address of the page; `<name>.sort` is a title, after "-" for descending order, and `<name>.page` the
            page, from 1 on. Other values are ignored.
        name: of the table on its page.
        head: titles of the columns; those of numeric columns begin with "#", and a column without one is not sortable.
        rows: cells; markup is sorted by its text.
        most: rows on one page.
    """
    titles = [title.lstrip("#") for title in head]
    chosen = at.query.get(f"{name}.sort", "")
    descending, by = chosen.startswith("-"), chosen.removeprefix("-")
    if by and by in titles:
        column = titles.index(by)
        keys = {at: _order(row[column]) for at, row in enumerate(rows)}
        full = sorted((at for at in keys if keys[at][0] != _EMPTY), key=keys.__getitem__, reverse=descending)
        rows = [rows[at] for at in (*full, *(at for at in keys if keys[at][0] == _EMPTY))]
    else:
        by = ""
    pages = max(1, -(-len(rows) // most))
    number = min(max(_number(at.query.get(f"{name}.page", "")), 1), pages)
    columns = [
        {
            "title": title,
            "numeric": full.startswith("#"),
            "sorted": ("descending" if descending else "ascending") if title and title == by else "",
            "href": at.href(**{f"{name}.sort": _next_order(title, full, by, descending), f"{name}.page": None}),
        }
        for title, full in zip(titles, head, strict=True)
    ]
    links = {step: at.href(**{f"{name}.page": str(number + step)}) for step in (-1, 1) if 1 <= number + step <= pages}
    shown = rows[(number - 1) * most : number * most]
    macro = template(__package__, "templates/parts.html").module.table  # type: ignore[attr-defined]
    return Markup(macro(name, columns, shown, number, pages, len(rows), links))


_EMPTY = 2
_NUMBER = re.compile(r"([+-]?[0-9][0-9,]*(?:\.[0-9]+)?(?:e[+-]?[0-9]+)?)%?(?: |$)")


def _order(cell: object) -> tuple[int, float, str]:
    """Returns the sort key of a cell: numbers before texts, nothing, which is last in both orders, with _EMPTY."""
    if isinstance(cell, int | float):
        return 0, float(cell), ""
    text = cell.striptags() if isinstance(cell, Markup) else "" if cell is None else str(cell)
    if number := _NUMBER.match(text):  # the label of a link, or a figure with a remark, such as 1,200 or 69.6%
        return 0, float(number[1].replace(",", "")), ""
    return (1, 0.0, text.casefold()) if text else (_EMPTY, 0.0, "")


def _next_order(title: str, full: str, by: str, descending: bool) -> str:
    """Returns the order that a click on a column's title asks for; numbers begin with the largest."""
    if title != by:
        return f"-{title}" if full.startswith("#") else title
    return title if descending else f"-{title}"


def _number(text: str) -> int:
    return int(text) if text.isdecimal() and len(text) < 9 else 1


def link(label: object, path: str, **query: str) -> Markup:
    """Returns a link to a page of this application; `path` includes ROOT."""
    parameters = f"?{urlencode(query)}" if query else ""
    return Markup('<a href="{}{}">{}</a>').format(quote(path), parameters, label)


def artifact_link(address: str) -> str:
    """Returns a link to the page of an artifact, or the address of a file outside the store."""
    return address if address.startswith(("external:", "code:")) else link(address, f"{ROOT}/artifact/{address}")


def external_link(label: str, url: str) -> str:
    """Returns a link to another site, or only the label if the URL is not http or https."""
    if not url.startswith(("http://", "https://")):
        return label
    return Markup('<a href="{}" target="_blank" rel="noopener noreferrer">{}</a>').format(url, label)


def badge(label: str, kind: str = "") -> Markup:
    """Returns a short label in a colored box; `kind` is "good", "bad", "pale" or ""."""
    return Markup('<span class="badge {}">{}</span>').format(kind, label)


def moment(at: datetime) -> Markup:
    """Returns a time to the second."""
    return Markup('<time datetime="{}">{}</time>').format(at.isoformat(), f"{at:%Y-%m-%d %H:%M:%S}")


def bar(share: float, *, lost: bool = False) -> Markup:
    """Returns a bar whose width is `share` (0..1) of 8 rem."""
    width = 8 * min(max(share, 0.0), 1.0)
    return Markup('<span class="bar{}" style="width:{:.2f}rem"></span>').format(" lost" if lost else "", width)


def sparkline(values: Sequence[float]) -> Markup:
    """Returns a small line of a series, oldest value first; "" for fewer than two values."""
    if len(values) < 2:
        return Markup("")
    low, high = min(values), max(values)
    span = high - low or 1.0
    step = 96 / (len(values) - 1)
    points = " ".join(f"{2 + at * step:.1f},{20 - 16 * (value - low) / span:.1f}" for at, value in enumerate(values))
    label = f"from {values[0]:,.4g} to {values[-1]:,.4g} over {len(values)} versions"
    return Markup(
        '<svg class="spark" viewBox="0 0 100 24" role="img" aria-label="{}"><polyline points="{}"/></svg>'
    ).format(label, points)


def size(count: float) -> str:
    """Formats a number of bytes.

    >>> size(999), size(1_234_567)
    ('999 B', '1.2 MB')
    """
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1_000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1_000
    return f"{count:.1f} TB"


def page_of(at: Address, count: int, most: int) -> tuple[int, int]:
    """Returns the number of the page that an address asks for by `page`, from 1 on, and the number of pages."""
    pages = max(1, -(-count // most))
    return min(max(_number(at.query.get("page", "")), 1), pages), pages
