"""The demo of fine-tuning: manuals as PDF files -> chunks -> adapters on a trained model -> scores and an answer.

Starts the services, writes the manuals, makes a small base where there is none, triggers the DAGs of the recipe
`manuals`, and prints the report.

Report of a fine-tuning on one screen: examples, loss curve, base and model side by side, a question and its page.

Reads the committed artifacts of one recipe and version; writes nothing.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import wrap
from typing import Any

from tasks.core.artifact import Artifact, ArtifactId
from tasks.core.errors import InputError
from tasks.core.ledger import newest
from tasks.core.store import Store
from tasks.demo import stack
from tasks.demo.drive import Airflow, Chain, DagRunStatus
from tasks.demo.home import Home
from tasks.demo.manuals import write_manuals
from tasks.demo.report import RunArtifacts, curve, times
from tasks.demo.run import RunRequest, Screen, run_request
from tasks.formats.documents.chunks import KIND as CHUNKS
from tasks.formats.documents.chunks import asked
from tasks.formats.documents.examples import Example, Examples
from tasks.formats.tokens.origin import origin_of, tokenizer_of
from tasks.run.recipe import Recipe, find_recipe
from tasks.run.trace import trace
from tasks.run.trace_text import tunings

RECIPE = "manuals"
BASES = ("demo", "smoke")
"""Recipes whose newest model can be the base, the first that has one; the last one is run where none has."""


@dataclass(frozen=True)
class Base:
    """The model to begin from, and its tokenizer."""

    checkpoint: Artifact
    tokenizer: str

    @classmethod
    def of(cls, checkpoint: Artifact) -> "Base":
        """Returns the base of a checkpoint; raises InputError where its records do not lead to its tokenizer."""
        tokenizer = tokenizer_of(checkpoint)
        if tokenizer is None:
            raise InputError(f"the tokenizer of {checkpoint.address} is gone", "name another model with BASE=")
        return cls(checkpoint, checkpoint.store.url(f"{tokenizer.path}/tokenizer.json"))

    def request(self, home: Home) -> RunRequest:
        """Returns the run of RECIPE with this base; other bases are other versions."""
        address = self.checkpoint.address
        files = {"name": RECIPE, "kind": "pdf", "path": f"{home.root / RECIPE}/*.pdf"}
        overrides = {"extract.files": [files], "tokenizer.file": self.tokenizer, "finetune.base": str(address)}
        return RunRequest(RECIPE, f"{address.name.partition('/')[0]}-{address.version}", overrides)


def finetune(home: Home, base: str) -> None:
    """Fine-tunes `base` ("demo/checkpoint@dev"; "": the newest of BASES) with the manuals, and prints the report.

    Raises:
        SluiceError: a service does not start, there is no such base, or a task failed; one line with where to look.
    """
    recipe, store = find_recipe(RECIPE), Store(home.store)
    manuals = write_manuals(home.root / RECIPE)
    stack.up(home)
    with Airflow(home.airflow_url, home.password()) as airflow, Screen() as screen:
        checkpoint = _asked(store, base) if base else _newest(store) or _made(home, store, airflow, screen)
        request = Base.of(checkpoint).request(home)
        dag_runs = [
            run
            for dags in (recipe.parts, ("finetune",))
            for run in _followed(Chain(airflow, RECIPE, dags=dags), request, screen)
        ]
    for line in tuning_report(RunArtifacts(store, RECIPE, request.version), len(manuals), dag_runs):
        print(line)
    print(f"\n{stack.addresses(home)}\nStop everything: make down")


def _asked(store: Store, base: str) -> Artifact:
    return Artifact.open_at(store, ArtifactId.parse(base))


def _newest(store: Store) -> Artifact | None:
    found = (newest(store, f"{name}/checkpoint") for name in BASES)
    return next((checkpoint for checkpoint in found if checkpoint), None)


def _made(home: Home, store: Store, airflow: Airflow, screen: Screen) -> Artifact:
    """Trains a small model from the seeds on, and returns its checkpoint."""
    recipe: Recipe = find_recipe(BASES[-1])
    request = run_request(home, recipe.name, "", "", "")
    _followed(Chain(airflow, recipe.name, dags=recipe.parts), request, screen)
    return Artifact.open_at(store, ArtifactId(f"{recipe.name}/checkpoint", recipe.version))


def _followed(chain: Chain, request: RunRequest, screen: Screen) -> list[DagRunStatus]:
    """Runs a chain to its end; returns its DAG runs."""
    chain.wait_for_dags()
    chain.start(request.conf())
    for dag_runs in chain.follow():
        screen.show(dag_runs)
    return chain.dag_runs


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
