"""PDF files: the parser `pdf` against PDFium's own text, pypdf, pdfplumber and pdf_oxide, in one run.

    python -m benchmarks.pdf --data FOLDER [--rounds 3] [--each 6]

FOLDER has `pdf/files/*.pdf`, `pdf/silver_text/*.txt` (text of PDFium, words checked against two other libraries, in
PDFium's order) and `text_domains/*.jsonl.zst`, texts that Chromium lays out in one, two and three columns: `--each`
files of every layout, with a running header and page numbers, justified and hyphenated lines, headings, and a table
across the columns. Their gold is the text of the page without header and numbers, in the order of the source.

`f1` is that of words as a multiset, lower case; silver texts are dehyphenated at line ends. `order` is the
longest increasing subsequence of words that occur once in the gold and once in the output, as a share of them: 1 if all
are in the order of the gold. Speed is pages per CPU-second of one process, the best of the rounds, contenders in turn.

Needs Chromium, and PyPI once. Writes `pdf.json`.
"""

import html
import json
import re
import sys
import tempfile
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from statistics import mean
from typing import Any

import pypdfium2

from benchmarks.harness import in_turn, keep, last_line, parser, peer_python, texts_of

PEERS = ("pypdf==7.1.0", "pdfplumber==0.11.10", "pdf_oxide==0.3.78", "pypdfium2==5.15.2")
_SKELETON = """
import json, sys, time
paths = json.load(open(sys.argv[1]))
{imports}
def text_of(path):
{body}
text_of(paths[0])
texts, started = {{}}, time.process_time()
for path in paths:
    texts[path] = text_of(path)
spent = time.process_time() - started
json.dump(texts, open(sys.argv[1] + ".out", "w"))
print(spent)
"""
_CONTENDERS = {
    "sluice": (
        "from tasks.formats.pdf.document import read_pdf",
        "    return read_pdf(open(path, 'rb').read()).text",
    ),
    "pypdfium2": (
        "import pypdfium2",
        "    return '\\n'.join(page.get_textpage().get_text_bounded() for page in pypdfium2.PdfDocument(path))",
    ),
    "pypdf": ("import pypdf", "    return '\\n'.join(page.extract_text() for page in pypdf.PdfReader(path).pages)"),
    "pdfplumber": (
        "import pdfplumber",
        "    with pdfplumber.open(path) as file:\n"
        "        return '\\n'.join(page.extract_text() for page in file.pages)",
    ),
    "pdf_oxide": (
        "import pdf_oxide",
        "    file = pdf_oxide.PdfDocument(path)\n"
        "    return '\\n'.join(file.extract_text(page) for page in range(file.page_count()))",
    ),
}
_STYLE = """
@page { size: A4; margin: 25mm 20mm }
body { font: 10pt/1.25 "DejaVu Serif", serif; margin: 0 }
p { margin: 0; text-align: justify; hyphens: auto; text-indent: 1.2em }
h1 { font-size: 18pt; text-align: center; column-span: all } h2 { font-size: 12pt; margin: 8pt 0 4pt }
table { column-span: all; margin: 8pt auto; border-collapse: collapse }
td { padding: 1pt 12pt; border-bottom: 1px solid }
main { columns: %d; column-gap: %s }
"""
_HEAD = "<div style='font-size:8px;width:100%;text-align:center'>Proceedings of the laid out pages, volume 7</div>"
_FOOT = "<div style='font-size:8px;width:100%;text-align:center'><span class=pageNumber></span></div>"
_WORDS = 1_500
_DOMAINS = ("books", "masc", "speech")


@dataclass(frozen=True)
class LaidOut:
    """One file: its layout, and its text in reading order."""

    path: Path
    layout: str
    text: str


def laid_out(domains: Path, folder: Path, each: int) -> Iterator[LaidOut]:
    """Yields `each` files of every layout, created in `folder`."""
    from playwright.sync_api import sync_playwright

    texts = list(islice(_texts(domains), each))
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])
        page = browser.new_page()
        for columns, gap in ((1, "1em"), (2, "1em"), (2, "8mm"), (3, "5mm")):
            for number, paragraphs in enumerate(texts):
                layout = f"{columns} columns, gap {gap}" if columns > 1 else "1 column"
                source, text = _page(paragraphs, columns, gap)
                path = folder / f"{columns}-{gap}-{number}.pdf"
                page.set_content(source)
                page.pdf(
                    path=str(path),
                    prefer_css_page_size=True,
                    display_header_footer=True,
                    header_template=_HEAD,
                    footer_template=_FOOT,
                )
                yield LaidOut(path, layout, text)
                if gap == "8mm":
                    yield LaidOut(_by_rows(path), "2 columns, drawn by rows", text)
        browser.close()


def _by_rows(path: Path) -> Path:
    """Writes and returns a copy with the same appearance and text drawn from top to bottom across all columns."""
    file = pypdfium2.PdfDocument(path)
    for page in file:
        drawn = [one for one in page.get_objects(max_depth=1) if one.type == pypdfium2.raw.FPDF_PAGEOBJ_TEXT]
        drawn.sort(key=lambda one: (-round(one.get_matrix().f), one.get_matrix().e))
        for one in drawn:
            page.remove_obj(one)
        for one in drawn:
            page.insert_obj(one)
        page.gen_content()
    target = path.with_stem(f"{path.stem}-rows")
    file.save(target)
    return target


def _texts(domains: Path) -> Iterator[list[str]]:
    """Yields paragraphs of some 1,500 words of a document, of each domain in turn."""
    return (text for turn in zip(*(_of_domain(domains, name) for name in _DOMAINS), strict=False) for text in turn)


def _of_domain(domains: Path, name: str) -> Iterator[list[str]]:
    texts = texts_of(domains / f"{name}.jsonl.zst")
    for text in texts[:: max(1, len(texts) // 12)][:12]:
        paragraphs = [" ".join(part.split()) for part in text.split("\n")]
        kept, words = [], 0
        for paragraph in filter(None, paragraphs):
            kept.append(paragraph)
            words += len(paragraph.split())
            if words > _WORDS:
                break
        if words > _WORDS / 2:
            yield kept


def _page(paragraphs: list[str], columns: int, gap: str) -> tuple[str, str]:
    """Returns the source of a page, and its text."""
    blocks = [("h1", " ".join(paragraphs[0].split()[:8]))]
    for number, paragraph in enumerate(paragraphs):
        if number % 6 == 0:
            blocks.append(("h2", f"{number // 6 + 1} Section {' '.join(paragraph.split()[:3])}"))
        blocks.append(("p", paragraph))
    rows = [[f"row {row}", f"{row * 17 % 101}", f"{row * 31 % 97}.5", "yes"] for row in range(1, 6)]
    middle = len(blocks) // 2
    source = [f"<{tag}>{html.escape(text)}</{tag}>" for tag, text in blocks]
    table = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows)
    source.insert(middle, f"<table>{table}</table>")
    texts = [text for _, text in blocks]
    texts[middle:middle] = [" ".join(row) for row in rows]
    page = f"<html lang=en><style>{_STYLE % (columns, gap)}</style><main>{''.join(source)}</main></html>"
    return page, "\n".join(texts)


@dataclass(frozen=True)
class Gold:
    """One file with its text."""

    path: str
    group: str
    text: str
    ordered: bool


def words(text: str) -> list[str]:
    """Returns the words of a text in lower case, dehyphenated at line ends."""
    return re.findall(r"\w+", re.sub(r"(?<=[a-zäöüß])(?:-|\u00ad|\ufffe)\r?\n?(?=[a-zäöüß])", "", text.lower()))


def f1(gold: Sequence[str], found: Sequence[str]) -> float:
    """Returns the F1 of two multisets of words."""
    shared = sum((Counter(gold) & Counter(found)).values())
    return 2 * shared / max(1, len(gold) + len(found))


def order(gold: Sequence[str], found: Sequence[str]) -> float:
    """Returns the share of the words that occur once in both and are in the order of the gold."""
    once = [
        {word: at for at, word in enumerate(one) if counts[word] == 1}
        for one in (gold, found)
        for counts in [Counter(one)]
    ]
    places = [once[0][word] for word in sorted(once[1], key=once[1].__getitem__) if word in once[0]]
    tails: list[int] = []
    for place in places:
        at = bisect_left(tails, place)
        tails[at : at + 1] = [place]
    return len(tails) / max(1, len(places))


def gold_files(data: Path, folder: Path, each: int) -> list[Gold]:
    """Returns the digital files of the data, and pages laid out here."""
    found = [
        Gold(str(path), "real", (data / "pdf" / "silver_text" / f"{path.stem}.txt").read_text(), ordered=False)
        for path in sorted((data / "pdf" / "files").glob("*.pdf"))
    ]
    made = laid_out(data / "text_domains", folder, each)
    return found + [Gold(str(one.path), one.layout, one.text, ordered=True) for one in made]


def scored(gold: Sequence[Gold], texts: dict[str, str]) -> dict[str, dict[str, float]]:
    """Returns F1 and order, means of the files of each group, and the least F1."""
    groups: dict[str, list[tuple[float, float]]] = {}
    for one in gold:
        right, found = words(one.text), words(texts[one.path])
        groups.setdefault(one.group, []).append((f1(right, found), order(right, found) if one.ordered else 1.0))
    rows = {}
    for group, scores in groups.items():
        row = {"f1": mean(score[0] for score in scores), "least_f1": min(score[0] for score in scores)}
        if group != "real":
            row |= {"order": mean(score[1] for score in scores), "least_order": min(score[1] for score in scores)}
        rows[group] = {name: round(value, 4) for name, value in row.items()}
    return rows


def measured(gold: Sequence[Gold], paths: Path, rounds: int) -> dict[str, Any]:
    """Returns the figures of all contenders; writes the list of files to `paths`."""
    from tasks.formats.pdf.document import read_pdf

    paths.write_text(json.dumps([one.path for one in gold]))
    pages = sum(len(read_pdf(Path(one.path).read_bytes()).pages) for one in gold)
    peers = peer_python("pdf", PEERS)
    texts: dict[str, dict[str, str]] = {}

    def run(name: str, imports: str, body: str) -> float:
        program = _SKELETON.format(imports=imports, body=body)
        seconds = float(last_line(sys.executable if name == "sluice" else peers, program, str(paths)))
        texts[name] = json.loads(Path(f"{paths}.out").read_text())
        return seconds

    taken = in_turn({name: partial(run, name, *program) for name, program in _CONTENDERS.items()}, rounds)
    contenders = {
        name: {
            **scored(gold, texts[name]),
            "pages_per_cpu_second": round(pages / min(seconds), 1),
            "time_beside_sluice": round(min(seconds) / min(taken["sluice"]), 2),
        }
        for name, seconds in taken.items()
    }
    return {"pages": pages, "files": len(gold), "peers": PEERS, "contenders": contenders}


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--data", type=Path, required=True)
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--each", type=int, default=6, help="files of each layout")
    given = options.parse_args()
    with tempfile.TemporaryDirectory() as name:
        gold = gold_files(given.data, Path(name), given.each)
        keep("pdf", measured(gold, Path(name) / "paths.json", given.rounds))


if __name__ == "__main__":
    main()
