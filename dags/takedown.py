"""Takedown: excludes pages, domains or documents from crawling, corpora and training.

| | |
|---|---|
| reads | the form, earlier takedowns, and for the report all artifacts of the recipe |
| writes | `takedown`: all tombstones in force, and a report of affected documents, artifacts, steps and checkpoints |
| costs | seconds: a search in the ids and URLs of all documents and in the document index of all tokens |
| | where the recipe has `[place.lake]`, its tables without the documents, of which no version can be read any more |
| next | nothing; new versions apply it, and a running training applies it from its next checkpoint on |

Press **Trigger** and enter URLs, domains or document ids, one per line. Existing artifacts are not rewritten.
`sluice audit` verifies that the current artifacts are free of it, or lists the stages to run again.
"""

from airflow.sdk import DAG, Param

from operators.dags import for_each_recipe
from operators.forms import dag_settings
from operators.lake import LakeOperator
from operators.stage import TakedownOperator
from tasks.stages.takedown import MOST_LINES


def lines(title: str, description: str) -> Param:
    """Returns a multi-line field of the form."""
    text = f"{description} One per line, at most {MOST_LINES:,}."
    return Param(None, type=["null", "string"], format="multiline", title=title, description=text)


def line(title: str, description: str, max_length: int) -> Param:
    """Returns a single-line field of the form."""
    return Param(None, type=["null", "string"], maxLength=max_length, title=title, description=description)


FORM = {
    "takedown.urls": lines("URLs", "Pages; http and https, with or without www. Or file:// URLs as trace prints them."),
    "takedown.domains": lines("Domains", "Host names, such as example.org; all names below them are included."),
    "takedown.documents": lines("Document ids", "32 hex digits each, as trace prints them."),
    "takedown.lift": lines("Lift", "URLs, domains or document ids whose takedown ends: values that are in force."),
    "takedown.reason": line("Reason", "Reason as text; kept on record.", 1000),
    "takedown.requested_by": line("Requested by", "Person or organization; kept on record.", 300),
    "takedown.from_crawl": Param(
        False,
        type="boolean",
        title="Pages withdrawn by their sites",
        description="Also take down captured pages that robots.txt, noindex, an AI opt-out or status 451 forbid now, "
        "as listed by the newest crawl cycle.",
    ),
}


@for_each_recipe("takedown", form=FORM)
def _build(recipe):
    with DAG(**dag_settings(recipe, "takedown", __doc__, schedule=None)) as dag:
        takedown = TakedownOperator(task_id="takedown", recipe=recipe.name, stage="takedown")
        if recipe.place.lake:
            takedown >> LakeOperator(task_id="lake", recipe=recipe.name, only_takedowns=True)
    return dag
