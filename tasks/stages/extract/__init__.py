"""From captures, files and messages to documents.

stream: the new messages of Kafka topics. archive: captures by Common Crawl. extract: documents from captures in WARC
files, from local files and from messages, or their rejection with a reason.
"""

from tasks.core.stage_spec import Input, PreviousInput, StageSpec, Takedowns
from tasks.stages.extract.config import ArchiveConfig, ExtractConfig, StreamConfig

STAGES = (
    StageSpec(
        "stream",
        dag="corpus",
        output="messages",
        config=StreamConfig,
        module="stream",
        previous={"previous": PreviousInput("messages", completed_by="messages")},
    ),
    StageSpec(
        "archive", dag="corpus", output="archived", config=ArchiveConfig, module="archive", takedowns=Takedowns()
    ),
    StageSpec(
        "extract",
        dag="corpus",
        output="extracted",
        config=ExtractConfig,
        inputs={
            "warc": Input("warc", optional=True),
            "messages": Input("messages", optional=True),
            "archived": Input("archived", optional=True),
        },
        previous={
            "index": PreviousInput(
                "dedup_index", completed_by="dedup_index", accumulates=True, when="dedup_index.enabled"
            )
        },
        takedowns=Takedowns(when="dedup_index.enabled"),
    ),
)
