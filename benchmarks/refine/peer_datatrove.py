"""datatrove's side; run by the Python of its own environment, so nothing of Sluice is imported.

python peer_datatrove.py pages WARC_FOLDER OUT     WARC files to kept and rejected documents, in one process
python peer_datatrove.py verdicts TEXTS OUT        first reason of each filter for each text (JSON lines)
"""

import json
import sys
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


if __name__ == "__main__":
    {"pages": pages, "verdicts": verdicts}[sys.argv[1]](*sys.argv[2:])
