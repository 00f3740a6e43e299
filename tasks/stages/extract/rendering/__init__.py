"""Makes the tree of a page show what a browser shows, for all extractors alike.

Reads the source and the parsed tree of one page. `source` rewrites the source before it is parsed; `render` changes the
tree: hidden elements and readings of ruby go (`hidden`), raised and lowered text keeps its meaning (`raised_text`), and
code keeps its lines (`code_listings`). `short_texts` saves texts that resiliparse takes for icons.

One CSS query finds the elements of all rules: it takes as long as a search of the source for two or three words. Every
step is linear in the length of the page.
"""

from resiliparse.parse.html import ElementNode, HTMLTree

from tasks.stages.extract.rendering.code_listings import LISTINGS, clean_listings, is_listing
from tasks.stages.extract.rendering.hidden import HIDDEN, MOST_NODES, UNTIL_FOUND, Shown
from tasks.stages.extract.rendering.node_text import TextReader
from tasks.stages.extract.rendering.raised_text import raise_text

# Formulas have a hidden form for screen readers, which `render` leaves alone.
_SHOWN_ANYWAY = ":is(.katex, math, mjx-container, .mwe-math-element)"
_RAISED_NAMES = ("sup", "sub")
_CANDIDATES = ", ".join((*HIDDEN, "ruby", *_RAISED_NAMES, LISTINGS))


def render(tree: HTMLTree, source: bytes) -> bool:
    """Changes the tree of a page into what a browser shows; returns whether something was changed.

    Args:
        tree: the parsed page.
        source: the page in UTF-8, in which rules look for the words that they need.
    """
    document = tree.document
    if document is None:
        return False
    found = document.query_selector_all(_CANDIDATES)[:MOST_NODES]
    if not found:
        return False
    formulas: set[ElementNode] = set()
    if b"math" in source or b"katex" in source or b"mjx-" in source:
        inside = f"{_SHOWN_ANYWAY} :is({_CANDIDATES}), {_SHOWN_ANYWAY}:is({_CANDIDATES})"
        formulas.update(document.query_selector_all(inside)[:MOST_NODES])
    reader = TextReader()
    shown = Shown(tree, reader)
    raised: list[ElementNode] = []
    listings = False
    for node in found:
        name = node.local_name
        if node in formulas or shown.is_removed(node):
            continue
        if (node.get_attribute("hidden") or "").lower() == UNTIL_FOUND:
            node.remove_attribute("hidden")
            shown.changed = True
        elif shown.hides(node):
            shown.remove(node)
        elif name in _RAISED_NAMES:
            raised.append(node)
        elif name == "ruby":
            shown.remove_readings(node)
        else:
            listings |= is_listing(node)
    changed = raise_text(tree, raised, reader)
    changed |= listings and clean_listings(tree, reader)
    return changed or shown.changed
