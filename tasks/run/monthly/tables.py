"""The report of a month, read and as tables: for its HTML page, a terminal, and the page in Airflow."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from tasks.core.artifact import Artifact, ArtifactId
from tasks.core.ledger import newest
from tasks.core.store import Store
from tasks.core.terminal import table_lines

KIND = "month"
"""Kind of the artifacts."""
FILE, PAGE = "month.json", "month.html"

Cell = str | int | float | None


class Table(NamedTuple):
    """A table: its title, the titles of its columns, those of numbers with "#" in front, and its rows."""

    name: str
    title: str
    head: list[str]
    rows: list[list[Cell]]


def text(content: Mapping[str, Any]) -> str:
    """Returns the report as text for a terminal: what needs a person, then the tables."""
    lines = [f"{content['recipe']}, {content['version']}", ""]
    lines += [f"! {need}" for need in content["needs"]] or ["nothing needs a person"]
    for table in tables(content):
        rows = [[title.lstrip("#") for title in table.head], *([_plain(cell) for cell in row] for row in table.rows)]
        lines += ["", table.title, *table_lines(rows)]
    return "\n".join(lines)


def _plain(cell: Cell) -> str:
    if cell is None:
        return ""
    return f"{cell:,.4g}" if isinstance(cell, float) else f"{cell:,}" if isinstance(cell, int) else cell


_DOCUMENTS = ("captured", "unchanged", "kept", "new", "changed", "replaced", "duplicates", "gone", "forgotten", "known")


def report_of(store: Store, recipe: str, version: str = "") -> Artifact | None:
    """Returns the report of a month, or of the newest one, which has the entries of all months; None without one."""
    if version:
        return Artifact.find(store, ArtifactId(f"{recipe}/{KIND}", version))
    return newest(store, f"{recipe}/{KIND}")


def read_month(artifact: Artifact) -> dict[str, Any]:
    """Returns the content of a report (see `report`)."""
    content: dict[str, Any] = json.loads(artifact.read(FILE))
    return content


def tables(content: Mapping[str, Any]) -> list[Table]:
    """Returns all tables of a report that have rows."""
    history = content["history"]
    made = [
        _months(history),
        _costs(history),
        _champions(history),
        _regret(content["regret"]),
        _drift(content["drift"]),
    ]
    return [table for table in made if table.rows]


def _months(history: Sequence[Mapping[str, Any]]) -> Table:
    rows: list[list[Cell]] = []
    for entry in reversed(history):
        tokens = entry["tokens"]
        share = tokens["new"] / tokens["all"] if tokens["all"] else None
        counts = [entry["documents"].get(name) for name in _DOCUMENTS]
        rows.append([entry["version"], *counts, tokens["new"], tokens["all"], share, entry["ended"]])
    head = [
        "month",
        *(f"#{name}" for name in _DOCUMENTS),
        "#new tokens",
        "#all tokens",
        "#share of new tokens",
        "ended early",
    ]
    return Table("months", "Months: documents and tokens", head, rows)


def _costs(history: Sequence[Mapping[str, Any]]) -> Table:
    first, last = history[0]["seconds"], history[-1]["seconds"]
    rows: list[list[Cell]] = [
        [stage, seconds, first.get(stage), seconds / first[stage] if first.get(stage) else None]
        for stage, seconds in last.items()
    ]
    if rows:
        sums = sum(last.values()), sum(first.values())
        rows.append(["all", *sums, sums[0] / sums[1] if sums[1] else None])
    head = ["stage", "#seconds", f"#seconds in {history[0]['version']}", "#ratio"]
    return Table("costs", f"Cost of {history[-1]['version']} beside the first month", head, rows)


def _champions(history: Sequence[Mapping[str, Any]]) -> Table:
    rows: list[list[Cell]] = []
    for entry in reversed(history):
        if champion := entry["champion"]:
            low, high = champion["interval"]
            rows.append([entry["version"], champion["champion"], champion["difference"], low, high, champion["reason"]])
    head = ["month", "champion after it", "#better by", "#from", "#to", "decision"]
    return Table("champions", "Champion and challenger", head, rows)


def _regret(matrix: Mapping[str, Any]) -> Table:
    rows: list[list[Cell]] = [[model, *values] for model, values in zip(matrix["models"], matrix["bpb"], strict=True)]
    for name in ("in_distribution", "backward", "forward"):
        if matrix[name] is not None:
            rows.append([f"mean, {name.replace('_', '-')}", matrix[name], *[None] * (len(matrix["months"]) - 1)])
    head = ["model of", *(f"#{month}" for month in matrix["months"])]
    return Table(
        "regret",
        "Bits per byte of each month's model on each month's held-out text",
        head,
        rows if matrix["models"] else [],
    )


def _drift(drifts: Sequence[Mapping[str, Any]]) -> Table:
    rows: list[list[Cell]] = [
        [one["name"], one["psi"], one["needed"], "alert" if one["alert"] else "",
         ", ".join(f"{name} {before:.0%} to {now:.0%}" for name, before, now in one["moved"])]
        for one in drifts
    ]  # fmt: skip
    head = ["distribution", "#PSI", "#alert above", "", "largest contributions"]
    return Table("drift", "Change against the months before", head, rows)
