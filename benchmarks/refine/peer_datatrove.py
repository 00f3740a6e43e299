"""datatrove's side; run by the Python of its own environment, so nothing of Sluice is imported.

python peer_datatrove.py pages WARC_FOLDER OUT     WARC files to kept and rejected documents, in one process
python peer_datatrove.py verdicts TEXTS OUT        first reason of each filter for each text (JSON lines)
python peer_datatrove.py speed TEXTS               CPU seconds of each filter on all texts (JSON lines), as JSON
"""

import json
import sys
import time
from functools import partial
from pathlib import Path

import numpy
from datatrove.data import Document
from datatrove.executor import LocalPipelineExecutor
from datatrove.pipeline.extractors import Trafilatura
from datatrove.pipeline.filters import (
    C4QualityFilter,
    FineWebQualityFilter,
    GopherQualityFilter,
    GopherRepetitionFilter,
)
from datatrove.pipeline.readers import WarcReader
from datatrove.pipeline.writers.jsonl import JsonlWriter
from datatrove.utils.word_tokenizers import load_word_tokenizer

FILTERS = {
    "gopher_repetition": GopherRepetitionFilter,
    "gopher_quality": GopherQualityFilter,
    "c4": C4QualityFilter,
    "fineweb": FineWebQualityFilter,
}


def pages(warcs: str, out: str) -> None:
    """Runs FineWeb's order of steps (its example fineweb.py) as far as both sides have them."""
    filters = [one(exclusion_writer=JsonlWriter(f"{out}/removed/{name}")) for name, one in FILTERS.items()]
    steps = [
        WarcReader(warcs, glob_pattern="*.warc.gz"),
        Trafilatura(favour_precision=True, timeout=10),
        *filters,
        JsonlWriter(f"{out}/kept"),
    ]
    LocalPipelineExecutor(pipeline=steps, tasks=1, workers=1, logging_dir=f"{out}/logs").run()


def verdicts(texts: str, out: str) -> None:
    """Asks every filter about every text, each time about the text as it came."""
    numpy.seterr(all="ignore")
    filters = {name: one() for name, one in FILTERS.items()}
    with Path(texts).open() as lines, Path(out).open("w") as told:
        for line in lines:
            told.write(json.dumps({name: _verdict(one, json.loads(line)) for name, one in filters.items()}) + "\n")


def _verdict(one: object, text: str) -> str:
    try:
        answer = one.filter(Document(text=text, id="0"))
    except ZeroDivisionError:
        return "division by zero"
    return "" if answer is True else answer[1]


def speed(texts: str) -> None:
    """Times every filter over all texts, and the word tokenizer that they use alone."""
    numpy.seterr(all="ignore")
    held = [json.loads(line) for line in Path(texts).read_text().splitlines()]
    filters = {name: one() for name, one in FILTERS.items()}
    runs = {"words": load_word_tokenizer("eng").word_tokenize}
    runs |= {name: partial(_verdict, one) for name, one in filters.items()}
    runs["all rules"] = lambda text: [_verdict(one, text) for one in filters.values()]
    spent = {}
    for name, run in runs.items():
        # Its caches and lazy parts are not what is measured.
        run("It rained, and nobody minded that.")
        before = time.process_time()
        for text in held:
            run(text)
        spent[name] = time.process_time() - before
    print(json.dumps(spent))


if __name__ == "__main__":
    {"pages": pages, "verdicts": verdicts, "speed": speed}[sys.argv[1]](*sys.argv[2:])
