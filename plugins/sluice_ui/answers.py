"""The pages that answer a question: trace of a page or a step, explanation of a text, why a URL is or is not crawled.

Computes the answers from the store, as the shell does; every document and step in them is a link to its own trace.
"""

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import Form, Query
from fastapi.responses import HTMLResponse, RedirectResponse
from markupsafe import Markup, escape

from sluice_ui.access import (
    RECIPE_NAME,
    VERSION_NAME,
    AnyVersion,
    At,
    Name,
    User,
    VersionName,
    readable,
    respond,
    router,
)
from sluice_ui.frame import HEADERS, ROOT, Address, Version, badge, link, page
from tasks.core.artifact import Artifact, ArtifactId
from tasks.core.errors import InputError
from tasks.run.recipe import Recipe
from tasks.run.runner import open_store
from tasks.stages.crawl.config import CrawlConfig
from tasks.trainer.answering import MOST_TOKENS, MOST_WEIGHTS, continue_text, weights_bytes

if TYPE_CHECKING:
    from tasks.formats.tokens.readings import Reading
    from tasks.run.trace.answer import Document, PageTrace, StepTrace
    from tasks.run.trace.explain import ExplainedSpan, Explanation

STEPS = 8
"""Steps of a document that are links; more are counted."""

MOST_ASKED = 4_000
"""Characters of a question in an address."""

_TARGET = re.compile(r"[a-z]+://\S+|(?:domain|step|tuned):\S+|[0-9a-f]{32}")
"""What is traced; any other text is explained."""

_DOCUMENTS = ("fate", "document", "url", "source", "#tokens", "steps, or reasons", "first seen by")
_READ = ("source", "#sequence", "#epoch", "document", "tokens", "text")
_SPANS = ("span", "#tokens", "#bits", "#occurs", "page", "steps")
"""Titles of tables."""

_FATES = {"kept": "good", "rejected": "bad"}


def trace(recipe: Recipe, version: str, target: str, at: Address) -> str:
    """Returns the page with the trace of a URL, a document, a domain or a step; a form only without a target."""
    from tasks.run.trace.answer import PageTrace, StepTrace
    from tasks.run.trace.text import render
    from tasks.run.trace.trace import trace as compute_trace

    of = Version(recipe.name, version, "trace", "crawl" in recipe.parts)
    values: dict[str, Any] = {"value": target, "query": of.query, "text": "", "tables": [], "step": "", "page": ""}
    if of.crawls and target.strip().startswith(("http://", "https://")):
        values["page"] = link("why it is crawled or not", f"{ROOT}/why", **of.query, url=target.strip())
    if target.strip():
        try:
            found = compute_trace(open_store(recipe), recipe.name, version, target.strip())
        except InputError as error:
            return page("trace", "Trace", at, of, **{**values, "text": str(error)})
        values["text"] = render(found)
        if isinstance(found, PageTrace):
            values["tables"] = [("Documents", "documents", _DOCUMENTS, _documents(found, of))]
        elif isinstance(found, StepTrace):
            values |= {
                "step": str(found.step),
                "tables": [("What the step read, in order", "read", _READ, _sequences(found, of))],
            }
    return page("trace", f"Trace: {target}" if target else "Trace", at, of, **values)


def explain(recipe: Recipe, version: str, text: str, at: Address) -> str:
    """Returns the page with the training documents and steps that contain parts of a text; a form only without one."""
    from tasks.run.trace.explain import MOST_CHARACTERS

    text = text.replace("\r\n", "\n")  # forms send CRLF
    of = Version(recipe.name, version, "explain", "crawl" in recipe.parts)
    values = {**_explain_form(recipe, of), "value": text[:MOST_CHARACTERS]}
    if text:
        values |= _explained(recipe, of, text)
    return page("explain", "Explain a text", at, of, **values)


def generate(recipe: Recipe, version: str, prompt: str, sampling: Mapping[str, Any], at: Address) -> str:
    """Returns the page with the text with which the version's model continues a prompt, and its explanation.

    Args:
        recipe: the recipe.
        version: version of the model.
        prompt: a text.
        sampling: {tokens, temperature, seed} as in `answering.continue_text`.
        at: address of the page.
    """
    prompt = prompt.replace("\r\n", "\n")
    of = Version(recipe.name, version, "explain", "crawl" in recipe.parts)
    values = {**_explain_form(recipe, of), "prompt": prompt, "sampling": sampling}
    try:
        model = _model(recipe, version)
        if model is None:
            raise InputError(f"{recipe.name}@{version} has no model", "open a version that was trained")
        made = continue_text(model, prompt, sampling["tokens"], sampling["temperature"], sampling["seed"])
        found = _explained(recipe, of, made) if made else {"problem": "The model ended the text at once."}
        values |= {"marked": escape(made), "generated": made, **found}
    except InputError as error:
        values["problem"] = str(error)
    return page("explain", "Explain a text", at, of, **values)


def _explain_form(recipe: Recipe, of: Version) -> dict[str, Any]:
    """Returns the values of the forms of an explanation, without an answer."""
    model = _model(recipe, of.version)
    usable = model is not None and 0 < weights_bytes(model) <= MOST_WEIGHTS
    return {
        "value": "", "query": of.query, "text": "", "problem": "", "tables": [], "marked": None, "generated": "",
        "prompt": "", "model": str(model.address) if model and usable else "", "most_tokens": MOST_TOKENS,
        "sampling": {"tokens": 64, "temperature": 0.8, "seed": 0},
    }  # fmt: skip


def _model(recipe: Recipe, version: str) -> Artifact | None:
    """Returns the fine-tuned or else the trained model of a version."""
    store = open_store(recipe)
    found = (Artifact.find(store, ArtifactId(f"{recipe.name}/{kind}", version)) for kind in ("finetuned", "checkpoint"))
    return next(filter(None, found), None)


def _explained(recipe: Recipe, of: Version, text: str) -> dict[str, Any]:
    """Returns the values of the answer: the marked text, and its spans as a table and in full; or why there is none."""
    from tasks.run.trace.explain import explain as compute_explanation
    from tasks.run.trace.text import render_explanation

    try:
        found = compute_explanation(open_store(recipe), recipe.name, of.version, text)
    except InputError as error:
        return {"text": str(error)}
    spans = ("Spans, the least probable first", "spans", _SPANS, _spans(found, of))
    return {"text": render_explanation(found), "marked": _marked(text, found.spans), "tables": [spans]}


def why(recipe: Recipe, version: str, url: str, at: Address) -> str:
    """Returns the page with the reasons why a URL is or is not crawled; a form only without a URL."""
    from tasks.stages.crawl.why import render
    from tasks.stages.crawl.why import why as reasons

    of = Version(recipe.name, version, "why")
    values: dict[str, Any] = {"value": url, "query": of.query, "text": "", "verdict": "", "tables": []}
    if url.strip():
        try:
            facts = reasons(open_store(recipe), recipe.name, recipe.of(CrawlConfig), url, version)
        except InputError as error:
            return page("why", "Why", at, of, **{**values, "text": str(error)})
        rows = [[one["by"], one["says"], "goes away by itself" if one["waits"] else ""] for one in facts["obstacles"]]
        tables = [("Obstacles", "obstacles", ("rule", "reason", "later"), rows)]
        values |= {"text": render(facts), "verdict": facts["verdict"], "tables": tables}
    return page("why", f"Why: {url}" if url else "Why is a URL crawled or not?", at, of, **values)


def trace_link(label: object, what: str, of: Version) -> Markup:
    """Returns a link to the trace of a URL, a document or a step."""
    return link(label, f"{ROOT}/trace", **of.query, what=what)


def _documents(found: "PageTrace", of: Version) -> list[list[object]]:
    """Returns a row per document of a trace: fate, tokens, the steps that read it, the checkpoint that saw it first."""
    return [
        [
            badge(document.fate, _FATES.get(document.fate, "")),
            trace_link(document.id, document.id, of),
            document.url,
            document.source,
            document.position.n_tokens if document.position else None,
            _fate(document, of),
            _checkpoint(document.reading),
        ]
        for document in found.documents
    ]


def _fate(document: "Document", of: Version) -> Markup:
    """Returns the reasons why a document is not kept, or the steps that read it."""
    if document.rejection:
        reasons = escape(", ".join(document.rejection.reasons))
        copy = document.rejection.duplicate_of
        return reasons + Markup(", a copy of ") + trace_link(copy, copy, of) if copy else reasons
    return _steps(document.reading, of)


def _steps(reading: "Reading | None", of: Version) -> Markup:
    steps: Sequence[int] = reading.steps if reading else ()
    shown = Markup(", ").join(trace_link(f"{step:,}", f"step:{step}", of) for step in steps[:STEPS])
    return shown + (f" and {len(steps) - STEPS:,} more" if len(steps) > STEPS else "") if steps else Markup("no step")


def _checkpoint(reading: "Reading | None") -> str:
    first = min(reading.checkpoints, default=None) if reading else None
    return "" if first is None else f"step-{first:08d}"


def _sequences(found: "StepTrace", of: Version) -> list[list[object]]:
    """Returns a row per part of a document that a step read, in the order of reading."""
    rows: list[list[object]] = []
    for sequence in found.sequences:
        for part in sequence.slices or ():
            text = "withheld" if part.withheld else " ".join(part.text.split())[:200]
            last = part.start + part.length - 1
            rows.append(
                [sequence.source, sequence.sequence, sequence.epoch, trace_link(part.url or part.id, part.id, of),
                 f"{part.start:,} .. {last:,}", text]
            )  # fmt: skip
    return rows


def _marked(text: str, spans: Sequence["ExplainedSpan"]) -> Markup:
    """Returns the text with the characters of all spans marked."""
    inside = bytearray(len(text) + 1)
    for span in spans:
        inside[span.start : span.end] = b"\x01" * (min(span.end, len(text)) - span.start)
    parts, begin = [], 0
    for at in range(1, len(text) + 1):
        if at == len(text) or inside[at] != inside[begin]:
            part = escape(text[begin:at])
            parts.append(Markup("<mark>{}</mark>").format(part) if inside[begin] else part)
            begin = at
    return Markup("").join(parts)


def _spans(found: "Explanation", of: Version) -> list[list[object]]:
    """Returns a row per span and page that contains it, the least probable span first."""
    return [
        [
            " ".join(span.text.split())[:200],
            span.tokens,
            round(span.bits),
            span.count,
            trace_link(document.url or document.id, document.id, of),
            _steps(document.reading, of),
        ]
        for span in found.spans
        for document in span.documents
    ]


routes = router()


@routes.get("/ask")
def ask_page(
    recipe: Name, version: VersionName, user: User, q: Annotated[str, Query(max_length=MOST_ASKED)] = ""
) -> RedirectResponse:
    """The page that answers a question: a trace, or for any other text its explanation."""
    readable(recipe, user)
    asked = {"what": q} if _TARGET.fullmatch(q.strip()) else {"text": q}
    path = "/trace" if "what" in asked or not q else "/explain"
    return RedirectResponse(Address(path, {"recipe": recipe, "version": version, **asked}).href(), headers=HEADERS)


@routes.get("/trace")
def trace_page(
    recipe: Name, version: VersionName, user: User, at: At, what: Annotated[str, Query(max_length=4000)] = ""
) -> HTMLResponse:
    """Trace of a page, a document or a training step."""
    return respond(lambda: trace(readable(recipe, user), version, what, at))


@routes.get("/explain")
def explain_form(
    recipe: Name, version: VersionName, user: User, at: At, text: Annotated[str, Query(max_length=MOST_ASKED)] = ""
) -> HTMLResponse:
    """The form of an explanation, or that of a short text."""
    return respond(lambda: explain(readable(recipe, user), version, text, at))


@routes.post("/explain")
def explain_page(
    recipe: Annotated[str, Form(pattern=f"^{RECIPE_NAME}$", max_length=100)],
    version: Annotated[str, Form(pattern=f"^{VERSION_NAME}$", max_length=100)],
    user: User,
    at: At,
    text: Annotated[str, Form()] = "",
) -> HTMLResponse:
    """Pages and training steps of a text. Uses POST because the text may be too long for a URL; changes nothing."""
    return respond(lambda: explain(readable(recipe, user), version, text, at))


@routes.post("/generate")
def generate_page(
    recipe: Annotated[str, Form(pattern=f"^{RECIPE_NAME}$", max_length=100)],
    version: Annotated[str, Form(pattern=f"^{VERSION_NAME}$", max_length=100)],
    user: User,
    prompt: Annotated[str, Form(max_length=20_000)] = "",
    tokens: Annotated[int, Form(ge=1, le=MOST_TOKENS)] = 64,
    temperature: Annotated[float, Form(ge=0, le=2)] = 0.8,
    seed: Annotated[int, Form(ge=0, lt=2**31)] = 0,
) -> HTMLResponse:
    """A continuation by the model, explained. Uses POST because it costs seconds of the server; changes nothing."""
    sampling = {"tokens": tokens, "temperature": temperature, "seed": seed}
    at = Address("/explain", {"recipe": recipe, "version": version})
    return respond(lambda: generate(readable(recipe, user), version, prompt, sampling, at))


@routes.get("/why")
def why_page(
    recipe: Name,
    user: User,
    at: At,
    version: AnyVersion = "",
    url: Annotated[str, Query(max_length=4000)] = "",
) -> HTMLResponse:
    """Reasons why a URL is or is not crawled: in one cycle, or according to the newest artifacts."""
    return respond(lambda: why(readable(recipe, user), version, url, at))
