"""Postal addresses in texts that nobody wrote for a test: how many of them are found whole.

    from benchmarks.pii_unseen import documents, persons

What an address is, is said by who wrote it down, not by our forms:

- `persons`: CREDITS of the Linux kernel (Debian's package linux-doc), in which some 400 people give theirs, in lines
  that begin with "S:". Those with a state and a postcode of the United States count, read in three ways: one line below
  the other, the same indented by two spaces, and in one sentence with commas.
- `documents`: copyright files, licences and read-mes below some folders. A state with its postcode, found by the
  plainest pattern there is, must be masked with the last number before it, which is the house's or the box's.

An address is found whole where every digit of it is masked. Each address counts once. Half of the people, by a hash of
their name, were looked at while the forms were written (`seen`), the other half were not.
"""

import gzip
import hashlib
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from tasks.filters.recognisers.scan import find
from tasks.formats.documents.text import clean

_STATES = (
    "AL|AK|AZ|AR|CA|CO|CT|DE|DC|FL|GA|HI|ID|IL|IN|IA|KS|KY|LA|ME|MD|MA|MI|MN|MS|MO|MT|NE|NV|NH|NJ|NM|NY|NC|ND|OH|OK|OR"
    "|PA|RI|SC|SD|TN|TX|UT|VT|VA|WA|WV|WI|WY|Alabama|Alaska|Arizona|Arkansas|California|Colorado|Connecticut|Delaware"
    "|Florida|Georgia|Hawaii|Idaho|Illinois|Indiana|Iowa|Kansas|Kentucky|Louisiana|Maine|Maryland|Massachusetts"
    "|Michigan|Minnesota|Mississippi|Missouri|Montana|Nebraska|Nevada|New Hampshire|New Jersey|New Mexico|New York"
    "|North Carolina|South Carolina|North Dakota|South Dakota|Ohio|Oklahoma|Oregon|Pennsylvania|Rhode Island"
    "|Tennessee|Texas|Utah|Vermont|Virginia|Washington|West Virginia|Wisconsin|Wyoming"
)
_LAST_LINE = re.compile(rf"\b(?:{_STATES})\.?,?\s{{1,20}}\d{{5}}(?:-\d{{4}})?\b")
_NAMES = re.compile(r"copyright|LICEN[CS]E|README|AUTHORS|CREDITS|\.(?:txt|rst|md|[1-8])(?:\.gz)?$")
_LARGEST = 3_000_000
_STREET = 75
"""Characters before the state in which the number of the house stands."""


def persons(path: Path) -> dict[str, dict[str, int]]:
    """Returns for each way of writing, and each half, how many people there are and how many are masked whole."""
    counts: dict[str, Counter[str]] = {}
    for name, lines in _people(path):
        for way, gap in (("lines", "\n"), ("indented", "\n  "), ("sentence", ", ")):
            text = clean(name + gap + gap.join(lines))
            last = _LAST_LINE.search(text)
            if last is None or not any(map(str.isdigit, text[len(name) : last.start()])):
                continue
            count = counts.setdefault(f"{way}, {_half(name)}", Counter())
            count.update(all=1, whole=_masked(text, _digits(text, len(name), last.end())))
    return {key: dict(count) for key, count in sorted(counts.items())}


def documents(folders: Iterable[Path]) -> dict[str, int]:
    """Returns how many addresses there are below the folders and how many are masked whole."""
    count = Counter(all=0, whole=0)
    met: set[str] = set()
    for text in _texts(folders):
        for last in _LAST_LINE.finditer(text):
            first = max(0, last.start() - _STREET)
            address = " ".join(re.findall(r"\w+", text[first : last.end()]))[-30:]
            before = _digits(text, first, last.start())
            if address in met or not before:
                continue
            met.add(address)
            around = slice(max(0, last.start() - 400), last.end() + 200)
            places = [at - around.start for at in (before[-1], last.end() - 1)]
            count.update(all=1, whole=_masked(text[around], places))
    return dict(count)


def _people(path: Path) -> Iterator[tuple[str, list[str]]]:
    with gzip.open(path, "rt", encoding="utf-8") as file:
        for entry in file.read().split("\n\n"):
            fields = [line.partition(":") for line in entry.split("\n")]
            names = [value.strip() for key, _, value in fields if key == "N"]
            lines = [value.strip() for key, _, value in fields if key == "S"]
            if names and lines:
                yield names[0], lines


def _texts(folders: Iterable[Path]) -> Iterator[str]:
    for folder in folders:
        for root, inner, files in os.walk(folder):
            inner.sort()
            for path in (Path(root, name) for name in sorted(files) if _NAMES.search(name)):
                if path.is_symlink() or path.stat().st_size > _LARGEST or path.name.startswith("CREDITS"):
                    continue
                data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
                yield data.decode("utf-8", "replace")


def _digits(text: str, start: int, end: int) -> list[int]:
    return [at for at in range(start, end) if text[at].isdigit()]


def _masked(text: str, places: Sequence[int]) -> bool:
    spans = find(text, ("address",))
    return all(any(span.start <= at < span.end for span in spans) for at in places)


def _half(key: str) -> str:
    return "seen" if hashlib.sha1(key.encode()).digest()[-1] % 2 else "unseen"
