"""Every stage: where its code is, which section of the recipe sets it, what it reads and what it writes.

Modules are named by strings and imported when a stage runs, so that listing stages costs nothing. A stage is added by
writing its module and one entry here.

`reads` maps a role to an artifact kind; "segment/*" is the artifact of the stage's own member. `gathers` maps a role to
(kind, kind of the artifact that names its members): all members of a mapped stage. `earlier` maps a role to (kind, kind
of the artifact that completes a cycle): it is read at the newest version of the second, so that a cycle that never came
to its end is nobody's past; a crawl looks back where `[crawl] recrawl` says so, a canary always. `wants` maps a role to
the stage that makes it, and is read where the recipe has that stage: one that is `on_request` runs where its section of
the recipe gives it something to do (`wanted`). Of a `shared` stage what the source version holds serves the new version
too, where settings and inputs are the same; its result is read by stages of this catalogue alone, which look at both
versions. `groups` maps a role to (kind, group): one of the groups that an artifact is made of (`tasks.core.groups`);
the others bear on nothing.
"""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Stage:
    """One entry of the catalogue."""

    name: str
    module: str
    section: str
    writes: str
    reads: dict[str, str] = field(default_factory=dict)
    gathers: dict[str, tuple[str, str]] = field(default_factory=dict)
    groups: dict[str, tuple[str, str]] = field(default_factory=dict)
    earlier: dict[str, tuple[str, str]] = field(default_factory=dict)
    mapped: bool = False
    wants: dict[str, str] = field(default_factory=dict)
    on_request: bool = False
    shared: bool = False


CRAWL = "crawl"
"""The section of the stages of a crawl cycle."""

_CYCLE_BEFORE = {"previous": ("crawldb/*", "warc")}

_ALL = (
    Stage("inject", "tasks.stages.crawl.inject", CRAWL, "seeds", on_request=True),
    Stage(
        "rank",
        "tasks.stages.crawl.rank",
        CRAWL,
        "ranks",
        earlier={"crawldb": ("crawldb/*", "warc"), "previous": ("ranks", "warc")},
        on_request=True,
    ),
    Stage(
        "generate",
        "tasks.stages.crawl.generate",
        CRAWL,
        "fetchlist",
        {"seeds": "seeds", "ranks": "ranks"},
        earlier=_CYCLE_BEFORE,
        mapped=True,
        on_request=True,
    ),
    Stage(
        "fetch",
        "tasks.stages.crawl.fetch",
        CRAWL,
        "segment",
        {"seeds": "seeds", "fetchlist": "fetchlist/*"},
        {"fetchlists": ("fetchlist", "seeds")},
        earlier=_CYCLE_BEFORE,
        mapped=True,
        on_request=True,
    ),
    Stage(
        "render",
        "tasks.stages.crawl.render.stage",
        CRAWL,
        "rendered",
        {"seeds": "seeds", "segment": "segment/*"},
        mapped=True,
        on_request=True,
    ),
    Stage(
        "update",
        "tasks.stages.crawl.update",
        CRAWL,
        "crawldb",
        {"seeds": "seeds", "ranks": "ranks", "fetchlist": "fetchlist/*"},
        {"segments": ("segment", "seeds"), "rendered": ("rendered", "seeds")},
        earlier=_CYCLE_BEFORE,
        mapped=True,
        on_request=True,
    ),
    Stage(
        "publish",
        "tasks.stages.crawl.publish",
        CRAWL,
        "warc",
        gathers={
            "segments": ("segment", "seeds"),
            "rendered": ("rendered", "seeds"),
            "crawldb": ("crawldb", "seeds"),
        },
        on_request=True,
    ),
    Stage("extract", "tasks.stages.extract.stage", "extract", "extracted", wants={"warc": "publish"}, shared=True),
    Stage(
        "train_classifiers",
        "tasks.stages.classifiers.stage",
        "classifiers",
        "classifiers",
        {"extracted": "extracted"},
        on_request=True,
        shared=True,
    ),
    Stage(
        "train_perplexity",
        "tasks.stages.perplexity.stage",
        "perplexity",
        "perplexity",
        {"extracted": "extracted"},
        on_request=True,
        shared=True,
    ),
    Stage(
        "annotate",
        "tasks.stages.annotate.stage",
        "annotate",
        "attributes",
        {"extracted": "extracted"},
        wants={"classifiers": "train_classifiers", "perplexity": "train_perplexity"},
        shared=True,
    ),
    Stage(
        "dedup",
        "tasks.stages.dedup.stage",
        "dedup",
        "duplicates",
        {"extracted": "extracted"},
        groups={"prose_score": ("attributes", "prose_score")},
        shared=True,
    ),
    Stage(
        "consolidate",
        "tasks.stages.consolidate.stage",
        "consolidate",
        "documents",
        {"extracted": "extracted", "attributes": "attributes", "duplicates": "duplicates"},
    ),
    Stage("tokenizer", "tasks.stages.tokens.bpe", "tokenizer", "tokenizer", {"documents": "documents"}),
    Stage(
        "encode", "tasks.stages.tokens.encode", "encode", "shards", {"documents": "documents", "tokenizer": "tokenizer"}
    ),
    Stage("pack", "tasks.stages.tokens.pack", "pack", "plan", {"shards": "shards"}),
    Stage(
        "arms",
        "tasks.stages.canary.arms",
        "canary",
        "arms",
        {"plan": "plan"},
        earlier={"previous": ("mixture", "mixture")},
    ),
    Stage(
        "canary",
        "tasks.stages.canary.run",
        "canary",
        "canary",
        {"arms": "arms", "shards": "shards", "plan": "plan"},
        mapped=True,
    ),
    Stage(
        "decide", "tasks.stages.canary.decide", "canary", "mixture", {"arms": "arms"}, {"canaries": ("canary", "arms")}
    ),
    Stage(
        "train",
        "tasks.stages.train.stage",
        "train",
        "checkpoint",
        {"shards": "shards", "plan": "plan"},
        wants={"mixture": "decide"},
    ),
    Stage(
        "evaluate",
        "tasks.stages.evaluate.stage",
        "evaluate",
        "scores",
        {"checkpoint": "checkpoint", "shards": "shards", "tokenizer": "tokenizer"},
    ),
    Stage(
        "register",
        "tasks.stages.register.stage",
        "registry",
        "model",
        {"checkpoint": "checkpoint", "scores": "scores", "tokenizer": "tokenizer"},
        wants={"mixture": "decide"},
    ),
)

STAGES = {stage.name: stage for stage in _ALL}

ASSETS = {
    "warc": ("inject", "rank", "generate", "fetch", "render", "update", "publish"),
    "documents": ("extract", "train_classifiers", "train_perplexity", "annotate", "dedup", "consolidate"),
    "tokens": ("tokenizer", "encode", "pack"),
    "mixture": ("arms", "canary", "decide"),
    "checkpoint": ("train", "evaluate", "register"),
}
"""What a recipe can make, in this order, each with the stages that make it: the last stage of what comes before is done
when the first of these begins."""

PARTS = {
    "crawl": "warc",
    "corpus": "documents",
    "tokens": "tokens",
    "canary": "mixture",
    "pretrain": "checkpoint",
}
"""The parts of the pipeline, in order, each with what it makes."""

NEEDS = {
    "warc": (),
    "documents": (),
    "tokens": ("documents",),
    "mixture": ("documents", "tokens"),
    "checkpoint": ("documents", "tokens"),
}
"""What each is made from. Documents come from a crawl, from files, or from both; the mixture of a checkpoint from the
canaries, or from the recipe."""


def sections_of(asset: str) -> tuple[str, ...]:
    """Returns the sections of a recipe that set the stages of what it makes.

    >>> sections_of("tokens")
    ('tokenizer', 'encode', 'pack')
    """
    return tuple(dict.fromkeys(STAGES[stage].section for stage in ASSETS[asset]))
