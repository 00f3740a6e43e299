"""The pages: recipes, one version of a recipe, one artifact, samples of the corpus, a trace, an explanation, why.

Finds artifacts in the index of the store, so that a page costs the same in a small and in a large store. A page shows
the artifacts that exist and marks missing ones.

Displayed values are text from the web or user input, so the templates and the fragments here escape every value, and
the Content-Security-Policy forbids all scripts except `static/links.js`.
"""

import json
from collections import defaultdict
from typing import Any
from urllib.parse import quote, urlencode

import pyarrow.compute as pc
from markupsafe import Markup

from tasks.core import parquet
from tasks.core.artifact import Artifact, ArtifactId, InputRef
from tasks.core.errors import InputError
from tasks.core.ledger import changed
from tasks.core.pages import template
from tasks.core.store import Store
from tasks.core.version_index import VersionIndex
from tasks.run.recipe import Recipe
from tasks.run.runner import mlflow_url, open_store
from tasks.stages.consolidate.funnel import totals
from tasks.stages.crawl.config import CrawlConfig

ROOT = "/sluice"
"""Path at which the pages are mounted."""

HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; script-src 'self'; form-action 'self'; "
    "frame-ancestors 'self'; base-uri 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}

SAMPLE = 20
"""Documents on the corpus page, for kept and rejected ones each."""

EXCERPT = 400
"""Characters of a document on the corpus page."""


def recipes(readable: list[Recipe]) -> str:
    """Returns the page with the list of recipes, each with links to its versions."""
    rows = []
    for recipe in readable:
        versions = VersionIndex(open_store(recipe), recipe.name).versions()
        links = [link(version, f"{ROOT}/recipe/{recipe.name}", version=version) for version in versions]
        rows.append([recipe.name, Markup(" ").join(links) or "no artifacts yet", recipe.schedule or "manual"])
    return page("recipes", "Sluice", recipes=rows)


def run(recipe: Recipe, version: str) -> str:
    """Returns the page of one version of a recipe: funnel, mixture, artifacts, and forms for trace and why.

    Raises:
        InputError: the version has no artifacts.
    """
    index = VersionIndex(open_store(recipe), recipe.name)
    artifacts = index.artifacts(version)
    if not artifacts:
        known = ", ".join(index.versions()) or "none yet"
        raise InputError(f"{recipe.name} has no artifacts of version {version}", f"versions: {known}")
    artifacts_by_kind = {artifact.address.name.removeprefix(f"{recipe.name}/"): artifact for artifact in artifacts}
    return page(
        "run",
        f"{recipe.name} {version}",
        run={"recipe": recipe.name, "version": version},
        crawls="crawl" in recipe.parts,
        hosts=_hosts(artifacts_by_kind),
        funnel=_funnel(artifacts_by_kind.get("documents")),
        documents="documents" in artifacts_by_kind,
        mixture=_mixture(artifacts_by_kind.get("mixture")),
        artifacts=[_artifact_row(artifact) for artifact in artifacts],
    )


def artifact_page(recipe: Recipe, address: str) -> str:
    """Returns the page of one artifact: its inputs, settings and metrics, and the artifacts that used it.

    Raises:
        InputError: there is no such artifact; also for an address that is none, so that it is never used as a path.
    """
    index = VersionIndex(open_store(recipe), recipe.name)
    version = address.partition("@")[2]
    readable = index.artifacts(version) if version and "/" not in version else []
    known = {str(artifact.address): artifact for artifact in readable}
    if address not in known:
        raise InputError(f"there is no artifact {address}", "begin at the recipe's versions")
    artifact = known[address]
    record = artifact.record
    inputs = [
        [ref.role, _artifact_link(ref.address), ref.content[:12], _state(artifact.store, ref)] for ref in record.inputs
    ]
    facts: list[list[object]] = [
        ["fingerprint", record.fingerprint],
        ["content", record.content],
        ["stage", f"{record.stage}, version {record.stage_version}"],
        ["code", ", ".join(f"{name} {value}" for name, value in sorted(record.code.items()))],
        ["host", ", ".join(f"{name} {value}" for name, value in sorted(record.host.items()))],
        ["made", f"{record.started:%Y-%m-%d %H:%M:%S} to {record.finished:%H:%M:%S} UTC"],
        ["rows", f"{record.rows_in:,} in, {record.rows_out:,} out, {sum(record.rejected.values()):,} rejected"],
        ["bytes", record.bytes],
        ["files of", _artifact_link(record.adopted_from) if record.adopted_from else ""],
        ["note", record.note],
        ["MLflow", _mlflow(artifact)],
    ]
    metrics = sorted({**record.metrics, **{f"rejected: {k}": v for k, v in record.rejected.items()}}.items())
    return page(
        "artifact",
        address,
        facts=facts,
        inputs=inputs,
        users=[[_artifact_link(descendant)] for descendant in index.users(artifact.address)],
        metrics=metrics,
        settings=json.dumps(record.config, indent=2, ensure_ascii=False),
    )


def corpus(recipe: Recipe, version: str) -> str:
    """Returns the page with the beginnings of some kept and rejected documents."""
    documents = Artifact.open_at(open_store(recipe), ArtifactId(f"{recipe.name}/documents", version))
    kept_rows = _rows(documents, "kept/", ["title", "url", "source", "tier", "prose_score", "text"])
    rejected_rows = _rows(documents, "rejected/", ["url", "source", "reason", "reasons"])
    rejected = [[row["url"], row["source"], row["reason"], ", ".join(row["reasons"])] for row in rejected_rows]
    return page("corpus", f"{recipe.name} {version}: documents", kept=kept_rows, rejected=rejected)


def trace(recipe: Recipe, version: str, target: str) -> str:
    """Returns the page with the trace of a URL, a document, a domain or a step."""
    from tasks.run.trace.text import render
    from tasks.run.trace.trace import trace as compute_trace

    try:
        answer = render(compute_trace(open_store(recipe), recipe.name, version, target.strip()))
    except InputError as error:
        answer = str(error)
    return _answer(
        "trace",
        f"Trace: {target}",
        answer,
        [_back(recipe, version)],
        value=target,
        field="what",
        label="Trace",
        hidden={"recipe": recipe.name, "version": version},
    )


def explain(recipe: Recipe, version: str, text: str) -> str:
    """Returns the page with the training documents and steps that contain parts of a text."""
    from tasks.run.trace.explain import MOST_CHARACTERS
    from tasks.run.trace.explain import explain as compute_explanation
    from tasks.run.trace.text import render_explanation

    text = text.replace("\r\n", "\n")  # forms send CRLF
    try:
        answer = render_explanation(compute_explanation(open_store(recipe), recipe.name, version, text))
    except InputError as error:
        answer = str(error)
    hidden = {"recipe": recipe.name, "version": version}
    value = text[:MOST_CHARACTERS]
    return page("explain", "Explain a text", answer=answer, links=[_back(recipe, version)], value=value, hidden=hidden)


def why(recipe: Recipe, version: str, url: str) -> str:
    """Returns the page with the reasons why a URL is or is not crawled."""
    from tasks.stages.crawl.why import render
    from tasks.stages.crawl.why import why as reasons

    try:
        answer = render(reasons(open_store(recipe), recipe.name, recipe.of(CrawlConfig), url, version))
    except InputError as error:
        answer = str(error)
    newest = link("the newest cycle", f"{ROOT}/why", recipe=recipe.name, url=url)
    links = [_back(recipe, version), newest] if version else [link("All recipes", f"{ROOT}/")]
    return _answer(
        "why",
        f"Why: {url}",
        answer,
        links,
        value=url,
        field="url",
        label="Ask",
        hidden={"recipe": recipe.name, "version": version},
    )


def error(status: int, message: str) -> str:
    """Returns the page for a request that was refused, or that failed."""
    return page("error", {404: "Not found", 503: "Not available"}.get(status, "Not possible"), message=message)


def _answer(path: str, title: str, answer: str, links: list[Markup], **form: Any) -> str:
    return page("answer", title, page=path, answer=answer, links=links, **form)


def _back(recipe: Recipe, version: str) -> Markup:
    return link(f"{recipe.name} {version}", f"{ROOT}/recipe/{recipe.name}", version=version)


def _state(store: Store, ref: InputRef) -> str:
    """Returns whether an input is as it was when it was read."""
    name, at_sign, version = ref.address.partition("@")
    current = Artifact.find(store, ArtifactId(name, version)) if at_sign else None
    return changed(ref, current) or "unchanged"


def _artifact_row(artifact: Artifact) -> list[object]:
    record = artifact.record
    seconds = (record.finished - record.started).total_seconds()
    rejected = sum(record.rejected.values())
    finished = f"{record.finished:%Y-%m-%d %H:%M:%S}"
    return [_artifact_link(record.artifact), record.stage, finished, round(seconds, 1), record.rows_in,
            record.rows_out, rejected, record.bytes, _mlflow(artifact)]  # fmt: skip


def _artifact_link(address: str) -> str:
    return address if address.startswith(("external:", "code:")) else link(address, f"{ROOT}/artifact/{address}")


def _mlflow(artifact: Artifact) -> str:
    url = mlflow_url(artifact)
    return external_link("run", url) if url else ""


def _funnel(documents: Artifact | None) -> list[list[object]] | None:
    if documents is None or "funnel.parquet" not in documents.files():
        return None
    rows = totals(documents.table("funnel.parquet"), ["source", "step", "reason"])
    documents_of: dict[str, int] = defaultdict(int)
    for row in rows:
        documents_of[row["source"]] += row["documents"]
    lines: list[list[object]] = []
    for row in rows:
        share = row["documents"] / max(documents_of[row["source"]], 1)
        share_bar = bar(share, lost=row["step"] != "kept") + f" {share:.1%}"
        lines.append([row["source"], row["step"], row["reason"] or "kept", row["documents"], row["bytes"], share_bar])
    return lines


def _mixture(mixture: Artifact | None) -> dict[str, object] | None:
    if mixture is None:
        return None
    decision = json.loads(mixture.read("mixture.json"))
    weights = [[name, share, bar(share)] for name, share in sorted(decision["weights"].items())]
    return {"reason": decision.get("reason", ""), "weights": weights}


def _hosts(artifacts_by_kind: dict[str, Artifact]) -> list[list[object]]:
    segments = [(name, a.record) for name, a in sorted(artifacts_by_kind.items()) if name.startswith("segment/")]
    return [
        [name, record.rows_in, record.rows_out, ", ".join(f"{k} {v:,}" for k, v in sorted(record.rejected.items())),
         round(record.rows_out / max((record.finished - record.started).total_seconds(), 1e-9), 1)]
        for name, record in segments
    ]  # fmt: skip


def _rows(artifact: Artifact, prefix: str, columns: list[str]) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for path in artifact.files(prefix):
        with parquet.open_file(artifact.local(path)) as file:
            for batch in file.iter_batches(batch_size=SAMPLE, columns=columns):
                rows += _truncate_text(batch).to_pylist()
                if len(rows) >= SAMPLE:
                    return rows[:SAMPLE]
    return rows


def _truncate_text(batch: Any) -> Any:
    if "text" not in batch.schema.names:
        return batch
    at = batch.schema.get_field_index("text")
    return batch.set_column(at, "text", pc.utf8_slice_codeunits(batch.column("text"), 0, EXCERPT))


def page(name: str, title: str, **values: Any) -> str:
    """Returns the HTML document of `templates/<name>.html`."""
    return template(__package__, f"templates/{name}.html").render(title=title, root=ROOT, link=link, **values)


def link(label: object, path: str, **query: str) -> Markup:
    """Returns a link to a page of this application."""
    parameters = f"?{urlencode(query)}" if query else ""
    return Markup('<a href="{}{}">{}</a>').format(quote(path), parameters, label)


def external_link(label: str, url: str) -> str:
    """Returns a link to another site, or only the label if the URL is not http or https."""
    if not url.startswith(("http://", "https://")):
        return label
    return Markup('<a href="{}" target="_blank" rel="noopener noreferrer">{}</a>').format(url, label)


def bar(share: float, *, lost: bool = False) -> Markup:
    """Returns a bar whose width is `share` (0..1) of 16 rem."""
    width = 16 * min(max(share, 0.0), 1.0)
    return Markup('<span class="bar{}" style="width:{:.2f}rem"></span>').format(" lost" if lost else "", width)
