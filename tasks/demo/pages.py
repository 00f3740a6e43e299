"""Renders the HTML documentation of a Python installation with its own `pydoc`, once, into a folder.

A script for a bare interpreter (`python -s -S -P pages.py OUT`): it imports neither installed packages nor Sluice, so
that only the standard library is documented. It writes one file per page, and last `pages.json`, which lists them;
`tasks.demo.site` reads both. There are three hosts: `library` (top-level modules), `packages` (submodules) and `topics`
(the language reference by topic and keyword). Links between hosts have a host name and no port; the server adds the
port. Takes about 9 CPU-seconds once for CPython 3.11.

The same interpreter gives the same bytes: object addresses are removed, sets are printed with a fixed hash seed, the
environment is empty, and file names are relative to the library's root.
"""

import hashlib
import html
import importlib
import json
import os
import pkgutil
import pydoc
import re
import sys
import warnings
from collections.abc import Iterator

# Importing these prints text, opens windows, starts programs, replaces encodings or runs tests.
SIDE_EFFECTS = {
    "__main__",
    "antigravity",
    "idlelib",
    "lib2to3",
    "pages",
    "site",
    "sitecustomize",
    "test",
    "this",
    "tkinter",
    "turtle",
    "turtledemo",
    "usercustomize",
}
# Their members have pages without content: one per character set.
THIN = {"encodings"}
# "<object at 0x7f...>" in a signature and "handle 7f..." of ctypes differ in every process.
ADDRESS = re.compile(r"((?:\bat|handle)(?: |&nbsp;))(?:0x)?[0-9A-Fa-f]{8,}")
LINK = re.compile(r'href="([A-Za-z0-9_.]+)\.html(#[^"]*)?"')


# {host: {path: (title, contents, source file or "")}}
Hosts = dict[str, dict[str, tuple[str, str, str]]]


class DocRenderer(pydoc.HTMLDoc):
    """pydoc's renderer, with links to files relative to the library instead of paths on this disk."""

    def filelink(self, url: str, path: str) -> str:
        """Returns the name of a module's file, as `lib/<relative path>`."""
        root = os.path.dirname(os.__file__)
        return html.escape("lib/" + os.path.relpath(path, root) if path.startswith(root) else os.path.basename(path))

    def page(self, title: str, contents: str) -> str:
        """Returns a complete page with a title and links to the index and the search."""
        return (
            f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>{html.escape(title)}</title></head>\n'
            f'<body><p><a href="/">Index</a> <a href="/search?key=">Search</a></p>\n'
            f"{contents}\n</body></html>\n"
        )


def modules() -> list[str]:
    """Returns the sorted names of all documented modules: builtin ones, top-level ones, and members of packages."""
    names = {name for name in sys.builtin_module_names if not name.startswith("_")}
    for module in pkgutil.iter_modules():
        if module.name.startswith("_") or module.name in SIDE_EFFECTS:
            continue
        names.add(module.name)
        if module.ispkg and module.name not in THIN:
            names.update(members(module.name))
    return sorted(names - SIDE_EFFECTS)


def members(package: str) -> Iterator[str]:
    """Yields the names of the public modules inside `package`, at any depth."""
    path = getattr(importlib.import_module(package), "__path__", ())
    for module in pkgutil.iter_modules(path, package + "."):
        leaf = module.name.rpartition(".")[2]
        if leaf.startswith("_") or leaf in ("test", "tests", "idle_test"):
            continue
        yield module.name
        if module.ispkg:
            yield from members(module.name)


def module_page(doc: DocRenderer, name: str) -> tuple[str, str] | None:
    """Returns (title, body) of a module's page, or None if it cannot be imported on this system."""
    try:
        module = importlib.import_module(name)
    except Exception:  # winreg, msilib, a missing _tkinter: not part of this installation
        return None
    if name not in sys.modules:
        return None
    return f"Python module {name}", doc.document(module, name)


def topic_page(doc: DocRenderer, topic: str) -> tuple[str, str] | None:
    """Returns (title, body) of one topic or keyword of the language reference, or None without a text."""
    helper = pydoc.Helper(None, None)
    try:
        # The pager variant, showtopic, mixes the text with terminal formatting.
        text, related = helper._gettopic(topic)  # type: ignore[attr-defined]
    except (ImportError, ValueError, KeyError):
        return None
    if not text:
        return None
    kind = "keyword" if topic in pydoc.Helper.keywords else "topic"
    body = doc.bigsection(topic, "index", f"<pre>{doc.markup(text)}</pre>")
    links = " ".join(
        f'<a href="{topic_slug(name)}.html">{html.escape(name)}</a>' for name in sorted((related or "").split())
    )
    return f"Python {kind} {topic}", body + (f"<p>Related: {links}</p>" if links else "")


def topic_slug(name: str) -> str:
    """Returns the URL path segment of a topic."""
    return name if name.isidentifier() else "symbol-" + name.encode().hex()


def render() -> Hosts:
    """Renders all pages except the indexes."""
    doc = DocRenderer()
    hosts: Hosts = {"library": {}, "packages": {}, "topics": {}}
    for name in modules():
        page = module_page(doc, name)
        if page is not None:
            source = getattr(sys.modules[name], "__file__", None) or ""
            hosts["packages" if "." in name else "library"][f"/{name}.html"] = (*page, source)
    topics = {*pydoc.Helper.topics, *pydoc.Helper.keywords}
    for topic in sorted(topics):
        page = topic_page(doc, topic)
        if page is not None:
            hosts["topics"][f"/{topic_slug(topic)}.html"] = (*page, "")
    return hosts


def resolve_links(text: str, host: str, hosts: Hosts) -> str:
    """Replaces each link to a page by the URL on the host that has it, and removes links without a page."""

    def resolve(match: re.Match[str]) -> str:
        path, anchor = f"/{match[1]}.html", match[2] or ""
        if path in hosts[host]:
            return f'href="{path}{anchor}"'
        for other in ("library", "packages"):
            if path in hosts[other]:
                return f'href="http://{other}.localhost{path}{anchor}"'
        return f'name="{match[1]}"'

    return LINK.sub(resolve, ADDRESS.sub(r"\1...", text).replace(sys.base_prefix, "PREFIX"))


def index_page(doc: DocRenderer, host: str, hosts: Hosts) -> str:
    """Returns the page that links to every page of one host, and to the other hosts."""
    items = "\n".join(
        f'<li><a href="{path}">{html.escape(hosts[host][path][0])}</a></li>' for path in sorted(hosts[host])
    )
    others = " ".join(f'<a href="http://{name}.localhost/">{name}</a>' for name in hosts if name != host)
    version = ".".join(map(str, sys.version_info[:3]))
    return doc.page(
        f"Python {version} {host}", f"<h1>Python {version}: {host}</h1>\n<p>{others}</p>\n<ul>\n{items}\n</ul>"
    )


def write(out: str, hosts: Hosts) -> None:
    """Writes all pages below `out`, then `pages.json`."""
    doc, newest, entries = DocRenderer(), 0, list[dict[str, object]]()
    for host, pages in hosts.items():
        os.makedirs(os.path.join(out, host), exist_ok=True)
        for path, (title, contents, source) in pages.items():
            modified = int(os.stat(source if os.path.isfile(source) else pydoc.__file__).st_mtime)
            newest = max(newest, modified)
            entries.append(
                entry(out, host, path, title, resolve_links(doc.page(title, contents), host, hosts), modified)
            )
    for host in hosts:
        entries.append(entry(out, host, "/", f"Python {host}", index_page(doc, host, hosts), newest))
    with open(os.path.join(out, "pages.json"), "w", encoding="utf-8") as file:
        json.dump(sorted(entries, key=lambda page: f"{page['host']}{page['path']}"), file, indent=0)


def entry(out: str, host: str, path: str, title: str, text: str, modified: int) -> dict[str, object]:
    """Writes one page and returns its entry in `pages.json`."""
    body = text.encode("utf-8", "xmlcharrefreplace")
    file = f"{host}/{hashlib.sha1(path.encode()).hexdigest()}.html"
    with open(os.path.join(out, file), "wb") as handle:
        handle.write(body)
    return {
        "host": host,
        "path": path,
        "title": title,
        "file": file,
        "modified": modified,
    }


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    target, sys.argv[:] = sys.argv[1], ["pydoc"]
    write(target, render())
