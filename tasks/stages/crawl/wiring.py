"""The stages of one crawl cycle: seeds and earlier cycles in, WARC files and the crawl database out."""

from typing import Any

from tasks.core.stage_spec import Previous, StageSpec

_PREVIOUS = {"previous": Previous("crawldb/*", completed_by="warc", members="crawl.partitions")}
"""The crawl database of the cycle before, where `[crawl] recrawl` says so."""

_SEGMENTS = {"segments": ("segment", "seeds"), "rendered": ("rendered", "seeds")}


def _stage(name: str, output: str, module: str = "", **settings: Any) -> StageSpec:
    module = f"tasks.stages.crawl.{module or name}"
    return StageSpec(name, module, "crawl", "crawl", output, conditional=True, reads_web=True, **settings)


STAGES = (
    _stage("inject", "seeds"),
    _stage(
        "rank",
        "ranks",
        previous={"crawldb": _PREVIOUS["previous"], "previous": Previous("ranks", completed_by="warc")},
        previous_if="crawl.recrawl",
    ),
    _stage(
        "generate",
        "fetchlist",
        inputs={"seeds": "seeds", "ranks": "ranks"},
        previous=_PREVIOUS,
        previous_if="crawl.recrawl",
        takedowns="takedowns",
        mapped=True,
    ),
    _stage(
        "fetch",
        "segment",
        inputs={"seeds": "seeds", "fetchlist": "fetchlist/*"},
        fan_in={"fetchlists": ("fetchlist", "seeds")},
        previous=_PREVIOUS,
        previous_if="crawl.recrawl",
        previous_as="fetchlist",
        takedowns="takedowns",
        mapped=True,
    ),
    _stage("render", "rendered", "render.stage", inputs={"seeds": "seeds", "segment": "segment/*"}, mapped=True),
    _stage(
        "update",
        "crawldb",
        inputs={"seeds": "seeds", "ranks": "ranks", "fetchlist": "fetchlist/*"},
        fan_in=_SEGMENTS,
        previous=_PREVIOUS,
        previous_if="crawl.recrawl",
        previous_as="fetchlist",
        takedowns="takedowns",
        mapped=True,
    ),
    _stage("publish", "warc", asset="warc", fan_in={**_SEGMENTS, "crawldb": ("crawldb", "seeds")}),
)
