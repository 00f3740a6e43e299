"""Which recipe a demo run takes, and with what on top: the loopback site, or a person's own list of seeds.

Reads the seeds file. Used by `python -m tasks.demo run`.
"""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tasks.demo.home import Home
from tasks.demo.site import HOSTS, SITE_PORT, address
from tasks.errors import InputError
from tasks.recipe import find_recipe


@dataclass(frozen=True)
class Order:
    """What to run: a recipe, a version ("" for the recipe's own) and overrides by dotted path."""

    recipe: str
    version: str
    overrides: dict[str, Any]

    def conf(self) -> dict[str, Any]:
        """Returns the `conf` of the DAG run, as the trigger form would send it."""
        version = {"version": self.version} if self.version else {}
        return {**version, "overrides": self.overrides}


def order(home: Home, recipe: str, version: str, seeds: str, contact: str) -> Order:
    """Decides what to run.

    Args:
        home: the stack; says where the site is.
        recipe: recipe for the loopback site.
        version: version of the artifacts; "": the recipe's.
        seeds: path of a file with one URL per line, or "".
        contact: URL or e-mail address that the crawler shows to the sites it visits.

    Raises:
        InputError: the seeds file or the contact cannot be used, in one line.
    """
    if not seeds:
        return Order(recipe, version, _moved_site(home, recipe))
    listed = read_seeds(Path(seeds))
    if not contact:
        raise InputError(
            "the public web is crawled only with a contact that its owners can reach",
            "add CONTACT=https://your.page/about-this-crawl",
        )
    # Other seeds are another corpus: they get a version of their own, and the same file again finds its artifacts.
    name = hashlib.blake2b("\n".join(listed).encode(), digest_size=4).hexdigest()
    overrides = {"crawl.seeds": listed, "crawl.contact": contact}
    return Order("web", version or f"seeds-{name}", overrides)


def read_seeds(path: Path) -> list[str]:
    """Returns the URLs of a seeds file; empty lines and lines that begin with # do not count.

    Raises:
        InputError: no such file, no URL in it, or a line that is not an http(s) URL; names file and line.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(
            f"the seeds file {path} cannot be read ({error})", "give a text file, one URL per line"
        ) from None
    listed = []
    for number, line in enumerate(lines, 1):
        text = line.strip()
        if text and not text.startswith("#"):
            if not _is_url(text):
                raise InputError(
                    f"{path}, line {number}: {text[:80]!r} is not an http(s) URL", "write one URL per line"
                )
            listed.append(text)
    if not listed:
        raise InputError(f"the seeds file {path} has no URL", "write one URL per line")
    return listed


def _is_url(text: str) -> bool:
    try:
        url = urlsplit(text)
        return url.scheme in ("http", "https") and bool(url.hostname) and not any(map(str.isspace, text))
    except ValueError:
        return False


def _moved_site(home: Home, recipe: str) -> dict[str, Any]:
    """Returns the override for a site that is not at the ports which the recipe names, if it crawls it at all."""
    if home.ports.site == SITE_PORT or "crawl" not in find_recipe(recipe).parts:
        return {}
    return {"crawl.seeds": [address(host, home.ports.site + at) for at, host in enumerate(HOSTS)]}
