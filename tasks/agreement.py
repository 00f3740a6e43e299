"""What the sections of a recipe owe each other: names in one of them that must stand in another.

Used by the recipe when it is read, so that a typing error costs no crawl and no pass over the texts. Light, since
recipes are read at DAG parse time. Each check raises ValueError that says where, what, and what to do.
"""

from collections.abc import Iterator

from tasks.annotate.config import AnnotateConfig
from tasks.classifiers.config import ClassifiersConfig, ClassifierSettings
from tasks.config import nearest
from tasks.consolidate.config import ConsolidateConfig
from tasks.crawl.config import CrawlConfig
from tasks.extract.config import ExtractConfig
from tasks.filters.catalogue import measured
from tasks.perplexity.config import PerplexityConfig

WEB = "web"
"""The source that the crawl makes."""


def sources_of(crawl: CrawlConfig, extract: ExtractConfig) -> tuple[str, ...]:
    """Returns the sources of a recipe's documents."""
    return (*([WEB] if crawl.enabled else []), *(source.name for source in extract.files))


def judged_by_default(crawl: CrawlConfig, extract: ExtractConfig) -> tuple[str, ...]:
    """Returns the sources that filters judge where a recipe does not say (see `ConsolidateConfig.sources`)."""
    if crawl.enabled:
        return (WEB, *(source.name for source in extract.files if source.kind == "warc"))
    return sources_of(crawl, extract) or (WEB,)


def check_sources(known: tuple[str, ...], consolidate: ConsolidateConfig) -> None:
    """Checks that the sources which are to be judged and trusted are among `known`, and that filters judge one."""
    if not known:
        return  # extract says so
    for field, names in (("sources", consolidate.sources or ()), ("trusted", consolidate.trusted)):
        for name in names:
            if name not in known:
                raise ValueError(f'consolidate.{field}: the recipe has no source "{name}": {nearest(name, known)}')
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
        if misfit := _misfit(name, trained[model]):
            raise ValueError(f'{at}: the model "{model}" {misfit}')
    if "perplexity" in annotate.use and not (perplexity.references or annotate.settings["perplexity"]["file"]):
        raise ValueError(
            "annotate.use: perplexity has no model: add [[perplexity.references]], set "
            "annotate.settings.perplexity.file, or take perplexity out of annotate.use"
        )


def _asked(annotate: AnnotateConfig) -> Iterator[tuple[str, str, str]]:
    """Yields annotators that ask trained classifiers, the setting that says so, and the model."""
    for name, field in (("classifier", "models"), ("topic", "model"), ("quality", "model")):
        if name in annotate.use:
            said = annotate.settings[name][field]
            yield from ((name, field, model) for model in ([said] if isinstance(said, str) else said) if model)


def _misfit(name: str, model: ClassifierSettings) -> str:
    """Returns why an annotator cannot ask a model, and who can; "" where it can."""
    if name == "quality":
        return "" if model.method == "signals" else f'is of the method {model.method}: ask it through "classifier"'
    if model.method != "fasttext":
        return f'is of the method {model.method}: ask it through "quality"'
    if name == "classifier" and not model.positive:
        return 'has no positive label: give it one, or ask it through "topic"'
    return ""
