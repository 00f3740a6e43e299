"""datatrove's side of `benchmarks.annotators`; run by the Python of its own environment.

python annotators_peer.py TEXTS     CPU seconds of each filter on all texts (JSON lines), as JSON
"""

import json
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy
from datatrove.data import Document
from datatrove.pipeline.filters import (
    C4QualityFilter,
    FineWebQualityFilter,
    GopherQualityFilter,
    GopherRepetitionFilter,
)
from datatrove.utils.word_tokenizers import load_word_tokenizer

FILTERS = {
    "gopher_repetition": GopherRepetitionFilter,
    "gopher_quality": GopherQualityFilter,
    "c4": C4QualityFilter,
    "fineweb": FineWebQualityFilter,
}


def main() -> None:
    """Runs every filter over all texts, and the word tokenizer that they use alone."""
    numpy.seterr(all="ignore")
    texts = [json.loads(line) for line in Path(sys.argv[1]).read_text().splitlines()]
    words = load_word_tokenizer("eng").word_tokenize
    asked = {name: _asked(one()) for name, one in FILTERS.items()}
    runs = {"words": words, **asked, "all rules": lambda text: [one(text) for one in asked.values()]}
    spent = {}
    for name, run in runs.items():
        # Its caches and lazy parts are not what is measured.
        run("It rained, and nobody minded that.")
        before = time.process_time()
        for text in texts:
            run(text)
        spent[name] = time.process_time() - before
    print(json.dumps(spent))


def _asked(one: object) -> Callable[[str], None]:
    def verdict(text: str) -> None:
        with suppress(ZeroDivisionError):
            one.filter(Document(text=text, id="0"))

    return verdict


if __name__ == "__main__":
    main()
