"""Sluice's side: WARC files to kept and rejected documents, by the stages as they are. Run as a process of its own.

    python -m benchmarks.refine.ours WARC_FOLDER OUT EXTRACTOR [crawl]

With `crawl` it reads the same pages as a crawl of its own left them (`pages.CRAWL` in the folder) and not the WARC
files themselves, which are somebody else's: those are read twice, the first time for what stands in an index.

The rules are those of the peer: Gopher's two filters, C4 and FineWeb with their defaults. Neither side labels languages
(the peer fetches its model over the network), looks for personal data, or removes copies here.
"""

import json
import resource
import shutil
import sys

from benchmarks.refine.pages import CRAWL
from tasks.core.artifact import Artifact, ArtifactId
from tasks.run.recipe import Recipe, find_recipe
from tasks.run.runner import open_store, run_stage
from tasks.run.tracking import TrackingContext
from tasks.stages.extract import guard
from tasks.stages.extract.config import WEB

RULES = ["gopher_repetition", "gopher_quality", "c4", "fineweb"]


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


def main() -> None:
    """Runs the stages and prints how many pages came in and how many are kept."""
    warcs, out, extractor, *crawl = sys.argv[1:]
    if crawl:
        shutil.copytree(f"{warcs}/{CRAWL}", out)
    made = recipe(warcs, out, extractor, bool(crawl))
    spent = {}
    for stage in ("extract", "annotate", "dedup", "consolidate"):
        before = cpu_seconds()
        run_stage(made, stage, tracking=TrackingContext("", "demo"))
        guard.end_all()  # children count when they have ended
        spent[stage] = cpu_seconds() - before
    documents = Artifact.open_at(open_store(made), ArtifactId("demo/documents", "dev")).record
    extracted = Artifact.open_at(open_store(made), ArtifactId("demo/extracted", "dev")).record
    told = {"pages": extracted.rows_in, "documents": extracted.rows_out, "kept": documents.rows_out}
    print(json.dumps({**told, "text_mb": extracted.metrics["text_bytes"] / 1e6, "stages": spent}))


def cpu_seconds() -> float:
    """Returns the CPU seconds of this process and of its children that have ended."""
    return sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))


if __name__ == "__main__":
    main()
