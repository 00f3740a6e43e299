"""HTML pages from Jinja2 templates, and model cards in Markdown.

Reads `*.html` from the folder of a package. Every value that a template prints is escaped unless it is already markup,
because pages contain text from the open web and user input.

The sections of a card follow Mitchell et al. 2019, "Model Cards for Model Reporting" (arXiv 1810.03993), where they
apply. A card contains no date and no host name, so the same model always has the same card; the artifact's record has
both.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from html import escape

from jinja2 import Environment, PackageLoader, StrictUndefined, Template
from markupsafe import Markup


def to_markup(value: object) -> Markup:
    """Formats a value as HTML: markup unchanged, None as "", numbers with separators, everything else escaped.

    >>> print(to_markup(12345), to_markup(2 / 3), to_markup("<b>"), to_markup(Markup("<b>")))
    12,345 0.6667 &lt;b&gt; <b>
    """
    if isinstance(value, Markup):
        return value
    if value is None:
        return Markup("")
    if isinstance(value, int) and not isinstance(value, bool):
        return Markup(f"{value:,}")
    if isinstance(value, float):
        return Markup(f"{value:,.4g}")
    # The standard library's escapes, not markupsafe's, so that the bytes of pages in artifacts do not change.
    return Markup(escape(str(value)))


@cache
def template(package: str, name: str) -> Template:
    """Loads the template `name` from the folder of `package`; raises jinja2.TemplateNotFound."""
    environment = Environment(
        autoescape=True,
        finalize=to_markup,
        loader=PackageLoader(package, ""),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(name)


def model_card(title: str, about: Sequence[str], sections: Mapping[str, Sequence[str]]) -> str:
    """Returns a model card in Markdown.

    Args:
        title: title of the card.
        about: lines of the paragraph below the title.
        sections: lines of each section by its heading, in order.
    """
    parts = [f"# {title}", "\n".join(about)]
    parts += ["\n".join([f"## {heading}", "", *lines]) for heading, lines in sections.items()]
    return "\n\n".join(parts) + "\n"


def table(head: Sequence[str], rows: Iterable[Sequence[str]], *, padded: bool = False) -> list[str]:
    """Returns the lines of a Markdown table.

    Args:
        head: a cell for each column.
        rows: cells of each row.
        padded: whether empty cells and the rule have a blank on both sides, as in the artifacts of older versions.

    >>> table(["", "accuracy"], [["a model", "0.9"]])
    ['| | accuracy |', '|---|---|', '| a model | 0.9 |']
    """
    if padded:
        return [f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *rows)]
    return [_row(head), "|---" * len(head) + "|", *map(_row, rows)]


def _row(cells: Sequence[str]) -> str:
    return "".join(f"| {cell} " if cell else "| " for cell in cells) + "|"
