"""Conversion of Airflow's StatsD lines like statsd-exporter, as far as k8s/observability/statsd-mapping.yaml needs it.

Lines are parsed with InfluxDB labels like in the exporter (`name,label=value:1|c`); the first matching mapping
applies; an unmatched metric keeps its name, with special characters replaced by underscores.
"""

import re
from dataclasses import dataclass, field
from typing import Any

TYPES = {"c": "counter", "g": "gauge", "ms": "timer"}


@dataclass(frozen=True)
class Sample:
    """A metric in Prometheus."""

    name: str
    kind: str
    labels: dict[str, str] = field(default_factory=dict)

    @property
    def series(self) -> set[str]:
        """The names under which it can be queried."""
        parts = {"histogram": ("_bucket", "_sum", "_count"), "summary": ("", "_sum", "_count")}
        return {self.name + part for part in parts.get(self.kind, ("",))}


def sample(line: str, mappings: list[dict[str, Any]]) -> Sample | None:
    """Returns the converted StatsD line, or None if the mapping drops it."""
    head, _, rest = line.partition(":")
    stat, *tags = head.split(",")
    labels = dict(tag.split("=", 1) for tag in tags)
    return mapped(stat, TYPES[rest.split("|")[1]], labels, mappings)


def mapped(stat: str, kind: str, labels: dict[str, str], mappings: list[dict[str, Any]]) -> Sample | None:
    """Returns the converted metric of a StatsD name."""
    plain = "summary" if kind == "timer" else kind
    for one in mappings:
        if match := re.fullmatch(_pattern(one), stat):
            if one.get("action") == "drop":
                return None
            filled = {key: match.expand(value.replace("$", "\\")) for key, value in one.get("labels", {}).items()}
            name = match.expand(one["name"].replace("$", "\\"))
            return Sample(name, one.get("observer_type", plain), {**labels, **filled})
    return Sample(re.sub(r"[^a-zA-Z0-9_]", "_", stat), plain, labels)


def _pattern(one: dict[str, Any]) -> str:
    if one.get("match_type") == "regex":
        return one["match"]
    return r"\.".join("([^.]*)" if step == "*" else re.escape(step) for step in one["match"].split("."))
