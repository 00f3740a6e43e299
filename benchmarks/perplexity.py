"""Perplexity: Sluice and KenLM on the same model and texts, and the model's separation of prose from noise.

    python -m benchmarks.perplexity --data FOLDER [--quality FILE] [--rounds 5]

FOLDER has `<domain>.jsonl.zst` files with a field `text`: wiki, web, masc, academic, speech and books train the model
(half of books: the other chapters are scored), reviews, techdocs and forum are scored. The stage does the training.

Speed: from plain texts to one perplexity per text, in CPU seconds of one process and thread, best of the rounds, taken
in turn. KenLM scores words split by a regular expression (slightly different from ours, at no disadvantage), and also
presplit lines. It reads the same ARPA file, and has a separate environment (`.sluice/benchmarks/perplexity`, created on
the first run; pip needs a C++ compiler). Loading is timed separately: KenLM reads the ARPA file here, and would load a
binary one as fast as Sluice loads its own files.

Fit: held-out perplexity for orders 3 to 5. Separation: the area under the ROC curve, over all pairs of a text and
another one with shuffled words, shuffled letters, or letters rotated by 13 places; and the share of texts whose
shuffled words score higher than the text itself. With --quality, the agreement of perplexity with human votes.

Writes `perplexity.json`.
"""

import codecs
import json
import random
import resource
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness import in_turn, json_lines, keep, last_line, parser, peer_python, texts_of
from tasks.core.artifact import Artifact, ArtifactId
from tasks.core.engine import open_engine
from tasks.core.stage import Inputs, Output
from tasks.core.store import Store
from tasks.filters.ngram.files import load_artifact
from tasks.stages.perplexity import PerplexityConfig, ReferenceText
from tasks.stages.perplexity.stage import run

PEERS = ("kenlm==0.3.0",)
TRAINED_ON = ("wiki", "web", "masc", "academic", "speech")
SCORED = ("reviews", "techdocs", "forum")

# On Linux ru_maxrss would be that of the parent process.
PEAK = """
def peak():
    return next(int(line.split()[1]) / 1e3 for line in open("/proc/self/status") if line.startswith("VmHWM"))
"""

SLUICE = """
import json, sys, time
from tasks.filters.ngram.model import NgramModel
from tasks.filters.ngram.words import words

texts = [json.loads(line) for line in open(sys.argv[1])]
begin = time.process_time()
model = NgramModel.load(lambda name: f"{sys.argv[2]}/{name}")
model.score(["warm up"])
loaded = time.process_time()
perplexity = [model.score(texts[begin : begin + 1000]).perplexity for begin in range(0, len(texts), 1000)]
print(loaded - begin, time.process_time() - loaded, peak())
"""

KENLM = """
import json, re, sys, time
import kenlm

texts = [json.loads(line) for line in open(sys.argv[1])]
begin = time.process_time()
model = kenlm.Model(sys.argv[2])
loaded = time.process_time()
word, digit = re.compile(r"\\w+|[^\\w\\s]"), re.compile(r"\\d")
split = sys.argv[3] == "split"
if split:
    texts = [[" ".join(word.findall(digit.sub("0", line.lower()))) for line in text.split("\\n")] for text in texts]
started = time.process_time()
for text in texts:
    log10, count = 0.0, 0
    for line in text if split else text.split("\\n"):
        line = line if split else " ".join(word.findall(digit.sub("0", line.lower())))
        if line:
            log10 += model.score(line)
            count += line.count(" ") + 2
    perplexity = 10 ** (-log10 / count) if count else float("inf")
print(loaded - begin, time.process_time() - started, peak())
"""


def contend(python: str, program: str, *arguments: str) -> tuple[float, ...]:
    """Runs one contender on one thread; returns CPU seconds to load and to score, and the peak memory in MB."""
    return tuple(map(float, last_line(python, PEAK + program, *arguments).split()))


def speed(made: Artifact, texts: list[str], rounds: int) -> dict[str, Any]:
    folder = str(Path(made.local("und/model.json")).parent)
    arpa = made.local("und/model.arpa.gz")
    peers = peer_python("perplexity", PEERS)
    contenders = {
        "sluice": (sys.executable, SLUICE, folder),
        "kenlm": (peers, KENLM, arpa, "raw"),
        "kenlm_lines_split_before": (peers, KENLM, arpa, "split"),
    }
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as file:
        file.writelines(json.dumps(text) + "\n" for text in texts)
        file.flush()
        runs = {
            name: partial(contend, python, program, file.name, *rest)
            for name, (python, program, *rest) in contenders.items()
        }
        taken = in_turn(runs, rounds)
    megabytes = sum(len(text.encode()) for text in texts) / 1e6
    best = {name: [round(min(column), 3) for column in zip(*rows, strict=True)] for name, rows in taken.items()}
    rates = {name: round(megabytes / seconds, 2) for name, (_, seconds, _) in best.items()}
    return {
        "megabytes": round(megabytes, 2),
        "megabytes_per_cpu_second": rates,
        "ratio": {f"sluice/{name}": round(rates["sluice"] / rates[name], 2) for name in rates if name != "sluice"},
        "load_cpu_seconds": {name: load for name, (load, _, _) in best.items()},
        "peak_memory_mb": {name: round(memory) for name, (_, _, memory) in best.items()},
    }


def train(store: str, references: tuple[ReferenceText, ...], order: int) -> tuple[Artifact, float]:
    """Runs the stage in this process; returns the artifact, without its record's inputs, and the CPU seconds."""
    from tasks.core.commit import commit

    config = PerplexityConfig(references=references, order=order)
    output = Output(Store(store), ArtifactId("benchmark/perplexity", f"order-{order}"), "benchmark")
    begin = time.process_time()
    with open_engine() as engine:
        report = run(config, Inputs({}), output, engine)
    seconds = time.process_time() - begin
    return commit(output, "train_perplexity", 1, config, [], report), seconds


def separation(made: Artifact, prose: list[str]) -> dict[str, float]:
    draw = random.Random(1)
    disordered = [" ".join(draw.sample(text.split(), len(text.split()))) for text in prose]
    # With the same lines as the text, because perplexity counts the ends of lines.
    rubble = {
        "words_in_disorder": disordered,
        "letters_in_disorder": ["".join(draw.sample(text, len(text))) for text in prose],
        "letters_turned": [codecs.encode(text, "rot13") for text in prose],
    }
    score = load_artifact(made)["und"].scorer.score
    low = score([" ".join(text.split()) for text in prose]).perplexity
    found = {"texts": float(len(prose))}
    for name, texts in rubble.items():
        high = score(texts).perplexity
        found[f"auc_{name}"] = round(float(np.mean(low[:, None] < high[None, :])), 4)
    found["own_words_in_disorder_higher"] = round(float((low < score(disordered).perplexity).mean()), 4)
    return found


def judged(made: Artifact, path: Path) -> dict[str, float]:
    """Returns the AUC of low perplexity for texts that people call good (`label` 1), and that of length."""
    rows = list(json_lines(path))
    scores = load_artifact(made)["und"].scorer.score([row["text"] for row in rows])
    good = np.array([int(row["label"]) == 1 for row in rows])
    values = {"auc_low_perplexity": -scores.perplexity, "auc_length": scores.words}
    areas = {
        name: round(float(np.mean(value[good][:, None] > value[~good][None, :])), 4) for name, value in values.items()
    }
    return {"texts": len(rows), **areas}


def measure(data: Path, quality: Path | None, rounds: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        books = texts_of(data / "books.jsonl.zst")
        half = Path(folder) / "books.jsonl"
        half.write_text("".join(json.dumps({"text": text}) + "\n" for text in books[::2]))
        paths = {name: data / f"{name}.jsonl.zst" for name in TRAINED_ON} | {"books": half}
        references = tuple(ReferenceText(name=name, kind="jsonl", path=str(path)) for name, path in paths.items())
        fit = {}
        for order in (3, 5, 4):
            made, seconds = train(f"{folder}/store", references, order)
            fit[f"order_{order}"] = {
                **{name.removeprefix("und/"): round(value, 4) for name, value in made.record.metrics.items()},
                "train_cpu_seconds": round(seconds, 1),
            }
        apart = {name: texts_of(data / f"{name}.jsonl.zst") for name in SCORED} | {"books": books[1::2]}
        texts = [text for some in apart.values() for text in some]
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
        return {
            "fit": fit,
            "peak_memory_of_training_mb": round(memory),
            "separation": {
                name: separation(made, [text[:3000] for text in some if len(text) > 500][:300])
                for name, some in apart.items()
            },
            **({"human_judgement": judged(made, quality)} if quality else {}),
            "speed": speed(made, texts, rounds),
        }


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--data", required=True, type=Path, help="folder of <domain>.jsonl.zst")
    options.add_argument("--quality", type=Path, help="JSONL of texts with a label: 1 good, 0 not")
    options.add_argument("--rounds", type=int, default=5)
    given = options.parse_args()
    keep("perplexity", {"peers": PEERS, **measure(given.data, given.quality, given.rounds)})


if __name__ == "__main__":
    main()
