"""Catalogue of all stages in the order in which they run, with the DAGs and assets that their wiring defines.

Reads the `wiring` modules of `tasks.stages`. Modules with code are named by strings and imported when a stage runs, so
that listing stages is cheap.
"""

from collections.abc import Iterable, Iterator

from tasks.core.stage_spec import StageSpec
from tasks.stages import annotate as annotate
from tasks.stages import canary as canary
from tasks.stages import chunks as chunks
from tasks.stages import classifiers as classifiers
from tasks.stages import consolidate as consolidate
from tasks.stages import decontaminate as decontaminate
from tasks.stages import dedup as dedup
from tasks.stages import dedup_index as dedup_index
from tasks.stages import estimate as estimate
from tasks.stages import evaluate as evaluate
from tasks.stages import finetune as finetune
from tasks.stages import paragraphs as paragraphs
from tasks.stages import perplexity as perplexity
from tasks.stages import promote as promote
from tasks.stages import reconcile as reconcile
from tasks.stages import register as register
from tasks.stages import repeats as repeats
from tasks.stages import spans as spans
from tasks.stages import takedown as takedown
from tasks.stages import tokens as tokens
from tasks.stages import train as train
from tasks.stages.crawl import wiring as crawl
from tasks.stages.extract import wiring as extract

_WIRINGS = (
    *(crawl, extract, classifiers, perplexity, annotate, dedup, decontaminate, paragraphs, consolidate),
    *(dedup_index, tokens, chunks, spans, repeats),
    *(canary, estimate, train, reconcile, evaluate, register, promote, finetune, takedown),
)


def _in_order(stages: Iterable[StageSpec]) -> Iterator[StageSpec]:
    """Yields the stages in the given order, each after the stages whose output it reads."""
    left = list(stages)
    while left:
        to_come = {stage.output for stage in left}
        ready = next(stage for stage in left if not to_come.intersection({*stage.input_kinds()} - {stage.output}))
        left.remove(ready)
        yield ready


STAGES: dict[str, StageSpec] = {
    stage.name: stage for stage in _in_order(stage for wiring in _WIRINGS for stage in wiring.STAGES)
}
"""Every stage by name, each after the stages whose output it reads."""

MAKERS: dict[str, StageSpec] = {stage.output: stage for stage in STAGES.values()}
"""The stage that writes a kind of artifact."""

PARTS: dict[str, str] = {stage.dag: stage.asset for stage in STAGES.values() if stage.asset}
"""The DAGs of a recipe, in order, each with the asset that it makes for later DAGs."""

OPERATIONS: tuple[str, ...] = tuple(dict.fromkeys(stage.dag for stage in STAGES.values() if stage.dag not in PARTS))
"""DAGs that make no asset: operations on what the others have made. A recipe has those with a stage that runs."""


def stages_of(dag: str) -> tuple[str, ...]:
    """Returns the names of a DAG's stages in the order in which they run.

    >>> stages_of("tokens")
    ('tokenizer', 'encode', 'chunks', 'spans', 'repeats', 'pack')
    """
    return tuple(stage.name for stage in STAGES.values() if stage.dag == dag)


ASSETS: dict[str, tuple[str, ...]] = {asset: stages_of(dag) for dag, asset in PARTS.items()}
"""Assets that a recipe can make, in this order, each with its stages."""


def sections_of(asset: str) -> tuple[str, ...]:
    """Returns the sections of a recipe with the settings of an asset's stages.

    >>> sections_of("tokens")
    ('tokenizer', 'encode', 'chunks', 'spans', 'repeats', 'pack')
    """
    return tuple(dict.fromkeys(STAGES[stage].section for stage in ASSETS[asset]))


def upstream(stage: str) -> tuple[str, ...]:
    """Returns the stages of the same DAG whose output a stage reads, without those upstream of another of them.

    >>> upstream("update")
    ('render',)
    """
    direct = _direct_upstream(stage)
    indirect = set[str]().union(*map(_all_upstream, direct))
    return tuple(name for name in STAGES if name in direct - indirect)


def _direct_upstream(stage: str) -> set[str]:
    spec = STAGES[stage]
    return {MAKERS[kind].name for kind in spec.input_kinds() if MAKERS[kind].dag == spec.dag}


def _all_upstream(stage: str) -> set[str]:
    direct = _direct_upstream(stage)
    return direct.union(*map(_all_upstream, direct))


def _needs(asset: str) -> tuple[str, ...]:
    kinds = {kind for stage in ASSETS[asset] for kind in STAGES[stage].required_kinds()}
    direct = {PARTS[MAKERS[kind].dag] for kind in kinds} - {asset}
    needed = direct.union(*(_needs(parent) for parent in direct))
    return tuple(name for name in ASSETS if name in needed)


NEEDS: dict[str, tuple[str, ...]] = {asset: _needs(asset) for asset in ASSETS}
"""Assets that each asset always requires. Documents come from a crawl, from files, or from both; the mixture of a
checkpoint from the canaries, or from the recipe."""
