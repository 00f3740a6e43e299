"""The crawl, from seeds to WARC files: the stages of one cycle.

seeds and earlier cycles -> inject, rank -> generate -> fetch -> render -> update -> publish -> WARC files, crawldb
"""

from typing import Any

from tasks.core.stage_spec import Input, NamedInput, PreviousInput, StageSpec, Takedowns
from tasks.stages.crawl.config import CrawlConfig

_CRAWLDB = PreviousInput("crawldb/*", completed_by="warc", members="crawl.partitions", when="crawl.recrawl")
_RANKS = PreviousInput("ranks", completed_by="warc", when="crawl.recrawl")
_CAPTURES = {"segments": Input("segment", members_of="seeds"), "rendered": Input("rendered", members_of="seeds")}


def _stage(name: str, output: str, module: str = "", **settings: Any) -> StageSpec:
    return StageSpec(
        name,
        dag="crawl",
        output=output,
        config=CrawlConfig,
        section="crawl",
        module=module or name,
        reads_web=True,
        **settings,
    )


STAGES = (
    _stage("inject", "seeds"),
    _stage("rank", "ranks", previous={"crawldb": _CRAWLDB, "previous": _RANKS}),
    _stage(
        "generate",
        "fetchlist",
        inputs={"seeds": Input("seeds"), "ranks": Input("ranks"), "priorities": NamedInput("priorities")},
        previous={"previous": _CRAWLDB},
        takedowns=Takedowns(),
        mapped=True,
    ),
    _stage(
        "fetch",
        "segment",
        inputs={
            "seeds": Input("seeds"),
            "fetchlist": Input("fetchlist/*"),
            "fetchlists": Input("fetchlist", members_of="seeds"),
        },
        previous={"previous": _CRAWLDB},
        decided_by="fetchlist",
        takedowns=Takedowns(),
        mapped=True,
    ),
    _stage(
        "render",
        "rendered",
        module="render.stage",
        inputs={"seeds": Input("seeds"), "segment": Input("segment/*")},
        mapped=True,
    ),
    _stage(
        "update",
        "crawldb",
        inputs={"seeds": Input("seeds"), "ranks": Input("ranks"), "fetchlist": Input("fetchlist/*"), **_CAPTURES},
        previous={"previous": _CRAWLDB},
        decided_by="fetchlist",
        takedowns=Takedowns(),
        mapped=True,
    ),
    _stage("publish", "warc", asset="warc", inputs={**_CAPTURES, "crawldb": Input("crawldb", members_of="seeds")}),
)
