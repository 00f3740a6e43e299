"""Regret: bits per byte of the models of all months on held-out text of all months.

Nothing is scored here. The scores of a month's model, of the champion that it was compared with, and of any model that
`sluice evaluate-model <recipe>/checkpoint@<month> --version <this month>` has scored, have a row per held-out
document; accumulated shards say in which month a document was encoded. Models on text of their own month are
in-distribution, on earlier text backward (forgetting), on later text forward (ageing), as in TiC-LM (Li et al. 2025,
arXiv 2504.02107). A value that nobody has scored is missing.
"""

import json
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np

from tasks.core.artifact import Artifact, ArtifactId
from tasks.core.store import Store
from tasks.core.version_index import VersionIndex
from tasks.formats.tokens.index import DOCUMENT, table_path
from tasks.formats.tokens.origins import accumulates, read_origins
from tasks.run.lineage import chain_of
from tasks.stages.registry.promote import CHAMPION, COMPARISON

# Here and not imported from the modules that write them, because these import torch.
MODEL_SCORES, DOCUMENTS = "model_scores", "documents"
"""Kind of the artifacts of `evaluate-model`, and the folder of scored documents in all artifacts."""

Scores = dict[str, dict[str, float]]
"""Bits per byte by the version of the model, then by the month of the text."""


class Regret(NamedTuple):
    """Bits per byte of models (rows) on text of months (columns), and the means of three triangles; None: unknown."""

    models: list[str]
    months: list[str]
    bpb: list[list[float | None]]
    in_distribution: float | None
    backward: float | None
    forward: float | None


def scores_of(store: Store, recipe: str, version: str) -> Scores:
    """Returns what was scored at a version on its held-out text, by the months of the documents."""
    found: Scores = {}
    for model, artifact, prefix in _scored(store, recipe, version):
        shards = chain_of(artifact).get("shards") or _shards(artifact)
        if shards is not None:
            found.setdefault(model, _by_month(artifact, f"{DOCUMENTS}/{prefix}", shards))
    return found


def _scored(store: Store, recipe: str, version: str) -> Iterator[tuple[str, Artifact, str]]:
    """Yields the version of a model of the recipe, the artifact with its scores, and the prefix of their files."""
    if scores := Artifact.find(store, ArtifactId(f"{recipe}/scores", version)):
        (checkpoint,) = scores.ids_of("checkpoint")
        yield checkpoint.version, scores, ""
    if comparison := Artifact.find(store, ArtifactId(f"{recipe}/comparison", version)):
        champion = json.loads(comparison.read(COMPARISON))[CHAMPION]
        if champion:
            yield champion["artifact"].partition("@")[2], comparison, f"{CHAMPION}."
    for artifact in VersionIndex(store, recipe).artifacts(version):
        if artifact.address.name.startswith(f"{recipe}/{MODEL_SCORES}/"):
            name, _, model = json.loads(artifact.read("scores.json"))["model"].partition("@")
            if name in (f"{recipe}/checkpoint", f"{recipe}/model"):
                yield model, artifact, ""


def _shards(artifact: Artifact) -> Artifact | None:
    addresses = artifact.ids_of("shards")
    return Artifact.find(artifact.store, addresses[0]) if addresses else None


def _by_month(scores: Artifact, prefix: str, shards: Artifact) -> dict[str, float]:
    """Returns the bits per byte of the documents of each month."""
    bits: dict[str, list[float]] = defaultdict(list)
    size: dict[str, int] = defaultdict(int)
    rows = [row for path in scores.files(prefix) for row in scores.table(path, ["id", "bytes", "bits"]).to_pylist()]
    months = months_of_documents(shards, [row["id"] for row in rows])
    for row, month in zip(rows, months, strict=True):
        bits[month].append(row["bits"])
        size[month] += row["bytes"]
    return {month: math.fsum(values) / size[month] for month, values in sorted(bits.items()) if size[month]}


def months_of_documents(shards: Artifact, ids: Sequence[str]) -> list[str]:
    """Returns the version in which each document, by its id, was encoded."""
    months = np.full(len(ids), shards.address.version, object)
    if accumulates(shards):
        wanted = np.frombuffer(bytes.fromhex("".join(ids)), "V16")
        for part, origin in read_origins(shards).items():
            has = np.isin(wanted, np.fromfile(shards.local(table_path(part)), DOCUMENT)["uid"])
            months[has] = ArtifactId.parse(origin.documents).version
    return [str(month) for month in months]


def matrix(history: Sequence[Mapping[str, Any]]) -> Regret:
    """Returns the matrix over all months; where several months have scored the same, the newest value.

    Args:
        history: entries of the months, oldest first, each with `version` and `scores`.
    """
    known: Scores = {}
    for entry in history:
        for model, by_month in entry["scores"].items():
            known.setdefault(model, {}).update(by_month)
    months = [entry["version"] for entry in history]
    models = [month for month in months if month in known]
    at = {month: number for number, month in enumerate(months)}
    bpb = [[known[model].get(month) for month in months] for model in models]

    def mean(first: int, last: int) -> float | None:
        pairs = ((model, month) for model in models for month in months if first <= at[month] - at[model] <= last)
        values = [known[model][month] for model, month in pairs if month in known[model]]
        return fmean(values) if values else None

    return Regret(models, months, bpb, mean(0, 0), mean(-len(months), -1), mean(1, len(months)))
