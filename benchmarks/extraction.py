"""Main text: the extractors of Sluice and the bare libraries on pages that people have marked, in one run.

    python -m benchmarks.extraction --gold FOLDER --segments FOLDER [--rounds 3] [--only-stage] [--no-stage]
        [--warc 'FOLDER/*.warc.gz']

The folders and the metrics are those of `benchmarks.gold_pages`; every F1 has a 95 % interval by a bootstrap over
hosts. The trees of `blocks` were grown from these pages, and what they reach there says little; "blocks, unseen hosts"
is the nested figure that `train_blocks` kept: each page is scored by trees that have seen nothing of its host.

Titles, authors, dates and names of sites are those that the pages' markers have written down: the share that is equal
beside trafilatura's, case, punctuation and the order of several authors aside.

Speed is pages per CPU-second of one process: the least time of each page over the rounds, summed up, the contenders
taken in turn, so that a busy machine hits all alike. Ours includes what the library leaves out: the check for pages
made to stall it, cleaning, title, author, date, licence. The whole stage runs on the same pages as a crawl stores
them, from compressed records to committed Parquet, its child process included, in turn with the bare library from the
same WARC file: as it comes, and asked to leave out what the fast extractor leaves out. `--warc` measures the stage on
the pages of other files, too; `--only-stage` leaves the other figures as they are. Writes
`benchmarks/results/extraction.json`.
"""

import argparse
import json
import re
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from resiliparse.parse.html import HTMLTree

from benchmarks.extract_stage import captures_of, measure_stage
from benchmarks.gold_pages import GoldPage, SegmentPage, read_pages, read_segments
from benchmarks.harness import keep
from benchmarks.train_blocks import scores
from tasks.stages.extract.config import ExtractConfig
from tasks.stages.extract.html import read_page
from tasks.stages.extract.page_metadata import read_about

RESULT = Path(__file__).parent / "results" / "extraction.json"
TRAINED = Path(__file__).parent / "results" / "train_blocks.json"
_SLOW = "trafilatura"
_SLOW_ROUNDS = 2
# The same pages several times under other addresses: one pass is too short to measure a stage by.
_COPIES = 6


def contenders() -> dict[str, Callable[[str], str]]:
    """Returns every extractor as a function from a decoded page to its text; trafilatura only where it is installed."""
    from resiliparse.extract.html2text import extract_plain_text

    def ours(extractor: str) -> Callable[[str], str]:
        config = ExtractConfig.model_validate({"extractor": extractor})
        return lambda html: read_page(html, config).text

    found: dict[str, Callable[[str], str]] = {
        "sluice resiliparse": ours("resiliparse"),
        "sluice blocks": ours("blocks"),
        "sluice visible": ours("visible"),
        "resiliparse main_content": partial(extract_plain_text, main_content=True, preserve_formatting=True),
    }
    try:
        import trafilatura
    except ImportError:
        return found
    found["sluice trafilatura"] = ours("trafilatura")
    found["trafilatura default"] = lambda html: trafilatura.extract(html) or ""
    found["trafilatura favor_precision"] = lambda html: trafilatura.extract(html, favor_precision=True) or ""
    return found


def measure(pages: Sequence[GoldPage | SegmentPage], rounds: int) -> dict[str, dict[str, Any]]:
    """Scores every contender and takes its time."""
    names = contenders()
    decoded = [page.html for page in pages]
    megabytes = sum(len(page.raw) for page in pages) / 1e6
    texts: dict[str, list[str]] = {}
    best = {name: [float("inf")] * len(pages) for name in names}
    for number in range(rounds):
        for name, extract in names.items():
            if _SLOW not in name or number < _SLOW_ROUNDS:
                texts[name] = []
                for index, html in enumerate(decoded):
                    begin = time.process_time()
                    texts[name].append(extract(html))
                    best[name][index] = min(best[name][index], time.process_time() - begin)
    return {
        name: {
            **scores(pages, texts[name]),
            "pages_per_cpu_second": round(len(pages) / sum(best[name]), 1),
            "megabytes_per_cpu_second": round(megabytes / sum(best[name]), 1),
        }
        for name in names
    }


_STATED = ("title", "author", "date", "sitename")


def stated(pages: Sequence[SegmentPage]) -> dict[str, dict[str, float]]:
    """Returns how many titles, authors, dates and names of sites each reader gives, and how many are right."""

    def ours(page: SegmentPage) -> tuple[str, ...]:
        found = read_about(HTMLTree.parse(page.html), page.url)
        day = found.published.date().isoformat() if found.published else ""
        return found.title, found.author, day, found.site

    readers: dict[str, Callable[[SegmentPage], tuple[str, ...]]] = {"sluice": ours}
    if find_spec(_SLOW):
        import trafilatura

        def theirs(page: SegmentPage) -> tuple[str, ...]:
            found = trafilatura.extract_metadata(page.html, default_url=page.url)
            return found.title or "", found.author or "", found.date or "", found.sitename or ""

        readers[_SLOW] = theirs
    return {name: _stated(pages, reader) for name, reader in readers.items()}


def _stated(pages: Sequence[SegmentPage], reader: Callable[[SegmentPage], tuple[str, ...]]) -> dict[str, float]:
    found = [reader(page) for page in pages]
    result: dict[str, float] = {}
    for place, name in enumerate(_STATED):
        both = [
            (page.stated[name], one[place]) for page, one in zip(pages, found, strict=True) if page.stated.get(name)
        ]
        given = [(expected, value) for expected, value in both if value]
        plain = _authors if name == "author" else _plain
        right = sum(plain(expected) == plain(value) for expected, value in given)
        result |= {f"{name}_pages": len(both), f"{name}_given": len(given), f"{name}_right": right}
    return result


def _plain(text: str) -> str:
    return " ".join(re.findall(r"[\w]+", text.casefold()))


def _authors(names: str | list[str]) -> list[str]:
    joined = "; ".join(names) if isinstance(names, list) else names
    return sorted(map(_plain, re.split(r"[;,/&]|\b(?:und|and|et|y)\b", joined)))


def _copies(pages: Sequence[GoldPage]) -> Iterator[tuple[str, bytes]]:
    for number in range(_COPIES):
        for page in pages:
            yield f"http://{number}.example/{page.name}", page.raw


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gold", required=True, type=Path, help="folder with html/ and ground-truth.json")
    parser.add_argument("--segments", required=True, type=Path, help="folder with html/ and pages.jsonl")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only-stage", action="store_true", help="leave the figures of the extractors as they are")
    parser.add_argument("--no-stage", action="store_true", help="leave the figures of the stage as they are")
    parser.add_argument("--warc", default="", help="WARC files of other pages to measure the stage on, as a glob")
    given = parser.parse_args()
    gold, segments = read_pages(given.gold), read_segments(given.segments)
    result: dict[str, Any] = json.loads(RESULT.read_text()) if given.only_stage or given.no_stage else {}
    if not given.only_stage:
        result["libraries"] = _versions("resiliparse", "trafilatura")
        result["pages"] = {"gold": len(gold), "segments": len(segments)}
        result["megabytes"] = round(sum(len(page.raw) for page in (*gold, *segments)) / 1e6, 2)
        result["extractors"] = measure([*gold, *segments], given.rounds)
        result["extractors"]["sluice blocks, unseen hosts"] = json.loads(TRAINED.read_text())["unseen hosts, nested"]
        result["stated"] = stated(segments)
    if not given.no_stage:
        result["whole_stage"] = measure_stage(_copies(gold), given.rounds)
    if given.warc:
        result["whole_stage_other_pages"] = measure_stage(captures_of(given.warc), given.rounds)
    keep("extraction", {name: held for name, held in result.items() if name not in ("benchmark", "date", "machine")})
    _print(result)


def _print(result: dict[str, Any]) -> None:
    print(f"{'':30} {'segments F1':>22} {'whole texts F1':>22}  pages/CPU-s    MB/CPU-s")
    for name, row in sorted(result["extractors"].items(), key=lambda item: -item[1]["segments"]["f1"]):
        both = (
            f"{row[kind]['f1']:.3f} [{row[kind]['f1_interval'][0]:.3f}, {row[kind]['f1_interval'][1]:.3f}]"
            for kind in ("segments", "gold")
        )
        speed = "".join(
            f"{row[key]:12.1f}" for key in ("pages_per_cpu_second", "megabytes_per_cpu_second") if key in row
        )
        print(f"{name:30} {' '.join(f'{one:>22}' for one in both)} {speed}")
    for name, row in result.get("stated", {}).items():
        print(f"{name:30} " + ", ".join(f"{of}s {row[f'{of}_right']} of {row[f'{of}_pages']}" for of in _STATED))
    for name, row in (*result["whole_stage"].items(), *result.get("whole_stage_other_pages", {}).items()):
        print(
            f"{name:30} {row['pages_per_cpu_second']:38.0f} {row['megabytes_per_cpu_second']:11.1f}"
            f"   {row['of_bare_library_from_warc']:.0%} of the bare library,"
            f" {row['of_bare_library_same_text']:.0%} of it where it gives the same text"
        )


def _versions(*names: str) -> dict[str, str]:
    return {name: version(name) if find_spec(name) else "not installed" for name in names}


if __name__ == "__main__":
    main()
