"""Keeps the code of a page: one line per line, without line numbers and copy buttons; names its language.

Reads and changes the listings of a parsed page. Highlighters write code as a `pre` with a number before each line, as a
table with a column of numbers (Pygments, Rouge, Chroma, highlight.js, GitHub), as an element per line without line
breaks (Shiki, Docusaurus, prettify), or as a table without a `pre` (SyntaxHighlighter, Crayon, GitHub). Afterward every
listing is a `pre` whose text is the code.
"""

import re
from collections.abc import Sequence

from resiliparse.parse.html import DocumentNode, ElementNode, HTMLTree, Node

from tasks.stages.extract.rendering.node_text import TextReader

_LOOSE_LINES = "td.blob-code, .syntaxhighlighter td.code .line, .crayon-pre .crayon-line"
LISTINGS = "pre, td.blob-code, td.code, div.crayon-pre"
"""Selector of the elements by which a page with code is known."""
_LISTING_NAMES = frozenset(("pre", "td", "div"))
_LISTING_CLASS = re.compile(r"(?:^|\s)(?:blob-code|code|crayon-pre)(?:\s|$)")

_NUMBERS = (
    ".linenos, .lineno, .linenodiv, .linenumber, .linenumbers, .line-number, .line-numbers, .line-numbers-rows,"
    " .lineNumber, .gutter, .rouge-gutter, .hljs-ln-numbers, .hljs-ln-n, .blob-num, .crayon-nums, .lnt, .ln"
)
_NUMBER_TEXT = re.compile(r"[\d\s.:|]*+")
_COPY = (
    "button, clipboard-copy, .copy, .copy-btn, .btn-copy, .copybtn, .copy-button, .copy-code, .copy-code-button,"
    " .code-copy, .clipboard, .clipboard-button, .btn-clipboard, .hljs-copy, .zeroclipboard-container, .toolbar-item"
)
_MOST_LABEL = 40
_INLINE_LINES = '[class~="line"], .code-line, .token-line, .view-line, [data-line]'
_LINES = f"pre :is(div, p, li, tr, {_INLINE_LINES})"
_BLOCKS = frozenset(("div", "p", "li", "tr"))
# Elements between a line and its listing, in the highlighters named above.
_MOST_LEVELS = 8
_MOST_NODES = 50_000
_MOST_FIGURES = 1_000

_LANGUAGE = re.compile(r"(?i)(?:^|\s)(?:language-|highlight-source-|src-|brush:\s*+)([a-z][\w+#.-]{0,39})")
# "highlight-box" and "lang-en" name no language of code, so words after these prefixes must be known.
_KNOWN_LANGUAGE = re.compile(r"(?:^|\s)(?:lang-|highlight-)?([\w+#.-]++)")
_NO_LANGUAGE = frozenset(
    ("none", "plain", "plaintext", "text", "txt", "default", "nohighlight", "notranslate", "linenums", "html-basic")
)
_NAMES = """
    ada apache arduino asm awk basic bash bat c c# c++ clojure cmake cobol coffeescript console cpp crystal cs
    csharp css cuda dart delphi diff django dockerfile elisp elixir elm erb erlang fortran fsharp gherkin glsl go
    golang gradle graphql groovy haml handlebars haskell html http ini java javascript jinja js json jsx julia
    kotlin latex less lisp lua make makefile markdown matlab mathematica md nginx nim nix objc objective-c ocaml
    octave pascal perl php postgresql powershell prolog properties protobuf ps1 puppet py python python3 r racket rb
    rst ruby rust sass scala scheme scss sh shell smalltalk solidity sql swift tcl terraform tex toml ts tsx twig
    typescript vb vbnet verilog vhdl vim vue wasm xml xslt yaml yml zig zsh
"""
_LANGUAGES = frozenset(_NAMES.split())


def is_listing(node: ElementNode) -> bool:
    """Returns whether an element is one of `LISTINGS`."""
    if node.local_name not in _LISTING_NAMES:
        return False
    return node.local_name == "pre" or bool(_LISTING_CLASS.search(node.get_attribute("class") or ""))


def code_language(class_value: str) -> str:
    """Returns the language that the class of a listing names, in lower case; "" for none.

    Args:
        class_value: value of the class of a `pre`, a `code` or an element around them, or of `data-lang`.

    >>> code_language("hljs language-python"), code_language("brush: Java; toolbar: false"), code_language("wide box")
    ('python', 'java', '')
    """
    names = [found.lower().rstrip(".") for found in _LANGUAGE.findall(class_value)]
    names += [found for found in _KNOWN_LANGUAGE.findall(class_value.lower()) if found in _LANGUAGES]
    return next((name for name in names if name not in _NO_LANGUAGE), "")


def clean_listings(tree: HTMLTree, reader: TextReader) -> bool:
    """Makes each listing of a page a `pre` with the code alone; returns whether something was changed.

    Args:
        tree: the page.
        reader: reads texts of the page.
    """
    document = tree.document
    if document is None:
        return False
    removed = [*_line_numbers(document, reader), *_copy_buttons(document, reader)]
    for node in removed:
        node.remove()
    changed = bool(removed)
    changed |= _join_lines(document, reader)
    changed |= _tables_to_listings(document, reader)
    if changed:
        _unwrap_tables(document, reader)
    return _unwrap_figures(document) or changed


def _line_numbers(document: DocumentNode, reader: TextReader) -> list[ElementNode]:
    found = document.query_selector_all(_NUMBERS)[:_MOST_NODES]
    return [node for node in found if node.local_name != "pre" and _NUMBER_TEXT.fullmatch(reader.text(node))]


def _copy_buttons(document: DocumentNode, reader: TextReader) -> list[ElementNode]:
    found = document.query_selector_all(_COPY)[:_MOST_NODES]
    return [node for node in found if len(reader.text(node).strip()) <= _MOST_LABEL and _is_at_listing(node)]


def _is_at_listing(node: ElementNode) -> bool:
    for _ in range(3):
        for near in (node.previous_element_sibling, node.next_element_sibling, node.parent):
            if isinstance(near, ElementNode) and near.local_name in ("pre", "code"):
                return True
        outer = node.parent
        if not isinstance(outer, ElementNode):
            return False
        node = outer
    return False


def _join_lines(document: DocumentNode, reader: TextReader) -> bool:
    """Puts exactly one line break between the elements that are the lines of a `pre`."""
    changed = False
    for listing, lines in _grouped(document.query_selector_all(_LINES)[:_MOST_NODES], "pre"):
        texts = [reader.text(line).strip("\r\n") for line in lines]
        whole = reader.text(listing)
        if reader.is_spent or sum(map(_visible, texts)) != _visible(whole):
            continue  # elements in code, and not its lines
        if any(line.local_name in _BLOCKS for line in lines):
            _content(listing).text = "\n".join(texts)
            changed = True
        elif whole.strip("\n").count("\n") < len(lines) - 1 and listing.query_selector("br") is None:
            for line in lines[:-1]:
                line.after(document.create_text_node("\n"))
            changed = True
    return changed


def _grouped(nodes: Sequence[ElementNode], name: str) -> list[tuple[ElementNode, list[ElementNode]]]:
    """Returns elements with the lines in them; of nested lines only the outer ones."""
    groups: dict[ElementNode, list[ElementNode]] = {}
    last: ElementNode | None = None
    for node in nodes:
        if last is not None and last.contains(node):
            continue
        outer: Node | None = node.parent
        for _ in range(_MOST_LEVELS):
            if outer is None or (outer.node_name or "").lower() == name:
                break
            outer = outer.parent
        if isinstance(outer, ElementNode) and outer.local_name == name:
            groups.setdefault(outer, []).append(node)
            last = node
    return list(groups.items())


def _visible(text: str) -> int:
    return sum(map(len, text.split()))


def _content(listing: ElementNode) -> ElementNode:
    """Returns the `code` that has all of a listing, or else the listing."""
    inner = listing.first_element_child
    return inner if inner is not None and inner.local_name == "code" and inner.text == listing.text else listing


def _tables_to_listings(document: DocumentNode, reader: TextReader) -> bool:
    """Replaces tables whose cells or elements are lines of code."""
    changed = False
    for table, lines in _grouped(document.query_selector_all(_LOOSE_LINES)[:_MOST_NODES], "table"):
        code = "\n".join([reader.text(line).strip("\r\n") for line in lines])
        if not reader.is_spent and table.query_selector("pre") is None:
            listing = document.create_element("pre")
            listing.text = code
            around = table.parent
            names = [one.get_attribute("class") or "" for one in (table, around) if isinstance(one, ElementNode)]
            listing.set_attribute("class", " ".join(names))
            table.replace_with(listing)
            changed = True
    return changed


def _unwrap_tables(document: DocumentNode, reader: TextReader) -> None:
    """Replaces tables of which only the code is left by their `pre`."""
    for table in document.query_selector_all("table:has(pre)")[:_MOST_NODES]:
        listings = [one for one in table.query_selector_all("pre")[:3] if reader.text(one).strip()]
        if len(listings) != 1:
            continue
        whole, code = reader.text(table), reader.text(listings[0])
        if not reader.is_spent and _visible(whole) == _visible(code):
            names = f"{table.get_attribute('class') or ''} {listings[0].get_attribute('class') or ''}".strip()
            if names:
                listings[0].set_attribute("class", names)
            table.replace_with(listings[0])


def _unwrap_figures(document: DocumentNode) -> bool:
    """Makes figures with listings ordinary boxes: resiliparse leaves out all figures, as it does pictures."""
    found = document.query_selector_all("figure:has(pre)")[:_MOST_FIGURES]
    for figure in found:
        box = document.create_element("div")
        if names := figure.get_attribute("class"):
            box.set_attribute("class", names)
        box.append(*figure.child_nodes.values())
        figure.replace_with(box)
    return bool(found)
