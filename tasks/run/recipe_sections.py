"""The sections of a recipe that are checked together, and what is read of them."""

from collections.abc import Mapping
from dataclasses import dataclass

from tasks.core.config import Config
from tasks.stages.annotate import AnnotateConfig
from tasks.stages.canary import CanaryConfig
from tasks.stages.chunks import ChunksConfig
from tasks.stages.classifiers import ClassifiersConfig
from tasks.stages.consolidate.config import ConsolidateConfig
from tasks.stages.crawl.config import CrawlConfig
from tasks.stages.extract.config import ExtractConfig
from tasks.stages.finetune import ExamplesConfig
from tasks.stages.perplexity import PerplexityConfig
from tasks.stages.promote import PromoteConfig
from tasks.stages.repeats import RepeatsConfig
from tasks.stages.spans import SpansConfig
from tasks.stages.tokens import EncodeConfig, PackConfig, TokenizerConfig
from tasks.trainer.config import TrainConfig
from tasks.trainer.evaluation.config import EvaluateConfig


@dataclass(frozen=True)
class Sections:
    """The sections of a recipe that are checked together; None for a section that is invalid or not relevant.

    `given` names the sections that the recipe sets itself, valid or not; `crawls` is whether documents come from a
    crawl.
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
    encode: EncodeConfig | None = None
    chunks: ChunksConfig | None = None
    spans: SpansConfig | None = None
    repeats: RepeatsConfig | None = None
    pack: PackConfig | None = None
    canary: CanaryConfig | None = None
    train: TrainConfig | None = None
    evaluate: EvaluateConfig | None = None
    promote: PromoteConfig | None = None
    examples: ExamplesConfig | None = None


READ: Mapping[str, tuple[type[Config], tuple[str, ...]]] = {
    "crawl": (CrawlConfig, ("enabled",)),
    "extract": (ExtractConfig, ("files",)),
    "classifiers": (ClassifiersConfig, ("train",)),
    "perplexity": (PerplexityConfig, ("references", "cut_source")),
    "annotate": (AnnotateConfig, ("use", "settings")),
    "consolidate": (ConsolidateConfig, ("filters", "limits", "sources", "trusted", "gold", "mask_pii")),
    "tokenizer": (TokenizerConfig, ("weights",)),
    "encode": (EncodeConfig, ("columns", "token_files")),
    "chunks": (ChunksConfig, ("enabled", "code_sources")),
    "spans": (SpansConfig, ("enabled",)),
    "repeats": (RepeatsConfig, ("enabled",)),
    "pack": (PackConfig, ("by", "leave_out_repeats")),
    "canary": (CanaryConfig, ("current", "target", "guarded")),
    "train": (TrainConfig, ("mixture", "anneal", "replay")),
    "evaluate": (EvaluateConfig, ("tasks",)),
    "promote": (PromoteConfig, ("guarded",)),
    "examples": (ExamplesConfig, ("chunks",)),
}
"""Class of each section, and the fields that the checks read."""
