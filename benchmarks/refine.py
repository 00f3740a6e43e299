"""Extract and filters against datatrove: documents per CPU-second on the same pages, and equal verdicts.

    python -m benchmarks.refine [--archived FOLDER ...] [--pages 1200] [--rounds 3] [--careful] [--texts FOLDER]

`--archived`: pages of web sites, `*.html.gz` in the folders, are written to WARC files. Both sides read them, extract
the main text, apply Gopher's two filters, C4 and FineWeb with their defaults, and write kept documents and rejected
ones with reasons; in one process each. Neither side labels languages (the peer downloads its model)
or searches personal data, and the time of our dedup is excluded, since the peer removes no copies here. Ours runs with
the default extractor, with the fast one, and with `--careful` also with trafilatura, which datatrove uses. The
figure is pages over CPU seconds, user and system, of the process and its children; the cost of the same command on 20
of the pages is subtracted (imports, processes, models).

"default", "fast" and "careful" read the same files as the peer; "crawl, ..." reads the same pages in the files of a
Sluice crawl: files without an index are read twice, the first time for the data of an index. Per stage the result has
MB per CPU-second, of HTML for extract and of text for the others.

`--texts`: a folder of JSON lines (`*.jsonl.zst`, field `text`). Both sides filter every text; differences are listed.

Needs PyPI once. Writes `refine.json`, which keeps earlier figures with their date unless they are measured again.
Goals: 15 x datatrove in pages per CPU-second with the default extractor, 4 x with trafilatura; the same verdict on 99.9
% of the texts.
"""

import argparse
import gzip
import hashlib
import io
import json
import resource
import shutil
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from fastwarc import WarcRecord, WarcRecordType

from benchmarks.harness import STATE, cost, in_turn, keep, last, parser, peer_python, texts_of
from tasks.core.artifact import Artifact, ArtifactId
from tasks.core.commit import commit
from tasks.core.stage import Output, Report
from tasks.core.store import Store
from tasks.filters.base import fields
from tasks.filters.batch import DocumentBatch
from tasks.filters.catalogue import annotator, filter_of
from tasks.formats.documents.text import clean
from tasks.formats.warc.archive import MANIFEST, MANIFEST_SCHEMA
from tasks.run.recipe import Recipe, find_recipe
from tasks.run.runner import open_store, run_stage
from tasks.run.tracking import TrackingContext
from tasks.stages.crawl.http.client import Response
from tasks.stages.crawl.storage.warc import WarcWriter
from tasks.stages.extract import guard
from tasks.stages.extract.config import WEB, ExtractConfig

HERE = STATE / "refine"
PROGRAMS = str(Path(__file__).with_name("peers.py"))
PEERS = (
    *("datatrove==0.10.1", "spacy==3.8.18", "trafilatura<1.12", "lxml_html_clean", "warcio", "regex", "orjson"),
    *("faust-cchardet", "python-magic"),
)
RULES = ["gopher_repetition", "gopher_quality", "c4", "fineweb"]
CRAWL = "crawl"
"""Name of the folder that is a store with nothing but a finished crawl, of the recipe `demo`."""
OWN = "crawl, "
"""Begins the names of the sides that read a crawl of our own."""
FEW = 20
_FILES = 4
_NOISE_S = 0.05
_BATCH = 4_000_000


def datatrove(*arguments: str) -> list[str]:
    """Returns the command of one of datatrove's programs in `peers`."""
    return [peer_python("refine/peers", PEERS), "-P", PROGRAMS, *arguments]


def archived(folders: Sequence[Path], count: int) -> list[Path]:
    """Decompresses a sample of the `*.html.gz` in folders, by a hash of their bytes; returns the folder."""
    held = HERE / "archived"
    shutil.rmtree(held, ignore_errors=True)
    held.mkdir(parents=True)
    packed = {path.read_bytes() for folder in folders for path in folder.glob("*.html.gz")}
    written = []
    for name, data in sorted((hashlib.blake2b(data, digest_size=8).hexdigest(), data) for data in packed)[:count]:
        written.append(held / f"{name}.html")
        written[-1].write_bytes(gzip.decompress(data))
    return written


def write(pages: Sequence[Path], folder: Path) -> None:
    """Writes the pages twice: in WARC files like Common Crawl's, and in `CRAWL` like a crawl of Sluice."""
    folder.mkdir(parents=True, exist_ok=True)
    publish(folder / CRAWL, pages)
    files = min(_FILES, len(pages))
    for number in range(files):
        with (folder / f"pages-{number}.warc.gz").open("wb") as file:
            for page in pages[number::files]:
                # A gzip member for each record; FastWARC's writer makes one member of all.
                file.write(gzip.compress(_capture(page, page.read_bytes())))


def _url(page: Path) -> str:
    digest = hashlib.blake2b(str(page).encode(), digest_size=8).hexdigest()
    return f"https://{page.parent.name}.example/{digest}.html"


def _capture(page: Path, html: bytes) -> bytes:
    record = WarcRecord()
    record.init_headers(record_type=WarcRecordType.response)
    record.headers["WARC-Target-URI"] = _url(page)
    record.headers["WARC-Date"] = "2026-01-01T00:00:00Z"
    # As in Common Crawl's records; without it datatrove uses libmagic, which takes XHTML for XML.
    record.headers["WARC-Identified-Payload-Type"] = "text/html"
    head = f"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: {len(html)}\r\n\r\n"
    record.is_http = True
    record.set_bytes_content(head.encode() + html)
    written = io.BytesIO()
    record.write(written, checksum_data=True, payload_digest=hashlib.sha1(html, usedforsecurity=False).digest())
    return written.getvalue()


def publish(store: Path, pages: Sequence[Path]) -> None:
    """Writes the pages as a finished crawl: one WARC file, its index, and the artifact `demo/warc` that names both."""
    output = Output(Store(str(store)), ArtifactId("demo/warc", "dev"), "fingerprint")
    path = "demo/warc/dev/pages.warc.gz"
    with output.part("crawl", conserved=False) as part:
        with part.file("pages.warc.gz") as file:
            writer = WarcWriter(file, "pages.warc.gz", "benchmark", "benchmark")
            for page in pages:
                writer.capture(_url(page), datetime(2026, 1, 1, tzinfo=UTC), _response(page.read_bytes()), {})
            lines = writer.finish()
        with part.file("pages.cdxj") as file:
            file.write("".join(f"{line}\n" for line in lines).encode())
        row = {"segment": "", "sha256": "", "bytes": writer.bytes, "records": len(pages), "path": path}
        row["index"] = path.replace(".warc.gz", ".cdxj")
        with part.file(MANIFEST) as file:
            pq.write_table(pa.Table.from_pylist([row], MANIFEST_SCHEMA), file)
    commit(output, "tasks.stages.crawl.publish", 1, ExtractConfig(), [], Report())


def _response(html: bytes) -> Response:
    return Response(200, "OK", (("Content-Type", "text/html"),), html, "", "", b"GET / HTTP/1.1\r\n\r\n", 0)


def recipe(warcs: str, out: str, extractor: str, crawled: bool) -> Recipe:
    """Returns the demo's recipe with these WARC files and rules."""
    source = {"name": "pages", "kind": "warc", "path": f"{warcs}/*.warc.gz"}
    return find_recipe("demo").override(
        {
            "place.store": out,
            "crawl.enabled": crawled,
            "canary.current": {},
            "extract.files": [] if crawled else [source],
            "extract.extractor": extractor,
            "extract.min_chars": 1,
            "annotate.use": [*RULES, "prose_score"],
            "annotate.settings": {},
            "dedup.exact": False,
            "dedup.near": False,
            "consolidate.filters": RULES,
            "consolidate.limits": {},
            "consolidate.sources": [WEB if crawled else "pages"],
            "consolidate.dedup": False,
            "consolidate.mask_pii": False,
        }
    )


def sluice(warcs: str, out: str, extractor: str, crawl: str = "") -> None:
    """Runs the stages on WARC files, or on the crawl; prints pages, kept documents, and CPU seconds."""
    if crawl:
        shutil.copytree(f"{warcs}/{CRAWL}", out)
    made = recipe(warcs, out, extractor, bool(crawl))
    spent = {}
    for stage in ("extract", "annotate", "dedup", "consolidate"):
        before = _cpu_seconds()
        run_stage(made, stage, tracking=TrackingContext("", "demo"))
        guard.end_idle_children()  # the time of children is counted after their end
        spent[stage] = _cpu_seconds() - before
    documents = Artifact.open_at(open_store(made), ArtifactId("demo/documents", "dev")).record
    extracted = Artifact.open_at(open_store(made), ArtifactId("demo/extracted", "dev")).record
    counts = {"pages": extracted.rows_in, "documents": extracted.rows_out, "kept": documents.rows_out}
    print(json.dumps({**counts, "text_mb": extracted.metrics["text_bytes"] / 1e6, "stages": spent}))


def _cpu_seconds() -> float:
    """Returns the CPU seconds of this process and of its ended children."""
    return sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))


def measured(command: Sequence[str], folders: Mapping[str, Path], count: int, html_mb: float) -> dict[str, Any]:
    """Runs one side on a few pages and on all; `{warcs}` and `{out}` in the command are filled in."""
    cpu: dict[str, float] = {}
    found: dict[str, dict[str, Any]] = {}
    for which, warcs in folders.items():
        out = HERE / "out"
        shutil.rmtree(out, ignore_errors=True)
        taken = cost([part.format(warcs=warcs, out=out) for part in command])
        ours = taken.output.startswith("{")
        found[which] = json.loads(taken.output) if ours else {"kept": _lines(out / "kept")}
        cpu[which] = taken.cpu_s - found[which].get("stages", {}).get("dedup", 0.0)
    line: dict[str, Any] = {"cpu_s": round(cpu["all"], 2), "few_s": round(cpu["few"], 2)}
    line["pages_per_cpu_s"] = round((count - FEW) / (cpu["all"] - cpu["few"]), 1)
    line["kept"] = found["all"]["kept"]
    if "stages" in found["all"]:
        line["mb_per_cpu_s"] = _stage_speeds(found["few"], found["all"], html_mb * (1 - FEW / count))
    return line


def _stage_speeds(few: Mapping[str, Any], every: Mapping[str, Any], html_mb: float) -> dict[str, float]:
    """Returns MB per CPU-second of each stage: of HTML for extract, of text for the others.

    A stage that took no longer for all pages than for a few is omitted, because noise exceeded its time.
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


def sides_of(careful: bool) -> dict[str, list[str]]:
    """Returns the command of each side."""
    program = "import sys; from benchmarks.refine import sluice; sluice(*sys.argv[1:])"
    ours = [sys.executable, "-c", program, "{warcs}", "{out}"]
    sides = {"default": [*ours, "blocks"], "fast": [*ours, "resiliparse"]}
    sides |= {f"{OWN}default": [*ours, "blocks", "crawl"], f"{OWN}fast": [*ours, "resiliparse", "crawl"]}
    sides["datatrove"] = datatrove("pages", "{warcs}", "{out}")
    if careful:
        sides["careful"] = [*ours, "trafilatura"]
    return sides


def beside(pages: Sequence[Path], given: argparse.Namespace) -> dict[str, Any]:
    """Measures all sides on pages, in turn."""
    folders = {"few": HERE / "few", "all": HERE / "all"}
    for folder, several in zip(folders.values(), (pages[:FEW], pages), strict=True):
        shutil.rmtree(folder, ignore_errors=True)
        write(several, folder)
    html_mb = sum(page.stat().st_size for page in pages) / 1e6
    runs = {
        name: partial(measured, command, folders, len(pages), html_mb)
        for name, command in sides_of(given.careful).items()
    }
    lines = in_turn(runs, given.rounds)
    ratios = {
        name: round(
            median(
                one["pages_per_cpu_s"] / other["pages_per_cpu_s"]
                for one, other in zip(several, lines["datatrove"], strict=True)
            ),
            1,
        )
        for name, several in lines.items()
        if name != "datatrove"
    }
    return {
        "date": date.today().isoformat(),
        "pages": len(pages),
        "html_mb": round(html_mb, 1),
        "ratio": ratios,
        "rounds": [dict(zip(lines, one, strict=True)) for one in zip(*lines.values(), strict=True)],
    }


def verdicts(texts: Sequence[str]) -> list[dict[str, str]]:
    """Returns the first reason of every filter for every text, or ""."""
    found: list[dict[str, str]] = []
    start = 0
    while start < len(texts):
        end, size = start, 0
        while end < len(texts) and size < _BATCH:
            size, end = size + len(texts[end]), end + 1
        batch = DocumentBatch(texts[start:end])
        rows: list[dict[str, str]] = [dict.fromkeys(RULES, "") for _ in batch.texts]
        for name in RULES:
            measures = fields(annotator(name, {}).annotate(batch))
            for reason, goes in filter_of(name, {}).reasons(measures):
                for place in goes.nonzero()[0]:
                    rows[place][name] = rows[place][name] or reason
        found += rows
        start = end
    return found


def compared(folder: Path) -> dict[str, Any]:
    """Filters every text on both sides; prints differences and returns the share of equal verdicts."""
    texts = [clean(text) for path in sorted(folder.glob("*.jsonl.zst")) for text in texts_of(path)]
    given, answers = HERE / "texts.jsonl", HERE / "verdicts.jsonl"
    given.write_text("".join(json.dumps(text) + "\n" for text in texts))
    theirs_s = cost(datatrove("verdicts", str(given), str(answers))).cpu_s
    theirs = [json.loads(line) for line in answers.read_text().splitlines()]
    mine = verdicts(texts)
    equal = {}
    for name in RULES:
        differ = [row for row in range(len(texts)) if bool(mine[row][name]) != bool(theirs[row][name])]
        equal[name] = round(1 - len(differ) / len(texts), 6)
        print(f"{name:18} equal on {equal[name]:.4%} of {len(texts)} texts")
        for row in differ:
            print(f"    text {row}: ours {mine[row][name] or 'keeps'}, datatrove {theirs[row][name] or 'keeps'}")
    return {"texts": len(texts), "equal": equal, "datatrove_cpu_s": round(theirs_s, 1)}


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--archived", type=Path, nargs="+", default=[], help="folders of *.html.gz to measure on")
    options.add_argument("--pages", type=int, default=1200, help="maximum number of pages")
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--careful", action="store_true", help="also measure the extractor trafilatura")
    options.add_argument("--texts", type=Path, help="folder of *.jsonl.zst to compare verdicts on")
    given = options.parse_args()
    HERE.mkdir(parents=True, exist_ok=True)
    result = {**last("refine"), "peers": PEERS}
    if given.archived:
        result["archived"] = beside(archived(given.archived, given.pages), given)
    if given.texts:
        result["verdicts"] = {"date": date.today().isoformat(), **compared(given.texts)}
    keep("refine", result)


if __name__ == "__main__":
    main()
