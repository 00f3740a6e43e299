"""Takedown: what is not to be crawled, kept and trained on any more.

| | |
|---|---|
| reads | the form, the takedowns before, and all artifacts of the recipe for the report |
| makes | `takedown`: all tombstones in force, and a report of documents, artifacts, steps and checkpoints that it met |
| costs | seconds: the ids and URLs of all documents, and the document index of all tokens, are looked through |
| next | nothing starts: new versions leave it out, and a running training does from its next checkpoint on |

Press **Trigger**, and name URLs, domains or document ids, one per line. Nothing that exists is rewritten.
`python -m tasks audit` proves what is current free of it, or says what to run again.
"""

from airflow.sdk import DAG, Param

from operators.forms import dag_settings
from operators.recipes import recipes_for
from operators.stage import TakedownOperator
from tasks.stages.takedown import MOST_LINES


def lines(title: str, description: str) -> Param:
    """Returns a field of several lines."""
    text = f"{description} One per line, at most {MOST_LINES:,}."
    return Param(None, type=["null", "string"], format="multiline", title=title, description=text)


def line(title: str, description: str, most: int) -> Param:
    """Returns a field of one line."""
    return Param(None, type=["null", "string"], maxLength=most, title=title, description=description)


FORM = {
    "takedown.urls": lines("URLs", "Pages; http and https, with and without www."),
    "takedown.domains": lines("Domains", "Host names, such as example.org; all names below them go with them."),
    "takedown.documents": lines("Document ids", "32 hex digits each, as trace prints them."),
    "takedown.lift": lines("Lift", "URLs, domains or document ids that are no longer taken down, as they were given."),
    "takedown.reason": line("Reason", "Why, in words; stays on record.", 1000),
    "takedown.requested_by": line("Requested by", "Who asked for it; stays on record.", 300),
    "takedown.from_crawl": Param(
        False,
        type="boolean",
        title="What sites have withdrawn",
        description="Also take down captured pages that robots.txt, noindex, an AI opt-out or status 451 forbid by "
        "now, as the newest crawl cycle lists them.",
    ),
}

for recipe in recipes_for("takedown"):
    with DAG(**dag_settings(recipe, "takedown", __doc__, schedule=None, form=FORM)):
        TakedownOperator(task_id="takedown", recipe=recipe.name, stage="takedown")
