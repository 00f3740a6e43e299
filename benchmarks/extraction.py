"""Main text: the extractors of Sluice and the bare libraries on pages whose main text was made by hand, in one run.

    python -m benchmarks.extraction --data FOLDER [--rounds 5] [--only-stage] [--warc 'FOLDER/*.warc.gz']

FOLDER holds `html/<id>.html.gz` and `ground-truth.json` (id -> articleBody, url), as in the public article extraction
benchmark of Scrapinghub (now Zyte). Quality is scored by its metric: 4-word shingles as multisets, precision and recall
of each page, the mean of both over the pages, F1 of the two means. The trees of `blocks` were grown from those pages,
and what they reach there says little; "blocks, unseen hosts" is the nested figure of `train_blocks`: each page is
scored by trees for which neither training nor choice of settings saw its host.

Speed is pages per CPU-second of one process: the least time of each page over the rounds, summed up, the contenders
taken in turn, so that a busy machine hits all alike. Ours includes what the library leaves out: the check for pages
made to stall it, cleaning, title, date, licence. The whole stage runs on the same pages as a crawl stores them, from
compressed records to committed Parquet, its child process included, in turn with the bare library from the same WARC
file: as it comes, and asked to leave out what the fast extractor leaves out. `--warc` measures the stage on the pages
of other files, too; `--only-stage` leaves the other figures as they are. Writes `benchmarks/results/extraction.json`.
"""

import argparse
import json
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks.extract_stage import captures_of, measure_stage
from benchmarks.gold_pages import GoldPage, Score, read_pages, score
from benchmarks.result import keep
from benchmarks.train_blocks import choose, cross_validated, example
from tasks.stages.extract.config import ExtractConfig
from tasks.stages.extract.html import read_page

RESULT = Path(__file__).parent / "results" / "extraction.json"
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


def measure(pages: Sequence[GoldPage], rounds: int) -> dict[str, dict[str, float]]:
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
            **_figures(score(pages, texts[name])),
            "pages_per_cpu_second": round(len(pages) / sum(best[name]), 1),
            "megabytes_per_cpu_second": round(megabytes / sum(best[name]), 1),
        }
        for name in names
    }


def _figures(scored: Score) -> dict[str, float]:
    return {
        "precision": round(scored.precision, 4),
        "recall": round(scored.recall, 4),
        "f1": round(scored.f1, 4),
    }


def _copies(pages: Sequence[GoldPage]) -> Iterator[tuple[str, bytes]]:
    for number in range(_COPIES):
        for page in pages:
            yield f"http://{number}.example/{page.name}", page.raw


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", required=True, type=Path, help="folder with html/ and ground-truth.json")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only-stage", action="store_true", help="leave the figures of the extractors as they are")
    parser.add_argument("--warc", default="", help="WARC files of other pages to measure the stage on, as a glob")
    given = parser.parse_args()
    pages = read_pages(given.data)
    result: dict[str, Any] = json.loads(RESULT.read_text()) if given.only_stage else {}
    if not given.only_stage:
        result["libraries"] = _versions("resiliparse", "trafilatura")
        result["pages"] = len(pages)
        result["megabytes"] = round(sum(len(page.raw) for page in pages) / 1e6, 2)
        result["extractors"] = measure(pages, given.rounds)
        result["extractors"]["sluice blocks, unseen hosts"] = _held_out(pages)
    result["whole_stage"] = measure_stage(_copies(pages), given.rounds)
    if given.warc:
        result["whole_stage_other_pages"] = measure_stage(captures_of(given.warc), given.rounds)
    keep("extraction", {name: held for name, held in result.items() if name not in ("benchmark", "date", "machine")})
    _print(result)


def _held_out(pages: Sequence[GoldPage]) -> dict[str, float]:
    return _figures(cross_validated([example(page) for page in pages], choose))


def _print(result: dict[str, Any]) -> None:
    print(f"{'':30} precision  recall      F1  pages/CPU-s    MB/CPU-s")
    for name, row in sorted(result["extractors"].items(), key=lambda item: -item[1]["f1"]):
        figures = f"{row['precision']:9.4f} {row['recall']:7.4f} {row['f1']:7.4f}"
        speed = f"{row['pages_per_cpu_second']:12.0f} {row['megabytes_per_cpu_second']:11.1f}" if len(row) > 3 else ""
        print(f"{name:30} {figures} {speed}")
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
