"""What recipes can name: annotators, filters and parsers, as lines for a terminal.

Reads the catalogue and the metadata of installed packages. What a package brings and cannot be used is listed with why.
"""

from collections.abc import Iterator

from tasks.core import extensions
from tasks.core.config import Problems
from tasks.filters import catalogue
from tasks.filters.base import Annotator, Filter
from tasks.stages.extract import parsers

SLUICE = "sluice"


def listing() -> Iterator[str]:
    """Yields a line for each annotator, filter and parser."""
    yield _line("name", "is", "comes from")
    for name in catalogue.known():
        try:
            module, package = extensions.module_of(extensions.FILTERS, "filter", name, catalogue.CATALOGUE)
            held = ["annotator"] if catalogue.defined_in(module, Annotator) else []
            held += ["filter"] if catalogue.defined_in(module, Filter) else []
            yield _line(name, " and ".join(held) or "nothing", package or SLUICE)
        except Problems as problems:
            yield _line(name, "not usable", str(problems))
    for name in parsers.known():
        try:
            one = parsers.parser(name, {})
            yield _line(name, f"parser of {', '.join(one.media_types) or 'files'}", _package(name))
        except Problems as problems:
            yield _line(name, "not usable", str(problems))


def _package(name: str) -> str:
    return extensions.module_of(extensions.PARSERS, "parser", name, {})[1]


def _line(name: str, what: str, whence: str) -> str:
    return f"{name:20} {what:30} {whence}"
