"""One-screen report of a run: funnel, mixture, loss curve, scores, one page traced to its training steps.

Reads the committed artifacts of one recipe and version; writes nothing.
"""

import json
from collections.abc import Collection, Iterator
from itertools import pairwise
from typing import Any

from tasks.core.artifact import Artifact, ArtifactId
from tasks.core.store import Store
from tasks.core.terminal import duration
from tasks.demo.drive import DagRunStatus
from tasks.run.trace.answer import PageTrace
from tasks.run.trace.text import render
from tasks.run.trace.trace import trace
from tasks.stages.canary.decision import Decision, listed
from tasks.stages.consolidate.funnel import totals

BLOCKS = "▁▂▃▄▅▆▇█"
WIDTH = 60


class RunArtifacts:
    """The artifacts of one recipe at one version."""

    def __init__(self, store: Store, recipe: str, version: str) -> None:
        self.store = store
        self.recipe = recipe
        self.version = version

    def artifact(self, kind: str) -> Artifact:
        """Opens the artifact of a kind; raises InputError if it does not exist."""
        return Artifact.open_at(self.store, ArtifactId(f"{self.recipe}/{kind}", self.version))

    def json(self, kind: str, path: str) -> Any:
        """Returns the content of a JSON file of the artifact of a kind."""
        return json.loads(self.artifact(kind).read(path))


def report(artifacts: RunArtifacts, dag_runs: list[DagRunStatus], parts: Collection[str]) -> Iterator[str]:
    """Yields the lines of the report; sections whose DAGs are not in `parts` are omitted."""
    for title, lines, needed in (
        ("Funnel (documents)", funnel(artifacts), {"corpus"}),
        ("Mixture", mixture(artifacts), {"canary"}),
        ("Training", training(artifacts), {"pretrain"}),
        ("Trace", page_trace(artifacts), {"crawl", "corpus"}),
        ("Time", times(dag_runs), set()),
    ):
        if needed <= set(parts):
            yield ""
            yield title
            yield from (f"  {line}" for line in lines)


def funnel(artifacts: RunArtifacts) -> Iterator[str]:
    """Yields one line per source and step: the number of documents and the most frequent reasons."""
    rows = totals(artifacts.artifact("documents").table("funnel.parquet"), ["source", "step", "reason"])
    for source in sorted({row["source"] for row in rows}):
        of_source = [row for row in rows if row["source"] == source]
        total = sum(row["documents"] for row in of_source)
        yield f"{source:10} {total:7,} found"
        for step in dict.fromkeys(row["step"] for row in of_source):
            of_step = sorted(
                (row for row in of_source if row["step"] == step), key=lambda row: (-row["documents"], row["reason"])
            )
            count = sum(row["documents"] for row in of_step)
            reasons = ", ".join(f"{row['reason']} {row['documents']:,}" for row in of_step[:3] if row["reason"])
            sign = " " if step == "kept" else "-"
            yield f"{'':10} {sign}{count:6,} {step}{f' ({reasons})' if reasons else ''}"


def mixture(artifacts: RunArtifacts) -> Iterator[str]:
    """Yields the decision of the canaries: the reason, and the weights for training."""
    decision = Decision.read(artifacts.artifact("mixture"))
    yield decision.reason
    yield f"trained with {listed(decision.weights)}"


def training(artifacts: RunArtifacts) -> Iterator[str]:
    """Yields the loss curve as block characters, and the held-out bits per byte of the model and of unigrams."""
    table = artifacts.artifact("checkpoint").table("loss.parquet").to_pydict()
    losses = [loss for loss in table["loss"] if loss is not None]
    yield f"{curve(losses)}  loss {losses[0]:.2f} to {losses[-1]:.2f} nats per token"
    yield f"{len(table['step']):,} steps, {table['tokens'][-1]:,} tokens"
    scores = artifacts.json("scores", "scores.json")
    yield f"held-out {scores['bpb']:.3f} bits per byte; unigram {scores['unigram_bpb']:.3f}; gain {scores['gain']:.1%}"


def curve(losses: list[float], width: int = WIDTH) -> str:
    """Returns a series as block characters, each for the mean of a segment.

    >>> curve([4.0, 3.0, 2.0, 1.0], width=4)
    '█▆▃▁'
    """
    width = min(width, len(losses))
    edges = [len(losses) * at // width for at in range(width + 1)]
    means = [sum(losses[a:b]) / (b - a) for a, b in pairwise(edges)]
    low, high = min(means), max(means)
    scale = (len(BLOCKS) - 1) / (high - low) if high > low else 0.0
    return "".join(BLOCKS[round((mean - low) * scale)] for mean in means)


def page_trace(artifacts: RunArtifacts) -> Iterator[str]:
    """Yields the trace of one crawled page: the steps and checkpoints that read it.

    The page is the longest kept one that a training step read: the longest of all may be in the held-out split, which
    is selected by the hash of a document's id.
    """
    for url in longest_pages(artifacts):
        result = trace(artifacts.store, artifacts.recipe, artifacts.version, url)
        assert isinstance(result, PageTrace)
        if any(document.reading and document.reading.steps for document in result.documents):
            yield from render(result).splitlines()
            return


def longest_pages(artifacts: RunArtifacts) -> list[str]:
    """Returns the URLs of the kept web pages, longest first; the order is deterministic."""
    documents = artifacts.artifact("documents")
    pages = []
    for path in documents.files("kept/"):
        rows = documents.table(path, ["source", "url", "text"]).to_pylist()
        pages += [(-len(row["text"]), row["url"]) for row in rows if row["source"] == "web"]
    return [url for _, url in sorted(pages)]


def times(dag_runs: list[DagRunStatus]) -> Iterator[str]:
    """Yields the wall time of each DAG, and the total."""
    for dag_run in dag_runs:
        yield f"{dag_run.dag_id:18} {duration(dag_run.seconds):>14}{'  unchanged' if dag_run.unchanged else ''}"
    yield f"{'all':18} {duration(sum(dag_run.seconds for dag_run in dag_runs)):>14}"
