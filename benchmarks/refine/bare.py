"""What extraction costs without anything around it: WARC files read and main text found, nothing kept.

    python -m benchmarks.refine.bare WARC_FOLDER resiliparse|same|trafilatura

Run as a process of its own. The library's own calls in the shortest way, on the text of every response; `same` asks
resiliparse for what our fast extractor asks for: it leaves out more, and looks longer for it.
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path

from fastwarc import ArchiveIterator, WarcRecordType
from resiliparse.extract.html2text import extract_plain_text
from resiliparse.parse.encoding import detect_encoding
from resiliparse.parse.html import HTMLTree

from tasks.stages.extract.html import main_text


def fast(html: bytes) -> str:
    """Returns the main text by resiliparse."""
    tree = HTMLTree.parse_from_bytes(html, detect_encoding(html))
    found: str = extract_plain_text(tree, main_content=True, preserve_formatting=True)
    return found


def same(html: bytes) -> str:
    """Returns the main text by resiliparse, without what `main_text` leaves out."""
    return main_text(HTMLTree.parse_from_bytes(html, detect_encoding(html)))


def careful(html: bytes) -> str:
    """Returns the main text by trafilatura."""
    import trafilatura

    return trafilatura.extract(html, favor_precision=True, include_comments=False) or ""


EXTRACTORS: dict[str, Callable[[bytes], str]] = {"resiliparse": fast, "same": same, "trafilatura": careful}


def main() -> None:
    """Reads the files of a folder and prints how many pages and characters there were."""
    folder, name = sys.argv[1:]
    extract = EXTRACTORS[name]
    pages = chars = 0
    for path in sorted(Path(folder).glob("*.warc.gz")):
        with path.open("rb") as file:
            for record in ArchiveIterator(file, record_types=WarcRecordType.response, parse_http=True):
                chars += len(extract(record.reader.read()))
                pages += 1
    print(json.dumps({"pages": pages, "chars": chars}))


if __name__ == "__main__":
    main()
