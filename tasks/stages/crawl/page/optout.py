"""Opt-outs from AI training in headers and pages; the recipe's `ai_optouts`.

Pure functions; robots.txt is handled elsewhere. The conventions and their sources:

- `header`: X-Robots-Tag with noai (DeviantArt, November 2022) or noml (noml.info); the response headers Content-Signal
  ("search=yes, ai-train=no", Cloudflare, contentsignals.org, 2025) and Content-Usage ("train-ai=n", IETF working group
  aipref, draft-ietf-aipref-attach and -vocab, 2025-2026; the labels of its older drafts are read too).
- `meta`: the same directives in robots meta elements (`links` reads them).
- `tdm`: TDM Reservation Protocol (W3C community group, final report of 2024-05-10): tdm-reservation as meta element, as
  response header, and in the site's tdmrep.json (`hosts.rules` reads it); the one nearer to the page overrides. It is
  the machine-readable reservation of article 4(3) of the EU directive 2019/790.

Where a convention is ambiguous, the stricter reading counts. Price: some permitted pages are lost.
"""

from collections.abc import Collection, Iterable

from tasks.formats.web.robots_tag import Directives
from tasks.stages.crawl.page.links import Page

_READ = frozenset({"content-signal", "content-usage", "tdm-reservation"})
# From the narrowest use to the widest: the statement on the narrowest counts.
_TRAINING = ("train-genai", "genai", "train-ai", "ai-train", "ai", "tdm", "bots")
_REFUSED = frozenset({"n", "no", "?0"})


def opted_out(
    policy: Collection[str],
    headers: Iterable[tuple[str, str]],
    from_headers: Directives,
    page: Page,
    *,
    reserved: bool = False,
) -> str:
    """Returns which opt-out of `policy` keeps a page out of training data: "header", "meta", "tdm" or "".

    Args:
        policy: the recipe's `ai_optouts`.
        headers: of the response.
        from_headers: directives of its X-Robots-Tag.
        page: the parsed page; `Page()` for other types than HTML.
        reserved: whether the site's tdmrep.json reserves it.

    >>> opted_out(["header", "tdm"], [("Content-Signal", "search=yes, ai-train=no")], Directives(), Page())
    'header'
    >>> opted_out(["header", "tdm"], [("TDM-Reservation", "1")], Directives(), Page(tdm=False))
    ''
    """
    relevant = [(name.lower(), value) for name, value in headers if name.lower() in _READ]
    if "header" in policy and (
        from_headers.noai or any(_refuses_training(value) for name, value in relevant if name[0] == "c")
    ):
        return "header"
    if "meta" in policy and page.noai:
        return "meta"
    if "tdm" in policy:
        values = {value.strip() for name, value in relevant if name == "tdm-reservation"}
        on_site = True if "1" in values else False if "0" in values else reserved
        return "tdm" if (on_site if page.tdm is None else page.tdm) else ""
    return ""


def _refuses_training(value: str) -> bool:
    """Reads a dictionary such as "train-ai=n;x=1, search=y"; of a label given twice the last one counts."""
    stated: dict[str, str] = {}
    for member in value.lower().split(","):
        label, _, word = member.partition(";")[0].partition("=")
        stated[label.strip()] = word.strip()
    return next((stated[label] in _REFUSED for label in _TRAINING if label in stated), False)
