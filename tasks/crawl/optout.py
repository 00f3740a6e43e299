"""Opt-outs from AI training that come with a page or stand in a file of its site; the recipe's `ai_optouts`.

Used by visit. Pure functions; robots.txt is read elsewhere. The conventions, and where each is written down:

- `header`: X-Robots-Tag with noai (DeviantArt, November 2022) or noml (noml.info); the response headers Content-Signal
  ("search=yes, ai-train=no", Cloudflare, contentsignals.org, 2025) and Content-Usage ("train-ai=n", IETF working group
  aipref, draft-ietf-aipref-attach and -vocab, 2025-2026; the labels of its older drafts are read too).
- `meta`: the same words in robots meta elements (`links` reads them).
- `tdm`: TDM Reservation Protocol (W3C community group, final report of 2024-05-10): tdm-reservation as meta element, as
  response header, and in /.well-known/tdmrep.json. What is nearer to the page overrides: meta, then header, then file.
  It is the machine-readable reservation that article 4(3) of the EU directive 2019/790 speaks of.

Where a convention leaves room, the stricter reading counts. Price: a page is lost that its owner might have given.
"""

import json
import re
from collections.abc import Collection, Iterable
from functools import lru_cache

from tasks.crawl.links import Page
from tasks.crawl.robots_tag import Directives

TDM_FILE = "/.well-known/tdmrep.json"
_MAX_FILE = 1 << 20
_MAX_RULES = 10_000
_MAX_PATTERN = 2048
_READ = frozenset({"content-signal", "content-usage", "tdm-reservation"})
# From the narrowest use to the widest: what is said of the narrowest counts.
_TRAINING = ("train-genai", "genai", "train-ai", "ai-train", "ai", "tdm", "bots")
_REFUSED = frozenset({"n", "no", "?0"})
_ESCAPE = re.compile(r"%([0-9a-fA-F]{2})")
_UNRESERVED = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._~")


def opted_out(
    policy: Collection[str], headers: Iterable[tuple[str, str]], said: Directives, page: Page, site: bool | None = None
) -> str:
    """Returns which opt-out of `policy` keeps a page out of training data: "header", "meta", "tdm" or "".

    Args:
        policy: the recipe's `ai_optouts`.
        headers: of the response.
        said: what its X-Robots-Tag says.
        page: what the page says; `Page()` for what is no HTML.
        site: what `reserved` says of the page's path.

    >>> opted_out(["header", "tdm"], [("Content-Signal", "search=yes, ai-train=no")], Directives(), Page())
    'header'
    >>> opted_out(["header", "tdm"], [("TDM-Reservation", "1")], Directives(), Page(tdm=False))
    ''
    """
    held = [(name.lower(), value) for name, value in headers if name.lower() in _READ]
    if "header" in policy and (said.noai or any(_refuses_training(value) for name, value in held if name[0] == "c")):
        return "header"
    if "meta" in policy and page.noai:
        return "meta"
    if "tdm" in policy:
        values = {value.strip() for name, value in held if name == "tdm-reservation"}
        in_header = True if "1" in values else False if "0" in values else None
        nearest = next((word for word in (page.tdm, in_header, site) if word is not None), False)
        return "tdm" if nearest else ""
    return ""


def _refuses_training(value: str) -> bool:
    """Reads a dictionary such as "train-ai=n;x=1, search=y"; of a label given twice the last one counts."""
    stated: dict[str, str] = {}
    for member in value.lower().split(","):
        label, _, word = member.partition(";")[0].partition("=")
        stated[label.strip()] = word.strip()
    return next((stated[label] in _REFUSED for label in _TRAINING if label in stated), False)


def reserved(tdmrep_json: bytes, path: str) -> bool | None:
    """Tells whether a site's tdmrep.json reserves text and data mining of `path` (path and query of a canonical URL).

    The first rule whose pattern matches counts. Patterns are those of robots.txt: a prefix, "*" for anything, "$" for
    the end. Returns None where no rule matches, or the file is none.

    >>> reserved(b'[{"location": "/img/*.jpg$", "tdm-reservation": 0}, {"location": "/", "tdm-reservation": 1}]', "/a")
    True
    """
    path = _plain(path).replace("$", "%24").replace("*", "%2A")
    return next((taken for pattern, taken in _rules(tdmrep_json) if _matches(pattern, path)), None)


@lru_cache(maxsize=256)
def _rules(tdmrep_json: bytes) -> tuple[tuple[str, bool], ...]:
    try:
        rules = json.loads(tdmrep_json[:_MAX_FILE])
    except (ValueError, RecursionError):
        return ()
    found: list[tuple[str, bool]] = []
    for rule in rules[:_MAX_RULES] if isinstance(rules, list) else ():
        location = rule.get("location") if isinstance(rule, dict) else None
        if isinstance(location, str) and len(location) <= _MAX_PATTERN:
            found.append((_plain(location), str(rule.get("tdm-reservation")).strip() == "1"))
    return tuple(found)


def _plain(path: str) -> str:
    """Undoes escapes of letters, digits, and -._~; an escaped "*" or "$" stays itself and no wildcard."""

    def letter(found: re.Match[str]) -> str:
        one = chr(int(found[1], 16))
        return one if one in _UNRESERVED else found[0].upper()

    return _ESCAPE.sub(letter, path)


def _matches(pattern: str, path: str) -> bool:
    """Matches from the left, each piece at its first place: linear, where a regular expression may be exponential."""
    ends = pattern.endswith("$")
    first, *rest = pattern.removesuffix("$").split("*")
    if not path.startswith(first):
        return False
    at = len(first)
    if not rest:
        return not ends or at == len(path)
    for piece in rest[:-1]:
        found = path.find(piece, at)
        if found < 0:
            return False
        at = found + len(piece)
    last = rest[-1]
    return path.endswith(last) and len(path) - len(last) >= at if ends else path.find(last, at) >= 0
