"""The fine-tuning demo: manuals as PDF files -> chunks -> adapters on a trained model -> scores and an answer.

Starts the services, writes the manuals, trains a small base model if there is none, triggers the DAGs of the recipe
`manuals`, and prints a report: examples, loss curve, a comparison of base and tuned model, a question and its page.

The manuals are topics of Python's language reference (`pydoc_data`, part of every CPython): one small PDF file per
topic, on A4 pages in Helvetica, with headings in larger type. The same version of Python gives the same bytes.
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
from tasks.demo.drive import Airflow, DagChain, DagRunStatus
from tasks.demo.home import Home
from tasks.demo.report import RunArtifacts, curve, times
from tasks.demo.run import RunRequest, Screen, run_chain, run_request
from tasks.formats.documents.chunks import KIND as CHUNKS
from tasks.formats.documents.chunks import heading_path
from tasks.formats.documents.examples import Example, Examples
from tasks.formats.tokens.exposure import origin_of, tokenizer_of, unrecorded
from tasks.run.import_model import imported_model
from tasks.run.recipe import find_recipe
from tasks.run.trace.answer import PageTrace
from tasks.run.trace.text import render_tuned
from tasks.run.trace.trace import trace
from tasks.trainer.interchange.address import is_address

RECIPE = "manuals"
BASES = ("demo", "smoke")
"""Recipes whose newest model may be the base, in order of preference; the last one is run if none has a model."""

_IMPORTED = {
    "finetune.steps": 12,
    "finetune.optim.lr": 1e-4,
    "finetune.optim.warmup_steps": 2,
    "finetune.lora.targets": ["wq", "wk", "wv", "wo"],
    "examples.date": "2026-01-01",
}
"""Settings for an imported base, which is larger than those of the demo, and better trained: three epochs, a low rate,
and adapters of attention only, because with more of each it predicts other text worse (`benchmarks.imported_model`)."""

TOKENS = 96
"""Maximum number of tokens of an answer."""
_WIDTH = 96
_MAX_LINES = 4

PAGE_WIDTH, PAGE_HEIGHT, MARGIN = 595, 842, 60
SMALLEST, LARGEST = 350, 900
"""Minimum and maximum number of characters of a topic that becomes a manual."""

_TITLE, _SECTION, _BODY = 18, 14, 10
_UNDERLINE = re.compile(r"([*=~\-])\1{3,}")
_SPACING = 1.4


@dataclass(frozen=True)
class Base:
    """The base model: its checkpoint and the URL of its tokenizer."""

    checkpoint: Artifact
    tokenizer: str

    settings: Mapping[str, Any]
    """Overrides of RECIPE for this base."""

    @classmethod
    def of(cls, checkpoint: Artifact) -> "Base":
        """Returns the base for a checkpoint; raises InputError if the tokenizer of its lineage is gone."""
        tokenizer = tokenizer_of(checkpoint)
        if tokenizer is None:
            raise InputError(f"the tokenizer of {checkpoint.address} is gone", "name another model with BASE=")
        end_of_text = json.loads(tokenizer.read("tokenizer_config.json"))["eos_token"]
        settings = {"tokenizer.end_of_text": end_of_text, **(_IMPORTED if unrecorded(checkpoint) else {})}
        return cls(checkpoint, checkpoint.store.url(f"{tokenizer.path}/tokenizer.json"), settings)

    def request(self, home: Home) -> RunRequest:
        """Returns the run of RECIPE with this base; each base has a version of its own."""
        address = self.checkpoint.address
        files = {"name": RECIPE, "kind": "pdf", "path": f"{home.root / RECIPE}/*.pdf"}
        overrides = {"extract.files": [files], "tokenizer.file": self.tokenizer, "finetune.base": str(address)}
        overrides |= self.settings
        return RunRequest(RECIPE, f"{address.name.partition('/')[0]}-{address.version}", overrides)


def finetune(home: Home, base: str) -> None:
    """Fine-tunes a base on the manuals, and prints the report.

    Args:
        home: folders and services of the demo.
        base: "demo/checkpoint@dev", or the address of a model, which is imported; "": the newest of BASES.

    Raises:
        SluiceError: a service does not start, the base does not exist, or a task failed; one line that names the log.
    """
    recipe, store = find_recipe(RECIPE), Store(home.store)
    manuals = write_manuals(home.root / RECIPE)
    imported = imported_model(store, base) if is_address(base) or (base and Path(base).is_dir()) else None
    stack.up(home)
    with Airflow(home.airflow_url, home.password()) as airflow, Screen() as screen:
        if base:
            checkpoint = imported or Artifact.open_at(store, ArtifactId.parse(base))
        else:
            checkpoint = _newest_base(store) or _train_base(home, store, airflow, screen)
        request = Base.of(checkpoint).request(home)
        dag_runs = [
            run
            for dags in (recipe.parts, ("finetune",))
            for run in run_chain(DagChain(airflow, RECIPE, dags), request, screen)
        ]
    for line in tuning_report(RunArtifacts(store, RECIPE, request.version), len(manuals), dag_runs):
        print(line)
    print(f"\n{stack.addresses(home)}\nStop everything: make down")


def _newest_base(store: Store) -> Artifact | None:
    checkpoints = (newest(store, f"{name}/checkpoint") for name in BASES)
    return next((checkpoint for checkpoint in checkpoints if checkpoint), None)


def _train_base(home: Home, store: Store, airflow: Airflow, screen: Screen) -> Artifact:
    """Runs the whole pipeline of the smallest recipe, and returns its checkpoint."""
    recipe = find_recipe(BASES[-1])
    request = run_request(home, recipe.name, "", "", "")
    run_chain(DagChain(airflow, recipe.name, recipe.parts), request, screen)
    return Artifact.open_at(store, ArtifactId(f"{recipe.name}/checkpoint", recipe.version))


@dataclass(frozen=True)
class Question:
    """A chunk from the training examples: its question, its row, and its tokens."""

    text: str
    chunk: dict[str, Any]
    example: Example

    @property
    def response(self) -> str:
        """The correct answer: the text of the chunk."""
        return str(self.chunk["text"][self.chunk["body"] :])


def tuning_report(artifacts: RunArtifacts, manuals: int, dag_runs: list[DagRunStatus]) -> Iterator[str]:
    """Yields the lines of the report; `manuals` is the number of PDF files."""
    question = choose_question(artifacts)
    for title, lines in (
        ("Examples", example_lines(artifacts, manuals)),
        ("Fine-tuning", training_lines(artifacts)),
        ("Base and model", comparison_lines(artifacts)),
        ("A question", answer_lines(artifacts, question)),
        ("Its page", page_lines(artifacts, question)),
        ("Time", times(dag_runs)),
    ):
        yield ""
        yield title
        yield from (f"  {line}" for line in lines)


def example_lines(artifacts: RunArtifacts, manuals: int) -> Iterator[str]:
    """Yields the numbers of files, documents, chunks and examples."""
    documents, chunks, examples = (artifacts.artifact(kind).record for kind in ("documents", CHUNKS, "examples"))
    yield f"{manuals:,} PDF files, {documents.rows_out:,} of them kept, {chunks.rows_out:,} chunks"
    yield examples.note


def training_lines(artifacts: RunArtifacts) -> Iterator[str]:
    """Yields the loss curve as block characters, and the note of the model."""
    model = artifacts.artifact("finetuned")
    losses = [loss for loss in model.table("loss.parquet")["loss"].to_pylist() if loss is not None]
    yield f"{curve(losses)}  loss {losses[0]:.2f} to {losses[-1]:.2f} nats per token"
    yield model.record.note


def comparison_lines(artifacts: RunArtifacts) -> Iterator[str]:
    """Yields the table that compares base and tuned model."""
    comparison = artifacts.json("tuned_scores", "comparison.json")
    heading = f"better by ({comparison['confidence']:.0%} interval)"
    yield f"{'bits per byte':22} {'items':>6} {'base':>8} {'tuned':>8}  {heading}"
    for row in comparison["rows"]:
        low, high = row["interval"]
        interval = "none" if low is None else f"{low:+.3f} .. {high:+.3f}"
        values = f"{row['first']:8.3f} {row['second']:8.3f}  {row['difference']:+.3f}"
        label = f"{row['kind']} {row['name']}"
        yield f"{label:22} {row['items']:6,} {values} ({interval})"


def choose_question(artifacts: RunArtifacts) -> Question:
    """Returns the shortest training chunk, in tokens, that is the only one of its section; deterministic."""
    all_examples, chunks = Examples(artifacts.artifact("examples")), artifacts.artifact(CHUNKS)
    rows = {row["id"]: row for path in chunks.files(f"{CHUNKS}/") for row in chunks.table(path).to_pylist()}
    examples = [all_examples[number] for number in range(int(all_examples.firsts[-1]))]
    trained = [rows[example.origin["id"]] for example in examples]
    questions = [heading_path(chunk["title"], chunk["sections"]) for chunk in trained]
    unique = [at for at, question in enumerate(questions) if questions.count(question) == 1] or [0]
    best = min(unique, key=lambda at: (trained[at]["tokens"], trained[at]["id"]))
    return Question(questions[best], trained[best], examples[best])


def answer_lines(artifacts: RunArtifacts, question: Question) -> Iterator[str]:
    """Yields the question, the text of the page, the model's answer, and the bits per byte of base and model."""
    from tasks.trainer.serve import TextModel  # imports torch

    model = artifacts.artifact("tuned_model")
    served = TextModel(Path(model.local("model/model.json")).parent)
    (answer,) = served.predict([[{"role": "user", "content": question.text}]], {"max_tokens": TOKENS})
    yield f"question   {' / '.join(question.text.splitlines())}"
    yield from _paragraph("page", question.response)
    yield from _paragraph("answer", answer)
    base, tuned = costs(artifacts, question)
    yield f"bits per byte of the page's text after the question: base {base:.3f}, model {tuned:.3f}"


def costs(artifacts: RunArtifacts, question: Question) -> list[float]:
    """Returns the bits per byte of the correct answer under the base and under the tuned model."""
    from tasks.trainer.evaluation.comparison import Contender, response_bits

    model, tokenizer = artifacts.artifact("finetuned"), artifacts.artifact("tokenizer")
    base = origin_of(model)
    assert base is not None, "a fine-tuning has a base"
    examples = Examples(artifacts.artifact("examples"))
    texts = examples.texts(question.example, examples.summary["eos_id"])
    scorers = (Contender.of_artifact("model", artifact, tokenizer).load(1) for artifact in (base, model))
    return [sum(response_bits(scorer, texts)) / len(question.response.encode()) for scorer in scorers]


def _paragraph(name: str, text: str) -> Iterator[str]:
    lines = wrap(" ".join(text.split()), _WIDTH)[:_MAX_LINES] or ["(nothing)"]
    for number, line in enumerate(lines):
        yield f"{name if number == 0 else '':10} {line}"


def page_lines(artifacts: RunArtifacts, question: Question) -> Iterator[str]:
    """Yields the location of a question's chunk, and the training steps that read it."""
    chunk = question.chunk
    yield f"{chunk['url']}, document {chunk['document']}"
    for box in chunk["boxes"] or ():
        place = ", ".join(f"{box[name]:.0f}" for name in ("x0", "y0", "x1", "y1"))
        yield f"page {box['page']}, box {place} in points from the top left corner"
    model = artifacts.artifact("finetuned")
    page_trace = trace(artifacts.store, artifacts.recipe, artifacts.version, chunk["url"])
    assert isinstance(page_trace, PageTrace)
    yield from render_tuned([tuning for tuning in page_trace.tuned if tuning.model == str(model.address)])[1:]
    yield f"sluice trace --recipe {artifacts.recipe} --version {artifacts.version} {chunk['url']}"


class ManualLine(NamedTuple):
    """A line of a page, its font size, and the space above it, both in points."""

    text: str
    size: int
    above: float


def write_manuals(folder: Path) -> list[Path]:
    """Writes the manuals that do not exist yet; returns the paths of all, sorted."""
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
        pages[-1].append(f"BT /{font} {line.size} Tf {place} Td ({_escape(line.text)}) Tj ET\n")
    return _pdf_file(["".join(page) for page in pages])


def _topic_lines(text: str) -> Iterator[ManualLine]:
    """Yields the lines of a topic; underlined lines become headings."""
    rows, number, blank = text.split("\n"), 0, False
    while number < len(rows):
        row, following = rows[number], rows[number + 1] if number + 1 < len(rows) else ""
        if row.strip() and _UNDERLINE.fullmatch(following):
            yield ManualLine(row.strip(), _TITLE if following[0] == "*" else _SECTION, 2.0 * _BODY)
            number += 1
        elif row.strip():
            yield ManualLine(row.rstrip(), _BODY, float(_BODY) if blank else 0.0)
        blank = not row.strip()
        number += 1


def _escape(text: str) -> str:
    """Returns a text as a PDF string in the encoding Windows-1252, with octal escapes for non-ASCII characters."""
    codes = text.encode("cp1252", "replace")
    return "".join(chr(code) if 32 <= code < 127 and chr(code) not in r"\()" else f"\\{code:03o}" for code in codes)


def _pdf_file(pages: list[str]) -> bytes:
    """Returns a PDF file with a catalog, two fonts, and one page per content stream."""
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
    return _assemble(objects)


def _assemble(objects: Mapping[int, bytes]) -> bytes:
    out, offsets = bytearray(b"%PDF-1.4\n"), []
    for number, body in sorted(objects.items()):
        offsets.append(len(out))
        out += b"%d 0 obj\n%s\nendobj\n" % (number, body)
    start = len(out)
    out += b"xref\n0 %d\n0000000000 65535 f \n" % (len(objects) + 1)
    out += b"".join(b"%010d 00000 n \n" % offset for offset in offsets)
    out += b"trailer\n<< /Size %d /Root 1 0 R >>\nstartxref\n%d\n%%%%EOF\n" % (len(objects) + 1, start)
    return bytes(out)
