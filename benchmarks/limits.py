"""What the limits of the filters cost: good texts by length, and files of other kinds, PDF and code.

    python -m benchmarks.limits --data FOLDER [--pdf FOLDER]

FOLDER of the data holds `text_domains/*.jsonl.zst` (texts that people wrote and published: articles, encyclopedia,
reviews, speeches, novels), `extraction_html/ground-truth.json` (main text of news pages, made by hand),
`quality/dclm_human_quality.jsonl.zst` (web pages with votes) and `pdf/files/*.pdf`. `--pdf` names a folder with further
PDF files, found at any depth: Debian's packages of R have papers, as `apt-get download r-cran-vcd` and `dpkg-deb -x`
give them.

`by_length` is the share of good prose that each filter drops with its defaults, by words between spaces. `c4_open` is
C4 as FineWeb has it, without the rule on the ends of lines (`end_marks = false`). `votes` is the share of the pages
that most voters called good, and of the others, that each filter drops. `kinds` counts the files of a kind
that the filters of the recipe `web` drop, with the general limits and with those of the kind or source there, and the
first reasons.
"""

import argparse
import io
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from benchmarks.harness import keep
from tasks.filters.base import fields
from tasks.filters.batch import Batch
from tasks.filters.catalogue import annotator, filter_of
from tasks.formats.documents.text import clean
from tasks.formats.pdf.document import read_pdf
from tasks.run.recipe import find_recipe

PROSE = ("books", "masc", "reviews", "speech", "web", "wiki")
LENGTHS = (50, 100, 200, 400, 800)
"""Words from which on a text is in the next class; texts of fewer than the first are left out."""
FILTERS: Mapping[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "gopher_quality": ("gopher_quality", {}, {}),
    "gopher_repetition": ("gopher_repetition", {}, {}),
    "fineweb": ("fineweb", {}, {}),
    "c4": ("c4", {}, {}),
    "c4_open": ("c4", {"end_marks": False}, {}),
    "c4_open_3": ("c4", {"end_marks": False}, {"min_sentences": 3}),
}
"""Filter, settings of its annotator, and limits, by the name of the figure."""
_BATCH = 200


def texts_of(path: Path) -> list[str]:
    """Returns the texts of a file of JSON lines, as extract cleans them."""
    with pa.CompressedInputStream(pa.OSFile(str(path)), "zstd") as file:
        return [clean(json.loads(line)["text"]) for line in io.BytesIO(file.read())]


def votes(data: Path) -> dict[str, dict[str, float]]:
    """Returns the share that each filter drops of the pages that most voters called good, and of the others."""
    path = data / "quality" / "dclm_human_quality.jsonl.zst"
    with pa.CompressedInputStream(pa.OSFile(str(path)), "zstd") as file:
        rows = [json.loads(line) for line in io.BytesIO(file.read())]
    good = np.array([row["label"] == 1 for row in rows])
    texts = [clean(row["text"]) for row in rows]
    drops = {name: first_reasons(texts, *how) != "" for name, how in FILTERS.items()}
    return {
        which: {"pages": int(mine.sum()), **{name: round(float(goes[mine].mean()), 3) for name, goes in drops.items()}}
        for which, mine in (("good", good), ("others", ~good))
    }


def gold(data: Path) -> list[str]:
    """Returns the main texts of news pages that were made by hand."""
    pages = json.loads((data / "extraction_html" / "ground-truth.json").read_text())
    return [clean(page["articleBody"]) for page in pages.values()]


def first_reasons(
    texts: Sequence[str], name: str, settings: Mapping[str, Any], limits: Mapping[str, Any]
) -> NDArray[np.str_]:
    """Returns for every text the first reason of a filter to drop it, "" where it stays."""
    rule, measures = filter_of(name, limits), annotator(name, settings)
    found: list[str] = []
    for start in range(0, len(texts), _BATCH):
        batch = Batch(texts[start : start + _BATCH])
        first = [""] * len(batch)
        for reason, goes in rule.reasons(fields(measures.annotate(batch))):
            first = [why or (reason if gone else "") for why, gone in zip(first, goes, strict=True)]
        found += first
    return np.array(found)


def by_length(texts: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yields for every class of length its texts and the share that each filter drops."""
    words = np.array([len(text.split()) for text in texts])
    drops = {name: first_reasons(texts, *how) != "" for name, how in FILTERS.items()}
    for least, most in zip(LENGTHS, [*LENGTHS[1:], None], strict=True):
        mine = (words >= least) & (words < (most or np.inf))
        lost = {name: round(float(goes[mine].mean()), 3) for name, goes in drops.items()}
        yield {"words": f"{least} to {most - 1}" if most else f"{least} and more", "texts": int(mine.sum()), **lost}


def of_kind(texts: Sequence[str], scope: str) -> dict[str, Any]:
    """Returns how many texts the recipe's filters drop with the general limits and with those of `scope` over them."""
    config = find_recipe("web").consolidate
    defaults = type(config)(filters=config.filters).limits
    own = {name: {**defaults[name], **config.limits[scope].get(name, {})} for name in config.filters}
    line: dict[str, Any] = {"texts": len(texts)}
    for which, limits in (("general", defaults), ("own", own)):
        reasons = [first_reasons(texts, name, {}, limits[name]) for name in config.filters if name != "language"]
        first = [next(filter(None, several), "") for several in zip(*reasons, strict=True)]
        lost = Counter(str(why) for why in first if why)
        line[which] = {"dropped": lost.total(), "reasons": dict(lost.most_common(5))}
    return line


def main() -> None:
    """Measures all and writes `benchmarks/results/limits.json`."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--data", type=Path, required=True)
    options.add_argument("--pdf", type=Path)
    asked = options.parse_args()
    domains = {name: texts_of(asked.data / "text_domains" / f"{name}.jsonl.zst") for name in PROSE}
    prose = [text for texts in domains.values() for text in texts]
    files = sorted((asked.data / "pdf" / "files").glob("*.pdf"))
    more = sorted(asked.pdf.rglob("*.pdf")) if asked.pdf else []
    pdfs = {"pdf": files, **({"pdf, papers of packages": more} if more else {})}
    kinds = {
        name: of_kind([clean(read_pdf(path.read_bytes()).text) for path in of], "pdf") for name, of in pdfs.items()
    }
    kinds["code"] = of_kind(texts_of(asked.data / "text_domains" / "code.jsonl.zst"), "code")
    figures = {"by_length": {"prose": [*by_length(prose)], "news": [*by_length(gold(asked.data))]}}
    keep("limits", {**figures, "votes": votes(asked.data), "kinds": kinds})


if __name__ == "__main__":
    main()
