"""Commands on the way to a corpus: a first recipe, filters, and the state of a crawl."""

import argparse
from collections.abc import Iterator
from typing import TYPE_CHECKING

from tasks.run.commands.command import Command, filled_lines, on_store, overridden, recipe_of, show
from tasks.stages.consolidate.config import ConsolidateConfig
from tasks.stages.crawl.config import CrawlConfig

if TYPE_CHECKING:
    from tasks.core.store import Store
    from tasks.run.recipe import Recipe

TITLE = "make a corpus"

_HOSTS = 20
_ROWS = 20
_SLUICE = "sluice"


def _init(options: argparse.Namespace) -> None:
    from tasks.run.new_recipe import new_recipe

    print(new_recipe(options.what, options.name, options.contact).text())


def _init_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "what", help="a folder or file, here or in an object store (s3://bucket/folder/); or a site's URL"
    )
    command.add_argument("--name", default="", help="name of the recipe; default: that of the folder, file or host")
    command.add_argument("--contact", default="", help="of a crawl: a page or mailto: address for webmasters")


def _what_if(options: argparse.Namespace) -> None:
    from tasks.core.errors import RecipeError
    from tasks.run.forecast import compare
    from tasks.run.recipe import find_recipe
    from tasks.run.runner import open_store

    section = "consolidate."
    if foreign := [text for text in options.set if not text.startswith(section)]:
        remedy = f"set fields of [{section[:-1]}], or run the stages again"
        raise RecipeError(f"{foreign[0]} is not a setting of {section[:-1]}", remedy)
    recipe = find_recipe(options.recipe)
    values = dict(overridden(text.removeprefix(section)) for text in options.set)
    versions = (options.version or recipe.version, options.source_version)
    print(compare(open_store(recipe), recipe.name, recipe.of(ConsolidateConfig), values, *versions, options.examples))


def _what_if_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("--source-version", default="", help="version from which inputs missing at --version are read")
    command.add_argument(
        "--examples", type=int, default=5, help="documents to show whose verdict would change, each way"
    )


def _filters(_options: argparse.Namespace) -> None:
    print("\n".join(_listing()))


def _listing() -> Iterator[str]:
    """Yields a line for each annotator, filter and parser that recipes can name, with the cause if it is unusable."""
    from tasks.core import extensions
    from tasks.core.config import Problems
    from tasks.filters import catalogue
    from tasks.filters.base import Annotator, Filter
    from tasks.stages.extract.parser import find_parser, package_of, parser_names

    yield _row("name", "is", "comes from")
    for name in catalogue.filter_names():
        try:
            module, package = extensions.module_of(extensions.FILTERS, "filter", name, catalogue.CATALOGUE)
            roles = ["annotator"] if catalogue.defined_in(module, Annotator) else []
            roles += ["filter"] if catalogue.defined_in(module, Filter) else []
            yield _row(name, " and ".join(roles) or "nothing", package or _SLUICE)
        except Problems as problems:
            yield _row(name, "not usable", str(problems))
    for name in parser_names():
        try:
            kinds = ", ".join(find_parser(name, {}).media_types)
            yield _row(name, f"parser of {kinds or 'files'}", package_of(name) or _SLUICE)
        except Problems as problems:
            yield _row(name, "not usable", str(problems))


def _row(name: str, kind: str, package: str) -> str:
    return f"{name:20} {kind:30} {package}"


def _limits(options: argparse.Namespace) -> None:
    from tasks.run.language_limits import toml, values_of, write

    values = values_of(options.language, options.reference)
    if options.write:
        write(options.language, values, options.write)
    print(toml(options.language, values))


def _limits_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--language", required=True, help='its code, such as "ja", as the annotator language writes it'
    )
    command.add_argument(
        "--reference",
        required=True,
        nargs="+",
        metavar="FILE",
        help="clean pages of the language: JSON lines with `text` and optionally `source`, plain or compressed",
    )
    command.add_argument(
        "--write",
        default="",
        metavar="FILE",
        help="for maintainers: also add the values to this file, such as tasks/filters/limits.json",
    )


def _key_directory(options: argparse.Namespace) -> None:
    from tasks.core.errors import InputError
    from tasks.stages.crawl.http.signature import write_directory

    settings = recipe_of(options).of(CrawlConfig).signature
    if not settings.key:
        raise InputError("the recipe signs no requests", "set key and directory in [crawl.signature]")
    print(write_directory(settings, options.out, options.also, options.days * 86400))


def _key_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("out", help="the folder to create or to renew")
    command.add_argument("--days", type=int, default=30, help="for which its headers are valid; default: 30")
    command.add_argument(
        "--also", action="append", default=[], metavar="KEY", help="env:NAME or file:/path of the next or last key"
    )


def _status(recipe: "Recipe", store: "Store", options: argparse.Namespace) -> None:
    from tasks.stages.crawl.status import render, status

    answer = status(store, recipe.name, options.version)
    show(options, answer, lambda: render(answer, options.hosts))


def _status_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("--hosts", type=int, default=_HOSTS, help=f"most hosts to show; default: {_HOSTS}")


def _why(recipe: "Recipe", store: "Store", options: argparse.Namespace) -> None:
    from tasks.stages.crawl.why import render, verdict, why_all

    urls = list(filled_lines(options.urls))
    answers = why_all(store, recipe.name, recipe.of(CrawlConfig), urls, options.version)
    if len(urls) == 1:
        (answer,) = answers
        show(options, answer, lambda: render(answer))
    elif options.json:
        show(options, list(answers), str)
    else:
        for answer in answers:
            print(verdict(answer), flush=True)


def _why_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "urls",
        nargs="+",
        metavar="url",
        help="as you would type it into a browser; without a scheme https, unless the crawl DB only has http; @FILE "
        "reads one per line, - reads standard input",
    )


def _crawldb(recipe: "Recipe", store: "Store", options: argparse.Namespace) -> None:
    from tasks.stages.crawl.inject import member
    from tasks.stages.crawl.query import Filters, query, render

    filters = Filters(options.status, options.reason, options.host, options.kind, options.url, options.due)
    top = options.top or ("statuses" if filters == Filters([], [], [], []) else "")
    partitions = [member(number) for number in range(recipe.of(CrawlConfig).partitions)]
    limit = max(1, options.limit)
    answer = query(store, recipe.name, partitions, filters, top=top, limit=limit, version=options.version)
    show(options, answer, lambda: render(answer))


def _crawldb_arguments(command: argparse.ArgumentParser) -> None:
    for name, text in (
        ("status", "such as db_gone; can be repeated, as can the next three options"),
        ("reason", "such as http_404"),
        ("host", "host, host:port or *.domain, as in the hosts file"),
        ("kind", "page, sitemap or feed"),
    ):
        command.add_argument(f"--{name}", action="append", default=[], metavar=name.upper(), help=text)
    command.add_argument("--url", default="", metavar="PATTERN", help="pattern of whole URLs, with * and ?")
    command.add_argument("--due", action="store_true", help="only URLs that are due")
    # The same as in `tasks.stages.crawl.query`, which takes long to import.
    tops = ("hosts", "domains", "reasons", "statuses", "kinds", "depths")
    command.add_argument("--top", default="", choices=tops, help="count by this column, the most frequent values first")
    command.add_argument("--limit", type=int, default=_ROWS, help=f"most rows to show; default: {_ROWS}")


COMMANDS = (
    Command("init", "write a recipe for a folder, a file or a site", _init, _init_arguments, recipe=False),
    Command("filters", "list annotators, filters and parsers", _filters, recipe=False),
    Command("limits", "limits of a language from clean text", _limits, _limits_arguments, recipe=False),
    Command("what-if", "the funnel under other limits, without measuring again", _what_if, _what_if_arguments),
    Command("status", "progress of a crawl cycle", on_store(_status), _status_arguments, json=True),
    Command("why", "why URLs are crawled or not", on_store(_why), _why_arguments, json=True),
    Command("crawldb", "URLs of the crawl DB, and their counts", on_store(_crawldb), _crawldb_arguments, json=True),
    Command("key-directory", "public keys of a crawler that signs (Web Bot Auth)", _key_directory, _key_arguments),
)
