"""Where the sections of a recipe must agree: names in one of them that have to stand in another.

Checked when a recipe is read, so that a typing error costs no crawl and no pass over the texts. Light, since recipes
are read at DAG parse time. Each check yields all that is wrong, as "where: what: what to do", and reads the
sections that it names alone, so that it also runs where others cannot be read.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tasks.core.config import Config, nearest
from tasks.filters.catalogue import measured
from tasks.filters.learned.trained import misfit
from tasks.run.catalogue import NEEDS
from tasks.stages.annotate.config import AnnotateConfig
from tasks.stages.canary.config import CanaryConfig
from tasks.stages.classifiers.config import ClassifiersConfig
from tasks.stages.consolidate.config import ConsolidateConfig
from tasks.stages.crawl.config import CrawlConfig
from tasks.stages.extract.config import WEB, ExtractConfig
from tasks.stages.perplexity.config import ANY_LANGUAGE, PerplexityConfig
from tasks.stages.tokens.config import TokenizerConfig
from tasks.trainer.config import TrainConfig


@dataclass(frozen=True)
class Sections:
    """The sections of a recipe that are checked together; None for one that cannot be read, or sets nothing.

    `given` names the sections that the recipe has of its own, whether they can be read or not; `crawls` tells whether
    documents come from a crawl.
    """

    given: frozenset[str]
    makes: tuple[str, ...]
    crawls: bool
    crawl: CrawlConfig | None = None
    extract: ExtractConfig | None = None
    classifiers: ClassifiersConfig | None = None
    perplexity: PerplexityConfig | None = None
    annotate: AnnotateConfig | None = None
    consolidate: ConsolidateConfig | None = None
    tokenizer: TokenizerConfig | None = None
    canary: CanaryConfig | None = None
    train: TrainConfig | None = None


READ: Mapping[str, tuple[type[Config], tuple[str, ...]]] = {
    "crawl": (CrawlConfig, ("enabled",)),
    "extract": (ExtractConfig, ("files",)),
    "classifiers": (ClassifiersConfig, ("train",)),
    "perplexity": (PerplexityConfig, ("references", "cut_source")),
    "annotate": (AnnotateConfig, ("use", "settings")),
    "consolidate": (ConsolidateConfig, ("filters", "limits", "sources", "trusted", "gold", "mask_pii")),
    "tokenizer": (TokenizerConfig, ("weights",)),
    "canary": (CanaryConfig, ("current", "target", "guarded")),
    "train": (TrainConfig, ("mixture",)),
}
"""Of each section its class, and the fields of it that the checks read."""


def sources_of(crawls: bool, extract: ExtractConfig) -> tuple[str, ...]:
    """Returns the sources of the documents of a recipe, which may crawl or not."""
    return (*([WEB] if crawls else []), *(source.name for source in extract.files))


def judged_by_default(crawls: bool, extract: ExtractConfig, trusted: tuple[str, ...]) -> tuple[str, ...]:
    """Returns the sources that filters judge where a recipe does not say (see `ConsolidateConfig.sources`)."""
    several = sources_of(crawls, extract) or (WEB,)
    if crawls:
        several = (WEB, *(source.name for source in extract.files if source.kind == "warc"))
    return tuple(name for name in several if name not in trusted)


def inconsistencies(held: Sections) -> Iterator[str]:
    """Yields all that is wrong between the sections that can be read."""
    for check in (_makes, _sources, _judged, _mixture, _measured, _trained, _ngrams, _topics, _categories, _cuts):
        yield from check(held)


def _makes(held: Sections) -> Iterator[str]:
    """What a recipe makes needs what comes before it."""
    if not held.makes:
        yield (
            "the recipe makes nothing: give it a section, such as [crawl], [[extract.files]] or [train], or say what "
            "in makes"
        )
    for asset in held.makes:
        for needed in NEEDS[asset]:
            if needed not in held.makes:
                yield f'makes: "{asset}" is made from "{needed}": add it'
    if "warc" in held.makes and "crawl" not in held.given:
        yield 'makes: "warc" needs a section [crawl]: add it'


def _sources(held: Sections) -> Iterator[str]:
    """Sources that are named must be there."""
    if held.extract is None:
        return
    known = sources_of(held.crawls, held.extract)
    for at, name in _named_sources(held) if known else ():  # without any, extract says so
        if name not in known:
            yield f'{at}: the recipe has no source "{name}": {nearest(name, known)}'


def _named_sources(held: Sections) -> Iterator[tuple[str, str]]:
    """Yields every source that a recipe names, after the dotted path of the field that names it."""
    if held.consolidate:
        for field, names in (("sources", held.consolidate.sources or ()), ("trusted", held.consolidate.trusted)):
            yield from ((f"consolidate.{field}", name) for name in names)
    for number, one in enumerate(held.classifiers.train if held.classifiers else ()):
        for name in one.crawl.sources if one.crawl else ():
            yield f"classifiers.train.{number}.crawl.sources", name
    if held.perplexity:
        for number, reference in enumerate(held.perplexity.references):
            if reference.kind == "documents":
                yield f"perplexity.references.{number}.name", reference.name
        if held.perplexity.cut_source not in ("", WEB):  # a recipe that does not crawl has the default too
            yield "perplexity.cut_source", held.perplexity.cut_source
    yield from _mixed_sources(held)


def _mixed_sources(held: Sections) -> Iterator[tuple[str, str]]:
    if held.tokenizer:
        yield from (("tokenizer.weights", name) for name in held.tokenizer.weights)
    if held.canary:
        yield from (("canary.current", name) for name in held.canary.current)
        yield from (("canary.target", name) for name in held.canary.target)
        yield from (("canary.guarded", name) for name in held.canary.guarded)
    if held.train:
        yield from (("train.mixture", name) for name in held.train.mixture)


def _judged(held: Sections) -> Iterator[str]:
    """Filters must judge a source."""
    if held.extract is None or held.consolidate is None:
        return
    known = sources_of(held.crawls, held.extract)
    sources, trusted = held.consolidate.sources, held.consolidate.trusted
    for name in trusted:
        if name in (sources or ()):
            yield (
                f'consolidate.trusted: "{name}" stands in consolidate.sources, too, which filters judge: take it out '
                "of one of the two"
            )
    if set(known) - set(trusted) and held.consolidate.filters and sources == ():
        yield (
            f"consolidate.sources names no source, so the filters would judge nothing: name some of "
            f"{', '.join(known)}, or set consolidate.filters = []"
        )


def _mixture(held: Sections) -> Iterator[str]:
    """Either the canaries decide on the mixture, or the recipe does."""
    if held.train and held.train.mixture and "mixture" in held.makes:
        yield "train.mixture: the canaries decide on the mixture: write it as canary.current, or leave out [canary]"


def _measured(held: Sections) -> Iterator[str]:
    """What `consolidate` and `dedup` read is measured: annotators, their fields, and scores of models."""
    annotate, consolidate = held.annotate, held.consolidate
    if annotate is None:
        return
    if consolidate is not None:
        found = consolidate.unmeasured(annotate.use, lambda name: measured(name, annotate.settings[name]))
        yield from (": ".join(one) for one in found)
    if "prose_score" not in annotate.use:
        yield 'annotate.use: dedup reads "prose_score": add it'


def _trained(held: Sections) -> Iterator[str]:
    """The models which annotators ask are trained by this recipe."""
    if held.annotate is None or held.classifiers is None:
        return
    trained = {one.name: one for one in held.classifiers.train}
    for name, field, model in _asked(held.annotate):
        at = f"annotate.settings.{name}.{field}"
        if not trained:
            yield (
                f'annotate.use: {name} asks the model "{model}", and none is trained: add [[classifiers.train]] with '
                f'name = "{model}", or take {name} out of annotate.use'
            )
        elif model not in trained:
            yield f'{at}: [[classifiers.train]] has no "{model}": {nearest(model, trained)}'
        elif why := misfit(name, trained[model].method, trained[model].positive):
            yield f'{at}: the model "{model}" {": ".join(why)}'


def _asked(annotate: AnnotateConfig) -> Iterator[tuple[str, str, str]]:
    """Yields annotators that ask trained classifiers, the setting that says so, and the model."""
    for name, field in (("classifier", "models"), ("topic", "model"), ("quality", "model")):
        if name in annotate.use:
            said = annotate.settings[name][field]
            yield from ((name, field, model) for model in ([said] if isinstance(said, str) else said) if model)


def _ngrams(held: Sections) -> Iterator[str]:
    """N-gram models are trained or come from a file, and one of them is for what is known of the documents."""
    annotate, perplexity = held.annotate, held.perplexity
    if annotate is None or perplexity is None:
        return
    if "perplexity" not in annotate.use or annotate.settings["perplexity"]["file"]:
        return
    languages = dict.fromkeys(reference.language for reference in perplexity.references)
    if not languages:
        yield (
            "annotate.use: perplexity has no model: add [[perplexity.references]], set "
            "annotate.settings.perplexity.file, or take perplexity out of annotate.use"
        )
    elif "language" not in annotate.use and ANY_LANGUAGE not in languages:
        yield (
            f"annotate.use: perplexity has models of {', '.join(languages)} alone, and language does not tell what "
            f'is: put language before perplexity, or give a reference the language "{ANY_LANGUAGE}"'
        )


def _limited(held: Sections, name: str) -> tuple[AnnotateConfig, ConsolidateConfig] | None:
    """Returns the sections about a filter that is in use and whose annotator is; None where it is not."""
    if held.annotate is None or held.consolidate is None:
        return None
    if name not in held.consolidate.filters or name not in held.annotate.use:
        return None
    return held.annotate, held.consolidate


def _topics(held: Sections) -> Iterator[str]:
    """Topics that limits name are labels of the model."""
    if (both := _limited(held, "topic")) is None or held.classifiers is None:
        return
    annotate, consolidate = both
    asked = annotate.settings["topic"]["model"]
    for model in (one for one in held.classifiers.train if one.name == asked):
        yield from _named("topic.drop", consolidate, model.labels, f'the model "{asked}" has no label')


def _categories(held: Sections) -> Iterator[str]:
    """Categories of addresses that limits name are on a list."""
    if (both := _limited(held, "url_blocklist")) is None:
        return
    annotate, consolidate = both
    known = _listed(annotate.settings["url_blocklist"])
    yield from _named("url_blocklist.categories", consolidate, known, "annotate.settings.url_blocklist has no list of")


def _listed(lists: Mapping[str, Any]) -> tuple[str, ...] | None:
    """Returns the categories that addresses may be of; None where folders alone know."""
    if lists["folders"] and lists["categories"] is None:
        return None
    banned = ["banned_word"] if lists["banned_words"] else []
    return (*lists["files"], *(lists["categories"] or ()), *banned)


def _cuts(held: Sections) -> Iterator[str]:
    """Parts of the corpus that limits name need cut points."""
    if (both := _limited(held, "perplexity")) is None:
        return
    annotate, consolidate = both
    given = annotate.settings["perplexity"]
    if consolidate.limits["perplexity"]["drop_buckets"] and given["file"] and not given["cuts"]:
        yield (
            "consolidate.limits.perplexity.drop_buckets: a model from a file puts no document into one: "
            "set annotate.settings.perplexity.cuts"
        )


def _named(limit: str, consolidate: ConsolidateConfig, known: tuple[str, ...] | None, misses: str) -> Iterator[str]:
    """Checks the names in a limit, given as "filter.field", where it is known what they can be."""
    name, _, field = limit.partition(".")
    for one in consolidate.limits[name][field] or ():
        if known is not None and one not in known:
            remedy = nearest(one, known) if known else "there is none at all"
            yield f'consolidate.limits.{limit}: {misses} "{one}": {remedy}'
