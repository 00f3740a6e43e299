r"""Filters: speed of their annotators, and good texts lost by their limits.

    python -m benchmarks.filters speed --texts FOLDER [--mb 20] [--rounds 3] [--without-peer]
    python -m benchmarks.filters limits --data FOLDER [--pdf FOLDER]

`speed`: each annotator on whole batches of documents, against the simplest implementation, in one run. FOLDER has JSON
lines (`*.jsonl.zst`, field `text`). Figures are MB of text (UTF-8) per CPU-second of one process, the best of the
rounds, ours and the other in turn. "words" is the split that all rules share: new texts with empty tables (`words`),
and texts with cached words (`words, met before`). A single rule is measured after that split. The references are
`re.findall(r"\w+")`, fastText's `predict` alone, loops over documents and lines in Python, and datatrove's filters on 2
MB of the same texts. Those split the words themselves, so a ratio of one rule includes our split; "all rules" are their
four, applied to each text in turn, as in a pipeline. Writes `annotators.json`.

`limits`: FOLDER has `text_domains/*.jsonl.zst` (published texts: articles, encyclopedia, reviews, speeches, novels),
`extraction_html/ground-truth.json` (manually extracted main text of news pages), `quality/dclm_human_quality.jsonl.zst`
(web pages with votes) and `pdf/files/*.pdf`. `--pdf` names a folder with more PDF files, at any depth, for example the
papers in Debian's packages of R (`apt-get download r-cran-vcd`, `dpkg-deb -x`). `by_length` is the share of good prose
that each filter drops with its defaults, by space-separated words. `c4_open` is FineWeb's variant of C4, without the
rule on the ends of lines (`end_marks = false`). `votes` is the share of the pages that most voters called good, and of
the others, that each filter drops. `kinds` counts the files of a kind that the filters of the recipe `web` drop, with
the general limits and with its limits for the kind or source, and the first reasons. Writes `limits.json`.
"""

import argparse
import json
import re
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from benchmarks.harness import cost, json_lines, keep, least, parser, spent, texts_of
from benchmarks.refine import datatrove
from tasks.filters.base import Annotator, fields
from tasks.filters.batch import DocumentBatch
from tasks.filters.catalogue import annotator, filter_of
from tasks.filters.counting import words
from tasks.filters.pretrained import model_file
from tasks.formats.documents.text import clean
from tasks.formats.pdf.document import read_pdf
from tasks.run.recipe import find_recipe
from tasks.stages.annotate import AnnotateConfig
from tasks.stages.consolidate.config import ConsolidateConfig

RULES = ("gopher_quality", "gopher_repetition", "c4", "fineweb", "prose_score")
PROSE = ("books", "masc", "reviews", "speech", "web", "wiki")
WORDS = (50, 100, 200, 400, 800)
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
_PEER_MB = 2
_ENDS = (".", "!", "?", '"', "'", ":", ";", ")")


def sample(folder: Path, most: int) -> list[str]:
    """Returns texts of every file in `folder`, cleaned as in extract, up to `most` bytes in equal parts."""
    paths = sorted(folder.glob("*.jsonl.zst"))
    found = []
    for path in paths:
        size = 0
        for text in map(clean, texts_of(path)):
            if size >= most / len(paths):
                break
            found.append(text)
            size += len(text.encode())
    return found


def batches_of(texts: Sequence[str]) -> list[pa.StringArray]:
    """Returns texts in batches of a few megabytes, as in the stage."""
    limit, size = AnnotateConfig().batch_bytes, 0
    columns: list[pa.StringArray] = []
    batch_texts: list[str] = []
    for text in texts:
        if batch_texts and size + len(text.encode()) > limit:
            columns.append(pa.array(batch_texts, pa.string()))
            batch_texts, size = [], 0
        batch_texts.append(text)
        size += len(text.encode())
    return [*columns, pa.array(batch_texts, pa.string())]


def forget_words() -> None:
    """Empties the word tables of this process."""
    words._vocabulary = words.Vocabulary()


def alone(one: Annotator, columns: Sequence[pa.StringArray]) -> float:
    """Returns the CPU seconds of one annotator, after the words were split."""
    total = 0.0
    for column in columns:
        batch = DocumentBatch(column.to_pylist(), column=column)
        _ = batch.words
        total += spent(lambda batch=batch: one.annotate(batch))  # type: ignore[misc]
    return total


def together(columns: Sequence[pa.StringArray]) -> float:
    """Returns the CPU seconds of all rules, the split of new texts included."""
    forget_words()
    rules = [annotator(name, {}) for name in RULES]
    texts = [column.to_pylist() for column in columns]

    def run() -> None:
        for batch_texts, column in zip(texts, columns, strict=True):
            batch = DocumentBatch(batch_texts, column=column)
            for one in rules:
                one.annotate(batch)

    return spent(run)


def split(columns: Sequence[pa.StringArray]) -> float:
    """Returns the CPU seconds of the shared split."""
    return spent(lambda: [words.split(column) for column in columns])


def plain_words(texts: Sequence[str]) -> None:
    """Splits with the simplest expression."""
    for text in texts:
        re.findall(r"\w+", text)


def plain_lines(texts: Sequence[str]) -> None:
    """Computes `prose_score` with Python loops: the reference for rules on lines."""
    for text in texts:
        lines = [line for raw in text.split("\n") if (line := raw.strip())]
        sum(len(line) for line in lines if line.endswith(_ENDS))
        sum(map(len, dict.fromkeys(lines)))


def plain_language(texts: Sequence[str]) -> None:
    """Predicts the language from the beginning of each text."""
    import fasttext

    model = fasttext.load_model(str(model_file("lid.176.ftz")))
    for text in texts:
        model.predict(text[:2000].replace("\n", " "))


def compared(texts: Sequence[str], columns: Sequence[pa.StringArray], rounds: int) -> dict[str, float]:
    """Returns the least CPU seconds of each contender."""

    def new() -> float:
        forget_words()
        return split(columns)

    language = annotator("language", {})
    language.prepare({})
    runs: dict[str, Callable[[], float]] = {
        "words": new,
        "words, met before": lambda: split(columns),
        r"re.findall(r'\w+')": lambda: spent(lambda: plain_words(texts)),
        "language": lambda: alone(language, columns),
        "fastText predict": lambda: spent(lambda: plain_language(texts)),
        **{name: partial(alone, annotator(name, {}), columns) for name in RULES},
        "loop over lines": lambda: spent(lambda: plain_lines(texts)),
        "all rules": lambda: together(columns),
    }
    return least(runs, rounds)


def theirs(texts: Sequence[str]) -> dict[str, float]:
    """Returns MB/s of datatrove's filters on some of the texts."""
    some, size = [], 0
    # A sample over all files, since their texts are consecutive.
    for text in texts[:: max(1, sum(map(len, texts)) // (_PEER_MB * 1_000_000))]:
        some.append(text)
        size += len(text.encode())
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as file:
        file.write("".join(json.dumps(text) + "\n" for text in some))
        file.flush()
        seconds = json.loads(cost(datatrove("speed", file.name)).output.splitlines()[-1])
    return {name: round(size / 1e6 / one, 3) for name, one in seconds.items()}


def speed(given: argparse.Namespace) -> None:
    """Measures the annotators and their references."""
    texts = sample(given.texts, int(given.mb * 1e6))
    size = sum(len(text.encode()) for text in texts) / 1e6
    rates = {name: round(size / one, 2) for name, one in compared(texts, batches_of(texts), given.rounds).items()}
    ratios = {
        "words": rates["words"] / rates[r"re.findall(r'\w+')"],
        "words, met before": rates["words, met before"] / rates[r"re.findall(r'\w+')"],
        "language": rates["language"] / rates["fastText predict"],
        "prose_score": rates["prose_score"] / rates["loop over lines"],
    }
    result: dict[str, Any] = {"documents": len(texts), "text_mb": round(size, 1), "mb_per_s": rates}
    if not given.without_peer:
        result["datatrove_mb_per_s"] = theirs(texts)
        for name, other in result["datatrove_mb_per_s"].items():
            mine = 1 / rates[name] + (1 / rates["words"] if name in RULES else 0)
            ratios[f"{name} x datatrove"] = 1 / mine / other
    keep("annotators", {**result, "ratio": {name: round(value, 2) for name, value in ratios.items()}})


def cleaned(path: Path) -> list[str]:
    """Returns the texts of a file of JSON lines, as extract cleans them."""
    return [clean(text) for text in texts_of(path)]


def of_votes(data: Path) -> dict[str, dict[str, float]]:
    """Returns the share that each filter drops of the pages that most voters called good, and of the others."""
    rows = list(json_lines(data / "quality" / "dclm_human_quality.jsonl.zst"))
    good = np.array([row["label"] == 1 for row in rows])
    texts = [clean(row["text"]) for row in rows]
    drops = {name: first_reasons(texts, *how) != "" for name, how in FILTERS.items()}
    return {
        which: {"pages": int(mine.sum()), **{name: round(float(goes[mine].mean()), 3) for name, goes in drops.items()}}
        for which, mine in (("good", good), ("others", ~good))
    }


def gold(data: Path) -> list[str]:
    """Returns the manually extracted main texts of news pages."""
    pages = json.loads((data / "extraction_html" / "ground-truth.json").read_text())
    return [clean(page["articleBody"]) for page in pages.values()]


def first_reasons(
    texts: Sequence[str], name: str, settings: Mapping[str, Any], limits: Mapping[str, Any]
) -> NDArray[np.str_]:
    """Returns for every text the first reason of a filter to drop it, or ""."""
    rule, measures = filter_of(name, limits), annotator(name, settings)
    found: list[str] = []
    for start in range(0, len(texts), _BATCH):
        batch = DocumentBatch(texts[start : start + _BATCH])
        first = [""] * len(batch)
        for reason, goes in rule.reasons(fields(measures.annotate(batch))):
            first = [why or (reason if gone else "") for why, gone in zip(first, goes, strict=True)]
        found += first
    return np.array(found)


def by_words(texts: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yields for every class of length its texts and the share that each filter drops."""
    words = np.array([len(text.split()) for text in texts])
    drops = {name: first_reasons(texts, *how) != "" for name, how in FILTERS.items()}
    for first, last in zip(WORDS, [*WORDS[1:], None], strict=True):
        mine = (words >= first) & (words < (last or np.inf))
        lost = {name: round(float(goes[mine].mean()), 3) for name, goes in drops.items()}
        yield {"words": f"{first} to {last - 1}" if last else f"{first} and more", "texts": int(mine.sum()), **lost}


def of_kind(texts: Sequence[str], scope: str) -> dict[str, Any]:
    """Returns how many texts the recipe's filters drop with the general limits and with those of `scope`."""
    config = find_recipe("web").of(ConsolidateConfig)
    defaults = ConsolidateConfig(filters=config.filters).limits
    own = {name: {**defaults[name], **config.limits[scope].get(name, {})} for name in config.filters}
    line: dict[str, Any] = {"texts": len(texts)}
    for which, limits in (("general", defaults), ("own", own)):
        reasons = [first_reasons(texts, name, {}, limits[name]) for name in config.filters if name != "language"]
        first = [next(filter(None, several), "") for several in zip(*reasons, strict=True)]
        lost = Counter(str(why) for why in first if why)
        line[which] = {"dropped": lost.total(), "reasons": dict(lost.most_common(5))}
    return line


def limits(given: argparse.Namespace) -> None:
    """Applies the filters to good texts, pages with votes, and files of other kinds."""
    domains = {name: cleaned(given.data / "text_domains" / f"{name}.jsonl.zst") for name in PROSE}
    prose = [text for texts in domains.values() for text in texts]
    files = sorted((given.data / "pdf" / "files").glob("*.pdf"))
    more = sorted(given.pdf.rglob("*.pdf")) if given.pdf else []
    pdfs = {"pdf": files, **({"pdf, papers of packages": more} if more else {})}
    kinds = {
        name: of_kind([clean(read_pdf(path.read_bytes()).text) for path in of], "pdf") for name, of in pdfs.items()
    }
    kinds["code"] = of_kind(cleaned(given.data / "text_domains" / "code.jsonl.zst"), "code")
    figures = {"by_length": {"prose": [*by_words(prose)], "news": [*by_words(gold(given.data))]}}
    keep("limits", {**figures, "votes": of_votes(given.data), "kinds": kinds})


def main() -> None:
    options = parser(__doc__)
    commands = options.add_subparsers(required=True)
    one = commands.add_parser("speed", help="annotators against simple references and datatrove")
    one.add_argument("--texts", type=Path, required=True, help="folder of *.jsonl.zst")
    one.add_argument("--mb", type=float, default=20)
    one.add_argument("--rounds", type=int, default=3)
    one.add_argument("--without-peer", action="store_true")
    one.set_defaults(run=speed)
    one = commands.add_parser("limits", help="good texts and other kinds of files that the limits drop")
    one.add_argument("--data", type=Path, required=True)
    one.add_argument("--pdf", type=Path, help="folder with more PDF files")
    one.set_defaults(run=limits)
    given = options.parse_args()
    given.run(given)


if __name__ == "__main__":
    main()
