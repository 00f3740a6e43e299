"""OCR of PDF files: words that the parser `pdf` reads from bitmaps of pages whose text is known.

    python -m benchmarks.ocr --data FOLDER --font FILE [--pages N]

FOLDER has `pdf/files/*.pdf` and `langid/udhr_sentences.jsonl.zst`; FILE is a font with Chinese letters, such as
NotoSerifCJK-Regular.ttc of Debian's fonts-noto-cjk. Latin pages are drawn from the files, and their gold is the text of
the parser from the text layer; Chinese pages are set in 10.5 points from sentences, which are the gold. Each bitmap is
packed into a PDF file of one image: clean at 150 and 200 dots per inch, with noise (normal, deviation 25 of 255),
turned by 1, 2 and 3 degrees, and as JPEG of quality 40.

Words are compared as multisets in lower case, Chinese by letter without spaces and punctuation. `order` is that of
`benchmarks.pdf`, of the page with the least: the share of words that are in the order of the gold. CPU seconds are
those of one thread, without loading the models. `rss_mib` is the largest resident memory of the process, before the
first page is read and at the end. Needs the extra `ocr`. Writes `ocr.json`.
"""

import io
import re
import resource
import time
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pypdfium2
from PIL import Image, ImageDraw, ImageFont

from benchmarks.harness import json_lines, keep, parser
from benchmarks.pdf import order
from tasks.formats.pdf.document import BitmapReader, PdfText, read_pdf
from tasks.formats.pdf.models import identity
from tasks.formats.pdf.recognizer import recognize

LATIN = (("earth", 0), ("mars", 0), ("dolma-datasheet", 1), ("granite-docling", 2))
"""Name of the file, and index of a page: two short ones, one in one column, and one in two."""
_WORD = re.compile(r"\w+")
_IDEOGRAPH = re.compile(r"[\u3400-\u9fff]")
_PER_LINE, _LINES, _POINTS = 38, 34, 10.5
_NOISE = 25
_QUALITY = 40


@dataclass(frozen=True)
class Condition:
    """How a page is drawn and damaged."""

    name: str
    dpi: int = 200
    noise: bool = False
    turned: float = 0.0
    jpeg: bool = False


CONDITIONS = (
    Condition("clean 200"),
    Condition("clean 150", dpi=150),
    Condition("noise 200", noise=True),
    Condition("turned 1", turned=1.0),
    Condition("turned 2", turned=2.0),
    Condition("turned 3", turned=3.0),
    Condition("jpeg 200", jpeg=True),
    Condition("jpeg 150", dpi=150, jpeg=True),
)


@dataclass(frozen=True)
class Page:
    """A page: its language, its text, and its image at 200 and 150 dots per inch."""

    language: str
    name: str
    gold: str
    images: dict[int, Image.Image]


def latin_pages(folder: Path) -> Iterator[Page]:
    """Yields the pages of LATIN."""
    for name, index in LATIN:
        whole = pypdfium2.PdfDocument(folder / f"{name}.pdf")
        single = pypdfium2.PdfDocument.new()
        single.import_pages(whole, [index])
        buffer = io.BytesIO()
        single.save(buffer)
        images = {dpi: whole[index].render(scale=dpi / 72).to_pil().convert("RGB") for dpi in (150, 200)}
        yield Page("Latin", f"{name} {index + 1}", read_pdf(buffer.getvalue()).text, images)


def chinese_pages(sentences: Path, font: Path, count: int) -> Iterator[Page]:
    """Yields pages of sentences, set with the font."""
    text = "".join(row["text"] for row in json_lines(sentences) if row["iso639_3"] == "cmn")
    text = re.sub(r"\s+", "", text)
    for number in range(count):
        start = number * _PER_LINE * _LINES
        lines = [text[at : at + _PER_LINE] for at in range(start, start + _PER_LINE * _LINES, _PER_LINE)]
        images = {dpi: _set(lines, font, dpi) for dpi in (150, 200)}
        yield Page("Chinese", f"sentences {number + 1}", "\n".join(lines), images)


def _set(lines: Sequence[str], font: Path, dpi: int) -> Image.Image:
    scale = dpi / 72
    image = Image.new("RGB", (int(595 * scale), int(842 * scale)), "white")
    draw = ImageDraw.Draw(image)
    face = ImageFont.truetype(font, round(_POINTS * scale))
    for number, line in enumerate(lines):
        draw.text((90 * scale, (80 + 1.7 * _POINTS * number) * scale), line, font=face, fill="black")
    return image


def scanned(page: Page, condition: Condition) -> bytes:
    """Returns a PDF file with nothing but the image of a page under a condition."""
    image = page.images[condition.dpi]
    if condition.turned:
        image = image.rotate(condition.turned, Image.Resampling.BICUBIC, fillcolor="white")
    if condition.noise:
        rng = np.random.default_rng(7)
        pixels = np.asarray(image, dtype=np.float32) + rng.normal(0, _NOISE, (image.height, image.width, 1))
        image = Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8))
    if condition.jpeg:
        buffer = io.BytesIO()
        image.save(buffer, "JPEG", quality=_QUALITY)
        return _file(image, buffer.getvalue(), "DCTDecode", condition.dpi)
    return _file(image, zlib.compress(image.tobytes(), 1), "FlateDecode", condition.dpi)


def _file(image: Image.Image, data: bytes, coding: str, dpi: int) -> bytes:
    width, height = image.width * 72 / dpi, image.height * 72 / dpi
    drawn = f"q {width:.2f} 0 0 {height:.2f} 0 0 cm /I Do Q".encode()
    entries = f"/Type /XObject /Subtype /Image /Width {image.width} /Height {image.height} /ColorSpace /DeviceRGB"
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        b"<< /Type /Pages /Count 1 /Kids [3 0 R] >>",
        f"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 {width:.2f} {height:.2f}] /Contents 4 0 R"
        " /Resources << /XObject << /I 5 0 R >> >> >>".encode(),
        b"<< /Length %d >>\nstream\n%s\nendstream" % (len(drawn), drawn),
        f"<< {entries} /BitsPerComponent 8 /Filter /{coding} /Length {len(data)} >>\nstream\n".encode()
        + data
        + b"\nendstream",
    ]
    body = b"".join(b"%d 0 obj\n%s\nendobj\n" % (number, one) for number, one in enumerate(objects, 1))
    return b"%PDF-1.7\n" + body + b"trailer\n<< /Size 6 /Root 1 0 R >>\n%%EOF\n"


def units(text: str, language: str) -> list[str]:
    """Returns the words of a Latin text, or the ideographs of a Chinese one."""
    return (_IDEOGRAPH if language == "Chinese" else _WORD).findall(text.lower())


def measure(pages: Sequence[Page], condition: Condition) -> dict[str, dict[str, Any]]:
    """Returns recall, precision and CPU seconds per page of a condition by language."""
    totals: dict[str, Counter[str]] = {}
    orders: dict[str, list[float]] = {}
    for page in pages:
        data = scanned(page, condition)
        begin = time.process_time()
        found: PdfText = read_pdf(data, bitmaps=BitmapReader(recognize))
        spent = time.process_time() - begin
        gold, read = units(page.gold, page.language), units(found.text, page.language)
        both = (Counter(gold) & Counter(read)).total()
        total = totals.setdefault(page.language, Counter())
        total.update(pages=1, gold=len(gold), read=len(read), both=both, ms=round(1000 * spent))
        orders.setdefault(page.language, []).append(order(gold, read))
        print(condition.name, page.name, f"{both}/{len(gold)}/{len(read)}", f"{spent:.1f} s", flush=True)
    return {
        language: {
            "pages": total["pages"],
            "recall": round(total["both"] / total["gold"], 4),
            "precision": round(total["both"] / max(1, total["read"]), 4),
            "order": round(min(orders[language]), 3),
            "cpu_s_per_page": round(total["ms"] / 1000 / total["pages"], 1),
        }
        for language, total in totals.items()
    }


def main() -> None:
    """Measures all conditions and writes the result."""
    options = parser(__doc__)
    options.add_argument("--data", type=Path, required=True)
    options.add_argument("--font", type=Path, required=True)
    options.add_argument("--pages", type=int, default=1, help="Chinese pages")
    asked = options.parse_args()
    sentences = asked.data / "langid" / "udhr_sentences.jsonl.zst"
    pages = [*latin_pages(asked.data / "pdf" / "files"), *chinese_pages(sentences, asked.font, asked.pages)]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    measure(list(islice(pages, 1)), CONDITIONS[0])  # loads the models
    figures = {condition.name: measure(pages, condition) for condition in CONDITIONS}
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    packages = identity()
    keep("ocr", {"packages": packages, "conditions": figures, "rss_mib": {"before": before >> 10, "peak": peak >> 10}})


if __name__ == "__main__":
    main()
