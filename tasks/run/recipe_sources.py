"""Sources of a recipe: which there are, and that every section that names one names one of these.

Light, and yields as `tasks.run.recipe_validation` does.
"""

from collections.abc import Iterator

from tasks.core.config import nearest
from tasks.formats.tokens.labels import SOURCE, UNKNOWN
from tasks.run.recipe_sections import Sections
from tasks.stages.consolidate.config import GOLD, SILVER, ConsolidateConfig
from tasks.stages.extract import parsers
from tasks.stages.extract.config import KINDS, WEB, ExtractConfig


def sources_of(crawls: bool, extract: ExtractConfig) -> tuple[str, ...]:
    """Returns the sources of a recipe's documents: the web if it crawls, and the entries of `[[extract.files]]`."""
    return (*([WEB] if crawls else []), *(source.name for source in extract.files))


def with_sources(crawls: bool, extract: ExtractConfig, given: ConsolidateConfig) -> ConsolidateConfig:
    """Returns the settings of consolidate with the kinds of the recipe's sources, and those judged by default.

    Raises:
        ValueError: the settings name other kinds.
    """
    kinds = {**({WEB: WEB} if crawls else {}), **{source.name: source.kind for source in extract.files}}
    if given.kinds not in ({}, kinds):
        raise ValueError("consolidate.kinds is filled in from [extract]: leave it out")
    filled = given.model_copy(update={"kinds": kinds})
    if "sources" in given.model_fields_set:
        return filled
    return filled.model_copy(update={"sources": filled.judged_by_default()})


def misplaced_limits(sections: Sections) -> Iterator[str]:
    """Yields limits of sources that the recipe does not have, or that no filter judges, and of unknown kinds."""
    if sections.extract and sections.consolidate and sections.consolidate.kinds:
        yield from sections.consolidate.misplaced_limits(all_kinds())


def all_kinds() -> list[str]:
    """Returns the kinds that sources can have: those of files, and the names of parsers."""
    return [*KINDS, *parsers.known()]


def misnamed_sources(sections: Sections) -> Iterator[str]:
    """Yields every named source, or value that a mixture weights, that the recipe does not have."""
    if sections.extract is None:
        return
    known = sources_of(sections.crawls, sections.extract)
    for at, name in _named_sources(sections) if known else ():  # without any, [extract] reports it
        if name not in known:
            yield f'{at}: the recipe has no source "{name}": {nearest(name, known)}'
    encoded = (*known, *(files.name for files in sections.encode.token_files)) if sections.encode else known
    for at, name in _measured_sources(sections) if known else ():
        if name not in encoded:
            yield f'{at}: the recipe has no source "{name}": {nearest(name, encoded)}'
    yield from _guarded(sections, encoded) if known else ()
    by, mixed = sections.pack.by if sections.pack else SOURCE, _weighted(sections, encoded)
    for at, name in _weighted_names(sections) if known else ():
        if mixed and name not in mixed:
            what = "the recipe has no source" if by == SOURCE else f"{by}, which [pack] groups by, has no value"
            yield f'{at}: {what} "{name}": {nearest(name, mixed)}'


def _guarded(sections: Sections, sources: tuple[str, ...]) -> Iterator[str]:
    """Checks that what a new champion must not lose is a source or a task."""
    if sections.promote is None or sections.evaluate is None:
        return
    known = (*sources, *(task.name for task in sections.evaluate.tasks))
    for name in sections.promote.guarded:
        if name not in known:
            yield f'promote.guarded: the recipe has no source and no task "{name}": {nearest(name, known)}'


def _named_sources(sections: Sections) -> Iterator[tuple[str, str]]:
    """Yields every named source, after the dotted path of its field."""
    if sections.consolidate:
        for field, names in (
            ("sources", sections.consolidate.sources or ()),
            ("trusted", sections.consolidate.trusted),
        ):
            yield from ((f"consolidate.{field}", name) for name in names)
    for number, one in enumerate(sections.classifiers.train if sections.classifiers else ()):
        for name in one.crawl.sources if one.crawl else ():
            yield f"classifiers.train.{number}.crawl.sources", name
    yield from _named_for_texts(sections)


def _named_for_texts(sections: Sections) -> Iterator[tuple[str, str]]:
    """Yields those in sections that read texts of single sources."""
    if sections.perplexity:
        for number, reference in enumerate(sections.perplexity.references):
            if reference.kind == "documents":
                yield f"perplexity.references.{number}.name", reference.name
        if sections.perplexity.cut_source not in ("", WEB):  # a recipe that does not crawl has the default too
            yield "perplexity.cut_source", sections.perplexity.cut_source
    if sections.tokenizer:
        yield from (("tokenizer.weights", name) for name in sections.tokenizer.weights)
    if sections.chunks:
        yield from (("chunks.code_sources", name) for name in sections.chunks.code_sources)
    if sections.examples and sections.examples.chunks and sections.examples.own_chunks:
        yield from (("examples.chunks.sources", name) for name in sections.examples.chunks.sources)


def _measured_sources(sections: Sections) -> Iterator[tuple[str, str]]:
    """Yields every source whose held-out text counts, after the dotted path of its field."""
    if sections.canary:
        yield from (("canary.target", name) for name in sections.canary.target)
        yield from (("canary.guarded", name) for name in sections.canary.guarded)


def _weighted(sections: Sections, sources: tuple[str, ...]) -> tuple[str, ...]:
    """Returns the names that mixtures can weight; empty where only the documents know them."""
    if sections.pack is None or sections.pack.by == SOURCE:
        return sources
    if sections.pack.by != "tier" or sections.encode is None:
        return ()
    return (GOLD, SILVER, *([UNKNOWN] if sections.encode.token_files else []))


def _weighted_names(sections: Sections) -> Iterator[tuple[str, str]]:
    """Yields every name in a mixture, after the dotted path of its field."""
    if sections.canary:
        yield from (("canary.current", name) for name in sections.canary.current)
    if sections.train:
        yield from (("train.mixture", name) for name in sections.train.mixture)
        if sections.train.anneal:
            yield from (("train.anneal.mixture", name) for name in sections.train.anneal.mixture)
        if sections.train.replay:
            yield from (("train.replay.old", name) for name in sections.train.replay.old)
