"""Every stage: where its code is, which section of the recipe sets it, what it reads and what it writes.

Used by the runner, the shell and the operators. Modules are named by strings and imported when a stage runs, so that
listing stages costs nothing. A stage is added by writing its module and one entry here.

`reads` maps a role to an artifact kind; "segment/*" is the artifact of the stage's own member. `gathers` maps a role to
(kind, kind of the artifact that names its members): all members of a mapped stage. `earlier` maps a role to (kind, kind
of the artifact that completes a cycle): it is read at the newest version of the second, so that a cycle that never came
to its end is nobody's past. `wants` maps a role to the stage that makes it, and is read where the recipe has that
stage: one that is `on_request` runs where its section of the recipe gives it something to do (`wanted`). Of a `shared`
stage what the source version holds serves the new version too, where settings and inputs are the same; its result is
read by stages of this catalogue alone, which look at both versions. `groups` maps a role to (kind, group): one of the
groups that an artifact is made of (`tasks.groups`); the others bear on nothing.
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


_CYCLE_BEFORE = {"previous": ("crawldb/*", "warc")}

_ALL = (
    Stage("inject", "tasks.crawl.inject", "crawl", "seeds"),
    Stage(
        "rank",
        "tasks.crawl.rank",
        "crawl",
        "ranks",
        earlier={"crawldb": ("crawldb/*", "warc"), "previous": ("ranks", "warc")},
    ),
    Stage(
        "generate",
        "tasks.crawl.generate",
        "crawl",
        "fetchlist",
        {"seeds": "seeds", "ranks": "ranks"},
        earlier=_CYCLE_BEFORE,
        mapped=True,
    ),
    Stage(
        "fetch",
        "tasks.crawl.fetch",
        "crawl",
        "segment",
        {"seeds": "seeds", "fetchlist": "fetchlist/*"},
        {"fetchlists": ("fetchlist", "seeds")},
        earlier=_CYCLE_BEFORE,
        mapped=True,
    ),
    Stage(
        "render",
        "tasks.render.stage",
        "crawl",
        "rendered",
        {"seeds": "seeds", "segment": "segment/*"},
        mapped=True,
    ),
    Stage(
        "update",
        "tasks.crawl.update",
        "crawl",
        "crawldb",
        {"seeds": "seeds", "ranks": "ranks", "fetchlist": "fetchlist/*"},
        {"segments": ("segment", "seeds"), "rendered": ("rendered", "seeds")},
        earlier=_CYCLE_BEFORE,
        mapped=True,
    ),
    Stage(
        "publish",
        "tasks.crawl.publish",
        "crawl",
        "warc",
        gathers={
            "segments": ("segment", "seeds"),
            "rendered": ("rendered", "seeds"),
            "crawldb": ("crawldb", "seeds"),
        },
        on_request=True,
    ),
    Stage("extract", "tasks.extract.stage", "extract", "extracted", wants={"warc": "publish"}, shared=True),
    Stage(
        "train_classifiers",
        "tasks.classifiers.stage",
        "classifiers",
        "classifiers",
        {"extracted": "extracted"},
        on_request=True,
        shared=True,
    ),
    Stage(
        "train_perplexity",
        "tasks.perplexity.stage",
        "perplexity",
        "perplexity",
        {"extracted": "extracted"},
        on_request=True,
        shared=True,
    ),
    Stage(
        "annotate",
        "tasks.annotate.stage",
        "annotate",
        "attributes",
        {"extracted": "extracted"},
        wants={"classifiers": "train_classifiers", "perplexity": "train_perplexity"},
        shared=True,
    ),
    Stage(
        "dedup",
        "tasks.dedup.stage",
        "dedup",
        "duplicates",
        {"extracted": "extracted"},
        groups={"prose_score": ("attributes", "prose_score")},
        shared=True,
    ),
    Stage(
        "consolidate",
        "tasks.consolidate.stage",
        "consolidate",
        "documents",
        {"extracted": "extracted", "attributes": "attributes", "duplicates": "duplicates"},
    ),
    Stage("tokenizer", "tasks.tokens.bpe", "tokenizer", "tokenizer", {"documents": "documents"}),
    Stage("encode", "tasks.tokens.encode", "encode", "shards", {"documents": "documents", "tokenizer": "tokenizer"}),
    Stage("pack", "tasks.tokens.pack", "pack", "plan", {"shards": "shards"}),
    Stage(
        "arms", "tasks.canary.arms", "canary", "arms", {"plan": "plan"}, earlier={"previous": ("mixture", "mixture")}
    ),
    Stage(
        "canary",
        "tasks.canary.run",
        "canary",
        "canary",
        {"arms": "arms", "shards": "shards", "plan": "plan"},
        mapped=True,
    ),
    Stage("decide", "tasks.canary.decide", "canary", "mixture", {"arms": "arms"}, {"canaries": ("canary", "arms")}),
    Stage(
        "train",
        "tasks.train.stage",
        "train",
        "checkpoint",
        {"shards": "shards", "plan": "plan", "mixture": "mixture"},
    ),
    Stage(
        "evaluate",
        "tasks.evals.stage",
        "evaluate",
        "scores",
        {"checkpoint": "checkpoint", "shards": "shards", "tokenizer": "tokenizer"},
    ),
    Stage(
        "register",
        "tasks.register.stage",
        "registry",
        "model",
        {"checkpoint": "checkpoint", "scores": "scores", "tokenizer": "tokenizer", "mixture": "mixture"},
    ),
)

STAGES = {stage.name: stage for stage in _ALL}
