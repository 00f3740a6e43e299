"""Main text: the extractors of Sluice and the bare libraries on annotated pages of several kinds, in one run.

    python -m benchmarks.extraction --gold FOLDER --segments FOLDER [--kinds FOLDER] [--manuals FOLDER]
        [--folds FOLDER] [--rounds 3]

The pages of `--gold` have their whole main text; the metric is that of the public article extraction benchmark of
Scrapinghub (now Zyte): 4-word shingles as multisets. The pages of `--segments` have segments that the main text must,
and must not, contain; the metric is that of trafilatura's evaluation: recall is the share of the former in the text,
precision their share in all segments in the text, ignoring white space. `--kinds` has news in many languages, forums,
recipes and manuals (`page_kinds`), with figures by kind: bags of words, and the found share of a recipe's steps and
ingredients. `--manuals` has unpacked Debian packages (`manual_tables`): the kept share of the cells of data tables, and
of tables of navigation.

Every F1 has a 95 % interval by a bootstrap over hosts, except for kinds of fewer than eight hosts. The trees of
`blocks` were trained on these pages, so their score here means little; "blocks, unseen hosts" is cross-validated: each
page is scored by trees that were not trained on its site. With `--folds` these are the trees that
`train_blocks --folds` has written; without it the figures are those of its last result.

Speed is pages of `--gold` and `--segments` per CPU-second of one process: the sum of the least time of each page over
the rounds, the contenders taken in turn, so that load on the machine affects all alike. Ours includes steps that the
library lacks: the check for pages that stall it, cleaning, title, author, date, license. trafilatura and magic-html
take part if they are installed. Writes `extraction.json`.
"""

import gzip
import json
import re
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from benchmarks.harness import keep, last, parser
from benchmarks.manual_tables import ManualPage, kept_shares, read_manuals
from benchmarks.page_kinds import KindPage, bag_shares, found_share, read_kinds
from benchmarks.unseen_hosts import HostedPage, texts_by_folds
from tasks.formats.web.charset import decode
from tasks.formats.web.url import host_of
from tasks.stages.extract.config import ExtractConfig
from tasks.stages.extract.html import read_page

_WORD = re.compile(r"\w+")
_SLOW, _SLOW_ROUNDS = "trafilatura", 2
_FEWEST_PAGES, _FEWEST_HOSTS = 3, 8
_UNSEEN = "sluice blocks, unseen hosts"


@dataclass(frozen=True)
class GoldPage:
    """A page with manually annotated main text."""

    name: str
    url: str
    raw: bytes
    gold: str

    @property
    def html(self) -> str:
        """The page as the extract stage decodes it."""
        return decode(self.raw)

    @property
    def host(self) -> str:
        """The page's host; its name if it has no URL."""
        return host_of(self.url) or self.name


@dataclass(frozen=True)
class SegmentPage:
    """A page with segments of its main text and of its boilerplate.

    Attributes:
        stated: annotated metadata: `title`, `author`, `date`, `sitename` if known.
    """

    url: str
    raw: bytes
    wanted: tuple[str, ...]
    unwanted: tuple[str, ...]
    stated: dict[str, Any]

    @property
    def html(self) -> str:
        """The page as the extract stage decodes it."""
        return decode(self.raw)

    @property
    def host(self) -> str:
        """The page's host."""
        return host_of(self.url) or self.url


Page = GoldPage | SegmentPage | KindPage


@dataclass(frozen=True)
class Score:
    """Means over pages, by the benchmark's metric."""

    precision: float
    recall: float

    @property
    def f1(self) -> float:
        """F1 of the mean precision and the mean recall."""
        both = self.precision + self.recall
        return 2 * self.precision * self.recall / both if both else 0.0


def read_pages(folder: Path) -> list[GoldPage]:
    """Reads the labeled pages of a folder, in the order of their names."""
    truth = json.loads((folder / "ground-truth.json").read_text("utf-8"))
    pages = []
    for name in sorted(truth):
        raw = gzip.decompress((folder / "html" / f"{name}.html.gz").read_bytes())
        pages.append(GoldPage(name, truth[name].get("url", ""), raw, truth[name]["articleBody"]))
    return pages


def read_segments(folder: Path) -> list[SegmentPage]:
    """Reads the pages with segments of a folder, in its order."""
    pages = []
    for line in (folder / "pages.jsonl").read_text("utf-8").splitlines():
        row = json.loads(line)
        raw = gzip.decompress((folder / row["file"]).read_bytes())
        pages.append(SegmentPage(row["url"], raw, tuple(row["with"]), tuple(row["without"]), row))
    return pages


def squeezed(text: str) -> str:
    """Returns a text with runs of white space collapsed to one space."""
    return " ".join(text.split())


def found_segments(page: SegmentPage, text: str) -> tuple[int, int, int]:
    """Returns three counts: wanted segments in the text, all wanted segments, unwanted segments in the text."""
    held = squeezed(text)
    wanted, unwanted = ([squeezed(one) in held for one in of] for of in (page.wanted, page.unwanted))
    return sum(wanted), len(wanted), sum(unwanted)


def segment_score(found: Sequence[tuple[int, int, int]]) -> Score:
    """Scores the `found_segments` of some pages."""
    right, wanted, wrong = np.sum(found, axis=0).tolist()
    return Score(right / max(1, right + wrong), right / max(1, wanted))


def shingle_score(found: Sequence[tuple[float, float]]) -> Score:
    """Scores the `precision_and_recall` of some pages."""
    return Score(*np.mean(found, axis=0).tolist())


_Found = TypeVar("_Found")


def interval(
    found: Sequence[_Found], hosts: Sequence[str], scored: Callable[[Sequence[_Found]], Score], draws: int = 1_000
) -> tuple[float, float]:
    """Returns the 95 % interval of F1 by a bootstrap that draws hosts, each with all its pages."""
    of_host: dict[str, list[_Found]] = {}
    for one, host in zip(found, hosts, strict=True):
        of_host.setdefault(host, []).append(one)
    pages = list(of_host.values())
    drawn = np.random.default_rng(0).integers(0, len(pages), (draws, len(pages)))
    values = [scored([one for index in indices for one in pages[index]]).f1 for indices in drawn.tolist()]
    low, high = np.quantile(values, (0.025, 0.975)).tolist()
    return low, high


def precision_and_recall(page: GoldPage, text: str) -> tuple[float, float]:
    """Scores one text by its shingles."""
    found, expected = shingles(text), shingles(page.gold)
    common = (found & expected).total()
    return common / found.total(), common / expected.total()


def shingles(text: str) -> Counter[tuple[str, ...]]:
    """Returns the 4-word shingles of a text; a shorter text is one shingle."""
    words = _WORD.findall(text)
    return Counter(tuple(words[i : i + 4]) for i in range(max(1, len(words) - 3)))


def score(pages: Sequence[GoldPage], texts: Sequence[str]) -> Score:
    """Scores the output of an extractor on each page."""
    return shingle_score([precision_and_recall(page, text) for page, text in zip(pages, texts, strict=True)])


def scores(pages: Sequence[Page], texts: Sequence[str]) -> dict[str, Any]:
    """Scores texts of pages of all sets, with intervals by host."""
    both = list(zip(pages, texts, strict=True))
    gold = [(page.host, precision_and_recall(page, text)) for page, text in both if isinstance(page, GoldPage)]
    segments = [(page.host, found_segments(page, text)) for page, text in both if isinstance(page, SegmentPage)]
    of_kinds = [(page, text) for page, text in both if isinstance(page, KindPage)]
    found: dict[str, Any] = {}
    if gold:
        hosts, shares = zip(*gold, strict=True)
        found["gold"] = figures(shingle_score(shares), interval(shares, hosts, shingle_score))
    if segments:
        hosts, counts = zip(*segments, strict=True)
        found["segments"] = figures(segment_score(counts), interval(counts, hosts, segment_score))
    if of_kinds:
        found["kinds"] = scores_by_kind(of_kinds)
    return found


def scores_by_kind(both: Sequence[tuple[KindPage, str]]) -> dict[str, Any]:
    """Scores texts of pages by kind; kinds of few pages have no figures, those of few hosts no interval."""
    found: dict[str, Any] = {}
    for kind in sorted({page.kind for page, _ in both}):
        held = [(page, text) for page, text in both if page.kind == kind]
        if len(held) < _FEWEST_PAGES:
            continue
        whole = [(page.host, bag_shares(page, text)) for page, text in held if not page.parts]
        if whole:
            found[kind] = {"pages": len(whole), **_of_shares(whole)}
        for part in sorted({part for page, _ in held for part in page.parts}):
            shares = [(page.host, found_share(page.parts[part], text)) for page, text in held if part in page.parts]
            # Only recall is known, which counts as both.
            recall = _of_shares([(host, (share, share)) for host, share in shares])
            found[f"{kind}, {part}"] = {"pages": len(shares), "recall": recall["recall"]} | (
                {"recall_interval": recall["f1_interval"]} if "f1_interval" in recall else {}
            )
    return found


def _of_shares(of_hosts: Sequence[tuple[str, tuple[float, float]]]) -> dict[str, Any]:
    hosts, shares = zip(*of_hosts, strict=True)
    enough = len(set(hosts)) >= _FEWEST_HOSTS
    return figures(shingle_score(shares), interval(shares, hosts, shingle_score) if enough else None)


def figures(scored: Score, between: tuple[float, float] | None) -> dict[str, Any]:
    """Returns a score in the format of the result file."""
    found: dict[str, Any] = {
        "precision": round(scored.precision, 4),
        "recall": round(scored.recall, 4),
        "f1": round(scored.f1, 4),
    }
    return found | ({"f1_interval": [round(limit, 4) for limit in between]} if between else {})


def contenders() -> dict[str, Callable[[str], str]]:
    """Returns every extractor as a function from a decoded page to its text; others' only if they are installed."""
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
    if find_spec("magic_html"):
        found["magic_html"] = _magic_html()
    if find_spec(_SLOW):
        import trafilatura

        found["sluice trafilatura"] = ours("trafilatura")
        found["trafilatura default"] = lambda html: trafilatura.extract(html) or ""
        found["trafilatura favor_precision"] = lambda html: trafilatura.extract(html, favor_precision=True) or ""
    return found


def _magic_html() -> Callable[[str], str]:
    """Returns magic-html, which gives the HTML of the main text; resiliparse turns all of that into text."""
    from resiliparse.extract.html2text import extract_plain_text

    extractor = import_module("magic_html").GeneralExtractor()

    def extract(html: str) -> str:
        try:
            found = extractor.extract(html, base_url="https://host.example/")["html"]
        except Exception:  # it fails on some pages
            return ""
        text: str = extract_plain_text(found, preserve_formatting=True, list_bullets=False)
        return text

    return extract


def measure(pages: Sequence[GoldPage | SegmentPage], rounds: int) -> dict[str, dict[str, Any]]:
    """Scores and times every contender."""
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


def scored_on_all(
    gold: Sequence[GoldPage],
    segments: Sequence[SegmentPage],
    kinds: Sequence[KindPage],
    manuals: Sequence[ManualPage],
    texts_of: Callable[[Sequence[HostedPage]], Sequence[str]],
) -> dict[str, Any]:
    """Scores one extractor, a function from pages to their texts, on all sets."""
    found = scores([*gold, *segments, *kinds], texts_of([*gold, *segments, *kinds]))
    return found | ({"tables": kept_shares(manuals, texts_of(manuals))} if manuals else {})


def _texts_by(extract: Callable[[str], str], pages: Sequence[HostedPage]) -> list[str]:
    return [extract(page.html) for page in pages]


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--gold", required=True, type=Path, help="folder with html/ and ground-truth.json")
    options.add_argument("--segments", required=True, type=Path, help="folder with html/ and pages.jsonl")
    options.add_argument("--kinds", type=Path, help="folder with pages.jsonl.zst")
    options.add_argument("--manuals", type=Path, help="folder with the unpacked packages of manual_tables.MANUALS")
    options.add_argument("--folds", type=Path, help="folder that train_blocks --folds has written")
    options.add_argument("--rounds", type=int, default=3)
    given = options.parse_args()
    gold, segments = read_pages(given.gold), read_segments(given.segments)
    kinds = read_kinds(given.kinds) if given.kinds else []
    manuals = read_manuals(given.manuals) if given.manuals else []
    pages: list[GoldPage | SegmentPage] = [*gold, *segments]
    extractors = measure(pages, given.rounds)
    for name, extract in contenders().items():
        extractors[name] |= scored_on_all([], [], kinds, manuals, partial(_texts_by, extract))
    extractors[_UNSEEN] = (
        scored_on_all(gold, segments, kinds, manuals, partial(texts_by_folds, given.folds))
        if given.folds
        else last("train_blocks").get("unseen hosts, nested", {})
    )
    result = {
        "libraries": versions("resiliparse", "trafilatura", "magic_html"),
        "pages": {"gold": len(gold), "segments": len(segments), "kinds": len(kinds), "manuals": len(manuals)},
        "megabytes": round(sum(len(page.raw) for page in pages) / 1e6, 2),
        "extractors": extractors,
    }
    keep("extraction", result)


def versions(*names: str) -> dict[str, str]:
    """Returns the versions of installed libraries."""
    return {name: version(name) if find_spec(name) else "not installed" for name in names}


if __name__ == "__main__":
    main()
