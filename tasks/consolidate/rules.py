"""Rules: the reasons why a document goes, apart from being a copy.

Pure functions over co-partitioned columns, used by `resolve` (who may be a keeper) and by `stage` (who stays).
"""

import pyarrow as pa

from tasks.consolidate.config import ConsolidateConfig
from tasks.part import POISON

COLUMNS = ["id", "language", "language_score", "quality_reason"]


def reasons(config: ConsolidateConfig, sources: pa.ChunkedArray, attributes: pa.Table) -> list[list[str]]:
    """Returns for every document all reasons why it goes, the first one first; an empty list for one that passes.

    Args:
        config: the stage's settings.
        sources: source of each document.
        attributes: at least COLUMNS, in the same order.
    """
    rows = zip(sources.to_pylist(), *(attributes.column(name).to_pylist() for name in COLUMNS[1:]), strict=True)
    exempt, kept = set(config.language_exempt), set(config.languages)
    found = []
    for source, language, score, quality in rows:
        why = []
        if source not in exempt:
            if kept and language not in kept:
                why.append("language_other")
            if score < config.min_language_score:
                why.append("language_unsure")
        if quality is not None and (config.quality or quality == POISON):
            why.append(quality)
        found.append(why)
    return found


def step_of(reason: str) -> str:
    """Returns the step of the funnel that a reason belongs to: "language", "dedup" or "quality"."""
    if reason.startswith("language_"):
        return "language"
    return "dedup" if reason.startswith("duplicate_") else "quality"
