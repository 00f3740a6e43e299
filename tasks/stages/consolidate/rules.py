"""Verdicts on documents: all reasons to drop it, the document that it duplicates, and the tier of a kept one.

Pure functions over co-partitioned columns. Reasons are ordered by filter, then contamination and repeated paragraphs,
duplication last.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tasks.core.errors import InputError
from tasks.core.part import POISON
from tasks.filters.base import fields
from tasks.filters.catalogue import filter_of
from tasks.formats.documents.document import CONTAMINATED, REPEATED
from tasks.formats.documents.tombstones import TAKEDOWN
from tasks.stages.consolidate.aligned_inputs import PAGED
from tasks.stages.consolidate.config import GOLD, SILVER, ConsolidateConfig
from tasks.stages.consolidate.funnel import DECONTAMINATE, DEDUP, KEPT, LANGUAGE, QUALITY

DUPLICATE = "duplicate_"
"""Prefix of the reason of a duplicate, followed by the kind, "exact" or "near"."""

COLUMNS = ["id", "duplicate_of", "kind"]
"""Columns of dedup's verdict that are read."""


class Verdicts(NamedTuple):
    """Verdicts row by row.

    Attributes:
        reasons: all reasons to drop a document, by precedence; empty if it is kept.
        duplicate_of: id of the document that it duplicates, or None.
        tiers: "gold" or "silver" if it is kept, else "".
    """

    reasons: list[list[str]]
    duplicate_of: list[str | None]
    tiers: list[str]

    @property
    def first(self) -> list[str]:
        """The first reason of each document, "" if it is kept."""
        return [why[0] if why else "" for why in self.reasons]

    @property
    def stays(self) -> pa.Array:
        """Whether each document is kept."""
        return pa.array([not why for why in self.reasons], pa.bool_())


def verdicts(
    config: ConsolidateConfig,
    sources: pa.ChunkedArray,
    judged: pa.Table,
    resolved: pa.Table,
    duplicates: pa.Table,
    taken_down: NDArray[np.bool_],
) -> Verdicts:
    """Returns the verdict on each document of one part.

    Args:
        config: the stage's settings.
        sources: source of each document.
        judged: `error`, `paged`, and the columns of the annotators that the filters and the marks of `gold` read.
        resolved: the documents to drop as copies of a kept one (`resolve.COPIES`).
        duplicates: dedup's verdict on each document: `COLUMNS`.
        taken_down: whether each document is taken down, shape (rows,).
    """
    found = reasons(config, sources, judged, taken_down)
    duplicate_of = _add_copies(config, found, resolved, duplicates)
    stays = pa.array([not why for why in found], pa.bool_())
    of_kept = iter(tiers(config, sources.filter(stays), judged.filter(stays)))
    return Verdicts(found, duplicate_of, ["" if why else next(of_kept) for why in found])


def _add_copies(
    config: ConsolidateConfig, found: Sequence[list[str]], resolved: pa.Table, duplicates: pa.Table
) -> list[str | None]:
    """Adds duplication to the reasons; returns the document that each document duplicates."""
    dropped: dict[str, Mapping[str, Any]] = {row["id"]: row for row in resolved.to_pylist()}
    duplicate_of: list[str | None] = []
    for why, row in zip(found, duplicates.to_pylist(), strict=True):
        # For a filtered document dedup's verdict is a further reason; for one that passes, the resolved one decides.
        copy = (row if row["duplicate_of"] and config.dedup else None) if why else dropped.get(row["id"])
        duplicate_of.append(copy["duplicate_of"] if copy else None)
        if copy:
            why.append(f"{DUPLICATE}{copy['kind']}")
    return duplicate_of


def read_by_tiers(config: ConsolidateConfig) -> list[str]:
    """Returns the annotators whose columns the marks of `gold` read; filters read the annotators of their names."""
    return list(dict.fromkeys(name for name, _, _ in config.marks()))


def in_scope(config: ConsolidateConfig, sources: pa.ChunkedArray) -> NDArray[np.bool_]:
    """Returns a mask of the documents of filtered sources; trusted sources are not filtered."""
    trusted = _among(sources, config.trusted)
    return ~trusted if config.sources is None else _among(sources, config.sources) & ~trusted


def _among(sources: pa.ChunkedArray, names: tuple[str, ...]) -> NDArray[np.bool_]:
    found: NDArray[np.bool_] = pc.is_in(sources, pa.array(names, pa.string())).to_numpy(zero_copy_only=False)
    return found


def check_measured(config: ConsolidateConfig, attributes: pa.Schema, where: str) -> None:
    """Checks that all attributes that the settings read were measured; `where` names the artifact of this schema.

    Raises:
        InputError: see `ConsolidateConfig.unmeasured`.
    """
    columns_of = {field.name: field.type for field in attributes if pa.types.is_struct(field.type)}
    found = config.unmeasured(columns_of, lambda name: {field.name: str(field.type) for field in columns_of[name]})
    for cause, remedy in found:
        raise InputError(f"{cause} in {where}", remedy)


def reasons(
    config: ConsolidateConfig, sources: pa.ChunkedArray, attributes: pa.Table, taken_down: NDArray[np.bool_]
) -> list[list[str]]:
    """Returns for every document all reasons to drop it, by precedence; an empty list if it passes.

    Args:
        config: the stage's settings.
        sources: source of each document.
        attributes: `error`, `paged`, the columns of the filters' annotators, in the same order, and `contaminated` and
            `repeated_paragraphs`, where such were looked for.
        taken_down: whether each document is taken down, shape (rows,): of a trusted source too, before any filter.
    """
    broken = attributes.column("error").is_valid().to_numpy(zero_copy_only=False)
    found: list[list[str]] = [
        [TAKEDOWN] if gone else [POISON] if bad else [] for gone, bad in zip(taken_down, broken, strict=True)
    ]
    readable = ~taken_down & ~broken
    paged: NDArray[np.bool_] = attributes.column(PAGED).to_numpy(zero_copy_only=False)
    for limits, places in _by_limits(config, sources, paged, readable & in_scope(config, sources)):
        for name in config.filters:
            measured = fields(attributes.column(name).take(pa.array(places)).combine_chunks())
            for reason, goes in filter_of(name, limits[name]).reasons(measured):
                for place in places[goes]:
                    found[place].append(reason)
    for place in np.flatnonzero(readable & contaminated(config, attributes)):
        found[place].append(CONTAMINATED)
    for place in np.flatnonzero(readable & in_scope(config, sources) & repeats(config, attributes)):
        found[place].append(REPEATED)
    return found


def _by_limits(
    config: ConsolidateConfig, sources: pa.ChunkedArray, paged: NDArray[np.bool_], judged: NDArray[np.bool_]
) -> Iterator[tuple[dict[str, dict[str, Any]], NDArray[np.int64]]]:
    """Yields limits by filter, and the places of the judged documents to which they apply."""
    limited = config.limited()
    groups = [(config.limits_of(source), _among(sources, (source,)) & ~paged) for source in limited]
    groups.append((config.limits, ~_among(sources, limited) & ~paged))
    for source in pc.unique(sources.filter(pa.array(paged & judged))).to_pylist():
        groups.append((config.limits_of(source, paged=True), _among(sources, (source,)) & paged))
    for limits, of_these in groups:
        if len(places := np.flatnonzero(judged & of_these)):
            yield limits, places


def contaminated(config: ConsolidateConfig, attributes: pa.Table) -> NDArray[np.bool_]:
    """Returns a mask of the documents to drop because of evaluation items in them, of whatever source."""
    if CONTAMINATED not in attributes.column_names or config.contaminated == "keep":
        return np.zeros(attributes.num_rows, np.bool_)
    share = pc.fill_null(pc.struct_field(attributes.column(CONTAMINATED), "share"), -1.0)
    found: NDArray[np.bool_] = share.to_numpy() >= np.float32(config.contaminated_share)
    return found


def repeats(config: ConsolidateConfig, attributes: pa.Table) -> NDArray[np.bool_]:
    """Returns a mask of the documents with too many repeated paragraphs, or too few words without them."""
    if REPEATED not in attributes.column_names:
        return np.zeros(attributes.num_rows, np.bool_)
    column = attributes.column(REPEATED)
    share = pc.fill_null(pc.struct_field(column, "share"), 0.0).to_numpy()
    found: NDArray[np.bool_] = share > np.float32(config.repeated_share)
    if config.cut_repeated:
        left = pc.fill_null(pc.struct_field(column, "words_left"), config.cut_repeated).to_numpy()
        found = found | (left < config.cut_repeated)
    return found


def tiers(config: ConsolidateConfig, sources: pa.ChunkedArray, attributes: pa.Table) -> list[str]:
    """Returns "gold" for documents of trusted sources and those that reach every mark of `gold`, else "silver"."""
    gold = _among(sources, config.trusted)
    if config.gold:
        gold = gold | np.all([_reaches(attributes, *mark) for mark in config.marks()], axis=0)
    return [GOLD if is_gold else SILVER for is_gold in gold]


def _reaches(attributes: pa.Table, annotator: str, field: str, least: float) -> NDArray[np.bool_]:
    reached: NDArray[np.bool_] = fields(attributes.column(annotator).combine_chunks())[field] >= least
    return reached


def step_of(reason: str) -> str:
    """Returns the step of the funnel of a first reason: LANGUAGE, DECONTAMINATE, DEDUP or QUALITY; KEPT for ""."""
    if not reason:
        return KEPT
    if reason.startswith("language_"):
        return LANGUAGE
    if reason == CONTAMINATED:
        return DECONTAMINATE
    return DEDUP if reason.startswith("duplicate_") else QUALITY
