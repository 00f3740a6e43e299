"""Evidence of earlier cycles: their runs, with what their sources contained, as they are recorded and registered.

Every cycle ends with `evidence.json` in `mixture`: its own runs and those of the cycles before it, so that they last
longer than their artifacts. The first round of the next cycle registers which of them enter, with which weights
(`registered`), before its first run. `statistics.pooled` fits them.
"""

import hashlib
import json
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, BinaryIO, cast

from tasks.core.artifact import Artifact
from tasks.core.errors import InputError
from tasks.core.ranges import RangeFile, RangeReader, entries_of
from tasks.formats.tokens.shard import FOLDER as SHARDS
from tasks.formats.tokens.shard import TRAIN, count_labels, parse_shard_name

EVIDENCE = "evidence.json"
_MOST_CYCLES = 8
"""After eight cycles a run has a sixteenth of its weight."""
_HALF_LIFE = 2.0
_SHARDS_PER_SOURCE = 16
_MOST_FEATURES = 24

EarlierCycle = Mapping[str, Any]
"""A cycle in `evidence.json`: {artifact, by, flops, parameters, epochs {source: times a run with weight 1 reads it},
content {source: {label: share}}, runs [{weights, bpb, seeds}], backtest}. `artifact` is "" for the cycle that wrote the
file. Where it is registered, it also has age, size, importance and sha256."""


def registered(earlier: Artifact | None, by: str, flops: float) -> dict[str, Any]:
    """Returns the evidence with which a cycle begins: {cycles, note}.

    Args:
        earlier: the newest `mixture`, accepted or not; None in the first cycle.
        by: column that mixtures weight (`[pack] by`).
        flops: of a run of this cycle.
    """
    if earlier is None:
        return {"cycles": [], "note": "There is no earlier cycle."}
    try:
        found = json.loads(earlier.read(EVIDENCE))["cycles"]
    except InputError as error:
        return {"cycles": [], "note": f"No run of an earlier cycle enters the fit: {error.cause}."}
    except FileNotFoundError:
        return {"cycles": [], "note": f"No run of an earlier cycle enters the fit: {earlier.address} kept none."}
    return entering(found, str(earlier.address), by, flops)


def entering(found: Sequence[EarlierCycle], newest: str, by: str, flops: float) -> dict[str, Any]:
    """Returns the evidence with which a cycle begins, as `registered` does, from the cycles of `evidence.json`.

    Args:
        found: the cycles, oldest first.
        newest: id of the artifact of the last one.
        by: column that mixtures weight.
        flops: of a run of this cycle.
    """
    cycles = []
    for age, cycle in enumerate(reversed(found[-_MOST_CYCLES:]), 1):
        size = cycle["flops"] / flops
        cycles.append(
            {
                **cycle,
                "artifact": cycle["artifact"] or newest,
                "age": age,
                "size": round(size, 6),
                "importance": round(importance(age, size), 6),
                "sha256": hashlib.sha256(json.dumps(cycle, sort_keys=True).encode()).hexdigest(),
            }
        )
    kept = [cycle for cycle in reversed(cycles) if cycle["by"] == by]
    if not kept:
        return {"cycles": [], "note": f'No run of an earlier cycle enters the fit: none had mixtures of "{by}".'}
    return {"cycles": kept, "note": f"Runs of earlier cycles may enter the fit: {'; '.join(map(_line, kept))}."}


def importance(age: int, size: float) -> float:
    """Returns the weight of a run in the fit: halved by two cycles of age, and by a factor of four in size.

    Args:
        age: cycles since the run; 0 for the current one.
        size: compute of the run over that of a run of the current cycle.
    """
    return float(0.5 ** (age / _HALF_LIFE) * min(size, 1 / size) ** 0.5)


def _line(cycle: EarlierCycle) -> str:
    return (
        f"{cycle['artifact']}, {len(cycle['runs'])} arms, age {cycle['age']}, {cycle['size']:.2g} times the size, "
        f"weight {cycle['importance']:.2f} (sha256 {cycle['sha256'][:12]})"
    )


def content_of(shards: Artifact, by: str) -> dict[str, dict[str, float]]:
    """Returns the share of each label, "column=label", in the tokens of each value of `by`; columns sum to 1.

    Reads the label columns of up to `_SHARDS_PER_SOURCE` shards of each source, evenly distributed. Rare labels are
    "column=other".
    """
    names: dict[str, list[str]] = defaultdict(list)
    for path in shards.files(f"{SHARDS}/"):
        source, split = parse_shard_name(path.removeprefix(f"{SHARDS}/").removesuffix(".arrow"))
        if split == TRAIN:
            names[source].append(path)
    paths = [path for found in names.values() for path in found[:: -(-len(found) // _SHARDS_PER_SOURCE)]]
    reader, tokens = RangeReader(entries_of(shards, paths)), Counter[tuple[str, str, str]]()
    for number in range(len(paths)):
        tokens.update(count_labels(cast(BinaryIO, RangeFile(reader, number)), by))
    by_label: Counter[tuple[str, str]] = Counter()
    for (_, column, label), count in tokens.items():
        by_label[column, label] += count
    common = {key for key, _ in sorted(by_label.items(), key=lambda item: (-item[1], item[0]))[:_MOST_FEATURES]}
    sums: dict[str, Counter[str]] = defaultdict(Counter)
    totals: Counter[tuple[str, str]] = Counter()
    for (value, column, label), count in tokens.items():
        sums[value][f"{column}={label if (column, label) in common else 'other'}"] += count
        totals[value, column] += count
    return {
        value: {name: round(count / totals[value, name.partition("=")[0]], 6) for name, count in sorted(labels.items())}
        for value, labels in sorted(sums.items())
    }
