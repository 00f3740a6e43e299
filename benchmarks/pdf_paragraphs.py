"""Paragraph breaks of foreign PDF files against their TeX or HTML source.

    python -m benchmarks.pdf_paragraphs --packages FOLDER

FOLDER caches unpacked Debian packages, which apt-get downloads. A unit of the source is a block as seen by a
reader: a paragraph, a heading, a list item, a caption. Code, tables, figures and bibliographies are
excluded, and end the paragraph before them; displayed formulas and floats do not. Words of
mathematics and of evaluated code are in no unit.

Words of the source and of the text are aligned; between two words that are adjacent in both there is a break in
the source or not, and in the text or not. `f1` is that of all breaks, `mean_f1` the mean over documents.
`words_found` is the share of the source's words that were aligned; the others are not scored. Writes
`pdf_paragraphs.json`.
"""

import gzip
import re
import subprocess
from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import pairwise
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple
from urllib.parse import unquote, urldefrag

from lxml import html

from benchmarks.harness import keep, parser

_R = "usr/lib/R/site-library"
_GRAM = 4
_MOST_LOST = 12
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
    (
        *("address", "article", "aside", "blockquote", "body", "caption", "center", "dd", "div", "dl", "dt"),
        *("figcaption", "figure", "footer", "form", "h1", "h2", "h3", "h4", "h5", "h6", "header", "hr", "li", "main"),
        *("ol", "p", "section", "ul"),
    )
)
_SKIPPED = frozenset(("pre", "table", "script", "style", "head", "nav", "colgroup", "thead", "textarea", "form"))
_FURNITURE = re.compile(
    r"\b(?:header|nav-panel|navheader|navfooter|related|sphinxsidebar\w*|headerlink|category-def|category|contents|toc|toctree-wrapper|footer"
    r"|footnotes-segment|footnote|titlepage|legalnotice|Contents_element|shortcontents|printindex\S*|copiable-link"
    r"|wy-nav-side|highlight\S*|example|smallexample|lisp|footnote-reference|programlisting|revhistory|table-contents)\b"
)
_NAVIGATION = re.compile(r"\b(?:header|nav-panel|navheader|navfooter|related|sphinxsidebar\w*|footer)\b")


class Unit(NamedTuple):
    """Words of a block; `soft` if it defines a term and may be on the same line as the term."""

    words: list[str]
    soft: bool = False


def words(text: str) -> list[str]:
    """Returns the words of a text in lower case, without punctuation and digits."""
    return re.findall(r"[^\W\d_]+", text.lower())


def _balanced(text: str, start: int) -> int:
    """Returns the offset after the brace that closes the one at `start`."""
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
    """Returns the source of Sweave without its code; printed code ends a paragraph."""
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
    """Returns a text with its headings separated; a run-in heading is part of its paragraph."""
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
    """Returns the units of a TeX or Sweave file, from the start of the document on."""
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
    """Returns the units of an HTML page, and of the pages of its folder that are reachable through links.

    Each page is read once, the pages of a chapter after the chapter's own.
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


@dataclass(frozen=True)
class Manual:
    """A document: its Debian package, and the paths of its PDF file and its source in it."""

    package: str
    pdf: str
    source: str

    @property
    def name(self) -> str:
        """Name of the document in the result."""
        return Path(self.pdf).name.partition(".pdf")[0]


def _vignette(package: str, name: str, library: str = _R) -> Manual:
    folder = f"{library}/{package.removeprefix('r-cran-')}/doc"
    return Manual(package, f"{folder}/{name}.pdf", f"{folder}/{name}.Rnw")


TWELVE = (
    _vignette("r-cran-vcd", "strucplot"),
    _vignette("r-cran-sandwich", "sandwich-CL"),
    _vignette("r-cran-strucchange", "strucchange-intro"),
    _vignette("r-cran-pscl", "countreg"),
    _vignette("r-cran-mvtnorm", "MVT_Rnews"),
    _vignette("r-cran-party", "MOB"),
    Manual("bash-doc", "usr/share/doc/bash/bashref.pdf", "usr/share/doc/bash/bashref.html"),
    Manual("libmpfr-doc", "usr/share/doc/libmpfr-doc/mpfr.pdf.gz", "usr/share/doc/libmpfr-doc/mpfr.html/index.html"),
    Manual("flex-doc", "usr/share/doc/flex-doc/flex.pdf.gz", "usr/share/doc/flex-doc/html/index.html"),
    Manual(
        "developers-reference",
        "usr/share/developers-reference/developers-reference.pdf",
        "usr/share/developers-reference/index.html",
    ),
    Manual("bzip2-doc", "usr/share/doc/bzip2/manual.pdf.gz", "usr/share/doc/bzip2/manual.html"),
    Manual(
        "debian-policy",
        "usr/share/doc/debian-policy/policy.pdf.gz",
        "usr/share/doc/debian-policy/policy.html/index.html",
    ),
)
UNSEEN = (
    _vignette("r-cran-seriation", "seriation"),
    _vignette("r-cran-lme4", "lmer"),
    _vignette("r-cran-coin", "LegoCondInf"),
    _vignette("r-cran-multcomp", "generalsiminf"),
    Manual("autoconf-doc", "usr/share/doc/autoconf/autoconf.pdf.gz", "usr/share/doc/autoconf/autoconf.html"),
    Manual(
        "maint-guide",
        "usr/share/doc/maint-guide/maint-guide.en.pdf",
        "usr/share/doc/maint-guide/html/index.en.html",
    ),
)
"""Documents that no rule was made for: they were measured once the rules stood."""


@dataclass(frozen=True)
class Score:
    """Score of one document: breaks in both, only in the output, only in the source; share of aligned words."""

    right: int
    wrong: int
    missed: int
    covered: float

    @property
    def f1(self) -> float:
        """F1 of the breaks."""
        return 2 * self.right / max(1, 2 * self.right + self.wrong + self.missed)


def fetched(package: str, folder: Path) -> Path:
    """Returns the folder of an unpacked Debian package; downloads it if necessary.

    Raises:
        OSError: the download failed.
    """
    target = folder / package
    if not target.is_dir():
        folder.mkdir(parents=True, exist_ok=True)
        done = subprocess.run(["apt-get", "download", package], cwd=folder, capture_output=True, text=True, check=False)
        found = sorted(folder.glob(f"{package}_*.deb"))
        if done.returncode or not found:
            raise OSError(f"the package {package} cannot be fetched: {done.stderr.strip()[-200:]}")
        subprocess.run(["dpkg", "-x", str(found[-1]), str(target)], check=True)
    return target


def gold_of(manual: Manual, folder: Path) -> list[Unit]:
    """Returns the units of the source."""
    source = folder / manual.source
    if source.suffix == ".html":
        return html_units(source)
    return tex_units(source.read_bytes().decode("utf-8", "replace"))


def pdf_of(manual: Manual, folder: Path) -> bytes:
    """Returns the bytes of the PDF file."""
    data = (folder / manual.pdf).read_bytes()
    return gzip.decompress(data) if manual.pdf.endswith(".gz") else data


def matched(gold: Sequence[str], found: Sequence[str], begins: Collection[int]) -> list[tuple[int, int]]:
    """Returns pairs of indices of equal words, increasing in both.

    Runs of four words that occur once in both are anchors, of which the longest increasing subsequence is used; between
    them the longest matches are. A single word between words without a match is not aligned. `begins` are the indices
    of the first words of units, which break ties between equally long matches.
    """
    anchors = _rising(_once(gold, found))
    pairs: list[tuple[int, int]] = []
    for (a, b), (to_a, to_b) in zip([(0, 0), *anchors], [*anchors, (len(gold), len(found))], strict=True):
        if (to_a - a) * (to_b - b) > 4_000_000:
            continue
        for block in SequenceMatcher(None, gold[a:to_a], found[b:to_b], autojunk=False).get_matching_blocks():
            pairs += ((a + block.a + at, b + block.b + at) for at in range(block.size))
    pairs = [
        pair
        for at, pair in enumerate(pairs)
        if (pair[0] - 1, pair[1] - 1) in pairs[max(0, at - 1) : at]
        or (pair[0] + 1, pair[1] + 1) in pairs[at + 1 : at + 2]
    ]
    for at in range(len(pairs) - 1, 0, -1):  # a word before and after a part that is only in the output: the latter
        (a, b), (to_a, to_b) = pairs[at - 1], pairs[at]
        if to_a == a + 1 and to_b > b + 1 and found[to_b - 1] == gold[a] and a in begins:
            pairs[at - 1] = (a, to_b - 1)
    return pairs


def _once(gold: Sequence[str], found: Sequence[str]) -> list[tuple[int, int]]:
    places = []
    for text in (gold, found):
        seen: dict[tuple[str, ...], int] = {}
        for at in range(len(text) - _GRAM + 1):
            gram = tuple(text[at : at + _GRAM])
            seen[gram] = -1 if gram in seen else at
        places.append({gram: at for gram, at in seen.items() if at >= 0})
    return sorted((at, places[1][gram]) for gram, at in places[0].items() if gram in places[1])


def _rising(pairs: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Returns a longest subsequence of the pairs that also increases in the second index."""
    tails: list[int] = []
    ends: list[int] = []
    before: list[int] = []
    for at, (_, place) in enumerate(pairs):
        to = bisect_left(tails, place)
        tails[to : to + 1] = [place]
        ends[to : to + 1] = [at]
        before.append(ends[to - 1] if to else -1)
    run, at = [], ends[-1] if ends else -1
    while at >= 0:
        run.append(pairs[at])
        at = before[at]
    return run[::-1]


def _starts(units: Iterable[Sequence[str]]) -> list[int]:
    starts, at = [], 0
    for unit in units:
        starts.append(at)
        at += len(unit)
    return starts


def _broken(starts: Sequence[int], at: int, to: int) -> bool:
    """Returns whether a unit begins after the word `at`, and at or before the word `to`."""
    return bisect_left(starts, to + 1) > bisect_left(starts, at + 1)


def decisions(gold: Sequence[Unit], found: Sequence[Sequence[str]]) -> tuple[list[tuple[int, int, bool, bool]], float]:
    """Returns the comparable positions, and the share of the source's words that are in the output.

    For each two words that are adjacent in both: index in the source, index in the output, break in the source,
    break in the output.
    The source may have up to twelve words between them that the output lacks. Positions between a term and its
    definition are excluded.
    """
    flat, seen = [word for unit in gold for word in unit.words], [word for unit in found for word in unit]
    begins, breaks = _starts(unit.words for unit in gold), _starts(found)
    pairs = matched(flat, seen, set(begins))
    soft = {at for at, unit in zip(begins, gold, strict=True) if unit.soft}
    made: list[tuple[int, int, bool, bool]] = []
    for (a, b), (to_a, to_b) in pairwise(pairs):
        if to_a - a - 1 <= _MOST_LOST and not soft.intersection(range(a + 1, to_a + 1)):
            of_gold, of_found = _broken(begins, a, to_a), _broken(breaks, b, to_b)
            made.append((to_a, to_b, of_gold, of_found))
    return made, len(pairs) / max(1, len(flat))


def scored(gold: Sequence[Unit], found: Sequence[Sequence[str]]) -> Score:
    """Returns the score of the breaks of an output against those of the source."""
    made, covered = decisions(gold, found)
    pairs = [(one[2], one[3]) for one in made]
    return Score(pairs.count((True, True)), pairs.count((False, True)), pairs.count((True, False)), covered)


def units_of(data: bytes) -> list[list[str]]:
    """Returns the words between breaks of a file, as our parser reads it.

    A break is a blank line, or the end of a line within a block; a displayed formula is not a break.
    """
    from tasks.formats.pdf.document import read_pdf

    found = read_pdf(data)
    units: list[list[str]] = []
    for piece in found.layout:
        first, *others = found.text[piece.start : piece.end].split("\n")
        if piece.start == 0 or found.text[: piece.start].endswith("\n\n"):
            units.append(words(first))
        else:
            units[-1] += words(first)
        units += map(words, others)
    return [unit for unit in units if unit]


def score_of(manual: Manual, folder: Path) -> Score:
    """Returns the score of a document; downloads its package unless it is in `folder`.

    Raises:
        OSError: the download failed.
    """
    root = fetched(manual.package, folder)
    return scored(gold_of(manual, root), units_of(pdf_of(manual, root)))


def measured(manuals: Sequence[Manual], folder: Path) -> dict[str, Any]:
    """Returns the figures of documents: F1 of all their breaks, the mean F1, and those of each."""
    scores = {f"{manual.package} {manual.name}": score_of(manual, folder) for manual in manuals}
    all_of = scores.values()
    total = Score(
        sum(one.right for one in all_of), sum(one.wrong for one in all_of), sum(one.missed for one in all_of), 1
    )
    rows = {
        name: {
            "f1": round(score.f1, 4),
            "precision": round(score.right / max(1, score.right + score.wrong), 4),
            "recall": round(score.right / max(1, score.right + score.missed), 4),
            "breaks": score.right + score.missed,
            "words_found": round(score.covered, 4),
        }
        for name, score in scores.items()
    }
    return {"f1": round(total.f1, 4), "mean_f1": round(mean(one.f1 for one in all_of), 4), "documents": rows}


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--packages", type=Path, required=True)
    folder = options.parse_args().packages
    keep("pdf_paragraphs", {"twelve": measured(TWELVE, folder), "unseen": measured(UNSEEN, folder)})


if __name__ == "__main__":
    main()
