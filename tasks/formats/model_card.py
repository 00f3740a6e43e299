"""Model cards in Markdown: a title, what the model is for, and sections of lines, lists and tables.

The sections follow Mitchell et al. 2019, "Model Cards for Model Reporting" (arXiv 1810.03993), as far as they apply. A
card names no date and no machine: those are in the artifact's record, and the same model has the same card.
"""

from collections.abc import Iterable, Mapping, Sequence


def model_card(title: str, about: Sequence[str], sections: Mapping[str, Sequence[str]]) -> str:
    """Returns a card.

    Args:
        title: of the card.
        about: lines of the paragraph below the title.
        sections: lines by heading, in order.
    """
    parts = [f"# {title}", "\n".join(about)]
    parts += ["\n".join([f"## {heading}", "", *lines]) for heading, lines in sections.items()]
    return "\n\n".join(parts) + "\n"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Returns the lines of a table.

    >>> table(["", "accuracy"], [["a model", "0.9"]])
    ['| | accuracy |', '|---|---|', '| a model | 0.9 |']
    """
    return [_row(head), "|---" * len(head) + "|", *map(_row, rows)]


def _row(cells: Sequence[str]) -> str:
    return "".join(f"| {cell} " if cell else "| " for cell in cells) + "|"
