"""Report of a fine-tuning on one screen: examples, loss curve, base and model side by side, a question and its page.

Reads the committed artifacts of one recipe and version; writes nothing.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import wrap
from typing import Any

from tasks.core.artifact import Artifact
from tasks.demo.drive import DagRunStatus
from tasks.demo.report import RunArtifacts, curve, times
from tasks.formats.documents.chunks import KIND as CHUNKS
from tasks.formats.documents.chunks import asked
from tasks.formats.documents.examples import Example, Examples
from tasks.formats.tokens.origin import origin_of
from tasks.run.trace import trace
from tasks.run.trace_text import tunings

TOKENS = 96
"""Tokens of an answer at most."""
_WIDTH = 96
_SHOWN = 4


@dataclass(frozen=True)
class Question:
    """A chunk that was learned: what it was asked with, where it stands, and its tokens."""

    text: str
    chunk: dict[str, Any]
    example: Example

    @property
    def response(self) -> str:
        """The text that is the right answer."""
        return str(self.chunk["text"][self.chunk["body"] :])


def tuning_report(artifacts: RunArtifacts, manuals: int, dag_runs: list[DagRunStatus]) -> Iterator[str]:
    """Yields the lines of the report; `manuals` is the number of files."""
    question = chosen(artifacts)
    for title, lines in (
        ("Examples", made(artifacts, manuals)),
        ("Fine-tuning", tuned(artifacts)),
        ("Base and model", compared(artifacts)),
        ("A question", answered(artifacts, question)),
        ("Its page", page_of_question(artifacts, question)),
        ("Time", times(dag_runs)),
    ):
        yield ""
        yield title
        yield from (f"  {line}" for line in lines)


def made(artifacts: RunArtifacts, manuals: int) -> Iterator[str]:
    """Yields what became of the files."""
    documents, chunks, examples = (artifacts.artifact(kind).record for kind in ("documents", CHUNKS, "examples"))
    yield f"{manuals:,} PDF files, {documents.rows_out:,} of them kept, {chunks.rows_out:,} chunks"
    yield examples.note


def tuned(artifacts: RunArtifacts) -> Iterator[str]:
    """Yields the loss curve as blocks."""
    model = artifacts.artifact("finetuned")
    lines = map(json.loads, model.read("loss.jsonl").splitlines())
    losses = [line["loss"] for line in lines if line["loss"] is not None]
    yield f"{curve(losses)}  loss {losses[0]:.2f} to {losses[-1]:.2f} nats per token"
    yield model.record.note


def compared(artifacts: RunArtifacts) -> Iterator[str]:
    """Yields the table of base and model."""
    found = artifacts.json("tuned_scores", "comparison.json")
    sure = f"{found['confidence']:.0%} interval"
    yield f"{'bits per byte':22} {'items':>6} {'base':>8} {'tuned':>8}  better by ({sure})"
    for row in found["rows"]:
        low, high = row["interval"]
        sure = "none" if low is None else f"{low:+.3f} .. {high:+.3f}"
        values = f"{row['first']:8.3f} {row['second']:8.3f}  {row['difference']:+.3f}"
        named = f"{row['kind']} {row['name']}"
        yield f"{named:22} {row['items']:6,} {values} ({sure})"


def chosen(artifacts: RunArtifacts) -> Question:
    """Returns the learned chunk with the fewest tokens that is all of its section: the same at every call."""
    examples, chunks = Examples(artifacts.artifact("examples")), artifacts.artifact(CHUNKS)
    rows = {row["id"]: row for path in chunks.files(f"{CHUNKS}/") for row in chunks.table(path).to_pylist()}
    found = [examples[number] for number in range(int(examples.firsts[-1]))]
    learned = [rows[example.origin["id"]] for example in found]
    questions = [asked(chunk["title"], chunk["sections"]) for chunk in learned]
    alone = [at for at, question in enumerate(questions) if questions.count(question) == 1] or [0]
    best = min(alone, key=lambda at: (learned[at]["tokens"], learned[at]["id"]))
    return Question(questions[best], learned[best], found[best])


def answered(artifacts: RunArtifacts, question: Question) -> Iterator[str]:
    """Yields the question, what stands on the page, what the model answers, and what this costs base and model."""
    from tasks.trainer.serve import TextModel  # imports torch

    model = artifacts.artifact("tuned_model")
    served = TextModel(Path(model.local("model/model.json")).parent)
    (answer,) = served.predict([[{"role": "user", "content": question.text}]], {"max_tokens": TOKENS})
    yield f"asked      {' / '.join(question.text.splitlines())}"
    yield from _paragraph("page", question.response)
    yield from _paragraph("answer", answer)
    base, tuned = costs(artifacts, question)
    yield f"the text of the page costs the base {base:.3f} bits per byte behind the question, the model {tuned:.3f}"


def costs(artifacts: RunArtifacts, question: Question) -> list[float]:
    """Returns the bits per byte that base and model need for the right answer."""
    from tasks.trainer.evaluation.contender import Contender
    from tasks.trainer.evaluation.responses import response_bits

    model, tokenizer = artifacts.artifact("finetuned"), artifacts.artifact("tokenizer")
    base = origin_of(model)
    assert base is not None, "a fine-tuning has a base"
    text = (question.example.tokens, question.example.learned)
    scorers = (Contender.of_artifact("model", one, tokenizer).load(1) for one in (base, model))
    return [response_bits(scorer, [text])[0] / len(question.response.encode()) for scorer in scorers]


def _paragraph(name: str, text: str) -> Iterator[str]:
    lines = wrap(" ".join(text.split()), _WIDTH)[:_SHOWN] or ["(nothing)"]
    for number, line in enumerate(lines):
        yield f"{name if number == 0 else '':10} {line}"


def page_of_question(artifacts: RunArtifacts, question: Question) -> Iterator[str]:
    """Yields where the chunk of a question stands, and the steps that have read it."""
    chunk = question.chunk
    yield f"{chunk['url']}, document {chunk['document']}"
    for box in chunk["boxes"] or ():
        place = ", ".join(f"{box[name]:.0f}" for name in ("x0", "y0", "x1", "y1"))
        yield f"page {box['page']}, box {place} in points from the upper left corner"
    model = artifacts.artifact("finetuned")
    found = trace(artifacts.store, artifacts.recipe, artifacts.version, chunk["url"])["tuned"]
    yield from tunings(_of(model, found))[1:]
    yield f"python -m tasks trace --recipe {artifacts.recipe} --version {artifacts.version} {chunk['url']}"


def _of(model: Artifact, found: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return [one for one in found if one["model"] == str(model.address)]
