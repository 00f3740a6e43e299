"""The demo of fine-tuning: manuals as PDF files -> chunks -> adapters on a trained model -> scores and an answer.

Starts the services, writes the manuals, makes a small base where there is none, triggers the DAGs of the recipe
`manuals`, and prints the report: examples, loss curve, base and model side by side, a question and its page.

The manuals are topics of the language reference that comes with this Python (`pydoc_data`, which every CPython has):
one small PDF file per topic, pages of A4 in Helvetica, with the headings of the topic in larger type. Equal Pythons
give equal bytes.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from textwrap import wrap
from typing import Any, NamedTuple

from tasks.core.artifact import Artifact, ArtifactId
from tasks.core.errors import InputError
from tasks.core.ledger import newest
from tasks.core.store import Store
from tasks.demo import stack
from tasks.demo.drive import Airflow, Chain, DagRunStatus
from tasks.demo.home import Home
from tasks.demo.report import RunArtifacts, curve, times
from tasks.demo.run import RunRequest, Screen, run_request
from tasks.formats.documents.chunks import KIND as CHUNKS
from tasks.formats.documents.chunks import asked
from tasks.formats.documents.examples import Example, Examples
from tasks.formats.tokens.exposure import origin_of, tokenizer_of
from tasks.run.recipe import Recipe, find_recipe
from tasks.run.trace.text import tunings
from tasks.run.trace.trace import PageTrace, trace

RECIPE = "manuals"
BASES = ("demo", "smoke")
"""Recipes whose newest model can be the base, the first that has one; the last one is run where none has."""

TOKENS = 96
"""Tokens of an answer at most."""
_WIDTH = 96
_SHOWN = 4

PAGE_WIDTH, PAGE_HEIGHT, MARGIN = 595, 842, 60
SMALLEST, LARGEST = 350, 900
"""Characters of a topic that becomes a manual."""

_TITLE, _SECTION, _BODY = 18, 14, 10
_UNDERLINE = re.compile(r"([*=~\-])\1{3,}")
_SPACING = 1.4


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
    from tasks.trainer.evaluation.comparison import Contender, response_bits

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
    found = trace(artifacts.store, artifacts.recipe, artifacts.version, chunk["url"])
    assert isinstance(found, PageTrace)
    yield from tunings([one for one in found.tuned if one.model == str(model.address)])[1:]
    yield f"python -m tasks trace --recipe {artifacts.recipe} --version {artifacts.version} {chunk['url']}"


class Line(NamedTuple):
    """A line of a page, its size in points, and the room above it."""

    text: str
    size: int
    above: float


def write_manuals(folder: Path) -> list[Path]:
    """Writes the manuals that are not there yet; returns the paths of all, sorted."""
    from pydoc_data.topics import topics

    folder.mkdir(parents=True, exist_ok=True)
    for name, text in sorted(topics.items()):
        path = folder / f"{name}.pdf"
        if SMALLEST <= len(text) <= LARGEST and not path.exists():
            path.write_bytes(manual(text))
    return sorted(folder.glob("*.pdf"))


def manual(text: str) -> bytes:
    """Returns a topic as a PDF file."""
    pages, used = [list[str]()], 0.0
    for line in _topic_lines(text):
        height = line.size * _SPACING
        if used + line.above + height > PAGE_HEIGHT - 2 * MARGIN:
            pages.append([])
            used = 0.0
        used += (line.above if pages[-1] else 0) + height
        font = "F2" if line.size > _BODY else "F1"
        place = f"{MARGIN} {PAGE_HEIGHT - MARGIN - used:.0f}"
        pages[-1].append(f"BT /{font} {line.size} Tf {place} Td ({_escaped(line.text)}) Tj ET\n")
    return _pdf_file(["".join(page) for page in pages])


def _topic_lines(text: str) -> Iterator[Line]:
    """Yields the lines of a topic, a heading for each that is underlined."""
    rows, number, blank = text.split("\n"), 0, False
    while number < len(rows):
        row, following = rows[number], rows[number + 1] if number + 1 < len(rows) else ""
        if row.strip() and _UNDERLINE.fullmatch(following):
            yield Line(row.strip(), _TITLE if following[0] == "*" else _SECTION, 2.0 * _BODY)
            number += 1
        elif row.strip():
            yield Line(row.rstrip(), _BODY, float(_BODY) if blank else 0.0)
        blank = not row.strip()
        number += 1


def _escaped(text: str) -> str:
    """Returns a text of Windows' Latin alphabet for a string of PDF, in octal where it is not ASCII."""
    codes = text.encode("cp1252", "replace")
    return "".join(chr(code) if 32 <= code < 127 and chr(code) not in r"\()" else f"\\{code:03o}" for code in codes)


def _pdf_file(pages: list[str]) -> bytes:
    """Returns a PDF file with a catalog, fonts, and pages of these contents."""
    objects: dict[int, bytes] = {}
    first = 5
    kids = " ".join(f"{first + 2 * number} 0 R" for number in range(len(pages)))
    objects[1] = b"<< /Type /Catalog /Pages 2 0 R >>"
    objects[2] = f"<< /Type /Pages /Kids [{kids}] /Count {len(pages)} >>".encode()
    for number, font in ((3, "Helvetica"), (4, "Helvetica-Bold")):
        objects[number] = f"<< /Type /Font /Subtype /Type1 /BaseFont /{font} /Encoding /WinAnsiEncoding >>".encode()
    for number, content in enumerate(pages):
        page = first + 2 * number
        resources = "<< /Font << /F1 3 0 R /F2 4 0 R >> >>"
        objects[page] = (
            f"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 {PAGE_WIDTH} {PAGE_HEIGHT}] /Resources {resources} "
            f"/Contents {page + 1} 0 R >>"
        ).encode()
        objects[page + 1] = f"<< /Length {len(content)} >>\nstream\n{content}endstream".encode()
    return _assembled(objects)


def _assembled(objects: Mapping[int, bytes]) -> bytes:
    out, places = bytearray(b"%PDF-1.4\n"), []
    for number, body in sorted(objects.items()):
        places.append(len(out))
        out += b"%d 0 obj\n%s\nendobj\n" % (number, body)
    start = len(out)
    out += b"xref\n0 %d\n0000000000 65535 f \n" % (len(objects) + 1)
    out += b"".join(b"%010d 00000 n \n" % place for place in places)
    out += b"trailer\n<< /Size %d /Root 1 0 R >>\nstartxref\n%d\n%%%%EOF\n" % (len(objects) + 1, start)
    return bytes(out)
