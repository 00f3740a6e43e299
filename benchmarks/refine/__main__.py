"""Extract and filter beside datatrove: documents per core-second on the same pages, and the same verdicts.

    python -m benchmarks.refine [--pages 1000] [--rounds 3] [--texts FOLDER] [--careful]

Pages are the HTML of documentation that Debian packages, written to WARC files (`pages`). Both sides read them, extract
the main text, apply Gopher's two filters, C4 and FineWeb with their defaults, and write what is kept and what is
rejected with reasons; in one process each. What dedup takes is left out, since the peer removes no copies here. Ours
runs with the fast extractor, and with `--careful` also with trafilatura, which is what datatrove has. The figure is
pages over CPU seconds, user and system, of the process and its children; what the same command takes for 20 of the
pages is taken off (imports, processes, models).

With `--texts`, a folder of JSON lines (`*.jsonl.zst`, field `text`), both are asked for their verdict on every text;
documents on which they differ are listed. Needs PyPI and a Debian mirror once; writes `benchmarks/results/refine.json`.
"""

import argparse
import io
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import pyarrow as pa

from benchmarks.refine import pages
from benchmarks.refine.ours import RULES
from benchmarks.result import keep, peer_python
from tasks.filters.base import fields
from tasks.filters.batch import Batch
from tasks.filters.catalogue import annotator, filter_of
from tasks.text import clean

ROOT = Path(__file__).parents[2]
STATE = ROOT / ".sluice" / "benchmarks" / "refine"
PEERS = [
    *("datatrove==0.10.1", "spacy==3.8.18", "trafilatura<1.12", "lxml_html_clean", "warcio", "regex", "orjson"),
    *("faust-cchardet", "python-magic"),
]
PEER = str(Path(__file__).with_name("peer_datatrove.py"))
BARS = "15 x datatrove in pages per core-second with the fast extractor; the same verdict on 99.9 % of the texts"
FEW = 20
_BATCH = 4_000_000


def cpu_seconds(command: Sequence[str]) -> tuple[float, str]:
    """Runs a command on one thread; returns its CPU seconds, children included, and what it printed."""
    single = {"ARROW_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "RAYON_NUM_THREADS": "1"}
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            command, cwd=ROOT, env={**os.environ, **single}, stdout=subprocess.PIPE, stderr=errors
        )
        assert process.stdout is not None
        said = process.stdout.read().decode()
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            errors.seek(0)
            raise RuntimeError(errors.read().decode("utf-8", "replace")[-3000:])
    return used.ru_utime + used.ru_stime, said


def measured(name: str, command: Sequence[str], folders: dict[str, Path], count: int) -> dict[str, Any]:
    """Runs one side on a few pages and on all; `{warcs}` and `{out}` in the command are filled in."""
    cost = {}
    for which, warcs in folders.items():
        out = STATE / "out"
        shutil.rmtree(out, ignore_errors=True)
        filled = [part.format(warcs=warcs, out=out) for part in command]
        cost[which], said = cpu_seconds(filled)
        told = json.loads(said) if said.startswith("{") else {}
        cost[which] -= told.get("dedup_cpu_s", 0.0)
    net = cost["all"] - cost["few"]
    line: dict[str, Any] = {"cpu_s": round(cost["all"], 2), "few_s": round(cost["few"], 2)}
    line["pages_per_cpu_s"] = round((count - FEW) / net, 1)
    line["kept"] = told["kept"] if told else _lines(out / "kept")
    print(f"{name:12} {line}", flush=True)
    return line


def _lines(folder: Path) -> int:
    count = 0
    for path in folder.glob("*.jsonl.gz"):
        with pa.CompressedInputStream(pa.OSFile(str(path)), "gzip") as file:
            count += file.read().count(b"\n")
    return count


def texts_of(folder: Path) -> list[str]:
    """Returns the texts of all files in `folder`, cleaned as extract does."""
    found = []
    for path in sorted(folder.glob("*.jsonl.zst")):
        with pa.CompressedInputStream(pa.OSFile(str(path)), "zstd") as file:
            found += [clean(json.loads(line)["text"]) for line in io.BytesIO(file.read())]
    return found


def our_verdicts(texts: Sequence[str]) -> list[dict[str, str]]:
    """Returns the first reason of every filter for every text, "" where it passes."""
    found: list[dict[str, str]] = []
    start = 0
    while start < len(texts):
        end, size = start, 0
        while end < len(texts) and size < _BATCH:
            size, end = size + len(texts[end]), end + 1
        batch = Batch(texts[start:end])
        rows: list[dict[str, str]] = [dict.fromkeys(RULES, "") for _ in batch.texts]
        for name in RULES:
            measures = fields(annotator(name, {}).annotate(batch))
            for reason, goes in filter_of(name, {}).reasons(measures):
                for place in goes.nonzero()[0]:
                    rows[place][name] = rows[place][name] or reason
        found += rows
        start = end
    return found


def compared(folder: Path, python: str) -> dict[str, Any]:
    """Asks both sides about every text; prints where they differ and returns the share of equal verdicts."""
    texts = texts_of(folder)
    asked, told = STATE / "texts.jsonl", STATE / "verdicts.jsonl"
    asked.write_text("".join(json.dumps(text) + "\n" for text in texts))
    theirs_s, _ = cpu_seconds([python, PEER, "verdicts", str(asked), str(told)])
    theirs = [json.loads(line) for line in told.read_text().splitlines()]
    ours = our_verdicts(texts)
    equal = {}
    for name in RULES:
        differ = [row for row in range(len(texts)) if bool(ours[row][name]) != bool(theirs[row][name])]
        equal[name] = round(1 - len(differ) / len(texts), 6)
        print(f"{name:18} equal on {equal[name]:.4%} of {len(texts)} texts")
        for row in differ:
            print(f"    text {row}: ours {ours[row][name] or 'keeps'}, datatrove {theirs[row][name] or 'keeps'}")
    return {"texts": len(texts), "equal": equal, "datatrove_cpu_s": round(theirs_s, 1)}


def main() -> None:
    """Runs all and writes the result."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--pages", type=int, default=1000)
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--texts", type=Path, help="folder of *.jsonl.zst to compare verdicts on")
    options.add_argument("--careful", action="store_true", help="measure our careful extractor too")
    asked = options.parse_args()
    STATE.mkdir(parents=True, exist_ok=True)
    python = peer_python(STATE / "peers", PEERS)
    held = pages.unpacked(STATE)
    chosen = pages.chosen(held, asked.pages)
    folders = {"few": STATE / "few", "all": STATE / "all"}
    for which, several in (("few", chosen[:FEW]), ("all", chosen)):
        shutil.rmtree(folders[which], ignore_errors=True)
        size = pages.write(several, folders[which])
    ours = [sys.executable, "-m", "benchmarks.refine.ours", "{warcs}", "{out}"]
    sides = {"fast": [*ours, "resiliparse"], "datatrove": [python, PEER, "pages", "{warcs}", "{out}"]}
    if asked.careful:
        sides["careful"] = [*ours, "trafilatura"]
    rounds = [
        {name: measured(name, command, folders, len(chosen)) for name, command in sides.items()}
        for _ in range(asked.rounds)
    ]
    ratios = {
        name: round(median(one[name]["pages_per_cpu_s"] / one["datatrove"]["pages_per_cpu_s"] for one in rounds), 1)
        for name in sides
        if name != "datatrove"
    }
    result = {
        "bars": BARS,
        "peers": PEERS,
        "pages": len(chosen),
        "html_mb": round(size / 1e6, 1),
        "ratio": ratios,
        "rounds": rounds,
    }
    if asked.texts:
        result["verdicts"] = compared(asked.texts, python)
    print(f"x datatrove: {ratios}")
    keep("refine", result)


if __name__ == "__main__":
    main()
