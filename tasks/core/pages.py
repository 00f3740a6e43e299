"""Pages for people: HTML from Jinja2 templates in the folder of a package, and model cards in Markdown.

Reads `*.html` from the folder of a package. Every value that a template prints is escaped unless it is markup already,
because pages show text of the open web and user input.

The sections of a card follow Mitchell et al. 2019, "Model Cards for Model Reporting" (arXiv 1810.03993), as far as they
apply. A card names no date and no machine: those are in the artifact's record, and the same model has the same card.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from html import escape

from jinja2 import Environment, PackageLoader, StrictUndefined, Template
from markupsafe import Markup


def shown(value: object) -> Markup:
    """Returns a value as HTML: markup as it is, None as nothing, numbers with separators, the rest escaped.

    >>> print(shown(12345), shown(2 / 3), shown("<b>"), shown(Markup("<b>")))
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
    # The standard library's escapes, not markupsafe's: pages inside artifacts keep their bytes.
    return Markup(escape(str(value)))


@cache
def template(package: str, name: str) -> Template:
    """Returns the template `name` in the folder of `package`; raises jinja2.TemplateNotFound where it is absent."""
    environment = Environment(
        autoescape=True,
        finalize=shown,
        loader=PackageLoader(package, ""),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(name)


def model_card(title: str, about: Sequence[str], sections: Mapping[str, Sequence[str]]) -> str:
    """Returns a model card in Markdown.

    Args:
        title: of the card.
        about: lines of the paragraph below the title.
        sections: lines by heading, in order.
    """
    parts = [f"# {title}", "\n".join(about)]
    parts += ["\n".join([f"## {heading}", "", *lines]) for heading, lines in sections.items()]
    return "\n\n".join(parts) + "\n"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Returns the lines of a table in Markdown.

    >>> table(["", "accuracy"], [["a model", "0.9"]])
    ['| | accuracy |', '|---|---|', '| a model | 0.9 |']
    """
    return [_row(head), "|---" * len(head) + "|", *map(_row, rows)]


def _row(cells: Sequence[str]) -> str:
    return "".join(f"| {cell} " if cell else "| " for cell in cells) + "|"
