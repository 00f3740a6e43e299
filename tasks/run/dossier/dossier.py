"""Writes the dossier of a model: one folder that opens in a browser without a network.

    index.html        everything below, to read
    summary.json      the public summary of training content (`summary`)
    model-card.md     the card of the model
    croissant.json    the card of the corpus (`croissant`)
    domains.json      every crawled domain: documents, bytes, licences and terms of use that its pages stated
    takedowns.json    all takedowns, and the check that current artifacts are free of them
    traces.json       random documents with the steps that read them, each with the command that repeats the trace
    artifacts.json    every artifact of the lineage: fingerprint, content, code, host, times
    SHA256SUMS        of all files above; its own hash is the signature of the dossier

Reads records, the kept documents, the crawl DB, and for the traces index, plan and shards.
"""

import hashlib
import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

from tasks.core.artifact import Artifact
from tasks.core.errors import InputError
from tasks.core.pages import template
from tasks.core.store import Store
from tasks.formats.documents.languages import language_name
from tasks.formats.documents.tombstones import in_force
from tasks.run import lineage
from tasks.run.dossier.corpus import Corpus, terms_of_use
from tasks.run.dossier.croissant import croissant
from tasks.run.dossier.summary import Statement, summary
from tasks.run.export import new_folder
from tasks.run.lake import TableCheck
from tasks.run.trace.answer import PageTrace
from tasks.run.trace.audit import Audit, audit
from tasks.run.trace.cards import card
from tasks.run.trace.trace import trace

TRACES = 20
"""Default number of random traces."""
SUMS = "SHA256SUMS"
_STEPS = 5
"""Steps of a document that a trace shows."""


@dataclass(frozen=True)
class WrittenDossier:
    """The folder of a dossier, and its signature: the SHA-256 of `SHA256SUMS`."""

    folder: Path
    sha256: str

    def text(self) -> str:
        """Returns where it is, and how to check it."""
        return f"{self.folder}\nsha256 of {SUMS}: {self.sha256}\ncheck it with: cd {self.folder} && sha256sum -c {SUMS}"


def write_dossier(
    store: Store,
    recipe: str,
    version: str,
    out: str,
    statement: Statement,
    tables: Sequence[TableCheck] = (),
    traces: int = TRACES,
    seed: int = 0,
) -> WrittenDossier:
    """Writes the dossier of the trained model of a version; the same arguments and artifacts give the same bytes.

    Args:
        store: store of the artifacts.
        recipe: name of the recipe.
        version: version of the model.
        out: path of the folder to make.
        statement: what only the provider knows.
        tables: checks of the tables of the recipe's lake, for the audit.
        traces: number of random documents to trace.
        seed: seed of their choice.

    Raises:
        InputError: the version has no model or no documents, or the folder exists.
    """
    artifacts = lineage.chain(store, recipe, version)
    for kind in ("checkpoint", "shards", "documents"):
        if kind not in artifacts:
            raise InputError(
                f"{recipe}@{version} has no {kind}", "a dossier is about a model trained here: train first"
            )
    corpus, takedowns = Corpus.of(artifacts["documents"]), audit(store, recipe, tables)
    terms = terms_of_use(artifacts["warc"]) if "warc" in artifacts else {}
    content: dict[str, Any] = {
        "summary.json": summary(artifacts, corpus, statement),
        "croissant.json": croissant(artifacts, corpus, statement),
        "domains.json": _domains(corpus, terms),
        "takedowns.json": takedowns.to_json(),
        "traces.json": _traces(store, recipe, version, artifacts, traces, seed),
        "artifacts.json": _artifacts(artifacts),
    }
    model_card = card(artifacts, in_force(store, recipe))
    files = {name: json.dumps(value, indent=1, sort_keys=True, ensure_ascii=False, default=str) + "\n"
             for name, value in content.items()}  # fmt: skip
    files["model-card.md"] = model_card
    files["index.html"] = _page(f"{recipe}@{version}", content, model_card, takedowns, sorted(files))
    sums = "".join(f"{hashlib.sha256(files[name].encode()).hexdigest()}  {name}\n" for name in sorted(files))
    with new_folder(out) as folder:
        for name, text in {**files, SUMS: sums}.items():
            (folder / name).write_text(text, encoding="utf-8")
    return WrittenDossier(Path(out).absolute(), hashlib.sha256(sums.encode()).hexdigest())


def _domains(corpus: Corpus, terms: Mapping[str, Mapping[str, int]]) -> list[dict[str, Any]]:
    """Returns a row per crawled domain, those with the most bytes first."""
    return [
        {
            "domain": name,
            "documents": count.documents,
            "bytes": count.bytes,
            "licences": {licence or "none stated": n for licence, n in sorted(corpus.licences[name].items())},
            "terms": dict(sorted(terms.get(name, {}).items())),
        }
        for name, count in corpus.largest_domains(len(corpus.domains))
    ]


def _artifacts(artifacts: Mapping[str, Artifact]) -> list[dict[str, Any]]:
    """Returns a row per artifact of the lineage, the last one first."""
    fields = ("artifact", "stage", "stage_version", "fingerprint", "content", "code", "host", "started", "finished")
    records = (artifact.record.model_dump(mode="json") for artifact in artifacts.values())
    return [{name: record[name] for name in (*fields, "adopted_from")} for record in records]


def _traces(
    store: Store, recipe: str, version: str, artifacts: Mapping[str, Artifact], most: int, seed: int
) -> list[dict[str, Any]]:
    """Returns random kept documents with the number of steps that read them, the first of these, and the command."""
    rows = []
    for doc_id in _random_ids(artifacts["documents"], most, seed):
        found = trace(store, recipe, version, doc_id)
        document = next(one for one in cast(PageTrace, found).documents if one.id == doc_id)
        steps = document.reading.steps if document.reading else ()
        rows.append(
            {
                "id": doc_id,
                "url": document.url,
                "source": document.source,
                "steps": len(steps),
                "first_steps": list(steps[:_STEPS]),
                "command": f"sluice trace --recipe {recipe} --version {version} {doc_id}",
            }
        )
    return rows


def _random_ids(documents: Artifact, most: int, seed: int) -> Sequence[str]:
    """Returns the ids of random kept documents, in order of their position."""
    files = [(entry.path, entry.rows or 0) for entry in documents.entries("kept/")]
    total = sum(rows for _, rows in files)
    chosen = sorted(random.Random(seed).sample(range(total), min(most, total)))
    ids: list[str] = []
    first = 0
    for path, rows in files:
        inside = [number - first for number in chosen if first <= number < first + rows]
        if inside:
            ids += documents.table(path, ["id"]).column("id").take(inside).to_pylist()
        first += rows
    return ids


def _page(title: str, content: Mapping[str, Any], model_card: str, takedowns: Audit, files: Sequence[str]) -> str:
    values = {name.partition(".")[0]: value for name, value in content.items()}
    return template(__package__, "dossier.html").render(
        title=title, card=model_card, audit=takedowns.text(), requests=[asdict(one) for one in takedowns.takedowns],
        files=files, language_name=language_name, **values
    )  # fmt: skip
