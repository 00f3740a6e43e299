"""Consistency of the sections of a recipe: names in one section that must be defined in another.

Checked when a recipe is read, so that a typo is found before a crawl or a pass over the corpus. Imports no heavy
library, because recipes are read at DAG parse time. Each check yields every inconsistency as "field: cause: remedy",
and reads only its own sections (`READ`), so that it also runs if other sections are invalid.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tasks.core.config import duplicates, nearest
from tasks.filters.catalogue import field_types_of, mismatch
from tasks.filters.language import known_labels
from tasks.formats.tokens.components import JOINT, columns_of
from tasks.formats.tokens.labels import SOURCE, UNKNOWN
from tasks.run.catalogue import NEEDS
from tasks.stages.annotate import AnnotateConfig
from tasks.stages.canary import CanaryConfig
from tasks.stages.chunks import ChunksConfig
from tasks.stages.classifiers import ClassifiersConfig
from tasks.stages.consolidate.config import GOLD, SILVER, ConsolidateConfig
from tasks.stages.crawl.config import CrawlConfig
from tasks.stages.dedup_index import DedupIndexConfig
from tasks.stages.extract import parser
from tasks.stages.extract.config import KINDS, MESSAGES, WARC, WEB, ExtractConfig
from tasks.stages.finetune import ExamplesConfig
from tasks.stages.perplexity import ANY_LANGUAGE, PerplexityConfig
from tasks.stages.registry import MergeConfig, PromoteConfig
from tasks.stages.repeats import RepeatsConfig
from tasks.stages.spans import SpansConfig
from tasks.stages.tokens import EncodeConfig, PackConfig, TokenizerConfig
from tasks.trainer.config import EARLIER, OptimConfig, TrainConfig
from tasks.trainer.evaluation.config import EvaluateConfig
from tasks.trainer.tuning.config import FinetuneConfig

READ: Mapping[str, tuple[str, ...]] = {
    "crawl": ("enabled",),
    "extract": ("files", "streams", "archives"),
    "classifiers": ("train",),
    "perplexity": ("references", "cut_source"),
    "annotate": ("use", "settings"),
    "consolidate": ("filters", "limits", "sources", "trusted", "gold", "mask_pii"),
    "tokenizer": ("weights", "by", "alpha"),
    "dedup_index": ("enabled",),
    "encode": ("columns", "token_files", "accumulate"),
    "chunks": ("enabled", "code_sources"),
    "spans": ("enabled",),
    "repeats": ("enabled",),
    "pack": ("by", "leave_out_repeats"),
    "canary": ("current", "target", "guarded", "tasks", "steps", "optim", "alpha"),
    "train": ("mixture", "alpha", "anneal", "replay", "steps", "milestones", "optim", "init_from", "continual"),
    "merge": ("last",),
    "evaluate": ("tasks",),
    "promote": ("guarded", "enabled"),
    "examples": ("chunks",),
    "finetune": ("steps", "milestones", "optim"),
}
"""Sections that are checked together, and the fields of each that the checks read."""


@dataclass(frozen=True)
class Sections:
    """The sections of a recipe that are checked together; None for a section that is invalid or not relevant.

    `own` has the names of the sections that the recipe sets itself, valid or not. `crawls` is whether documents come
    from a crawl.
    """

    own: frozenset[str]
    makes: tuple[str, ...]
    crawls: bool
    crawl: CrawlConfig | None = None
    extract: ExtractConfig | None = None
    classifiers: ClassifiersConfig | None = None
    perplexity: PerplexityConfig | None = None
    annotate: AnnotateConfig | None = None
    consolidate: ConsolidateConfig | None = None
    tokenizer: TokenizerConfig | None = None
    dedup_index: DedupIndexConfig | None = None
    encode: EncodeConfig | None = None
    chunks: ChunksConfig | None = None
    spans: SpansConfig | None = None
    repeats: RepeatsConfig | None = None
    pack: PackConfig | None = None
    canary: CanaryConfig | None = None
    train: TrainConfig | None = None
    evaluate: EvaluateConfig | None = None
    merge: MergeConfig | None = None
    promote: PromoteConfig | None = None
    examples: ExamplesConfig | None = None
    finetune: FinetuneConfig | None = None


def inconsistencies(sections: Sections) -> Iterator[str]:
    """Yields every inconsistency between the valid sections."""
    for check in (
        _makes,
        misnamed_sources,
        misplaced_limits,
        _filtered_sources,
        _pack_columns,
        _alphas,
        _accumulated,
        _repeats,
        _mixture,
        _warmup,
        _best,
        _merged,
        _measurements,
        _classifiers,
        _ngram_models,
        _topics,
        _url_categories,
        _perplexity_cuts,
        _chunks,
    ):
        yield from check(sections)


def _makes(sections: Sections) -> Iterator[str]:
    """Checks that the recipe makes something, and that it also makes the assets that its assets require."""
    if not sections.makes and not {"examples", "finetune"} <= sections.own:
        yield (
            "the recipe makes nothing: add a section, such as [crawl], [[extract.files]] or [train], or set makes; or "
            "add [examples] and [finetune]"
        )
    for asset in sections.makes:
        for needed in NEEDS[asset]:
            if needed not in sections.makes:
                yield f'makes: "{asset}" is made from "{needed}": add it'
    if "warc" in sections.makes and "crawl" not in sections.own:
        yield 'makes: "warc" needs a section [crawl]: add it'
    if sections.makes and "warc" not in sections.makes and sections.crawl and sections.crawl.enabled:
        yield 'makes: without "warc" the section [crawl] has no effect: add "warc", or set crawl.enabled = false'


def _pack_columns(sections: Sections) -> Iterator[str]:
    """Checks that sequences are grouped by a column that the shards have."""
    if sections.encode is None or sections.pack is None:
        return
    columns = (SOURCE, *sections.encode.columns)
    for column in columns_of(sections.pack.by):
        if column not in columns:
            names = ", ".join(columns)
            yield f'pack.by: the shards have no column "{column}": add it to encode.columns, or choose from {names}'
    if twice := duplicates(columns_of(sections.pack.by)):
        yield f'pack.by: the column "{twice[0]}" is named twice: leave one out'


def _alphas(sections: Sections) -> Iterator[str]:
    """Checks that exponents are of columns that make the components of a mixture."""
    by = sections.pack.by if sections.pack else SOURCE
    for section, at in ((sections.train, "train.alpha"), (sections.canary, "canary.alpha")):
        for column in section.alpha if section else ():
            if column not in columns_of(by):
                yield f'{at}: [pack] by = "{by}" has no column "{column}": add it there, joined by "{JOINT}"'
    if sections.tokenizer:
        columns = columns_of(sections.tokenizer.by)
        for column in sections.tokenizer.alpha:
            if column not in columns:
                yield f'tokenizer.alpha: by = "{sections.tokenizer.by}" has no column "{column}": add it there'
    decided = sections.train and "mixture" in sections.makes and not sections.train.anneal
    if decided and sections.train and sections.train.alpha:
        yield "train.alpha: the canaries decide the mixture: write it as canary.alpha, or remove [canary]"


def _accumulated(sections: Sections) -> Iterator[str]:
    """Checks that accumulated shards get only documents that no earlier version has published."""
    encode, index = sections.encode, sections.dedup_index
    if encode and encode.accumulate and index and not index.enabled:
        yield "encode.accumulate: the documents of a version must be new in it: set [dedup_index] enabled = true"


def _repeats(sections: Sections) -> Iterator[str]:
    """Checks that suffix arrays are made if long repeats are searched, and repeats searched if pack leaves them out."""
    spans, repeats, pack = sections.spans, sections.repeats, sections.pack
    if repeats and spans and repeats.enabled and not spans.enabled:
        yield "repeats: they are searched in the suffix arrays of [spans]: set [spans] enabled = true"
    if pack and repeats and pack.leave_out_repeats and not repeats.enabled:
        yield "pack.leave_out_repeats: repeats are not searched: set [repeats] enabled = true"


def _filtered_sources(sections: Sections) -> Iterator[str]:
    """Checks that filters apply to at least one source."""
    if sections.extract is None or sections.consolidate is None:
        return
    names = sources_of(sections.crawls, sections.extract)
    sources, trusted = sections.consolidate.sources, sections.consolidate.trusted
    for name in trusted:
        if name in (sources or ()):
            yield (
                f'consolidate.trusted: "{name}" is also in consolidate.sources, to which filters apply: remove it from '
                "one of the two"
            )
    if set(names) - set(trusted) and sections.consolidate.filters and sources == ():
        yield (
            f"consolidate.sources is empty, so the filters would apply to nothing: choose from {', '.join(names)}, or "
            "set consolidate.filters = []"
        )


def _mixture(sections: Sections) -> Iterator[str]:
    """Checks that the mixture is determined either by canaries or by the recipe, not by both."""
    if sections.train and sections.train.mixture and "mixture" in sections.makes:
        yield "train.mixture: the canaries decide the mixture: write it as canary.current, or remove [canary]"


def _warmup(sections: Sections) -> Iterator[str]:
    """Checks that the warm-up of a run is not longer than the run, unless it is a default.

    A value is compared with the defaults, because a recipe that was sent to a pod has all settings written out.
    """
    for name, config in (("canary", sections.canary), ("train", sections.train), ("finetune", sections.finetune)):
        if config is None:
            continue
        steps, warmup = config.steps, config.optim.warmup_steps
        defaults = (OptimConfig().warmup_steps, type(config)().optim.warmup_steps)
        if warmup > steps and warmup not in defaults:
            yield (
                f"{name}.optim.warmup_steps: the run would end in its warm-up, at {steps / warmup:.0%} of the learning "
                f"rate: set at most {steps}, or raise {name}.steps"
            )


def _best(sections: Sections) -> Iterator[str]:
    """Checks that a run keeps the best checkpoint if it is to be scored."""
    if sections.evaluate and sections.evaluate.checkpoint == "best" and sections.train and not sections.train.best:
        yield 'evaluate.checkpoint: the run keeps no best checkpoint: set [train.best] every, or checkpoint = "last"'


def _merged(sections: Sections) -> Iterator[str]:
    """Checks that a merged model has its checkpoints in every run, and a comparison to be in."""
    if sections.merge is None or not sections.merge.active or sections.train is None:
        return
    if sections.promote and not sections.promote.enabled:
        yield "merge.last: nothing compares the merged model: set promote.enabled = true, or remove [merge]"
    for run in (sections.train, sections.train.of_month(2)):
        before = sum(step <= run.stable_step for step in run.milestone_steps)
        before = before if run.optim.schedule == "wsd" else 0
        if before < sections.merge.last:
            yield (
                f"merge.last: a run of {run.steps} steps keeps {before} checkpoints before its decay: raise "
                'train.milestones, with train.optim.schedule = "wsd", or merge fewer'
            )
            return


def _measurements(sections: Sections) -> Iterator[str]:
    """Checks that all values that `consolidate` and `dedup` read are measured by an annotator of the recipe."""
    annotate, consolidate = sections.annotate, sections.consolidate
    if annotate is None:
        return
    if consolidate is not None:
        problems = consolidate.unmeasured(annotate.use, lambda name: field_types_of(name, annotate.settings[name]))
        yield from (": ".join(problem) for problem in problems)
    if "prose_score" not in annotate.use:
        yield 'annotate.use: dedup reads "prose_score": add it'


def _classifiers(sections: Sections) -> Iterator[str]:
    """Checks that this recipe trains the models that annotators apply."""
    if sections.annotate is None or sections.classifiers is None:
        return
    trained = {model.name: model for model in sections.classifiers.train}
    for name, field, model in _applied_models(sections.annotate):
        at = f"annotate.settings.{name}.{field}"
        if not trained:
            yield (
                f'annotate.use: {name} applies the model "{model}", but no model is trained: add [[classifiers.train]] '
                f'with name = "{model}", or remove {name} from annotate.use'
            )
        elif model not in trained:
            yield f'{at}: [[classifiers.train]] has no "{model}": {nearest(model, trained)}'
        elif problem := mismatch(name, trained[model].method, trained[model].positive):
            yield f'{at}: the model "{model}" {": ".join(problem)}'


def _applied_models(annotate: AnnotateConfig) -> Iterator[tuple[str, str, str]]:
    """Yields (annotator, its setting with the model, the model) for annotators that apply trained classifiers."""
    for name, field in (("classifier", "models"), ("topic", "model"), ("quality", "model")):
        if name in annotate.use:
            models = annotate.settings[name][field]
            yield from ((name, field, model) for model in ([models] if isinstance(models, str) else models) if model)


def _ngram_models(sections: Sections) -> Iterator[str]:
    """Checks that n-gram models are trained or read from a file, and that one applies to the documents."""
    annotate, perplexity = sections.annotate, sections.perplexity
    if annotate is None or perplexity is None:
        return
    if "perplexity" not in annotate.use or annotate.settings["perplexity"]["file"]:
        return
    languages = dict.fromkeys(reference.language for reference in perplexity.references)
    if not languages:
        yield (
            "annotate.use: perplexity has no model: add [[perplexity.references]], set "
            "annotate.settings.perplexity.file, or remove perplexity from annotate.use"
        )
    elif "language" not in annotate.use and ANY_LANGUAGE not in languages:
        yield (
            f"annotate.use: perplexity only has models for {', '.join(languages)}, but the language of documents "
            f'is not measured: add language before perplexity, or give a reference the language "{ANY_LANGUAGE}"'
        )


def _sections_of_filter(sections: Sections, name: str) -> tuple[AnnotateConfig, ConsolidateConfig] | None:
    """Returns the sections with the settings of a filter if it and its annotator are in use, else None."""
    if sections.annotate is None or sections.consolidate is None:
        return None
    if name not in sections.consolidate.filters or name not in sections.annotate.use:
        return None
    return sections.annotate, sections.consolidate


def _topics(sections: Sections) -> Iterator[str]:
    """Checks that the topics in limits are labels of the model."""
    if (both := _sections_of_filter(sections, "topic")) is None or sections.classifiers is None:
        return
    annotate, consolidate = both
    name = annotate.settings["topic"]["model"]
    for model in (model for model in sections.classifiers.train if model.name == name):
        yield from _names_in_limit("topic.drop", consolidate, model.labels, f'the model "{name}" has no label')


def _url_categories(sections: Sections) -> Iterator[str]:
    """Checks that there is a list for each URL category in limits."""
    if (both := _sections_of_filter(sections, "url_blocklist")) is None:
        return
    annotate, consolidate = both
    categories = _listed_categories(annotate.settings["url_blocklist"])
    problem = "annotate.settings.url_blocklist has no list of"
    yield from _names_in_limit("url_blocklist.categories", consolidate, categories, problem)


def _listed_categories(lists: Mapping[str, Any]) -> tuple[str, ...] | None:
    """Returns the categories that URLs may have; None if the folders of lists determine them."""
    if lists["folders"] and lists["categories"] is None:
        return None
    banned = ["banned_word"] if lists["banned_words"] else []
    return (*lists["files"], *(lists["categories"] or ()), *banned)


def _perplexity_cuts(sections: Sections) -> Iterator[str]:
    """Checks that there are cut points if limits drop perplexity buckets."""
    if (both := _sections_of_filter(sections, "perplexity")) is None:
        return
    annotate, consolidate = both
    settings = annotate.settings["perplexity"]
    for at, name, limits in consolidate.tables():
        if name == "perplexity" and limits.get("drop_buckets") and settings["file"] and not settings["cuts"]:
            yield f"{at}.drop_buckets: a model from a file has no cut points: set annotate.settings.perplexity.cuts"


def _chunks(sections: Sections) -> Iterator[str]:
    """Checks that the recipe cuts chunks if examples are made from its own chunks."""
    if sections.examples is None or not sections.examples.own_chunks:
        return
    if "tokens" not in sections.makes or (sections.chunks and not sections.chunks.enabled):
        yield (
            "examples.chunks: the recipe cuts no chunks: set [chunks] enabled = true, or name those of another version "
            "in examples.chunks.of"
        )


def _names_in_limit(
    limit: str, consolidate: ConsolidateConfig, valid: tuple[str, ...] | None, problem: str
) -> Iterator[str]:
    """Checks the names in a limit, given as "filter.field"; yields nothing if `valid` is None."""
    name, _, field = limit.partition(".")
    for at, limited, limits in consolidate.tables():
        for entry in (limits.get(field) or ()) if limited == name else ():
            if valid is not None and entry not in valid:
                remedy = nearest(entry, valid) if valid else "there is none at all"
                yield f'{at}.{field}: {problem} "{entry}": {remedy}'


def sources_of(crawls: bool, extract: ExtractConfig) -> tuple[str, ...]:
    """Returns the sources of a recipe's documents: the web if it crawls, and those of `[extract]`."""
    return (WEB, *extract.source_names) if crawls else extract.source_names


def with_sources(crawls: bool, extract: ExtractConfig, config: ConsolidateConfig) -> ConsolidateConfig:
    """Returns the settings of consolidate with the kinds of the recipe's sources, and with default `sources` if unset.

    Raises:
        ValueError: the settings contain other kinds.
    """
    kinds = {**({WEB: WEB} if crawls else {}), **{source.name: source.kind for source in extract.files}}
    kinds |= {source.name: MESSAGES for source in extract.streams}
    kinds |= {source.name: WARC for source in extract.archives}
    if config.kinds not in ({}, kinds):
        raise ValueError("consolidate.kinds is filled in from [extract]: leave it out")
    completed = config.model_copy(update={"kinds": kinds})
    if "sources" in config.model_fields_set:
        return completed
    return completed.model_copy(update={"sources": completed.judged_by_default()})


def misplaced_limits(sections: Sections) -> Iterator[str]:
    """Yields limits for sources that the recipe does not have or does not filter, unknown kinds and languages."""
    if sections.extract and sections.consolidate and sections.consolidate.kinds:
        settings = sections.annotate.settings.get("language") if sections.annotate else None
        yield from sections.consolidate.misplaced_limits(all_kinds(), known_labels(settings) if settings else None)


def all_kinds() -> list[str]:
    """Returns the kinds that sources can have: those of files and streams, and the names of parsers."""
    return [*KINDS, MESSAGES, *parser.parser_names()]


def misnamed_sources(sections: Sections) -> Iterator[str]:
    """Yields names of sources, and of values that a mixture weights, that the recipe does not have."""
    if sections.extract is None:
        return
    sources = sources_of(sections.crawls, sections.extract)
    if not sources:  # reported by the checks of [extract]
        return
    for at, name in _source_names(sections):
        if name not in sources:
            yield f'{at}: the recipe has no source "{name}": {nearest(name, sources)}'
    encoded = (*sources, *(files.name for files in sections.encode.token_files)) if sections.encode else sources
    tasks = sections.canary.tasks if sections.canary else ()
    measured = (*encoded, *tasks)
    for at, name in _heldout_names(sections):
        if name not in measured:
            kinds = "source and no task" if tasks else "source"
            yield f'{at}: the recipe has no {kinds} "{name}": {nearest(name, measured)}'
    yield from (f'canary.tasks: "{name}" is also a source: rename it' for name in tasks if name in encoded)
    yield from _guarded_names(sections, encoded)
    by = sections.pack.by if sections.pack else SOURCE
    for at, name in _mixture_names(sections):
        yield from _misnamed_component(at, name, by, "pack", lambda column: _known_values(sections, column, encoded))
    if sections.tokenizer:
        by = sections.tokenizer.by
        for name in sections.tokenizer.weights:
            at = "tokenizer.weights"
            yield from _misnamed_component(
                at, name, by, "tokenizer", lambda column: _known_values(sections, column, sources)
            )


def _misnamed_component(
    at: str, name: str, by: str, section: str, known_values: Callable[[str], tuple[str, ...]]
) -> Iterator[str]:
    """Yields what is wrong with the name of a component, or of a group, of the columns `by` of a section."""
    columns, values = columns_of(by), name.split(JOINT)
    if len(values) > len(columns):
        yield f'{at}: "{name}" has {len(values)} values, and [{section}] by = "{by}" has {len(columns)}'
        return
    for column, value in zip(columns, values, strict=False):
        known = known_values(column)
        if known and value not in known:
            problem = f"{column}, which [{section}] groups by, has no value"
            problem = "the recipe has no source" if column == SOURCE else problem
            yield f'{at}: {problem} "{value}": {nearest(value, known)}'


def _guarded_names(sections: Sections, sources: tuple[str, ...]) -> Iterator[str]:
    """Checks that each name in `promote.guarded` is a source or a task."""
    if sections.promote is None or sections.evaluate is None:
        return
    valid = (*sources, *(task.name for task in sections.evaluate.tasks))
    for name in sections.promote.guarded:
        if name not in valid:
            yield f'promote.guarded: the recipe has no source and no task "{name}": {nearest(name, valid)}'


def _source_names(sections: Sections) -> Iterator[tuple[str, str]]:
    """Yields (dotted path of the field, name) for every name of a source of documents."""
    if sections.consolidate:
        for field, names in (
            ("sources", sections.consolidate.sources or ()),
            ("trusted", sections.consolidate.trusted),
        ):
            yield from ((f"consolidate.{field}", name) for name in names)
    for number, model in enumerate(sections.classifiers.train if sections.classifiers else ()):
        for name in model.crawl.sources if model.crawl else ():
            yield f"classifiers.train.{number}.crawl.sources", name
    yield from _text_source_names(sections)


def _text_source_names(sections: Sections) -> Iterator[tuple[str, str]]:
    """Yields those in sections of stages that read the text of some sources."""
    if sections.perplexity:
        for number, reference in enumerate(sections.perplexity.references):
            if reference.kind == "documents":
                yield f"perplexity.references.{number}.name", reference.name
        if sections.perplexity.cut_source not in ("", WEB):  # WEB is the default, also without a crawl
            yield "perplexity.cut_source", sections.perplexity.cut_source
    if sections.chunks:
        yield from (("chunks.code_sources", name) for name in sections.chunks.code_sources)
    if sections.examples and sections.examples.chunks and sections.examples.own_chunks:
        yield from (("examples.chunks.sources", name) for name in sections.examples.chunks.sources)


def _heldout_names(sections: Sections) -> Iterator[tuple[str, str]]:
    """Yields (dotted path of the field, name) for every source or task by which canaries are scored."""
    if sections.canary:
        yield from (("canary.target", name) for name in sections.canary.target)
        yield from (("canary.guarded", name) for name in sections.canary.guarded)


def _known_values(sections: Sections, column: str, sources: tuple[str, ...]) -> tuple[str, ...]:
    """Returns the values of a column that mixtures can weight; () if they depend on the documents."""
    if column == SOURCE:
        return sources
    if column != "tier" or sections.encode is None:
        return ()
    return (GOLD, SILVER, *([UNKNOWN] if sections.encode.token_files else []))


def _mixture_names(sections: Sections) -> Iterator[tuple[str, str]]:
    """Yields (dotted path of the field, name) for every name in a mixture."""
    if sections.canary:
        yield from (("canary.current", name) for name in sections.canary.current)
    if sections.train:
        yield from (("train.mixture", name) for name in sections.train.mixture)
        if sections.train.anneal:
            yield from (("train.anneal.mixture", name) for name in sections.train.anneal.mixture)
        if sections.train.replay:
            yield from (("train.replay.old", name) for name in sections.train.replay.old if name != EARLIER)
