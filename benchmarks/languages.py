r"""Good text and noise in many languages that the default filters drop.

    python -m benchmarks.languages measure --reference FOLDER [--data FOLDER]
    python -m benchmarks.languages table

Good text: pages of manuals and declarations that are held out (FOLDER/held_out of `benchmarks.reference_text`), news
pages with manually extracted text (`extraction_kinds/pages.jsonl.zst` of --data), and Bible verses joined to pages
(`langid/genesis_verses.jsonl.zst`). Noise is made of the same text with a fixed seed, NOISE pages of each kind:

- repeated_lines: lines of shuffled words, each of them two to five times
- links: lines of one to three words, as in menus and lists of tags
- soup: characters of a Markov chain of first order, in lines that end with a mark
- mojibake: UTF-8 read as Windows-1252, of pages where that changes a word in GARBLED or more
- ngrams: one phrase again and again, with other words between
- keywords: rare words with commas between
- shuffled: all words of a page in random order, with its lines and marks. No rule on words and lines can tell it from a
  page; its share is shown, but does not count.

A page is labeled by the annotator `language`, measured and judged as in a run, by the filters of FILTERS with their
defaults. Writes `language_filters.json`; `table` prints it as the table of docs/filters.md.
"""

import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.harness import json_lines, keep, last, parser
from tasks.filters.batch import DocumentBatch
from tasks.filters.catalogue import annotator
from tasks.filters.language_values import plain_words, shipped
from tasks.formats.documents.languages import NAMES
from tasks.formats.documents.text import clean
from tasks.formats.documents.words import spaced
from tasks.formats.documents.words import words as words_of
from tasks.stages.consolidate.config import ConsolidateConfig
from tasks.stages.consolidate.rules import reasons

FILTERS = ("language", "gopher_quality", "gopher_repetition", "fineweb", "quality")
NOISE = 10
SEED = 20261129
FEWEST = 4
"""Good pages below which a language is left out."""
SHOWN = 10
"""Good pages below which a language is not in the table."""
MOST = 100
GARBLED = 20
_VERSES = 20
_BATCH = 200
_FREQUENT = 60
_SOUP = 2_500
Make = Callable[[random.Random, Sequence[str]], str]


def good(reference: Path, data: Path | None) -> dict[str, dict[str, list[str]]]:
    """Returns pages by language and set."""
    found: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for path in sorted((reference / "held_out").glob("*.jsonl.zst")):
        rows = list(json_lines(path))
        random.Random(SEED).shuffle(rows)
        code = path.name.partition(".")[0]
        for row in rows[:MOST]:
            found[code]["declaration" if row["source"] == "udhr" else "manuals"].append(row["text"])
    if data:
        for row in json_lines(data / "extraction_kinds" / "pages.jsonl.zst"):
            if row["kind"] == "news" and row.get("gold"):
                found[row["lang"]]["news"].append(clean(row["gold"]))
        verses: dict[str, list[str]] = defaultdict(list)
        for row in json_lines(data / "langid" / "genesis_verses.jsonl.zst"):
            verses[row["lang"]].append(row["text"])
        for code, lines in verses.items():
            pages = (lines[begin : begin + _VERSES] for begin in range(0, len(lines), _VERSES))
            found[code]["verses"] += [clean("\n".join(page)) for page in pages]
    return {code: dict(sets) for code, sets in sorted(found.items())}


def _words(pages: Sequence[str]) -> list[str]:
    return [word for page in pages for word in words_of(page)]


def _glue(pages: Sequence[str]) -> str:
    """Returns what stands between words: nothing in scripts without spaces."""
    text = "".join(pages)
    return " " if spaced(text).count(" ") < 2 * text.count(" ") + 1 else ""


def repeated_lines(rng: random.Random, pages: Sequence[str]) -> str:
    """See the module."""
    words, glue = _words(pages), _glue(pages)
    lines = [glue.join(rng.choices(words, k=12)) for _ in range(8)]
    many = [line for line in lines for _ in range(rng.randint(2, 5))]
    rng.shuffle(many)
    return "\n".join(many)


def links(rng: random.Random, pages: Sequence[str]) -> str:
    """See the module."""
    words, glue = list(plain_words("\n".join(pages))), _glue(pages)
    return "\n".join(glue.join(rng.choices(words, k=rng.randint(1, 3))).capitalize() for _ in range(60))


def soup(rng: random.Random, pages: Sequence[str]) -> str:
    """See the module."""
    text = " ".join(" ".join(pages).split())
    after: dict[str, list[str]] = defaultdict(list)
    for first, second in pairwise(text):
        after[first].append(second)
    char, made = rng.choice(text), []
    for _ in range(_SOUP):
        char = rng.choice(after.get(char) or text)
        made.append(char)
    lines = ["".join(made[begin : begin + 150]).strip() for begin in range(0, _SOUP, 150)]
    return "\n".join(f"{line}." for line in lines)


def mojibake(rng: random.Random, pages: Sequence[str]) -> str:
    """See the module; returns "" if no page is changed enough."""
    changed = [
        page for page in pages if sum(not word.isascii() for word in page.split()) * GARBLED >= len(page.split())
    ]
    if not changed:
        return ""
    data = rng.choice(changed).encode()
    return "".join(bytes([byte]).decode("cp1252", "replace") if byte > 127 else chr(byte) for byte in data)


def ngrams(rng: random.Random, pages: Sequence[str]) -> str:
    """See the module."""
    words, glue = _words(pages), _glue(pages)
    phrase = rng.choices(words, k=6)
    return "\n".join(
        glue.join([*phrase, *rng.choices(words, k=3), *phrase, *rng.choices(words, k=2)]) + "." for _ in range(15)
    )


def keywords(rng: random.Random, pages: Sequence[str]) -> str:
    """See the module."""
    counts = Counter(plain_words("\n".join(pages)))
    frequent = {word for word, _ in counts.most_common(_FREQUENT)}
    rare = [word for word in counts if word not in frequent and any(map(str.isalpha, word))] or list(counts)
    return "\n".join(", ".join(rng.choices(rare, k=30)) + "." for _ in range(8))


def shuffled(rng: random.Random, pages: Sequence[str]) -> str:
    """See the module."""
    glue, lines = _glue(pages), [words_of(line) for line in rng.choice(pages).split("\n")]
    words = [word for line in lines for word in line]
    rng.shuffle(words)
    rest = iter(words)
    return "\n".join(glue.join(next(rest) for _ in line) for line in lines)


KINDS: Mapping[str, Make] = {
    made.__name__: made for made in (repeated_lines, links, soup, mojibake, ngrams, keywords, shuffled)
}
SHOWN_ONLY = ("shuffled",)


def verdicts(texts: Sequence[str], **settings: Any) -> list[tuple[str, list[str]]]:
    """Returns the label of each text and the reasons to drop it, as in a run with these settings of consolidate."""
    found: list[tuple[str, list[str]]] = []
    config = ConsolidateConfig(filters=FILTERS, mask_pii=False, **settings)
    for begin in range(0, len(texts), _BATCH):
        batch = DocumentBatch(texts[begin : begin + _BATCH])
        columns: dict[str, pa.StructArray] = {}
        for name in FILTERS:
            one = annotator(name, {})
            one.prepare({})
            batch.set_annotations({"language": columns["language"]} if columns else {})
            columns[name] = one.annotate(batch)
        rows = len(batch)
        judged = pa.table({"error": pa.nulls(rows, pa.string()), "paged": [False] * rows, **columns})
        found += zip(
            columns["language"].field("label").to_pylist(),
            reasons(config, pa.chunked_array([["web"] * rows]), judged, np.zeros(rows, np.bool_)),
            strict=True,
        )
    return found


def _share(judged: Sequence[tuple[str, list[str]]]) -> float:
    return round(sum(bool(why) for _, why in judged) / len(judged), 4)


def _of_language(code: str, sets: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """Returns the figures of a language."""
    pages = [page for of in sets.values() for page in of]
    labels = verdicts(pages)
    by_set: dict[str, dict[str, float]] = {}
    at = 0
    for name, of in sets.items():
        by_set[name] = {"pages": len(of), "dropped": _share(labels[at : at + len(of)])}
        at += len(of)
    sample = random.Random(SEED).sample(pages, min(len(pages), 60))
    noise: dict[str, float] = {}
    kept: Counter[str] = Counter()
    for kind, make in KINDS.items():
        made = [clean(make(random.Random(f"{SEED} {code} {kind} {n}"), sample)) for n in range(NOISE)]
        if not all(made):
            continue
        judged = verdicts(made)
        noise[kind] = _share(judged)
        kept.update(f"{kind} as {label}" for label, why in judged if not why)
    counting = [share for kind, share in noise.items() if kind not in SHOWN_ONLY]
    return {
        "pages": len(pages),
        "dropped": _share(labels),
        "dropped_without_limits_of_languages": _share(verdicts(pages, language_limits="")),
        "labeled": round(sum(label == code for label, _ in labels) / len(labels), 4),
        "sets": by_set,
        "reasons": dict(Counter(why[0] for _, why in labels if why).most_common(5)),
        "noise": round(sum(counting) / len(counting), 4),
        "noise_kinds": noise,
        "noise_kept": dict(kept.most_common(8)),
    }


def measure(reference: Path, data: Path | None) -> dict[str, Any]:
    """Returns the figures of all languages with values and FEWEST good pages, and the share of the others' pages."""
    languages, others = {}, []
    for code, sets in good(reference, data).items():
        if code not in (*shipped().limits, "en"):
            others += [page for of in sets.values() for page in of]
        elif sum(map(len, sets.values())) >= FEWEST:
            languages[code] = _of_language(code, sets)
            print(
                code,
                {key: languages[code][key] for key in ("pages", "dropped", "reasons", "noise", "noise_kinds")},
                flush=True,
            )
    return {
        "values": shipped().name,
        "filters": FILTERS,
        "summary": _summary(languages),
        "without_values": {"pages": len(others), "dropped": _share(verdicts(others))},
        "languages": languages,
    }


def _summary(languages: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    pages = sum(of["pages"] for of in languages.values())
    return {
        "languages": len(languages),
        "pages": pages,
        "dropped": _mean(languages),
        "dropped_without_english": _mean({code: of for code, of in languages.items() if code != "en"}),
        "more_than_5_percent": [code for code, of in languages.items() if of["dropped"] > 0.05],
        "noise": round(sum(of["noise"] for of in languages.values()) / len(languages), 4),
        "noise_below_90_percent": [code for code, of in languages.items() if of["noise"] < 0.9],
        "noise_kinds": {
            kind: round(
                float(np.mean([of["noise_kinds"][kind] for of in languages.values() if kind in of["noise_kinds"]])), 4
            )
            for kind in KINDS
        },
    }


def _mean(languages: Mapping[str, Mapping[str, Any]]) -> float:
    """Returns the share of all pages that is dropped."""
    pages = [of["pages"] for of in languages.values()]
    return round(float(np.average([of["dropped"] for of in languages.values()], weights=pages)), 4)


def table(figures: Mapping[str, Any]) -> Iterator[str]:
    """Yields the lines of the table of docs/filters.md."""
    yield "| | language | good pages | dropped | noise dropped | soup | mojibake | other kinds |"
    yield "|---|---|---|---|---|---|---|---|"
    for code, of in figures["languages"].items():
        if of["pages"] < SHOWN:
            continue
        kinds = of["noise_kinds"]
        others = [kinds[kind] for kind in kinds if kind not in ("soup", "mojibake", *SHOWN_ONLY)]
        shares = (of["dropped"], of["noise"], kinds["soup"], kinds.get("mojibake"), sum(others) / len(others))
        yield f"| `{code}` | {NAMES[code]} | {of['pages']} | {' | '.join(map(_percent, shares))} |"


def _percent(share: float | None) -> str:
    """Returns a share as text; "" for one that is not measured."""
    return "" if share is None else f"{share * 100:.0f} %" if share in (0, 1) else f"{share * 100:.1f} %"


def main() -> None:
    """Runs a part of the benchmark."""
    whole = parser(__doc__)
    commands = whole.add_subparsers(dest="command", required=True)
    commands.add_parser("table")
    measuring = commands.add_parser("measure")
    measuring.add_argument("--reference", type=Path, required=True)
    measuring.add_argument("--data", type=Path)
    options = whole.parse_args()
    if options.command == "table":
        print("\n".join(table(last("language_filters"))))
    else:
        keep("language_filters", measure(options.reference, options.data))


if __name__ == "__main__":
    main()
