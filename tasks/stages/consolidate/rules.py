"""Verdicts on documents: all reasons to drop one, the document that it duplicates, and the tier of a kept one.

Pure functions over co-partitioned columns. Reasons are ordered by filter, then contamination, repeated paragraphs, and
duplication.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tasks.core.errors import InputError
from tasks.core.part import POISON
from tasks.filters import UNDETERMINED
from tasks.filters.base import Threshold, fields
from tasks.filters.catalogue import filter_of
from tasks.filters.language_values import ENGLISH, OTHER, SURE
from tasks.formats.documents.document import CONTAMINATED, REPEATED
from tasks.formats.documents.tombstones import TAKEDOWN
from tasks.stages.consolidate.aligned_inputs import PAGED
from tasks.stages.consolidate.config import GOLD, SILVER, ConsolidateConfig, Limits, limit_path, merged
from tasks.stages.consolidate.funnel import DECONTAMINATE, DEDUP, KEPT, LANGUAGE, QUALITY

DUPLICATE = "duplicate_"
"""Prefix of the reason of a duplicate; the kind follows: "exact", "near" or "page"."""

COLUMNS = ["id", "duplicate_of", "kind"]
"""Columns of dedup's verdicts that are read."""


class Verdicts(NamedTuple):
    """Verdicts by row.

    Attributes:
        reasons: all reasons to drop the document, by precedence; empty if it is kept.
        duplicate_of: id of the document that it duplicates, or None.
        tiers: "gold" or "silver" if it is kept, else "".
    """

    reasons: list[list[str]]
    duplicate_of: list[str | None]
    tiers: list[str]

    @property
    def first(self) -> list[str]:
        """The first reason of each document, "" if it is kept."""
        return [row[0] if row else "" for row in self.reasons]

    @property
    def is_kept(self) -> pa.Array:
        """Whether each document is kept."""
        return pa.array([not row for row in self.reasons], pa.bool_())


RowThreshold = tuple[NDArray[np.int64], Threshold]
"""The documents to which a limit applies, shape (n,), and the limit with their values, shape (n,).

The path of the limit is below the section. Beyond a minimum of the tier gold (reason "silver") no document is dropped.
"""


def verdicts(
    config: ConsolidateConfig,
    sources: pa.ChunkedArray,
    judged: pa.Table,
    resolved: pa.Table,
    duplicates: pa.Table,
    taken_down: NDArray[np.bool_],
) -> Verdicts:
    """Returns the verdicts on the documents of one part.

    Args:
        config: the stage's settings.
        sources: source of each document.
        judged: `error`, `paged`, and the columns of the annotators that the filters and `gold` read.
        resolved: the documents to drop as copies of a kept one (`resolve.COPIES`).
        duplicates: dedup's verdict on each document, with `COLUMNS`.
        taken_down: whether each document is taken down, shape (rows,).
    """
    reasons_by_row = reasons(config, sources, judged, taken_down)
    duplicate_of = _add_copies(config, reasons_by_row, resolved, duplicates)
    is_kept = pa.array([not row for row in reasons_by_row], pa.bool_())
    of_kept = iter(tiers(config, sources.filter(is_kept), judged.filter(is_kept)))
    return Verdicts(reasons_by_row, duplicate_of, ["" if row else next(of_kept) for row in reasons_by_row])


def _add_copies(
    config: ConsolidateConfig, reasons_by_row: Sequence[list[str]], resolved: pa.Table, duplicates: pa.Table
) -> list[str | None]:
    """Adds duplication to the reasons; returns the document that each document duplicates."""
    copies: dict[str, Mapping[str, Any]] = {verdict["id"]: verdict for verdict in resolved.to_pylist()}
    duplicate_of: list[str | None] = [None] * len(reasons_by_row)
    is_copy = pc.is_in(duplicates.column("id"), value_set=resolved.column("id").combine_chunks())
    rows = np.flatnonzero(pc.or_(duplicates.column("duplicate_of").is_valid(), is_copy).to_numpy())
    for row, verdict in zip(rows.tolist(), duplicates.take(pa.array(rows)).to_pylist(), strict=True):
        row_reasons = reasons_by_row[row]
        # For a filtered document, dedup's verdict is an additional reason; otherwise only the resolved verdict counts.
        copy = (
            (verdict if verdict["duplicate_of"] and config.dedup else None)
            if row_reasons
            else copies.get(verdict["id"])
        )
        if copy:
            duplicate_of[row] = copy["duplicate_of"]
            row_reasons.append(f"{DUPLICATE}{copy['kind']}")
    return duplicate_of


def read_by_tiers(config: ConsolidateConfig) -> list[str]:
    """Returns the annotators whose columns `gold` reads."""
    return list(dict.fromkeys(name for name, _, _ in config.marks()))


def in_scope(config: ConsolidateConfig, sources: pa.ChunkedArray) -> NDArray[np.bool_]:
    """Returns a mask of the documents of filtered sources, shape (rows,); trusted sources are not filtered."""
    trusted = _is_one_of(sources, config.trusted)
    return ~trusted if config.sources is None else _is_one_of(sources, config.sources) & ~trusted


def _is_one_of(sources: pa.ChunkedArray, names: tuple[str, ...]) -> NDArray[np.bool_]:
    mask: NDArray[np.bool_] = pc.is_in(sources, pa.array(names, pa.string())).to_numpy(zero_copy_only=False)
    return mask


def check_measured(config: ConsolidateConfig, attributes: pa.Schema, where: str) -> None:
    """Checks that all attributes that the settings read exist.

    Args:
        config: the stage's settings.
        attributes: the columns of all annotators.
        where: address of their artifact, for messages.

    Raises:
        InputError: see `ConsolidateConfig.unmeasured`.
    """
    columns_of = {field.name: field.type for field in attributes if pa.types.is_struct(field.type)}
    problems = config.unmeasured(columns_of, lambda name: {field.name: str(field.type) for field in columns_of[name]})
    for cause, remedy in problems:
        raise InputError(f"{cause} in {where}", remedy)


def reasons(
    config: ConsolidateConfig, sources: pa.ChunkedArray, attributes: pa.Table, taken_down: NDArray[np.bool_]
) -> list[list[str]]:
    """Returns, for every document, all reasons to drop it, by precedence; an empty list if it passes.

    Args:
        config: the stage's settings.
        sources: source of each document.
        attributes: `error`, `paged`, the columns of the filters' annotators, in the same order, and `contaminated` and
            `repeated_paragraphs`, if the stage has these inputs.
        taken_down: whether each document is taken down, shape (rows,). Takes precedence over all other reasons, for
            trusted sources as well.
    """
    broken = attributes.column("error").is_valid().to_numpy(zero_copy_only=False)
    reasons_by_row: list[list[str]] = [
        [TAKEDOWN] if is_taken_down else [POISON] if is_broken else []
        for is_taken_down, is_broken in zip(taken_down, broken, strict=True)
    ]
    readable = ~taken_down & ~broken
    for layers, rows in _by_limits(config, sources, attributes, readable & in_scope(config, sources)):
        limits = merged(config.filters, layers)
        for name in config.filters:
            measured = fields(attributes.column(name).take(pa.array(rows)).combine_chunks())
            for reason, mask in filter_of(name, limits[name]).reasons(measured):
                for row in rows[mask]:
                    reasons_by_row[row].append(reason)
    for row in np.flatnonzero(readable & contaminated(config, attributes)):
        reasons_by_row[row].append(CONTAMINATED)
    for row in np.flatnonzero(readable & in_scope(config, sources) & repeats(config, attributes)):
        reasons_by_row[row].append(REPEATED)
    return reasons_by_row


def limit_values(
    config: ConsolidateConfig, sources: pa.ChunkedArray, attributes: pa.Table, taken_down: NDArray[np.bool_]
) -> Iterator[RowThreshold]:
    """Yields the numeric limits with the values of the documents to which they apply, in order of precedence.

    The limits of contamination and of repeated paragraphs have the documents that contain an item, or such paragraphs.

    Args:
        config: the stage's settings.
        sources: source of each document.
        attributes: as in `reasons`.
        taken_down: as in `reasons`.
    """
    readable = ~taken_down & attributes.column("error").is_null().to_numpy(zero_copy_only=False)
    for layers, rows in _by_limits(config, sources, attributes, readable & in_scope(config, sources)):
        limits = merged(config.filters, layers)
        for name in config.filters:
            measured = fields(attributes.column(name).take(pa.array(rows)).combine_chunks())
            for threshold in filter_of(name, limits[name]).thresholds(measured):
                of_these = slice(None) if threshold.applies is None else threshold.applies
                path = limit_path(layers, name, threshold.path)
                yield rows[of_these], threshold._replace(path=path, values=threshold.values[of_these], applies=None)
    if CONTAMINATED in attributes.column_names and config.contaminated == "drop":
        rows, shares = _shares(attributes.column(CONTAMINATED), readable)
        yield rows, Threshold("contaminated_share", CONTAMINATED, "below", config.contaminated_share, shares)
    if REPEATED in attributes.column_names:
        rows, shares = _shares(attributes.column(REPEATED), readable & in_scope(config, sources))
        yield rows, Threshold("repeated_share", REPEATED, "most", config.repeated_share, shares)


def _shares(column: pa.ChunkedArray, mask: NDArray[np.bool_]) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Returns the rows in a mask that have a share, and the shares."""
    share = pc.struct_field(column, "share")
    rows = np.flatnonzero(mask & share.is_valid().to_numpy())
    return rows, share.take(pa.array(rows)).to_numpy()


def gold_values(
    config: ConsolidateConfig, sources: pa.ChunkedArray, attributes: pa.Table, taken_down: NDArray[np.bool_]
) -> Iterator[RowThreshold]:
    """Yields the minimums of the tier gold with the values of the documents of sources that are not trusted.

    Args:
        config: the stage's settings.
        sources: source of each document.
        attributes: as in `verdicts`.
        taken_down: as in `reasons`.
    """
    readable = ~taken_down & attributes.column("error").is_null().to_numpy(zero_copy_only=False)
    rows = np.flatnonzero(readable & ~_is_one_of(sources, config.trusted))
    for annotator, field, least in config.marks():
        values = fields(attributes.column(annotator).take(pa.array(rows)).combine_chunks())[field]
        yield rows, Threshold(f"{GOLD}.{annotator}.{field}", SILVER, "least", least, values)


def _by_limits(
    config: ConsolidateConfig, sources: pa.ChunkedArray, attributes: pa.Table, judged: NDArray[np.bool_]
) -> Iterator[tuple[list[tuple[str, Limits]], NDArray[np.int64]]]:
    """Yields the layers of limits (`ConsolidateConfig.layers_of`), and the judged documents they apply to."""
    paged: NDArray[np.bool_] = attributes.column(PAGED).to_numpy(zero_copy_only=False)
    limited = config.limited()
    groups = [(("", False), ~_is_one_of(sources, limited) & ~paged)]
    groups += [((source, False), _is_one_of(sources, (source,)) & ~paged) for source in limited]
    for source in pc.unique(sources.filter(pa.array(paged & judged))).to_pylist():
        groups.append(((source, True), _is_one_of(sources, (source,)) & paged))
    languages = _languages(config, attributes)
    for (source, is_paged), of_these in groups:
        rows = np.flatnonzero(judged & of_these)
        for language in np.unique(languages[rows]).tolist():
            yield config.layers_of(source, is_paged, language), rows[languages[rows] == language]


def _languages(config: ConsolidateConfig, attributes: pa.Table) -> NDArray[Any]:
    """Returns the language whose limits each document has: OTHER if the label is unsure.

    A model labels text in a language that it lacks as another one, but with a low score.
    """
    if "language" not in config.filters:
        return np.full(attributes.num_rows, config.language_of(""))
    measured = fields(attributes.column("language").combine_chunks())
    unsure = measured["score"] < SURE
    # A document without measurements has no label; it is not judged.
    labels = [label or UNDETERMINED for label in measured["label"]]
    found: NDArray[Any] = np.array(
        [
            config.language_of(OTHER if is_unsure and label not in ENGLISH else label)
            for label, is_unsure in zip(labels, unsure.tolist(), strict=True)
        ],
        str,
    )
    return found


def contaminated(config: ConsolidateConfig, attributes: pa.Table) -> NDArray[np.bool_]:
    """Returns a mask of the documents of any source to drop because they contain evaluation items."""
    if CONTAMINATED not in attributes.column_names or config.contaminated == "keep":
        return np.zeros(attributes.num_rows, np.bool_)
    share = pc.fill_null(pc.struct_field(attributes.column(CONTAMINATED), "share"), -1.0)
    mask: NDArray[np.bool_] = share.to_numpy() >= np.float32(config.contaminated_share)
    return mask


def repeats(config: ConsolidateConfig, attributes: pa.Table) -> NDArray[np.bool_]:
    """Returns a mask of the documents with too many repeated paragraphs, or too few words without them."""
    if REPEATED not in attributes.column_names:
        return np.zeros(attributes.num_rows, np.bool_)
    column = attributes.column(REPEATED)
    share = pc.fill_null(pc.struct_field(column, "share"), 0.0).to_numpy()
    mask: NDArray[np.bool_] = share > np.float32(config.repeated_share)
    if config.cut_repeated:
        words_left = pc.fill_null(pc.struct_field(column, "words_left"), config.cut_repeated).to_numpy()
        mask = mask | (words_left < config.cut_repeated)
    return mask


def tiers(config: ConsolidateConfig, sources: pa.ChunkedArray, attributes: pa.Table) -> list[str]:
    """Returns "gold" for documents of trusted sources and those that reach every minimum of `gold`, else "silver"."""
    gold = _is_one_of(sources, config.trusted)
    if config.gold:
        gold = gold | np.all([_reaches(attributes, *mark) for mark in config.marks()], axis=0)
    return [GOLD if is_gold else SILVER for is_gold in gold]


def _reaches(attributes: pa.Table, annotator: str, field: str, least: float) -> NDArray[np.bool_]:
    reached: NDArray[np.bool_] = fields(attributes.column(annotator).combine_chunks())[field] >= least
    return reached


def step_of(reason: str) -> str:
    """Returns the funnel step of a first reason: LANGUAGE, DECONTAMINATE, DEDUP or QUALITY; KEPT for ""."""
    if not reason:
        return KEPT
    if reason.startswith("language_"):
        return LANGUAGE
    if reason == CONTAMINATED:
        return DECONTAMINATE
    return DEDUP if reason.startswith("duplicate_") else QUALITY
