"""What operators of a crawl ask from the shell: how far it is, why a URL is crawled or not, what the crawl DB holds."""

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from tasks.core.errors import InputError

if TYPE_CHECKING:
    from tasks.core.store import Store
    from tasks.run.recipe import Recipe

Ask = Callable[["Recipe", "Store", argparse.Namespace], None]
Command = Callable[[str, str, Ask], argparse.ArgumentParser]
_HOSTS = 20
_ROWS = 20
_KEPT = 2


def add_crawl_commands(command: Command) -> None:
    """Adds the commands; `command` makes one of its name, its help and what it runs."""
    far = command("status", "how far a crawl cycle is: partitions, queues, rates and back-offs", _status)
    far.add_argument("--hosts", type=int, default=_HOSTS, help=f"hosts shown at most; default: {_HOSTS}")
    far.add_argument("--json", action="store_true", help="print JSON")
    reason = command("why", "why URLs are crawled, or are not", _why)
    reason.add_argument(
        "urls",
        nargs="+",
        metavar="url",
        help="as you would type it into a browser; without a scheme https, unless only http is known; @FILE reads one "
        "per line, - standard input",
    )
    reason.add_argument("--json", action="store_true", help="print JSON; of several URLs an array")
    _add_crawldb(command("crawldb", "what the crawl DB holds: counts of URLs, or the URLs themselves", _crawldb))
    old = command("prune", "remove old generations of the crawl DB; without --remove only say which", _prune)
    old.add_argument("--keep", type=int, default=_KEPT, help=f"newest generations that stay; default: {_KEPT}")
    old.add_argument("--older-than", type=int, default=0, metavar="DAYS", help="remove none that is younger")
    old.add_argument("--remove", action="store_true", help="remove the files")
    old.add_argument("--json", action="store_true", help="print JSON")


def _add_crawldb(look: argparse.ArgumentParser) -> None:
    for name, text in (
        ("status", "such as db_gone; may be given several times, as may the next three"),
        ("reason", "such as http_404"),
        ("host", "host, host:port or *.domain, as in the hosts file"),
        ("kind", "page, sitemap or feed"),
    ):
        look.add_argument(f"--{name}", action="append", default=[], metavar=name.upper(), help=text)
    look.add_argument("--url", default="", metavar="PATTERN", help="pattern of whole URLs, with * and ?")
    look.add_argument("--due", action="store_true", help="only what is due")
    # As in `tasks.stages.crawl.query`, which is heavy to import.
    tops = ("hosts", "domains", "reasons", "statuses", "kinds", "depths")
    look.add_argument("--top", default="", choices=tops, help="count by it, the most frequent first")
    look.add_argument("--limit", type=int, default=_ROWS, help=f"rows shown at most; default: {_ROWS}")
    look.add_argument("--json", action="store_true", help="print JSON")


def _status(recipe: "Recipe", store: "Store", options: argparse.Namespace) -> None:
    from tasks.stages.crawl.status import render, status

    found = status(store, recipe.name, options.version)
    _print(found, options.json, lambda: render(found, options.hosts))


def _why(recipe: "Recipe", store: "Store", options: argparse.Namespace) -> None:
    from tasks.stages.crawl.why import render, verdict, why_all

    urls = list(_lines(options.urls))
    asked = why_all(store, recipe.name, recipe.crawl, urls, options.version)
    if len(urls) == 1:
        (found,) = asked
        _print(found, options.json, lambda: render(found))
    elif options.json:
        _print(list(asked), True, str)
    else:
        for found in asked:
            print(verdict(found), flush=True)


def _crawldb(recipe: "Recipe", store: "Store", options: argparse.Namespace) -> None:
    from tasks.stages.crawl.inject import member
    from tasks.stages.crawl.query import Filters, query, render

    filters = Filters(options.status, options.reason, options.host, options.kind, options.url, options.due)
    top = options.top or ("statuses" if filters == Filters([], [], [], []) else "")
    partitions = [member(number) for number in range(recipe.crawl.partitions)]
    found = query(store, recipe.name, partitions, filters, top=top, most=max(1, options.limit), version=options.version)
    _print(found, options.json, lambda: render(found))


def _prune(recipe: "Recipe", store: "Store", options: argparse.Namespace) -> None:
    from datetime import timedelta

    from tasks.stages.crawl.storage import crawldb

    rule = f"--keep {options.keep} --older-than {options.older_than}"
    found = crawldb.generations(store, recipe.name, options.keep, timedelta(days=options.older_than))
    rows: list[dict[str, Any]] = []
    verb = "removed" if options.remove else "would be removed"
    for one in found:
        if options.remove and not one.kept:
            crawldb.remove(one, rule)
        about = {"version": one.version, "finished": one.finished, "bytes": one.bytes}
        rows.append({**about, "stays": one.kept, "removed": bool(options.remove and not one.kept)})
    lines = (
        f"{row['version']}  {row['finished']:%Y-%m-%d %H:%M}  {row['bytes'] / 1e6:,.1f} MB  "
        + (f"stays: {row['stays']}" if row["stays"] else verb)
        for row in rows
    )
    _print(rows, options.json, lambda: "\n".join(lines) or f"{recipe.name} has no crawl DB in {store.root}")


def _lines(given: Iterable[str]) -> Iterator[str]:
    for one in given:
        if one != "-" and not one.startswith("@"):
            yield one
            continue
        try:
            with open(0 if one == "-" else one[1:], encoding="utf-8", closefd=one != "-") as file:
                yield from filter(None, map(str.strip, file))
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"{one} cannot be read ({error})", "correct the path, or save it as UTF-8") from None


def _print(found: Any, as_json: bool, text: Callable[[], str]) -> None:
    sys.stdout.write((json.dumps(found, indent=1, default=str, ensure_ascii=False) if as_json else text()) + "\n")
