"""Extract and filter beside datatrove: documents per core-second on the same pages, and the same verdicts.

    python -m benchmarks.refine [--pages 1200] [--rounds 3] [--careful] [--archived FOLDER ... [--no-manuals]]
                                [--texts FOLDER]

Pages are HTML that Debian packages (`pages`), in WARC files, and with `--archived` those of web sites, `*.html.gz` in
the folders. Both sides read them, extract the main text, apply Gopher's two filters, C4 and FineWeb with their
defaults, and write what is kept and what is rejected with reasons; in one process each. What dedup takes is left out,
since the peer removes no copies here. Ours runs with the default extractor, with the fast one, and with `--careful`
also with trafilatura, which is what datatrove has. The figure is pages over CPU seconds, user and system, of the
process and its children; what the same command takes for 20 of the pages is taken off (imports, processes, models).

"default", "fast" and "careful" read the very files of the peer; "crawl, …" reads the same pages as a crawl of ours
leaves them.
Of our stages it shows MB per CPU-second, of HTML for extract and of text for the others, and what share of the bare
library's speed (`bare`: the WARC read, the main text found, nothing kept) the whole stage extract has; "same" is the
library asked for the same text.

With `--texts`, a folder of JSON lines (`*.jsonl.zst`, field `text`), both are asked for their verdict on every text;
documents on which they differ are listed. Needs PyPI and a Debian mirror once; writes `benchmarks/results/refine.json`,
where what was not measured again stays as it was, with its date.
"""

import argparse
import json
import shutil
import sys
from collections.abc import Mapping, Sequence
from datetime import date
from pathlib import Path
from statistics import median
from typing import Any

import pyarrow as pa

from benchmarks.harness import keep, peer_python
from benchmarks.refine import pages
from benchmarks.refine.command import PEER, ROOT, cpu_seconds
from benchmarks.refine.verdicts import compared

RESULT = ROOT / "benchmarks" / "results" / "refine.json"
STATE = ROOT / ".sluice" / "benchmarks" / "refine"
PEERS = [
    *("datatrove==0.10.1", "spacy==3.8.18", "trafilatura<1.12", "lxml_html_clean", "warcio", "regex", "orjson"),
    *("faust-cchardet", "python-magic"),
]
BARS = (
    "15 x datatrove in pages per core-second with the default extractor, 4 x with trafilatura; extract at 70 % of the "
    "bare library; the same verdict on 99.9 % of the texts"
)
OWN = "crawl, "
"""Begins the names of the sides that read a crawl of our own."""

SHARES = {"extract_of_bare": "bare", "extract_of_same_text": "same"}
"""What our stage extract is compared with, by the name of the figure."""

FEW = 20
_NOISE_S = 0.05


def measured(command: Sequence[str], folders: Mapping[str, Path], count: int, html_mb: float) -> dict[str, Any]:
    """Runs one side on a few pages and on all; `{warcs}` and `{out}` in the command are filled in."""
    cost: dict[str, float] = {}
    told: dict[str, dict[str, Any]] = {}
    for which, warcs in folders.items():
        out = STATE / "out"
        shutil.rmtree(out, ignore_errors=True)
        cost[which], said = cpu_seconds([part.format(warcs=warcs, out=out) for part in command])
        told[which] = json.loads(said) if said.startswith("{") else {"kept": _lines(out / "kept")}
        cost[which] -= told[which].get("stages", {}).get("dedup", 0.0)
    line: dict[str, Any] = {"cpu_s": round(cost["all"], 2), "few_s": round(cost["few"], 2)}
    line["pages_per_cpu_s"] = round((count - FEW) / (cost["all"] - cost["few"]), 1)
    line |= {name: told["all"][name] for name in ("kept",) if name in told["all"]}
    if "stages" in told["all"]:
        line["mb_per_cpu_s"] = _stage_speeds(told["few"], told["all"], html_mb * (1 - FEW / count))
    return line


def _stage_speeds(few: Mapping[str, Any], every: Mapping[str, Any], html_mb: float) -> dict[str, float]:
    """Returns MB per CPU-second of each stage: of HTML for extract, of text for the others.

    A stage that took no longer for all pages than for a few is left out: the machine's noise was greater than its work.
    """
    text_mb = every["text_mb"] - few["text_mb"]
    spent = {stage: seconds - few["stages"][stage] for stage, seconds in every["stages"].items()}
    return {
        stage: round((html_mb if stage == "extract" else text_mb) / seconds, 1)
        for stage, seconds in spent.items()
        if seconds > _NOISE_S
    }


def _lines(folder: Path) -> int:
    count = 0
    for path in folder.glob("*.jsonl.gz"):
        with pa.CompressedInputStream(pa.OSFile(str(path)), "gzip") as file:
            count += file.read().count(b"\n")
    return count


def one_round(sides: Mapping[str, Sequence[str]], folders: Mapping[str, Path], count: int, mb: float) -> dict[str, Any]:
    """Measures every side once; adds each stage extract's share of the bare library's speed."""
    found = {}
    for name, command in sides.items():
        found[name] = measured(command, folders, count, mb)
        print(f"{name:12} {found[name]}", flush=True)
    for name, line in found.items():
        for share, library in SHARES.items():
            bare = found.get(f"{library} {name.removeprefix(OWN)}")
            if bare and "mb_per_cpu_s" in line:
                speed = bare["pages_per_cpu_s"] * mb / count
                line[share] = round(line["mb_per_cpu_s"]["extract"] / speed, 3)
    return found


def sides_of(python: str, careful: bool) -> dict[str, list[str]]:
    """Returns the command of each side."""
    ours = [sys.executable, "-m", "benchmarks.refine.ours", "{warcs}", "{out}"]
    bare = [sys.executable, "-m", "benchmarks.refine.bare", "{warcs}"]
    sides = {"default": [*ours, "blocks"], "fast": [*ours, "resiliparse"]}
    sides |= {"bare fast": [*bare, "resiliparse"], "same fast": [*bare, "same"]}
    sides |= {f"{OWN}default": [*ours, "blocks", "crawl"], f"{OWN}fast": [*ours, "resiliparse", "crawl"]}
    sides["datatrove"] = [python, PEER, "pages", "{warcs}", "{out}"]
    if careful:
        sides |= {"careful": [*ours, "trafilatura"], "bare careful": [*bare, "trafilatura"]}
    return sides


def arguments() -> argparse.Namespace:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--pages", type=int, default=1200)
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--archived", type=Path, nargs="+", default=[], help="folders of *.html.gz to measure as well")
    options.add_argument("--no-manuals", action="store_true", help="measure the archived pages alone")
    options.add_argument("--texts", type=Path, help="folder of *.jsonl.zst to compare verdicts on")
    options.add_argument("--careful", action="store_true", help="measure our careful extractor too")
    return options.parse_args()


def beside(chosen: Sequence[Path], python: str, asked: argparse.Namespace) -> dict[str, Any]:
    """Measures all sides on pages, in turn."""
    folders, size = {"few": STATE / "few", "all": STATE / "all"}, 0
    for which, several in (("few", chosen[:FEW]), ("all", chosen)):
        shutil.rmtree(folders[which], ignore_errors=True)
        size = pages.write(several, folders[which])
    sides = sides_of(python, asked.careful)
    rounds = [one_round(sides, folders, len(chosen), size / 1e6) for _ in range(asked.rounds)]
    ours = [name for name in sides if "mb_per_cpu_s" in rounds[0][name]]
    ratios = {
        name: round(median(one[name]["pages_per_cpu_s"] / one["datatrove"]["pages_per_cpu_s"] for one in rounds), 1)
        for name in ours
    }
    shares = {
        share: {name: round(median(one[name][share] for one in rounds), 3) for name in ours if share in rounds[0][name]}
        for share in SHARES
    }
    print(f"x datatrove: {ratios}; extract, of the bare library: {shares}")
    today = date.today().isoformat()
    return {
        "date": today,
        "pages": len(chosen),
        "html_mb": round(size / 1e6, 1),
        "ratio": ratios,
        **shares,
        "rounds": rounds,
    }


def main() -> None:
    """Runs all and writes the result."""
    asked = arguments()
    STATE.mkdir(parents=True, exist_ok=True)
    python = peer_python(STATE / "peers", PEERS)
    result: dict[str, Any] = json.loads(RESULT.read_text()) if RESULT.exists() else {}
    result |= {"bars": BARS, "peers": PEERS}
    if not asked.no_manuals:
        result["manuals"] = beside(pages.chosen(pages.unpacked(STATE), asked.pages), python, asked)
    if asked.archived:
        result["archived"] = beside(pages.archived(asked.archived, STATE, asked.pages), python, asked)
    if asked.texts:
        result["verdicts"] = {"date": date.today().isoformat(), **compared(asked.texts, python, STATE)}
    keep("refine", {name: held for name, held in result.items() if name not in ("benchmark", "date", "machine")})


if __name__ == "__main__":
    main()
