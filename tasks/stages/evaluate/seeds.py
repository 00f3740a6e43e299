"""The spread of scores over trainings that differ in nothing but their seeds.

Reads `scores.json` of other scores, and the records of these, of this version's checkpoint and of theirs.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import fmean, stdev
from typing import Any

from tasks.core.artifact import Artifact, ArtifactId, InputRef
from tasks.core.config import Config, changes
from tasks.core.errors import InputError

SEEDS = ("init_seed", "seed")
"""Settings of a training in which replicas may differ, and must."""
_NOT_COMPARED = ("replicas", "task_milestones")
"""Settings of an evaluation on which the scores of the last milestone do not depend."""

Scores = Mapping[str, Any]
Contents = Mapping[str, Sequence[str]]
"""What was read, by role."""


def spread(
    scores: Scores, replicas: Sequence[Artifact], config: Config, inputs: Contents, checkpoint: Artifact
) -> dict[str, Any]:
    """Returns the values of a model and its replicas, of the last milestone.

    Args:
        scores: content of `scores.json`, without the spread.
        replicas: scores of the others.
        config: settings of this evaluation.
        inputs: what it reads beside the checkpoint and the replicas.
        checkpoint: the training that was evaluated.

    Returns:
        {replicas: [id], rows: [{kind, name, metric, values, mean, sd}]}: the value of this training, then those of the
        others; `sd` is the sample deviation over all of them.

    Raises:
        InputError: one of them differs in something else than its seeds, or two have the same ones.
    """
    known = {_seeds(checkpoint): str(checkpoint.address)}
    for replica in replicas:
        other = _checkpoint(replica)
        _check_equal(replica, other, config, inputs, checkpoint)
        if twin := known.get(_seeds(other)):
            raise InputError(
                f"[evaluate] replicas: {other.address} has the seeds of {twin}, and the same weights",
                f"give it other seeds: {' and '.join(f'train.{name}' for name in SEEDS)}",
            )
        known[_seeds(other)] = str(other.address)
    every = [dict(_values(one)) for one in (scores, *(json.loads(one.read("scores.json")) for one in replicas))]
    rows = [
        {"kind": kind, "name": name, "metric": metric, "values": values, "mean": fmean(values), "sd": stdev(values)}
        for kind, name, metric in every[0]
        for values in [[one[kind, name, metric] for one in every]]
    ]
    return {"replicas": [str(one.address) for one in replicas], "rows": rows}


def _values(scores: Scores) -> Iterator[tuple[tuple[str, str, str], float]]:
    """Yields (kind, name, metric) and value of the last milestone."""
    for source, found in scores["sources"].items():
        yield ("source", source, "bpb"), found["bpb"]
    for task in scores.get("tasks", ()):
        if task["step"] == scores["step"]:
            yield from ((("task", task["task"], name), found["value"]) for name, found in task["metrics"].items())


def _seeds(checkpoint: Artifact) -> tuple[int, ...]:
    return tuple(checkpoint.record.config[name] for name in SEEDS)


def _checkpoint(replica: Artifact) -> Artifact:
    ref = next((ref for ref in replica.record.inputs if ref.role == "checkpoint"), None)
    found = Artifact.find(replica.store, ArtifactId.parse(ref.address)) if ref else None
    if ref is None or found is None or found.record.content != ref.content:
        raise InputError(
            f"[evaluate] replicas: the checkpoint of {replica.address} is gone", "restore it, or leave the scores out"
        )
    return found


def _check_equal(replica: Artifact, other: Artifact, config: Config, inputs: Contents, checkpoint: Artifact) -> None:
    """Raises InputError naming what differs beside the seeds: of the training, or of the evaluation."""
    read = contents(replica.record.inputs)
    differing = [
        *_settings(checkpoint.record.config, other.record.config, "train", SEEDS),
        *_inputs(contents(checkpoint.record.inputs), contents(other.record.inputs), "training"),
        *_settings(config.model_dump(mode="json"), replica.record.config, "evaluate", _NOT_COMPARED),
        *_inputs(inputs, {role: found for role, found in read.items() if role in inputs}, "evaluation"),
    ]
    if differing:
        raise InputError(
            f"[evaluate] replicas: {replica.address} differs in more than its seeds: {', '.join(differing)}",
            "name scores of trainings with equal settings and inputs, or leave it out",
        )


def _settings(ours: Mapping[str, Any], theirs: Mapping[str, Any], section: str, but: Sequence[str]) -> Iterator[str]:
    for path, _, _ in changes(dict(ours), dict(theirs), ""):
        if path.partition(".")[0] not in but:
            yield f"{section}.{path}"


def contents(refs: Iterable[InputRef]) -> dict[str, list[str]]:
    """Returns the content of inputs, by role."""
    found: dict[str, list[str]] = {}
    for ref in refs:
        found.setdefault(ref.role, []).append(ref.files or ref.content)
    return {role: sorted(several) for role, several in found.items()}


def _inputs(ours: Contents, theirs: Contents, of: str) -> Iterator[str]:
    for role in sorted(ours.keys() | theirs.keys()):
        if ours.get(role) != theirs.get(role):
            yield f"what the {of} has read as {role}"
