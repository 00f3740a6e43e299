"""The whole extract stage beside the bare library, from the compressed records of a crawl to committed Parquet."""

import glob
import os
import resource
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from statistics import median

from fastwarc import ArchiveIterator, WarcRecordType
from resiliparse.extract.html2text import extract_plain_text
from resiliparse.parse.encoding import detect_encoding
from resiliparse.parse.html import HTMLTree

from benchmarks.published import published
from tasks.core.artifact import Artifact, ArtifactId
from tasks.core.engine import open_engine
from tasks.core.stage import Inputs, Output
from tasks.core.store import Store
from tasks.formats.warc.archive import warc_files
from tasks.stages.extract.config import ExtractConfig
from tasks.stages.extract.html import main_text


def measure_stage(captures: Iterable[tuple[str, bytes]], rounds: int) -> dict[str, dict[str, float]]:
    """Runs the whole extract stage and the bare library over the captures of a crawl in turn.

    Args:
        captures: addresses and pages.
        rounds: how often each is run; once more before, uncounted, starts the child.

    Returns:
        For each: speeds by the median of its times, and shares by the median of each round's own share, because the
        speed of a shared machine changes from minute to minute.
    """
    figures: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        crawl, pages, size = published(folder, "benchmark", captures)
        path = f"{folder}/{warc_files(crawl)[0].path}"
        for extractor in ("resiliparse", "blocks"):
            config = ExtractConfig.model_validate({"extractor": extractor, "honour_noindex": False})
            runs = []
            for number in range(rounds + 1):
                run = {name: _bare_seconds(path, extract) for name, extract in _LIBRARY.items()}
                run[f"stage, {extractor}"] = _stage_seconds(folder, config, crawl, f"{extractor}-{number}")
                runs.append(run)
            figures |= {name: _figures(name, runs[1:], pages, size) for name in runs[0] if name not in figures}
    return figures


def _figures(name: str, runs: list[dict[str, float]], pages: int, size: int) -> dict[str, float]:
    seconds = median(run[name] for run in runs)
    return {
        "pages_per_cpu_second": round(pages / seconds, 1),
        "megabytes_per_cpu_second": round(size / 1e6 / seconds, 1),
        "of_bare_library_from_warc": round(median(run["bare library from WARC"] / run[name] for run in runs), 3),
        "of_bare_library_same_text": round(median(run["bare library, same text"] / run[name] for run in runs), 3),
    }


def captures_of(pattern: str) -> Iterator[tuple[str, bytes]]:
    """Yields addresses and pages of the responses in WARC files, given as a glob."""
    for path in sorted(glob.glob(pattern)):
        with open(path, "rb") as file:
            for record in ArchiveIterator(file, record_types=WarcRecordType.response):
                yield record.headers["WARC-Target-URI"], record.reader.read()


def _as_it_comes(tree: HTMLTree) -> str:
    found: str = extract_plain_text(tree, main_content=True, preserve_formatting=True)
    return found


# `main_text` is one call of the library, which asks it to leave out more, and so to look longer.
_LIBRARY = {"bare library from WARC": _as_it_comes, "bare library, same text": main_text}


def _bare_seconds(path: str, extract: Callable[[HTMLTree], str]) -> float:
    """Returns CPU seconds of reading, parsing and extracting, and nothing else."""
    begin = _cpu_seconds()
    with open(path, "rb") as file:
        for record in ArchiveIterator(file, record_types=WarcRecordType.response):
            payload = record.reader.read()
            extract(HTMLTree.parse_from_bytes(payload, detect_encoding(payload) or "utf-8"))
    return _cpu_seconds() - begin


def _stage_seconds(folder: str, config: ExtractConfig, crawl: Artifact, version_: str) -> float:
    from tasks.stages.extract import stage

    output = Output(Store(folder), ArtifactId("benchmark/extracted", version_), "fingerprint")
    begin = _cpu_seconds()
    with open_engine() as engine:
        stage.run(config, Inputs({"warc": crawl}), output, engine)
    return _cpu_seconds() - begin


def _cpu_seconds() -> float:
    """CPU seconds of this process and of the living child that extracts for it."""
    from tasks.stages.extract import guard

    ticks = os.sysconf("SC_CLK_TCK")
    total = sum(resource.getrusage(resource.RUSAGE_SELF)[:2]) + sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2])
    for child in guard.children():
        fields = Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()
        total += (int(fields[11]) + int(fields[12])) / ticks
    return total
