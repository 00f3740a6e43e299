"""Which recipe a demo run takes, and with what on top: the loopback site, or a person's own list of seeds.

Reads the seeds file.
"""

import hashlib
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tasks.core.errors import InputError
from tasks.demo.home import Home
from tasks.demo.site import HOSTS, SITE_PORT, address
from tasks.run.recipe import find_recipe

_URL = re.compile(rb"^\s*https?://[^\s/]", re.I | re.M)


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
    path = Path(seeds).absolute()
    content = read_seeds(path)
    if not contact:
        raise InputError(
            "the public web is crawled only with a contact that its owners can reach",
            "add CONTACT=https://your.page/about-this-crawl",
        )
    # Other seeds are another corpus: they get a version of their own, and the same file again finds its artifacts.
    name = hashlib.blake2b(os.fsencode(path) + content, digest_size=4).hexdigest()
    overrides = {"crawl.seed_files": [str(path)], "crawl.contact": contact}
    return Order("web", version or f"seeds-{name}", overrides)


def read_seeds(path: Path) -> bytes:
    """Returns a seeds file that holds a URL; the crawl sets lines aside that are none.

    Raises:
        InputError: no such file, or no http(s) URL in it.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InputError(
            f"the seeds file {path} cannot be read ({error})", "give a text file, one URL per line"
        ) from None
    if not _URL.search(content):
        raise InputError(f"the seeds file {path} has no URL", "write one URL per line")
    return content


def _moved_site(home: Home, recipe: str) -> dict[str, Any]:
    """Returns the override for a site that is not at the ports which the recipe names, if it crawls it at all."""
    if home.ports.site == SITE_PORT or "crawl" not in find_recipe(recipe).parts:
        return {}
    return {"crawl.seeds": [address(host, home.ports.site + at) for at, host in enumerate(HOSTS)]}
