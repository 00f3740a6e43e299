"""Wiring of the stage `takedown`: a request and the takedowns before it -> all tombstones in force, and a report."""

from tasks.core.stage_spec import Previous, StageSpec

STAGES = (
    StageSpec(
        "takedown",
        "tasks.stages.takedown.stage",
        "takedown",
        "takedown",
        "takedown",
        previous={"warc": Previous("warc", completed_by="warc")},
        previous_if="takedown.from_crawl",
        takedowns="previous",
    ),
)
