"""The request of a takedown from the shell: its arguments, and the version and overrides that they stand for."""

import argparse
from datetime import UTC, datetime
from typing import Any

from tasks.core.errors import InputError
from tasks.stages.takedown.config import VERSION_FORMAT, dated

_FIELDS = ("urls", "domains", "documents", "lift")


def add_takedown_arguments(command: argparse.ArgumentParser) -> None:
    """Adds the arguments of a request."""
    for name, field, what in (
        ("url", "urls", "a page"),
        ("domain", "domains", "a host name, with all names below it"),
        ("document", "documents", "a document id, 32 hex digits"),
        ("lift", "lift", "a URL, domain or document id that is no longer taken down"),
    ):
        help_text = f"{what}; may be given several times, @FILE reads one per line"
        command.add_argument(f"--{name}", action="append", default=[], dest=field, metavar=name.upper(), help=help_text)
    command.add_argument("--reason", default="", help="why, in words; stays on record")
    command.add_argument("--requested-by", default="", help="who asked for it; stays on record")
    command.add_argument(
        "--from-crawl", action="store_true", help="also what the newest crawl cycle lists as withdrawn"
    )
    command.add_argument("--date", default="", help="moment of the request, ISO 8601; default: now")


def takedown_overrides(options: argparse.Namespace) -> tuple[str, dict[str, Any]]:
    """Returns the version, by default the date of the request, and the overrides of the recipe; raises InputError."""
    try:
        moment = datetime.fromisoformat(options.date) if options.date else datetime.now(UTC)
    except ValueError:
        raise InputError(f'--date "{options.date}" is no date', "write it as 2026-11-21T09:30:00+00:00") from None
    fields = {f"takedown.{field}": _listed_lines(getattr(options, field)) for field in _FIELDS}
    words = {"takedown.reason": options.reason, "takedown.requested_by": options.requested_by}
    version = options.version or moment.strftime(VERSION_FORMAT)
    return version, {**fields, **words, "takedown.from_crawl": options.from_crawl, **dated(moment)}


def _listed_lines(given: list[str]) -> list[str]:
    return [line for one in given for line in (_read_lines(one[1:]) if one.startswith("@") else [one])]


def _read_lines(path: str) -> list[str]:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read().rstrip("\n").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read ({error})", "correct the path, or save it as UTF-8") from None
