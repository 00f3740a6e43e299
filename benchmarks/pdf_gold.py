"""Paragraphs of a document as its source has them: TeX (Sweave included) or HTML.

Reads source files. A unit is what a reader sees as one block: a paragraph, a heading, a list item, a caption. Code,
tables, figures and bibliographies are left out, and end the paragraph before them; a displayed formula does not,
and neither does what floats. Words of mathematics and of evaluated code are in no unit.
"""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote, urldefrag

from lxml import html

END = "\n\n"

_CHUNK = re.compile(r"^<<([^\n]*)>>=[^\n]*$(.*?)^@[^\n]*$", re.M | re.S)
_COMMENT = re.compile(r"(?m)^[ \t]*%.*\n|(?<!\\)%.*$\n?[ \t]*")
_DISPLAYED = ("equation", "align", "eqnarray", "displaymath", "gather", "multline", "math", "flalign")
_FLOATING = ("figure", "table", "wrapfigure", "sidewaysfigure", "sidewaystable")
_LEFT_OUT = (
    *("verbatim", "Verbatim", "alltt", "lstlisting", "Code", "CodeChunk", "CodeInput", "CodeOutput", "Schunk"),
    *("Sinput", "Soutput", "Scode", "tabular", "tabularx", "longtable", "thebibliography", "picture", "tikzpicture"),
    *("algorithmic", "comment", "Example"),
)
_HEADINGS = r"\\(?:part|chapter|(?:sub){0,2}section)\*?\s*(?:\[[^\]]*\])?\s*\{"
_RUN_IN = r"\\(?:sub)?paragraph\*?\s*\{"
_NO_TEXT = (
    *("label", "ref", "pageref", "eqref", "autoref", "index", "includegraphics", "input", "include", "usepackage"),
    *("setcounter", "addtocounter", "vspace", "hspace", "bibliography", "bibliographystyle", "Sexpr", "SweaveOpts"),
    *("pagestyle", "thispagestyle", "renewcommand", "newcommand", "providecommand", "setlength", "addcontentsline"),
    *("cite", "citep", "citet", "citealp", "citealt", "citeauthor", "citeyear", "setkeys", "hypersetup", "markboth"),
    *("newtheorem", "DefineVerbatimEnvironment", "date", "VignetteIndexEntry", "rule", "fontsize", "def", "nocite"),
)
_BREAKS = r"\\(?:par|newpage|clearpage|bigskip|medskip|smallskip|noindent\s*\\newline|maketitle|appendix)(?![A-Za-z])"

_BLOCKS = frozenset(
    [
        "address",
        "article",
        "aside",
        "blockquote",
        "body",
        "caption",
        "center",
        "dd",
        "div",
        "dl",
        "dt",
        "figcaption",
        "figure",
        "footer",
        "form",
        "h1",
        "h2",
        "h3",
        "h4",
        "h5",
        "h6",
        "header",
        "hr",
        "li",
        "main",
        "ol",
        "p",
        "section",
        "ul",
    ]
)
_SKIPPED = frozenset(("pre", "table", "script", "style", "head", "nav", "colgroup", "thead", "textarea", "form"))
_FURNITURE = re.compile(
    r"\b(?:header|nav-panel|navheader|navfooter|related|sphinxsidebar\w*|headerlink|category-def|category|contents|toc|toctree-wrapper|footer"
    r"|footnotes-segment|footnote|titlepage|legalnotice|Contents_element|shortcontents|printindex\S*|copiable-link"
    r"|wy-nav-side|highlight\S*|example|smallexample|lisp|footnote-reference|programlisting|revhistory|table-contents)\b"
)
_NAVIGATION = re.compile(r"\b(?:header|nav-panel|navheader|navfooter|related|sphinxsidebar\w*|footer)\b")


class Unit(NamedTuple):
    """Words of a block; `soft` if it explains a term, with which it may stand on one line or not."""

    words: list[str]
    soft: bool = False


def words(text: str) -> list[str]:
    """Returns the words of a text in lower case, without signs and digits."""
    return re.findall(r"[^\W\d_]+", text.lower())


def _balanced(text: str, start: int) -> int:
    """Returns the place behind the brace that closes the one at `start`."""
    depth = 0
    for at in range(start, len(text)):
        if text[at] in "{}" and text[at - 1] != "\\":
            depth += 1 if text[at] == "{" else -1
            if depth == 0:
                return at + 1
    return len(text)


def _without_arguments(text: str, names: Sequence[str]) -> str:
    """Returns a text without these commands and all their arguments."""
    command = re.compile(rf"\\(?:{'|'.join(names)})(?![A-Za-z])\*?")
    found, at = [], 0
    while match := command.search(text, at):
        found.append(text[at : match.start()])
        at = match.end()
        while argument := re.match(r"\s{0,2}(?:(\{)|(\[[^\]]*\])|(\\[A-Za-z]+(?=\{|\[)))", text[at:]):
            at = _balanced(text, at + argument.end() - 1) if argument[1] else at + argument.end()
    return "".join((*found, text[at:]))


def _without_chunks(text: str) -> str:
    """Returns the source of Sweave without its code; what is printed of it ends a paragraph."""
    shown = "echo=false" not in "".join(re.findall(r"\\SweaveOpts\{(.*?)\}", text)).lower().replace(" ", "")

    def mark(chunk: re.Match[str]) -> str:
        options = re.sub(r"\s", "", chunk[1].lower())
        echo = "echo=true" in options or (shown and "echo=f" not in options)
        printed = not re.search(r"results=['\"]?hide|fig=t|eval=f|include=f", options)
        return END if echo or printed else ""

    return re.sub(r"^@ *$\n?", "", _CHUNK.sub(mark, text), flags=re.M)


def _environments(text: str) -> str:
    for name in _FLOATING:
        text = re.sub(rf"\\begin\{{{name}\*?\}}.*?\\end\{{{name}\*?\}}[ \t]*\n?", "", text, flags=re.S)
    for names, left in ((_LEFT_OUT, END), (_DISPLAYED, " ")):
        inner = "|".join(names)
        text = re.sub(rf"\s*\\begin\{{({inner})\*?\}}.*?\\end\{{\1\*?\}}", left, text, flags=re.S)
    text = re.sub(r"\$\$.*?\$\$|(?<!\\)\\\[.*?\\\]", " ", text, flags=re.S)
    return re.sub(r"\\(?:begin|end)\s*\{[A-Za-z*]+\}(?:\s*\{[^{}]*\})?", END, text)


def _headings(text: str) -> str:
    """Returns a text with its headings set apart; one that runs into its paragraph is a part of it."""
    for pattern, after in ((_HEADINGS, END), (_RUN_IN, " ")):
        while match := re.search(pattern, text):
            end = _balanced(text, match.end() - 1)
            text = text[: match.start()] + END + text[match.end() : end - 1] + after + text[end:].lstrip()
    return text


def _footnotes_apart(paragraph: str) -> Iterator[str]:
    notes = []
    while (at := paragraph.find("\\footnote{")) >= 0:
        end = _balanced(paragraph, at + len("\\footnote"))
        notes.append(paragraph[at + len("\\footnote{") : end - 1])
        paragraph = paragraph[:at] + paragraph[end:]
    yield paragraph
    yield from notes


def tex_units(source: str) -> list[Unit]:
    """Returns the units of a TeX or Sweave file, from the beginning of the document on."""
    text = _without_chunks(source.replace("\r", "").partition("\\begin{document}")[2].partition("\\end{document}")[0])
    text = _environments(_COMMENT.sub("", text))
    text = re.sub(r"\\\\\*?(?:\[[^\]]*\])?", lambda _: END, text)
    text = re.sub(_BREAKS, lambda _: END, _headings(_without_arguments(text, _NO_TEXT)))
    text = re.sub(r"\\item\b\s*(?:\[([^\]]*)\])?", lambda match: f"{END}{match[1] or ''} ", text)
    text = re.sub(r"(?<!\\)\$(?:\\.|[^$\\])*\$|\\\(.*?\\\)", " ", text, flags=re.S)
    units = []
    for paragraph in re.split(r"\n[ \t]*\n", text):
        for part in _footnotes_apart(paragraph):
            plain = re.sub(r"\\-|\\(?:['`^\"~=.]|[uvHcdbtkr](?=\{))\{?", "", part)
            plain = re.sub(r"\\[A-Za-z]+\*?(?:\[[^\]]*\])?", " ", plain)
            units.append(Unit(words(plain.replace("~", " "))))
    return [unit for unit in units if unit.words]


def html_units(start: Path) -> list[Unit]:
    """Returns the units of an HTML page, and of those pages of its folder to which links lead from it.

    Each page is read once, those of a chapter behind the chapter's own.
    """
    units: list[Unit] = []
    pages, at = [start], 0
    while at < len(pages):
        tree = html.fromstring(pages[at].read_bytes())
        body = tree.find("body")
        units += (Unit(words(text), soft) for text, soft in _html_texts(tree if body is None else body))
        at += 1
        linked = [
            target
            for link in tree.iterfind(".//a[@href]")
            if (target := start.parent / unquote(urldefrag(link.get("href", ""))[0])) not in pages
            and (target.suffix, target.parent) == (".html", start.parent)
            and target.is_file()
            and not any(_NAVIGATION.search(above.get("class") or "") for above in link.iterancestors())
        ]
        pages[at:at] = dict.fromkeys(linked)
    return [unit for unit in units if unit.words]


def _html_texts(node: html.HtmlElement) -> Iterator[tuple[str, bool]]:
    now: list[str] = []
    soft = False

    def walk(element: html.HtmlElement) -> Iterator[tuple[str, bool]]:
        nonlocal soft
        tag = element.tag if isinstance(element.tag, str) else ""
        out = tag in _SKIPPED or (_FURNITURE.search(element.get("class") or "") is not None and tag != "body")
        inline = tag in ("a", "span", "sup", "") and out
        if (tag in _BLOCKS or out) and not inline:
            yield from ended()
            soft = tag == "dd" or (soft and not out)
        if tag == "br":
            yield from ended()
        if not out and tag:
            now.append(element.text or "")
            for child in element:
                yield from walk(child)
                now.append(child.tail or "")
        if (tag in _BLOCKS or out) and not inline:
            yield from ended()

    def ended() -> Iterator[tuple[str, bool]]:
        nonlocal soft
        text = "".join(now)
        now.clear()
        if text.strip():
            yield text, soft
            soft = False

    yield from walk(node)
    yield from ended()
