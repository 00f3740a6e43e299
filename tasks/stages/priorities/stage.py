"""Stage `prioritize`: what the mixture wants more of -> factors of the scores of the hosts that have it.

Reads `mixture.json`, the natural shares (sequences in the `plan`), and the hosts of the kept crawled `documents` with
the column that the mixture weights (`[pack] by`). Writes `priorities.parquet` (`formats.web.priorities`),
`priorities.md` for the person who decides, and `counts/<part>.parquet`: documents by host and value.

A value that the mixture gives a weight w, and that is a share n of the tokens, is wanted w / n times as much as there
is. A host is wanted as much as its documents are on average: sum over values of their share in the host, times w / n.
Its factor is that over the mean of all crawled documents, because only hosts compared with each other change the order
of a crawl; with `prior` average documents added, and between 1 / `largest` and `largest`. If the mixture weights
sources, all crawled documents are one of them, `web`, and every factor is 1.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Mapping

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tasks.core.artifact import ArtifactFolder
from tasks.core.engine import Engine
from tasks.core.errors import InputError
from tasks.core.stage import Inputs, Output, Part, PartSpec, Report
from tasks.formats.tokens.components import JOINT, columns_of
from tasks.formats.tokens.labels import SOURCE
from tasks.formats.tokens.plan import Plan
from tasks.formats.tokens.shard import column_of, label_values
from tasks.formats.web.priorities import FILE, PRIORITIES
from tasks.stages.priorities import PrioritiesConfig

VERSION = 1
PAGE = "priorities.md"
_KEPT = "kept/"
_COUNTS = "counts"
_WEB = "web"
_WHOLE = "priorities"
_SHOWN = 20

Counts = Mapping[str, Mapping[str, int]]
"""Host -> value of the weighted column -> documents."""


def run(config: PrioritiesConfig, inputs: Inputs, output: Output, engine: Engine) -> Report:
    """Writes the proposal; raises InputError if the recipe has no crawled documents."""
    documents, plan = inputs["documents"], Plan.open(inputs["plan"])
    by = plan.summary["by"]
    names = documents.names(_KEPT)
    job = _Count(documents.folder, by)
    output.map_parts(engine, job, [PartSpec(name, name) for name in names], conserved=False)
    wanted = demand(json.loads(inputs["mixture"].read("mixture.json"))["weights"], plan.sequences)
    if _WHOLE not in output.committed:
        counts = _sum(output, names)
        factors = factors_of(config, counts, wanted)
        rows = [{"host": host, "documents": sum(counts[host].values()), "factor": factors[host]} for host in factors]
        with output.part(_WHOLE, conserved=False) as part:
            with part.file(FILE, rows=len(rows)) as file:
                pq.write_table(
                    pa.Table.from_pylist(rows, schema=PRIORITIES), file, compression="zstd", compression_level=3
                )
            part.write(PAGE, page(str(output.address), by, wanted, counts, factors).encode())
            part.metric("hosts", len(rows))
            part.metric("raised", sum(factor > 1 for factor in factors.values()))
    metrics = output.committed[_WHOLE].metrics
    return Report(note=f"factors of {metrics['hosts']:.0f} hosts, {metrics['raised']:.0f} above 1: a proposal")


class _Count:
    """Counts the crawled documents of a part by host and value; picklable, runs on a worker."""

    def __init__(self, documents: ArtifactFolder, by: str) -> None:
        self._documents, self._by = documents, by

    def __call__(self, part: Part, name: str) -> None:
        names = columns_of(self._by)
        columns = list(dict.fromkeys([SOURCE, "url", *map(column_of, names)]))
        table = self._documents.table(f"{_KEPT}{name}.parquet", columns)
        table = table.filter(pc.equal(table[SOURCE], _WEB))
        values = pc.binary_join_element_wise(
            *(label_values(table[column_of(column)].combine_chunks(), column) for column in names), JOINT
        )
        # As in the crawl DB: with its port.
        hosts = pc.list_element(pc.split_pattern(table["url"].cast(pa.string()), "/", max_splits=3), 2)
        counted = pa.table({"host": hosts, "value": values}).group_by(["host", "value"]).aggregate([([], "count_all")])
        part.table(
            _COUNTS,
            counted.rename_columns({"count_all": "documents"}).sort_by([("host", "ascending"), ("value", "ascending")]),
        )


def _sum(output: Output, names: list[str]) -> Counts:
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    folder = output.folder
    for name in names:
        for row in folder.table(f"{_COUNTS}/{name}.parquet").to_pylist():
            counts[row["host"]][row["value"]] += row["documents"]
    if not counts:
        raise InputError("no kept document was crawled", "set [priorities] enabled = false")
    return dict(sorted(counts.items()))


def demand(weights: Mapping[str, float], sequences: Mapping[str, int]) -> dict[str, float]:
    """Returns how much each value is wanted: its weight in the mixture over its natural share.

    >>> demand({"gold": 0.5, "silver": 0.5}, {"gold": 10, "silver": 30, "unknown": 0})
    {'gold': 2.0, 'silver': 0.6666666666666666}
    """
    total = sum(sequences.values())
    return {value: weight * total / sequences[value] for value, weight in sorted(weights.items()) if sequences[value]}


def factors_of(config: PrioritiesConfig, counts: Counts, wanted: Mapping[str, float]) -> dict[str, float]:
    """Returns the factor of each host; documents of values that the mixture does not weight are not counted.

    Args:
        config: the settings.
        counts: documents by host and value.
        wanted: see `demand`.
    """
    sums = {host: _weighed(values, wanted) for host, values in counts.items()}
    documents = sum(number for number, _ in sums.values())
    mean = sum(wish for _, wish in sums.values()) / max(documents, 1)
    factors = {}
    for host, (number, wish) in sums.items():
        known = number + config.prior
        ratio = (wish / mean + config.prior) / known if mean and known else 1.0
        factors[host] = round(min(max(ratio, 1 / config.largest), config.largest), 4)
    return factors


def _weighed(values: Mapping[str, int], wanted: Mapping[str, float]) -> tuple[int, float]:
    """Returns the documents of weighted values, and the sum of how much each is wanted."""
    weighted = {value: number for value, number in values.items() if value in wanted}
    return sum(weighted.values()), sum(number * wanted[value] for value, number in weighted.items())


def page(address: str, by: str, wanted: Mapping[str, float], counts: Counts, factors: Mapping[str, float]) -> str:
    """Returns the proposal in Markdown, with the hosts that it raises and lowers most."""
    ordered = sorted(factors, key=lambda host: (-factors[host], host))
    shown = ordered if len(ordered) <= 2 * _SHOWN else [*ordered[:_SHOWN], *ordered[-_SHOWN:]]
    spread = max(factors.values()) > min(factors.values())
    lines = [
        "# Proposed priorities of hosts",
        "",
        f'A proposal: no crawl reads it, unless the recipe has `[crawl] priorities = "{address}"`. Then the score of a '
        "host, and so the place of its pages in the fetch list, is multiplied by its factor.",
        "",
        f"The mixture weights documents by `{by}`. Wanted, relative to what there is: "
        + ", ".join(f"{value} {ratio:.2f}" for value, ratio in wanted.items())
        + ".",
        "",
    ]
    if not spread:
        lines += ["All hosts have the same: the mixture does not distinguish them.", ""]
    lines += ["| host | factor | documents | most of them |", "| --- | --- | --- | --- |"]
    for host in shown:
        most = max(sorted(counts[host]), key=lambda value: counts[host][value])
        lines.append(f"| {host} | {factors[host]:.2f} | {sum(counts[host].values())} | {most} |")
    return "\n".join([*lines, ""])
