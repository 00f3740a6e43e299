"""The spread of scores over trainings that differ only in their seeds.

Reads `scores.json` of the replicas, and the records of the scores and of the checkpoints of all trainings.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import fmean, stdev
from typing import Any

from tasks.core.artifact import Artifact, ArtifactId, InputRef
from tasks.core.config import Config, changes
from tasks.core.errors import InputError

SEEDS = ("init_seed", "seed")
"""Settings of a training in which replicas must differ."""
_NOT_COMPARED = ("replicas", "task_milestones")
"""Settings of an evaluation that do not affect the scores of the last milestone."""

Scores = Mapping[str, Any]
Contents = Mapping[str, Sequence[str]]
"""Content hashes of inputs, by role."""


def spread(
    scores: Scores, replicas: Sequence[Artifact], config: Config, inputs: Contents, checkpoint: Artifact
) -> dict[str, Any]:
    """Returns the scores of the last milestone of a model and its replicas, with mean and standard deviation.

    Args:
        scores: content of `scores.json`, without the spread.
        replicas: scores of the replicas.
        config: settings of this evaluation.
        inputs: its inputs except the checkpoint and the replicas.
        checkpoint: the training that was evaluated.

    Returns:
        {replicas: [id], rows: [{kind, name, metric, values, mean, sd}]}. `values` has the value of this training first,
        then those of the replicas; `sd` is the sample standard deviation of all of them.

    Raises:
        InputError: a replica differs in more than its seeds, or two have the same seeds.
    """
    checkpoints_by_seeds = {_seeds(checkpoint): str(checkpoint.address)}
    for replica in replicas:
        other = _checkpoint(replica)
        _check_equal(replica, other, config, inputs, checkpoint)
        if twin := checkpoints_by_seeds.get(_seeds(other)):
            raise InputError(
                f"[evaluate] replicas: {other.address} has the seeds of {twin}, and the same weights",
                f"give it other seeds: {' and '.join(f'train.{name}' for name in SEEDS)}",
            )
        checkpoints_by_seeds[_seeds(other)] = str(other.address)
    all_values = [
        dict(_values(content))
        for content in (scores, *(json.loads(replica.read("scores.json")) for replica in replicas))
    ]
    rows = [
        {"kind": kind, "name": name, "metric": metric, "values": values, "mean": fmean(values), "sd": stdev(values)}
        for kind, name, metric in all_values[0]
        for values in [[of_run[kind, name, metric] for of_run in all_values]]
    ]
    return {"replicas": [str(replica.address) for replica in replicas], "rows": rows}


def _values(scores: Scores) -> Iterator[tuple[tuple[str, str, str], float]]:
    """Yields (kind, name, metric) and value of the last milestone."""
    for source, score in scores["sources"].items():
        yield ("source", source, "bpb"), score["bpb"]
    for task in scores.get("tasks", ()):
        if task["step"] == scores["step"]:
            yield from ((("task", task["task"], name), score["value"]) for name, score in task["metrics"].items())


def _seeds(checkpoint: Artifact) -> tuple[int, ...]:
    return tuple(checkpoint.record.config[name] for name in SEEDS)


def _checkpoint(replica: Artifact) -> Artifact:
    ref = next((ref for ref in replica.record.inputs if ref.role == "checkpoint"), None)
    checkpoint = Artifact.find(replica.store, ArtifactId.parse(ref.address)) if ref else None
    if ref is None or checkpoint is None or checkpoint.record.content != ref.content:
        raise InputError(
            f"[evaluate] replicas: the checkpoint of {replica.address} is missing",
            "restore it, or leave the scores out",
        )
    return checkpoint


def _check_equal(replica: Artifact, other: Artifact, config: Config, inputs: Contents, checkpoint: Artifact) -> None:
    """Raises InputError with all differences except the seeds, of the training or of the evaluation."""
    replica_inputs = contents(replica.record.inputs)
    differing = [
        *_settings(checkpoint.record.config, other.record.config, "train", SEEDS),
        *_inputs(contents(checkpoint.record.inputs), contents(other.record.inputs), "training"),
        *_settings(config.model_dump(mode="json"), replica.record.config, "evaluate", _NOT_COMPARED),
        *_inputs(inputs, {role: hashes for role, hashes in replica_inputs.items() if role in inputs}, "evaluation"),
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
    """Returns the sorted content hashes of inputs, by role."""
    by_role: dict[str, list[str]] = {}
    for ref in refs:
        by_role.setdefault(ref.role, []).append(ref.files or ref.content)
    return {role: sorted(hashes) for role, hashes in by_role.items()}


def _inputs(ours: Contents, theirs: Contents, of: str) -> Iterator[str]:
    for role in sorted(ours.keys() | theirs.keys()):
        if ours.get(role) != theirs.get(role):
            yield f"what the {of} has read as {role}"
