"""List of the annotators, filters and parsers that recipes can name, as lines for a terminal.

Reads the catalogue and the metadata of installed packages. An extension that cannot be used is listed with the cause.
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
    yield _listed("name", "is", "comes from")
    for name in catalogue.known():
        try:
            module, package = extensions.module_of(extensions.FILTERS, "filter", name, catalogue.CATALOGUE)
            roles = ["annotator"] if catalogue.defined_in(module, Annotator) else []
            roles += ["filter"] if catalogue.defined_in(module, Filter) else []
            yield _listed(name, " and ".join(roles) or "nothing", package or SLUICE)
        except Problems as problems:
            yield _listed(name, "not usable", str(problems))
    for name in parsers.known():
        try:
            parser = parsers.parser(name, {})
            yield _listed(
                name, f"parser of {', '.join(parser.media_types) or 'files'}", parsers.package_of(name) or SLUICE
            )
        except Problems as problems:
            yield _listed(name, "not usable", str(problems))


def _listed(name: str, kind: str, package: str) -> str:
    return f"{name:20} {kind:30} {package}"
