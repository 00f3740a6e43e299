"""Pages whose text and order are known: texts laid out by Chromium in one, two and three columns, as PDF files.

Reads documents (`text_domains/*.jsonl.zst` of the shared data). Each file has a running head and page numbers,
justified and hyphenated lines, headings, and a table across the columns; the gold is the text of the page without head
and numbers, in the order of the source.
"""

import html
import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import pyarrow as pa
import pypdfium2

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
    """One file: its layout, and the text in the order in which it is read."""

    path: Path
    layout: str
    text: str


def laid_out(domains: Path, folder: Path, each: int) -> Iterator[LaidOut]:
    """Yields `each` files of every layout, made in `folder`."""
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
    """Writes a copy that looks the same, with the text drawn from top to bottom over all columns, and returns it."""
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
    with pa.input_stream(str(domains / f"{name}.jsonl.zst"), compression="zstd") as file:
        rows = file.read().splitlines()
    for row in rows[:: max(1, len(rows) // 12)][:12]:
        paragraphs = [" ".join(part.split()) for part in json.loads(row)["text"].split("\n")]
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
