"""What the sections of a recipe owe each other: names in one of them that must stand in another.

Used by the recipe when it is read, so that a typing error costs no crawl and no pass over the texts. Light, since
recipes are read at DAG parse time. Each check raises ValueError that says where, what, and what to do.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from tasks.annotate.config import AnnotateConfig
from tasks.canary.config import CanaryConfig
from tasks.classifiers.config import ClassifiersConfig
from tasks.config import nearest
from tasks.consolidate.config import ConsolidateConfig
from tasks.crawl.config import CrawlConfig
from tasks.extract.config import WEB, ExtractConfig
from tasks.filters.catalogue import measured
from tasks.filters.trained import misfit
from tasks.perplexity.config import ANY_LANGUAGE, PerplexityConfig
from tasks.tokens.config import TokenizerConfig


def sources_of(crawl: CrawlConfig, extract: ExtractConfig) -> tuple[str, ...]:
    """Returns the sources of a recipe's documents."""
    return (*([WEB] if crawl.enabled else []), *(source.name for source in extract.files))


def judged_by_default(crawl: CrawlConfig, extract: ExtractConfig) -> tuple[str, ...]:
    """Returns the sources that filters judge where a recipe does not say (see `ConsolidateConfig.sources`)."""
    if crawl.enabled:
        return (WEB, *(source.name for source in extract.files if source.kind == "warc"))
    return sources_of(crawl, extract) or (WEB,)


def named_sources(
    consolidate: ConsolidateConfig,
    classifiers: ClassifiersConfig,
    perplexity: PerplexityConfig,
    tokenizer: TokenizerConfig,
    canary: CanaryConfig,
) -> Iterator[tuple[str, str]]:
    """Yields every source that a recipe names, after the dotted path of the field that names it."""
    for field, names in (("sources", consolidate.sources or ()), ("trusted", consolidate.trusted)):
        yield from ((f"consolidate.{field}", name) for name in names)
    for number, one in enumerate(classifiers.train):
        for name in one.crawl.sources if one.crawl else ():
            yield f"classifiers.train.{number}.crawl.sources", name
    for number, reference in enumerate(perplexity.references):
        if reference.kind == "documents":
            yield f"perplexity.references.{number}.name", reference.name
    if perplexity.cut_source not in ("", WEB):  # a recipe that does not crawl has the default too
        yield "perplexity.cut_source", perplexity.cut_source
    yield from (("tokenizer.weights", name) for name in tokenizer.weights)
    yield from (("canary.current", name) for name in canary.current)
    yield from (("canary.target", name) for name in canary.target)
    yield from (("canary.guarded", name) for name in canary.guarded)


def check_sources(known: tuple[str, ...], named: Iterable[tuple[str, str]], consolidate: ConsolidateConfig) -> None:
    """Checks that the sources which are named (`named_sources`) are among `known`, and that filters judge one."""
    if not known:
        return  # extract says so
    for at, name in named:
        if name not in known:
            raise ValueError(f'{at}: the recipe has no source "{name}": {nearest(name, known)}')
    if consolidate.filters and consolidate.sources == ():
        raise ValueError(
            f"consolidate.sources names no source, so the filters would judge nothing: name some of "
            f"{', '.join(known)}, or set consolidate.filters = []"
        )


def check_measured(annotate: AnnotateConfig, consolidate: ConsolidateConfig) -> None:
    """Checks that what `consolidate` and `dedup` read is measured: annotators, their fields, and scores of models."""
    if found := consolidate.unmeasured(annotate.use, lambda name: measured(name, annotate.settings[name])):
        raise ValueError(": ".join(found))
    if "prose_score" not in annotate.use:
        raise ValueError('annotate.use: dedup reads "prose_score": add it')


def check_models(annotate: AnnotateConfig, classifiers: ClassifiersConfig, perplexity: PerplexityConfig) -> None:
    """Checks that the models which annotators ask are trained by this recipe, or come from a file."""
    trained = {one.name: one for one in classifiers.train}
    for name, field, model in _asked(annotate):
        if not trained:
            raise ValueError(
                f'annotate.use: {name} asks the model "{model}", and none is trained: add [[classifiers.train]] with '
                f'name = "{model}", or take {name} out of annotate.use'
            )
        at = f"annotate.settings.{name}.{field}"
        if model not in trained:
            raise ValueError(f'{at}: [[classifiers.train]] has no "{model}": {nearest(model, trained)}')
        if why := misfit(name, trained[model].method, trained[model].positive):
            raise ValueError(f'{at}: the model "{model}" {": ".join(why)}')
    if "perplexity" in annotate.use and not annotate.settings["perplexity"]["file"]:
        _check_ngrams(annotate, perplexity)


def _check_ngrams(annotate: AnnotateConfig, perplexity: PerplexityConfig) -> None:
    """Checks that n-gram models are trained, and that one of them is for what is known of the documents."""
    if not perplexity.references:
        raise ValueError(
            "annotate.use: perplexity has no model: add [[perplexity.references]], set "
            "annotate.settings.perplexity.file, or take perplexity out of annotate.use"
        )
    languages = dict.fromkeys(reference.language for reference in perplexity.references)
    if "language" not in annotate.use and ANY_LANGUAGE not in languages:
        raise ValueError(
            f"annotate.use: perplexity has models of {', '.join(languages)} alone, and language does not tell what "
            f'is: put language before perplexity, or give a reference the language "{ANY_LANGUAGE}"'
        )


def _asked(annotate: AnnotateConfig) -> Iterator[tuple[str, str, str]]:
    """Yields annotators that ask trained classifiers, the setting that says so, and the model."""
    for name, field in (("classifier", "models"), ("topic", "model"), ("quality", "model")):
        if name in annotate.use:
            said = annotate.settings[name][field]
            yield from ((name, field, model) for model in ([said] if isinstance(said, str) else said) if model)


def check_limits(annotate: AnnotateConfig, classifiers: ClassifiersConfig, consolidate: ConsolidateConfig) -> None:
    """Checks that what limits name can be found: topics, categories of addresses, parts of the corpus.

    Call it behind `check_measured` and `check_models`.
    """
    if "topic" in consolidate.filters:
        asked = annotate.settings["topic"]["model"]
        (model,) = (one for one in classifiers.train if one.name == asked)
        _check_named("topic.drop", consolidate, model.labels, f'the model "{asked}" has no label')
    if "url_blocklist" in consolidate.filters:
        categories = _categories(annotate.settings["url_blocklist"])
        _check_named(
            "url_blocklist.categories", consolidate, categories, "annotate.settings.url_blocklist has no list of"
        )
    if "perplexity" in consolidate.filters and consolidate.limits["perplexity"]["drop_buckets"]:
        given = annotate.settings["perplexity"]
        if given["file"] and not given["cuts"]:
            raise ValueError(
                "consolidate.limits.perplexity.drop_buckets: a model from a file puts no document into one: "
                "set annotate.settings.perplexity.cuts"
            )


def _categories(lists: Mapping[str, Any]) -> tuple[str, ...] | None:
    """Returns the categories that addresses may be of; None where folders alone know."""
    if lists["folders"] and lists["categories"] is None:
        return None
    banned = ["banned_word"] if lists["banned_words"] else []
    return (*lists["files"], *(lists["categories"] or ()), *banned)


def _check_named(limit: str, consolidate: ConsolidateConfig, known: tuple[str, ...] | None, misses: str) -> None:
    """Checks the names in a limit, given as "filter.field", where it is known what they can be."""
    name, _, field = limit.partition(".")
    for one in consolidate.limits[name][field] or ():
        if known is not None and one not in known:
            remedy = nearest(one, known) if known else "there is none at all"
            raise ValueError(f'consolidate.limits.{limit}: {misses} "{one}": {remedy}')
