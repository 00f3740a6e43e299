"""HTML by hand: a few functions, because the pages are tables.

Everything that is shown was crawled from a hostile web or typed by somebody. So text goes through `text`, only these
functions make markup, and the pages carry no script at all (the Content-Security-Policy forbids it).
"""

from collections.abc import Iterable, Sequence
from html import escape
from urllib.parse import quote, urlencode

HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; form-action 'self'; "
    "frame-ancestors 'self'; base-uri 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}

_STYLE = """
:root { color-scheme: light dark; font: 14px/1.5 system-ui, sans-serif; }
body { margin: 1.5rem 2rem 4rem; max-width: 90rem; }
nav { margin-bottom: 1rem; } nav a { margin-right: 1rem; }
h1 { font-size: 1.5rem; margin: 0 0 .5rem; } h2 { font-size: 1.1rem; margin: 2rem 0 .5rem; }
table { border-collapse: collapse; } th, td { text-align: left; padding: .2rem 1rem .2rem 0; vertical-align: top; }
th { font-weight: 600; border-bottom: 1px solid #8888; } td { border-bottom: 1px solid #8883; }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; }
.bar { display: inline-block; height: .7em; background: #4a8f6d; min-width: 1px; } .bar.lost { background: #c0695e; }
.quiet { color: #8889; } pre { overflow-x: auto; background: #8881; padding: .8rem; white-space: pre-wrap; }
input[type=text] { width: 32rem; max-width: 100%; } .excerpt { max-width: 60rem; overflow-wrap: anywhere; }
"""


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


def text(value: object) -> Markup:
    """Returns a value as HTML: numbers with separators, anything else escaped."""
    if isinstance(value, Markup):
        return value
    if value is None:
        return Markup("")
    if isinstance(value, int) and not isinstance(value, bool):
        return Markup(f"{value:,}")
    if isinstance(value, float):
        return Markup(f"{value:,.4g}")
    return Markup(escape(str(value)))


def join(parts: Iterable[object]) -> Markup:
    """Joins pieces of HTML and plain values."""
    return Markup("".join(text(part) for part in parts))


def link(label: object, path: str, **query: str) -> Markup:
    """Returns a link to a page of ours."""
    asked = f"?{urlencode(query)}" if query else ""
    return Markup(f'<a href="{escape(quote(path))}{escape(asked)}">{text(label)}</a>')


def outside(label: object, url: str) -> Markup:
    """Returns a link that leaves the page, or only its label where the address is not a web address."""
    if not url.startswith(("http://", "https://")):
        return text(label)
    return Markup(f'<a href="{escape(url)}" target="_blank" rel="noopener noreferrer">{text(label)}</a>')


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> Markup:
    """Returns a table; columns whose title begins with "#" are numbers."""
    numbers = [title.startswith("#") for title in head]
    body = "".join(_row("td", row, numbers) for row in rows)
    if not body:
        return Markup('<p class="quiet">nothing yet</p>')
    return Markup(f"<table>{_row('th', [title.lstrip('#') for title in head], numbers)}{body}</table>")


def bar(share: float, *, lost: bool = False) -> Markup:
    """Returns a bar, `share` (0..1) of 16 rem wide."""
    width = 16 * min(max(share, 0.0), 1.0)
    return Markup(f'<span class="bar{" lost" if lost else ""}" style="width:{width:.2f}rem"></span>')


def form(action: str, field: str, value: str, label: str, **hidden: str) -> Markup:
    """Returns a form with one text field that asks with GET."""
    inputs = "".join(f'<input type="hidden" name="{escape(k)}" value="{escape(v)}">' for k, v in hidden.items())
    entry = f'<input type="text" name="{escape(field)}" value="{escape(value)}" aria-label="{escape(label)}">'
    button = f"<button>{escape(label)}</button>"
    return Markup(f'<form action="{escape(quote(action))}" method="get">{inputs}{entry} {button}</form>')


def page(title: str, root: str, *parts: object) -> str:
    """Returns a whole document."""
    head = f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{escape(title)}</title><style>{_STYLE}</style>'
    return (
        f"{head}<body><nav>{link('All recipes', root + '/')}</nav><h1>{escape(title)}</h1>{join(parts)}</body></html>"
    )


def _row(cell: str, values: Sequence[object], numbers: Sequence[bool]) -> str:
    cells = (
        f"<{cell}{' class=number' if number else ''}>{text(value)}</{cell}>"
        for value, number in zip(values, numbers, strict=True)
    )
    return f"<tr>{''.join(cells)}</tr>"
