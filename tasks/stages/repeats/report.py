"""The report: the longest and the most frequent repeats, with the documents and domains that have them.

Reads the candidates of all ranges, `spans`, the index of `shards`, and `tokenizer`. Writes `longest.parquet`,
`frequent.parquet` (`tasks.formats.tokens.repeats.REPEAT`) and `report.html`.
"""

import io
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from tokenizers import Tokenizer

from tasks.core.artifact import Artifact
from tasks.core.pages import template
from tasks.core.stage import Inputs, Part
from tasks.filters.recognisers.scan import without_personal_data
from tasks.formats.tokens.index import DocumentIndex, Entry
from tasks.formats.tokens.repeats import FREQUENT, LONGEST, REPEAT
from tasks.formats.tokens.shard import parse_shard_name
from tasks.formats.tokens.shard_set import ShardSet
from tasks.formats.tokens.spans import SpanIndex
from tasks.formats.web.domain import domain_of, host_name
from tasks.stages.repeats.config import RepeatsConfig
from tasks.stages.repeats.maximal import Suffixes, outstanding

PAGE = "report.html"
MOST = 100
"""Repeats of each list."""
LISTS = {LONGEST: ("tokens", "occurrences"), FREQUENT: ("occurrences", "tokens")}
"""The files, each with the fields by which its repeats are chosen."""
_LOOKED_UP = 1000
_EXAMPLE_TOKENS, _EXAMPLE = 120, 500


class Shown:
    """Looks up what the report shows of a repeat."""

    def __init__(self, inputs: Inputs, suffixes: Suffixes) -> None:
        shards = inputs["shards"]
        self._suffixes = suffixes
        self._spans = SpanIndex(inputs["spans"], ShardSet.open(shards))
        self._documents = DocumentIndex(shards)
        self._tokenizer = _tokenizer(inputs["tokenizer"])

    def row(self, repeat: NDArray[np.void]) -> dict[str, Any]:
        """Returns a row of REPEAT."""
        position, tokens = int(repeat["position"]), int(repeat["tokens"])
        run = self._suffixes.text.read(position, tokens)
        first = self._suffixes.text.place(position)
        places = {(place.shard, place.row) for place in self._spans.places(run, _LOOKED_UP)}
        entries = self._documents.at(sorted({(first.shard, first.row), *places}))
        (own,) = (entry for entry in entries if (entry.shard, entry.row) == (first.shard, first.row))
        # Of more text than is shown, so that personal data at its end is recognised.
        example = without_personal_data(self._tokenizer.decode(run[:_EXAMPLE_TOKENS], skip_special_tokens=False))
        return {
            "tokens": tokens,
            "occurrences": int(repeat["occurrences"]),
            "documents": len(entries),
            "domains": len({_domain(entry) for entry in entries}),
            "url": own.url,
            "begin": first.start,
            "example": example[:_EXAMPLE],
        }


def _domain(entry: Entry) -> str:
    host = host_name(entry.url)
    return domain_of(host) if host else parse_shard_name(entry.shard)[0]


def _tokenizer(artifact: Artifact) -> Tokenizer:
    return Tokenizer.from_str(artifact.read("tokenizer.json").decode())


def write_report(
    part: Part, config: RepeatsConfig, candidates: NDArray[np.void], shown: Shown, metrics: dict[str, float]
) -> None:
    """Writes the tables and the page.

    Args:
        part: receives the files.
        config: the stage's settings.
        candidates: maximal repeats (`maximal.REPEAT`) with the outstanding ones of the corpus.
        shown: looks up documents and texts.
        metrics: of the stage.
    """
    tables = {}
    for path, by in LISTS.items():
        rows = [shown.row(repeat) for repeat in outstanding(candidates, by, MOST)]
        tables[path] = pa.Table.from_pylist(rows, schema=REPEAT)
        with part.file(path, rows=len(rows)) as file:
            file.write(_as_parquet(tables[path]))
    with part.file(PAGE) as file:
        lists = {path: table.to_pylist() for path, table in tables.items()}
        page = template(__package__, "report.html").render(
            config=config, longest=lists[LONGEST], frequent=lists[FREQUENT], metrics=metrics, looked_up=_LOOKED_UP
        )
        file.write(page.encode("utf-8", "replace"))


def _as_parquet(table: pa.Table) -> bytes:
    file = io.BytesIO()
    pq.write_table(table, file, compression="zstd", compression_level=3)
    return file.getvalue()
