"""Hostile texts: every annotator returns within the memory of a worker.

A document may have the maximum length of extract, 16 MB, and is a separate batch.
All texts except one are soak: run them after a change of a filter or of its batching.
"""

import subprocess
import sys

import pytest

from tests.soak import soak_but

TEXTS = {
    "one word without end": '"x" * N',
    "the same word": '"a " * (N // 2)',
    "brackets": '")" * N',
    "zero-width spaces": r'"\u200b" * N',
    "digits and dots": '"1." * (N // 2)',
    "short lines": r'"a\n" * (N // 2)',
    "words met once": '" ".join(map(str, range(N // 8)))',
    "bullets": r'"-\n" * (N // 2)',
    "citations": '"[1] a b c. " * (N // 11)',
    "emoji": r'"\U0001f600" * N',
    "one line again and again": r'"the same line is here.\n" * (N // 23)',
    "at signs": '"a@" * (N // 2)',
}
PROGRAM = """
import re
from tasks.filters.batch import DocumentBatch
from tasks.filters.catalogue import annotator
N = {size}
batch = DocumentBatch([{text}])
for name in {names}:
    column = annotator(name, {{}}).annotate(batch)
    assert len(column) == 1 and column.null_count == 0
# Not ru_maxrss: a child's counts the process that it was forked from.
peak = int(re.search("VmHWM:\\s*(\\d+) kB", open("/proc/self/status").read())[1])
assert peak < 1_500_000, peak
"""
NAMES = ("gopher_quality", "gopher_repetition", "c4", "fineweb", "prose_score", "pii")


# The most expensive one has the maximum length of extract.
SIZES = {"citations": 16_000_000}


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", soak_but([0], TEXTS))
def test_a_text_of_millions_of_characters_is_measured_in_bounded_memory(name: str) -> None:
    program = PROGRAM.format(text=TEXTS[name], names=NAMES, size=SIZES.get(name, 2_000_000))
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]


LONGEST = {
    "blank lines": r'"\n" * N',
    # Nearly every run of five words is distinct, and half of their parts are repeated.
    "letters at random": '" ".join(random.Random(1).choices("abcdefghijklmnopqrstuvwxyz", k=N // 2))',
}
STAGE = """
import random, re
import pyarrow as pa
from tasks.stages.annotate.measure import run_annotators
from tasks.filters.catalogue import annotator
N = 15_900_000
annotators = {{name: annotator(name, {{}}) for name in {names}}}
documents = pa.table({{"id": ["1"], "text": [{text}], "source": ["web"], "url": ["http://a.example/"], "form": [None]}})
found = run_annotators(documents, annotators, {{}})
assert list(found) == list(annotators)
assert not any(one.errors.is_valid()[0].as_py() for one in found.values())
peak = int(re.search("VmHWM:\\s*(\\d+) kB", open("/proc/self/status").read())[1])
assert peak < 1_200_000, peak
"""


@pytest.mark.soak
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", LONGEST)
def test_the_longest_document_leaves_memory_for_models(name: str) -> None:
    program = STAGE.format(text=LONGEST[name], names=NAMES)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
