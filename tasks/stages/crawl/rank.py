"""Stage `rank`: PageRank of hosts, from the links between them.

Reads the edges in the crawl DB of the previous cycle, and the previous ranks. Writes `ranks.parquet` (RANKS) and
`cycle.json`. Computed every `score_every` cycles, carried over in between.

PageRank as Brin and Page defined it (1998), over hosts, with every host that links to another counting once: a site
cannot raise itself by linking to itself from many pages. Scores are multiplied by the number of hosts, so that 1 is
the mean, which is also the score of unknown hosts.
"""

import json
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from tasks.core.artifact import Artifact
from tasks.core.engine import Engine
from tasks.core.stage import Inputs, Output, Report
from tasks.stages.crawl.config import CrawlConfig
from tasks.stages.crawl.storage.crawldb import EDGES, EDGES_FILE

VERSION = 1

RANKS_FILE = "ranks.parquet"
_CYCLE = "cycle.json"
RANKS = pa.schema([pa.field("host", pa.string(), nullable=False), pa.field("score", pa.float64(), nullable=False)])

DAMPING = 0.85
_STEPS = 100
_CLOSE = 1e-9


def run(config: CrawlConfig, inputs: Inputs, output: Output, engine: Engine) -> Report:
    """Writes the scores of all hosts that a link touches."""
    before = inputs.get("previous")
    state = json.loads(before.read(_CYCLE)) if before else {"cycle": 0, "computed": 0}
    cycle, computed = state["cycle"] + 1, state["computed"]
    ranks = before.table(RANKS_FILE) if before else RANKS.empty_table()
    databases = inputs.many("crawldb") if "crawldb" in inputs else []
    if databases and (not ranks.num_rows or cycle - computed >= config.score_every):
        ranks, computed = scores(_edges(databases)), cycle
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


def _edges(databases: Sequence[Artifact]) -> pa.Table:
    return pa.concat_tables([EDGES.empty_table(), *(one.table(EDGES_FILE) for one in databases)])


def scores(edges: pa.Table) -> pa.Table:
    """Returns the score of every host named in `edges` (EDGES, each pair once), sorted by host (RANKS)."""
    names = pa.concat_arrays([*edges.column("source").chunks, *edges.column("target").chunks]) if edges.num_rows else []
    hosts, numbers = np.unique(np.asarray(names, dtype=str), return_inverse=True)
    if not len(hosts):
        return RANKS.empty_table()
    source, target = numbers[: edges.num_rows], numbers[edges.num_rows :]
    values = _pagerank(source, target, len(hosts)) * len(hosts)
    return pa.table([pa.array(hosts.tolist(), pa.string()), pa.array(values, pa.float64())], schema=RANKS)


def _pagerank(source: NDArray[np.int64], target: NDArray[np.int64], count: int) -> NDArray[np.float64]:
    """Returns the stationary distribution over `count` hosts; hosts without links distribute evenly."""
    # Imported here: generate, and `why` with it, need no more of this module than a name.
    from scipy import sparse

    given = np.bincount(source, minlength=count)
    share = 1.0 / given[source]
    flow = sparse.csr_matrix((share, (target, source)), shape=(count, count))
    silent = given == 0
    rank = np.full(count, 1.0 / count)
    for _ in range(_STEPS):
        new = DAMPING * (flow @ rank + rank[silent].sum() / count) + (1.0 - DAMPING) / count
        if np.abs(new - rank).sum() < _CLOSE:
            return np.asarray(new)
        rank = new
    return rank
