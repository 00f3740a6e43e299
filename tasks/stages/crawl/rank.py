"""Stage `rank`: PageRank of hosts, from the links between them.

Reads the edges in the crawl DB of the previous cycle, and the previous ranks. Writes `ranks.parquet` (RANKS) and
`cycle.json`. Scores are computed every `score_every` cycles and copied in between.

PageRank as defined by Brin and Page (1998), over hosts instead of pages. Each host that links to another counts once,
so a site does not gain from many internal links. Scores are multiplied by the number of hosts: the mean is 1, which is
also the score of unknown hosts.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import chain

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from tasks.core.engine import Engine
from tasks.core.stage import Inputs, Output, Report
from tasks.stages.crawl.config import CrawlConfig
from tasks.stages.crawl.storage.crawldb import EDGES_FILE

VERSION = 1

RANKS_FILE = "ranks.parquet"
_CYCLE = "cycle.json"
RANKS = pa.schema([pa.field("host", pa.string(), nullable=False), pa.field("score", pa.float64(), nullable=False)])

_NAME = pa.large_string()
_NAMES = 1 << 18
"""The least number of names that are hashed together, if there are so many."""
_SLICE = 1 << 22
"""Hosts of a chunk of the ranks, a multiple of the rows of a row group."""

DAMPING = 0.85
_MAX_ITERATIONS = 100
_TOLERANCE = 1e-9  # of the L1 norm


def run(config: CrawlConfig, inputs: Inputs, output: Output, engine: Engine) -> Report:
    """Writes the scores of all hosts with a link to or from another host."""
    before = inputs.get("previous")
    state = json.loads(before.read(_CYCLE)) if before else {"cycle": 0, "computed": 0}
    cycle, computed = state["cycle"] + 1, state["computed"]
    ranks = before.table(RANKS_FILE) if before else RANKS.empty_table()
    databases = inputs.many("crawldb") if "crawldb" in inputs else []
    if databases and (not ranks.num_rows or cycle - computed >= config.score_every):
        ranks, computed = scores([partial(database.table, EDGES_FILE) for database in databases]), cycle
    if "ranks" not in output.committed:
        with output.part("ranks") as part:
            part.count_in(ranks.num_rows)
            part.count_out(ranks.num_rows)
            with part.file(RANKS_FILE, rows=ranks.num_rows) as file:
                pq.write_table(ranks, file, compression="zstd", compression_level=3)
            with part.file(_CYCLE) as file:
                file.write(json.dumps({"cycle": cycle, "computed": computed}).encode())
    note = f"{ranks.num_rows} hosts ranked in cycle {computed}" if computed else "no links between hosts are known yet"
    return Report({"cycle": float(cycle), "hosts": float(ranks.num_rows)}, note=note)


def scores(edges: Sequence[Callable[[], pa.Table]]) -> pa.Table:
    """Returns the score of every host in some tables of edges (EDGES, without duplicates), sorted by host (RANKS).

    Each table is read twice, and its names are dropped soon: they take several times the memory of the numbers that
    stand for them. At most a few times as many names as there are hosts are in memory.
    """
    hosts = _hosts(edges)
    if not len(hosts):
        return RANKS.empty_table()
    source, target = (np.concatenate(ends) for ends in zip(*_numbers(edges, hosts), strict=True))
    values = _pagerank(source, target, len(hosts)) * len(hosts)
    # Strings with offsets of 32 bits, in slices of less than 2 GiB that end where row groups end.
    slices = [hosts.slice(first, _SLICE).cast(pa.string()) for first in range(0, len(hosts), _SLICE)]
    return pa.table([pa.chunked_array(slices), pa.array(values, pa.float64())], schema=RANKS)


def _hosts(edges: Sequence[Callable[[], pa.Table]]) -> pa.LargeStringArray:
    """Returns the hosts of some tables, sorted.

    Names are merged with those before whenever there are as many new ones, so each is hashed a few times at most.
    """
    hosts, count = pa.array([], _NAME), 0
    fresh: list[pa.Array] = []
    for read in edges:
        fresh.append(pa.chunked_array(chain(*_ends(read())), _NAME).unique())
        count += len(fresh[-1])
        if count >= max(_NAMES, len(hosts)):
            hosts, fresh, count = pa.concat_arrays([hosts, *fresh]).unique(), [], 0
    hosts = pa.concat_arrays([hosts, *fresh]).unique()
    return hosts.take(pc.sort_indices(hosts))


def _numbers(
    edges: Sequence[Callable[[], pa.Table]], hosts: pa.LargeStringArray
) -> Iterator[tuple[NDArray[np.int32], NDArray[np.int32]]]:
    """Yields the indexes in `hosts` of sources and targets, of several tables at a time.

    Each time, Arrow hashes all hosts, so there are as many names as hosts, or all that are left.
    """
    sources: list[pa.Array] = []
    targets: list[pa.Array] = []
    for last, read in enumerate(edges, 1):
        for chunks, more in zip((sources, targets), _ends(read()), strict=True):
            chunks += more
        count = sum(len(chunk) for chunk in sources)
        if count and (2 * count >= max(_NAMES, len(hosts)) or last == len(edges)):
            numbers = pc.index_in(pa.chunked_array([*sources, *targets]), hosts).to_numpy()
            yield numbers[:count], numbers[count:]
            sources, targets = [], []


def _ends(edges: pa.Table) -> tuple[list[pa.Array], list[pa.Array]]:
    """Returns the chunks of the sources and of the targets; those of several tables may have more than 2 GiB."""
    return edges.column("source").cast(_NAME).chunks, edges.column("target").cast(_NAME).chunks


def _pagerank(source: NDArray[np.int32], target: NDArray[np.int32], count: int) -> NDArray[np.float64]:
    """Returns the stationary distribution, of shape (count,); hosts without links distribute their rank evenly.

    Args:
        source: index of the linking host, by edge.
        target: index of the linked host, by edge.
        count: number of hosts.
    """
    # Imported here, because generate and `why` import this module only for a constant.
    from scipy import sparse

    out_degree = np.bincount(source, minlength=count)
    transition = sparse.csr_matrix((1.0 / out_degree[source], (target, source)), shape=(count, count))
    dangling = out_degree == 0
    rank = np.full(count, 1.0 / count)
    for _ in range(_MAX_ITERATIONS):
        new = DAMPING * (transition @ rank + rank[dangling].sum() / count) + (1.0 - DAMPING) / count
        if np.abs(new - rank).sum() < _TOLERANCE:
            return np.asarray(new)
        rank = new
    return rank
