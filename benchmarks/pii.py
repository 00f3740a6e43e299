"""Personal data: precision and recall on sentences made for it, false finds per megabyte, speed.

    python -m benchmarks.pii [--data FOLDER] [--credits FILE] [--documents FOLDER ...] [--rounds 100] [--shown 5]

Sentences: `benchmarks.pii_cases`, common forms with hard negatives and, apart, rare forms. The hand that wrote them
also wrote the recognisers: they show that what is meant works, and what does not (rare forms), not how the web writes.
For that, `--data` names a folder with `text_domains`, `toxicity_pii` and `pdf`: counts per kind, and samples to read.
`--credits` (/usr/share/doc/linux-doc-6.1/CREDITS.gz) and `--documents` (/usr/share/doc) name texts with postal
addresses that were not written for a test: `benchmarks.pii_unseen`.
Speed is CPU seconds of the annotator in one process, best of three, beside a bare search of the same texts for digits,
the floor for anything that looks at numbers. Writes `benchmarks/results/pii.json`.
"""

import argparse
import gzip
import io
import json
import random
import re
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from benchmarks.harness import keep
from benchmarks.pii_cases import Case, cases, rare
from benchmarks.pii_unseen import documents, persons
from tasks.filters.batch import Batch
from tasks.filters.pii import Pii
from tasks.filters.recognisers.scan import find

DOMAINS = ("wiki", "books", "code", "techdocs", "web", "academic", "reviews", "speech", "math", "masc")
_DIGIT = re.compile("[0-9]")


def score(tested: Sequence[Case]) -> dict[str, dict[str, float]]:
    """Returns by kind: gold, found, exact, precision and recall of exact spans, and the same of overlapping ones."""
    counts: dict[str, Counter[str]] = {}
    for case in tested:
        found = [span[:3] for span in find(case.text)]
        for one in (*case.gold, *found):
            counts.setdefault(one[0], Counter())
        for one in case.gold:
            counts[one[0]].update(
                gold=1, exact=one in found, reached=any(_meets(one, other) for other in found if other[0] == one[0])
            )
        for one in found:
            counts[one[0]].update(found=1, right=any(_meets(one, other) for other in case.gold if other[0] == one[0]))
    return {kind: _rates(count) for kind, count in sorted(counts.items())}


def _meets(one: tuple[str, int, int], other: tuple[str, int, int]) -> bool:
    return one[1] < other[2] and other[1] < one[2]


def _rates(count: Counter[str]) -> dict[str, float]:
    return {
        "gold": count["gold"],
        "found": count["found"],
        "exact": count["exact"],
        "precision": round(count["exact"] / max(1, count["found"]), 4),
        "recall": round(count["exact"] / max(1, count["gold"]), 4),
        "overlap_precision": round(count["right"] / max(1, count["found"]), 4),
        "overlap_recall": round(count["reached"] / max(1, count["gold"]), 4),
    }


def speed(texts: Sequence[str]) -> dict[str, float]:
    """Returns megabytes of UTF-8 per CPU second, ours and the bare search for digits."""
    megabytes = sum(len(text.encode()) for text in texts) / 1e6
    annotator, batch = Pii(), Batch(texts)
    annotator.prepare({})
    ours = _best(lambda: annotator.measure(batch))
    bare = _best(lambda: [_DIGIT.findall(text) for text in texts])
    return {
        "megabytes": round(megabytes, 2),
        "mb_s": round(megabytes / ours, 1),
        "digits_mb_s": round(megabytes / bare, 1),
    }


def _best(work: Callable[[], object]) -> float:
    best = float("inf")
    for _ in range(3):
        begin = time.process_time()
        work()
        best = min(best, time.process_time() - begin)
    return best


def read(path: Path) -> list[str]:
    """Reads the texts of a JSONL file, compressed or not, or one plain text."""
    if path.suffix == ".txt":
        return [path.read_text("utf-8")]
    if path.suffix == ".gz":
        with gzip.open(path, "rt", encoding="utf-8") as file:
            return [str(json.loads(line)["text"]) for line in file]
    with pa.input_stream(str(path), compression="detect") as stream:
        return [str(json.loads(line)["text"]) for line in io.TextIOWrapper(stream, encoding="utf-8")]


def real(data: Path, shown: int) -> dict[str, Any]:
    """Measures and samples the texts below `data`."""
    measured: dict[str, Any] = {}
    for domain in DOMAINS:
        texts = read(data / "text_domains" / f"{domain}.jsonl.zst")
        finds = show(domain, texts, shown)
        measured[domain] = {**speed(texts), "finds": finds}
        print(f"   {measured[domain]}")
    for path in (
        data / "toxicity_pii/dolma_fixture/provided__documents__000.json.gz",
        *sorted(data.glob("pdf/silver_text/*")),
    ):
        show(path.name, read(path), shown)
    return measured


def show(name: str, texts: Sequence[str], shown: int) -> dict[str, int]:
    """Prints what is found, with some of it to read; returns the counts by kind."""
    finds = [(text, span) for text in texts for span in find(text)]
    counts = dict(sorted(Counter(span.kind for _, span in finds).items()))
    print(f"{name}: {counts}")
    rng = random.Random(1)
    for kind in counts:
        of_kind = [one for one in finds if one[1].kind == kind]
        for text, (_, start, end, evidence) in rng.sample(of_kind, min(shown, len(of_kind))):
            print(f"   {kind} {evidence.name.lower()}: {text[max(0, start - 30) : end + 10]!r}")
    return counts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, help="folder with text_domains, toxicity_pii and pdf")
    parser.add_argument("--credits", type=Path, help="CREDITS.gz of the Linux kernel")
    parser.add_argument("--documents", type=Path, nargs="*", default=[], help="folders with copyright files")
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--shown", type=int, default=5, help="finds of each kind to print")
    given = parser.parse_args()
    tested = cases(given.rounds, seed=1)
    result: dict[str, Any] = {
        "cases": len(tested),
        "common": score(tested),
        "rare": score(rare()),
        "unseen": {
            "persons": persons(given.credits) if given.credits else {},
            "documents": documents(given.documents),
        },
        "real": real(given.data, given.shown) if given.data else {},
    }
    for name in ("common", "rare"):
        for kind, of in result[name].items():
            print(f"{name:7}{kind:9}" + "  ".join(f"{field} {value}" for field, value in of.items()))
    print(result["unseen"])
    keep("pii", result)


if __name__ == "__main__":
    main()
