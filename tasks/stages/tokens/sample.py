"""The sample of the stage tokenizer: kept documents, drawn by a hash of their id.

The documents with the lowest hashes are in the sample, up to `sample_bytes` of text or, with weights, up to the bytes
of each pool. So it does not depend on the division into parts, nor on the order in which they arrive.

No process holds all documents. Parts are read in rounds, each of as many parts as all rounds before. A part sends its
documents with hashes below those that the rounds before have shown to be too high, so the parts of a round send about
one sample together. The process of the stage keeps what may still be in the sample (`_CANDIDATE`) and the bytes of each
pool. Texts are then read from the parts that have documents of the sample.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tasks.core.artifact import Artifact, ArtifactFolder
from tasks.core.engine import Engine
from tasks.core.errors import InputError
from tasks.formats.documents.text import hashes64
from tasks.formats.tokens.components import columns_of, component_weights, group_names, joint_name
from tasks.formats.tokens.labels import label
from tasks.formats.tokens.shard import column_of, label_values
from tasks.stages.tokens import TokenizerConfig

KEPT = "kept/"

_MAX_DOCUMENT_BYTES = 200_000
"""Most bytes of a document in the sample, so that a single long book does not dominate it."""

_FIRST_PARTS = 256
"""Parts of the first round, which send up to a sample each."""

_GRID = 1e-5
"""Weights of components are rounded by less than this."""

_CANDIDATE = np.dtype([("rank", "<u8"), ("id", "S32"), ("bytes", "<u4"), ("part", "<u4")])
"""A document that may be in the sample: hash and id, its UTF-8 bytes in the sample, and the number of its part."""

_ALL = ""
"""The pool of all documents, without weights."""


class SampledDocument(NamedTuple):
    """One document of the sample."""

    rank: int
    """Hash of (seed, id)."""
    language: str
    source: str
    text: str


def draw(documents: Artifact, engine: Engine, config: TokenizerConfig) -> list[SampledDocument]:
    """Returns the sample in the order of the hash of (seed, id), up to `sample_bytes`.

    Raises:
        InputError: there is no text, or none of a source with a weight.
        RecipeError: a group with a weight has no component that is not named itself.
    """
    paths = documents.files(KEPT)
    found, end = _Candidates(config), 0
    while end < len(paths):
        first, end = end, min(len(paths), max(_FIRST_PARTS, 2 * end))
        read = partial(_candidates, documents.folder, config, found.highest())
        for index, (pools, totals) in engine.map(read, paths[first:end]):
            found.add(first + index, pools, totals)
    chosen = _chosen(found, config, documents)
    by_part: dict[int, dict[str, int]] = defaultdict(dict)
    for rank, doc_id, _, part in chosen.tolist():
        by_part[part][doc_id.decode()] = rank
    sample: list[SampledDocument] = []
    texts = [(paths[part], ranks) for part, ranks in sorted(by_part.items())]
    for _, several in engine.map(partial(_texts, documents.folder), texts):
        sample.extend(several)
    return sorted(sample)


class _Candidates:
    """The documents of the parts read so far that may be in the sample, by pool.

    Args:
        config: settings of the stage.
    """

    def __init__(self, config: TokenizerConfig) -> None:
        self._config = config
        self._kept: dict[str, NDArray[np.void]] = {}
        self._new: dict[str, list[NDArray[np.void]]] = defaultdict(list)
        self._waiting: Counter[str] = Counter()
        self.totals: Counter[str] = Counter()
        """UTF-8 bytes of all documents of each pool."""

    def add(self, part: int, pools: Mapping[str, NDArray[np.void]], totals: Mapping[str, int]) -> None:
        """Adds the documents of a part, by pool, and the bytes of all its documents."""
        self.totals.update(totals)
        for pool, rows in pools.items():
            rows["part"] = part
            self._new[pool].append(rows)
            self._waiting[pool] += len(rows)
            # Sorted when there are as many new ones as kept ones, so that each is sorted a few times.
            if self._waiting[pool] > len(self._kept.get(pool, ())):
                self.of(pool)

    def of(self, pool: str) -> NDArray[np.void]:
        """Returns the candidates of a pool (_CANDIDATE), sorted by rank and id."""
        none = np.empty(0, _CANDIDATE)
        if self._waiting.pop(pool, 0):
            rows = np.concatenate([self._kept.pop(pool, none), *self._new.pop(pool)])
            self._kept[pool] = _lowest(rows, _most_bytes(self._config, pool))
        return self._kept.get(pool, none)

    def highest(self) -> dict[str, int]:
        """Returns the highest rank that may be in the sample, for each pool with enough text for it."""
        pools = {pool: self.of(pool) for pool in self.totals}
        return {
            pool: int(rows["rank"][-1]) if len(rows) else 0
            for pool, rows in pools.items()
            if rows["bytes"].sum(dtype=np.int64) >= _most_bytes(self._config, pool)
        }


def _most_bytes(config: TokenizerConfig, pool: str) -> float:
    """Returns the most bytes of a pool in the sample, whatever the sizes of the pools are."""
    return config.sample_bytes * (config.weights[pool] + _GRID if pool in config.weights else 1.0)


def _lowest(rows: NDArray[np.void], most: float) -> NDArray[np.void]:
    """Returns the first rows by rank, id and part up to a number of bytes; the last one may exceed it."""
    rows = rows[np.lexsort((rows["part"], rows["id"], rows["rank"]))]
    return _up_to(rows, most)


def _up_to(rows: NDArray[np.void], most: float) -> NDArray[np.void]:
    before = np.cumsum(rows["bytes"], dtype=np.int64) - rows["bytes"]
    return rows[: int(np.searchsorted(before, most))].copy()  # a view would hold the others in memory


def _chosen(found: _Candidates, config: TokenizerConfig, documents: Artifact) -> NDArray[np.void]:
    """Returns the documents of the sample (_CANDIDATE); raises InputError."""
    totals = found.totals
    missing = sorted(name for name, weight in config.weights.items() if weight and not _has_text(name, totals))
    budgets = {} if missing else _budgets(config, totals)
    pools = [_up_to(found.of(pool), budget) for pool, budget in budgets.items()]
    chosen = np.concatenate([*pools, np.empty(0, _CANDIDATE)])
    if not len(chosen) or missing:
        missing_text = f'text of the source "{missing[0]}"' if missing else "document with text"
        raise InputError(f"{documents.address} has no kept {missing_text}", "see its funnel for the reasons")
    return chosen


def _has_text(name: str, totals: Mapping[str, int]) -> bool:
    return any(name in group_names(pool) for pool in totals)


def _budgets(config: TokenizerConfig, totals: Mapping[str, int]) -> dict[str, float]:
    """Returns the most bytes of each pool in the sample, from the bytes of all its documents."""
    if not config.weights and not config.alpha:
        return {_ALL: config.sample_bytes}
    if config.weights and all(name in totals for name, weight in config.weights.items() if weight):
        # No name is that of a group: the weights are not rounded.
        return {pool: config.sample_bytes * config.weights.get(pool, 0.0) for pool in totals}
    weights = component_weights(config.weights, totals, config.by, config.alpha, where="[tokenizer] weights")
    return {pool: config.sample_bytes * weight for pool, weight in weights.items()}


def _candidates(
    documents: ArtifactFolder, config: TokenizerConfig, highest: Mapping[str, int], path: str
) -> tuple[dict[str, NDArray[np.void]], dict[str, int]]:
    """Returns the documents of a part that may be in the sample, by pool, and the bytes of all its documents."""
    names = columns_of(config.by)
    table = documents.table(path, columns=list(dict.fromkeys(["id", "text", *map(column_of, names)])))
    sizes = pc.binary_length(table.column("text").cast(pa.large_binary())).to_numpy()
    ids = table.column("id").to_pylist()
    rows = np.zeros(len(ids), _CANDIDATE)
    rows["rank"], rows["id"] = id_hashes(ids, f"sample/{config.seed}"), ids
    rows["bytes"] = np.minimum(sizes, _MAX_DOCUMENT_BYTES)
    found, totals = {}, {}
    for pool, mask in _pools(table, names, config).items():
        mask &= sizes > 0
        if total := int(sizes[mask].sum()):
            totals[pool] = total
            may = mask & (rows["rank"] <= np.uint64(highest.get(pool, 2**64 - 1)))
            if may.any():
                found[pool] = _lowest(rows[may], _most_bytes(config, pool))
    return found, totals


def _pools(table: pa.Table, names: Sequence[str], config: TokenizerConfig) -> dict[str, NDArray[np.bool_]]:
    """Returns which rows are in each pool."""
    if not config.weights and not config.alpha:
        return {_ALL: np.ones(table.num_rows, bool)}
    labels = [label_values(table.column(column_of(name)).combine_chunks(), name).to_pylist() for name in names]
    pools = pa.array([joint_name(row) for row in zip(*labels, strict=True)], pa.string()).dictionary_encode()
    codes = pools.indices.to_numpy()
    return {pool: codes == code for code, pool in enumerate(pools.dictionary.to_pylist())}


def _texts(documents: ArtifactFolder, payload: tuple[str, dict[str, int]]) -> list[SampledDocument]:
    """Returns documents of a part, given the ranks of their ids."""
    path, ranks = payload
    columns = ["id", "language", "source", "text"]
    table = documents.table(path, columns=columns, filters=pc.field("id").isin(list(ranks)))
    return [
        SampledDocument(ranks[doc_id], label(language, "language"), source, _beginning(text))
        for doc_id, language, source, text in zip(*(table.column(name).to_pylist() for name in columns), strict=True)
    ]


def _beginning(text: str) -> str:
    return text.encode()[:_MAX_DOCUMENT_BYTES].decode(errors="ignore")


def id_hashes(doc_ids: Iterable[str], purpose: str) -> NDArray[np.uint64]:
    """Returns a uniform 64-bit hash of each document's id and a purpose, shape (ids,)."""
    return np.array(hashes64(f"{purpose}/", doc_ids), np.uint64)
