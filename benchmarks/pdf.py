"""PDF files: the parser `pdf` beside PDFium's own text, pypdf, pdfplumber and pdf_oxide, in one run.

    python -m benchmarks.pdf --data FOLDER --peers FOLDER [--rounds 3] [--each 6]

FOLDER of the data holds `pdf/files/*.pdf`, `pdf/silver_text/*.txt` (text of PDFium, words checked against two other
libraries, in PDFium's order) and `text_domains/*.jsonl.zst`, of which `pdf_pages` lays out pages with Chromium.
`--peers` names a folder for an environment with the other libraries.

`f1` is that of words as a multiset, lower case; of the silver texts hyphens at line ends are undone. `order` is the
longest increasing run of words that occur once in the gold and once in the output, as a share of them: 1 where all are
in the order of the gold. Speed is pages per CPU-second of one process, the best of the rounds, contenders in turn.
"""

import argparse
import json
import re
import sys
import tempfile
from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

from benchmarks.harness import ROOT, cpu_seconds, keep, peer_python
from benchmarks.pdf_pages import laid_out

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


@dataclass(frozen=True)
class Gold:
    """One file with its text."""

    path: str
    group: str
    text: str
    ordered: bool


def words(text: str) -> list[str]:
    """Returns the words of a text in lower case; a hyphen at a line end is undone."""
    return re.findall(r"\w+", re.sub(r"(?<=[a-zäöüß])(?:-|\u00ad|\ufffe)\r?\n?(?=[a-zäöüß])", "", text.lower()))


def f1(gold: Sequence[str], found: Sequence[str]) -> float:
    """Returns the F1 of two multisets of words."""
    shared = sum((Counter(gold) & Counter(found)).values())
    return 2 * shared / max(1, len(gold) + len(found))


def order(gold: Sequence[str], found: Sequence[str]) -> float:
    """Returns the share of the words that occur once in both whose order is that of the gold."""
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--peers", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--each", type=int, default=6)
    chosen = parser.parse_args()
    peers = peer_python(chosen.peers, PEERS)
    with tempfile.TemporaryDirectory() as name:
        gold = gold_files(chosen.data, Path(name), chosen.each)
        keep("pdf", measured(gold, Path(name) / "paths.json", peers, chosen.rounds))


def measured(gold: Sequence[Gold], paths: Path, peers: str, rounds: int) -> dict[str, Any]:
    """Returns the figures of all contenders."""
    from tasks.formats.pdf.document import read_pdf

    paths.write_text(json.dumps([one.path for one in gold]))
    pages = sum(len(read_pdf(Path(one.path).read_bytes()).pages) for one in gold)
    least: dict[str, float] = {}
    contenders: dict[str, Any] = {}
    for _ in range(rounds):
        for name, (imports, body) in _CONTENDERS.items():
            program = _SKELETON.format(imports=imports, body=body)
            spent = cpu_seconds(sys.executable if name == "sluice" else peers, program, str(paths))
            least[name] = min(spent, least.get(name, spent))
            contenders[name] = scored(gold, json.loads(Path(f"{paths}.out").read_text()))
    for name, row in contenders.items():
        row["pages_per_cpu_second"] = round(pages / least[name], 1)
        row["time_beside_sluice"] = round(least[name] / least["sluice"], 2)
    return {"pages": pages, "files": len(gold), "peers": list(PEERS), "contenders": contenders}


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    main()
