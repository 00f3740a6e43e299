"""Catalogue of all stages in order, with the DAGs, assets and recipe sections that they declare.

Reads `STAGES` of the packages of `tasks.stages`. A declaration names the module with the code of its stage as a string,
and the module is imported when the stage runs, so listing stages is cheap.
"""

import importlib
import pkgutil
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from functools import cache

from tasks import stages
from tasks.core.config import Config
from tasks.core.stage_spec import StageSpec


def _declarations() -> Iterator[StageSpec]:
    """Yields the stages that the packages of `tasks.stages` declare, in order of package names."""
    for package in sorted(module.name for module in pkgutil.iter_modules(stages.__path__, f"{stages.__name__}.")):
        for stage in importlib.import_module(package).STAGES:
            yield replace(stage, module=f"{package}.{stage.module}")


def _in_order(declared: Sequence[StageSpec]) -> list[StageSpec]:
    """Returns the stages DAG by DAG, each after the stages that it reads from or waits for.

    Stages that an asset needs come first, in the order in which they are declared as inputs; the others follow by name.
    """
    makers = {stage.output: stage for stage in declared}
    ordered: dict[str, StageSpec] = {}

    def add(stage: StageSpec) -> None:
        if stage.name in ordered:
            return
        for kind in stage.input_kinds():
            if kind not in makers:
                raise ValueError(f'the stage {stage.name} reads "{kind}", which no stage writes')
            add(makers[kind])
        for other in declared:
            if stage.name in other.before:
                add(other)
        ordered[stage.name] = stage

    for stage in sorted(declared, key=lambda stage: (not stage.asset, stage.name)):
        add(stage)
    dags = list(dict.fromkeys(stage.dag for stage in ordered.values()))
    return sorted(ordered.values(), key=lambda stage: dags.index(stage.dag))


STAGES: dict[str, StageSpec] = {stage.name: stage for stage in _in_order(list(_declarations()))}
"""Every stage by name, each after the stages whose output it reads."""

MAKERS: dict[str, StageSpec] = {stage.output: stage for stage in STAGES.values()}
"""The stage that writes each kind of artifact."""

SECTIONS: dict[str, type[Config]] = {stage.section: stage.config for stage in STAGES.values()}
"""The class of each section of a recipe that has settings of stages."""

PARTS: dict[str, str] = {stage.dag: stage.asset for stage in STAGES.values() if stage.asset}
"""The DAGs of a recipe that make an asset for later DAGs, in order, each with its asset."""

OPERATIONS: tuple[str, ...] = tuple(dict.fromkeys(stage.dag for stage in STAGES.values() if stage.dag not in PARTS))
"""DAGs that make no asset: operations on existing artifacts. A recipe has those that contain an active stage."""


def stages_of(dag: str) -> tuple[str, ...]:
    """Returns the names of a DAG's stages in the order in which they run.

    >>> stages_of("tokens")
    ('tokenizer', 'encode', 'spans', 'repeats', 'pack', 'chunks')
    """
    return tuple(stage.name for stage in STAGES.values() if stage.dag == dag)


ASSETS: dict[str, tuple[str, ...]] = {asset: stages_of(dag) for dag, asset in PARTS.items()}
"""Stages of each asset that a recipe can make, in the order of the DAGs."""


@cache
def sections_of(asset: str) -> tuple[str, ...]:
    """Returns the sections of a recipe with the settings of an asset's stages.

    >>> sections_of("tokens")
    ('tokenizer', 'encode', 'spans', 'repeats', 'pack', 'chunks')
    """
    return tuple(dict.fromkeys(STAGES[stage].section for stage in ASSETS[asset]))


def upstream(stage: str, among: Collection[str] | None = None) -> tuple[str, ...]:
    """Returns the stages of the same DAG that a stage reads from or waits for directly.

    Stages that are upstream of another returned stage are left out.

    Args:
        stage: name of a stage.
        among: the stages that a recipe has; None for all.

    >>> upstream("update")
    ('render',)
    >>> upstream("compare"), upstream("compare", among=["register", "compare"])
    (('merge',), ('register',))
    """
    names = STAGES if among is None else among
    direct = _direct_upstream(stage) & {*names}
    indirect = set[str]().union(*(_all_upstream(name, names) for name in direct))
    return tuple(name for name in STAGES if name in direct - indirect)


def _direct_upstream(stage: str) -> set[str]:
    spec = STAGES[stage]
    read = {MAKERS[kind].name for kind in spec.input_kinds() if MAKERS[kind].dag == spec.dag}
    return read | {other.name for other in STAGES.values() if stage in other.before}


def _all_upstream(stage: str, among: Collection[str]) -> set[str]:
    direct = _direct_upstream(stage) & {*among}
    return direct.union(*(_all_upstream(name, among) for name in direct))


def _needs(asset: str) -> tuple[str, ...]:
    kinds = {kind for stage in ASSETS[asset] for kind in STAGES[stage].input_kinds(required=True)}
    direct = {PARTS[MAKERS[kind].dag] for kind in kinds} - {asset}
    needed = direct.union(*(_needs(parent) for parent in direct))
    return tuple(name for name in ASSETS if name in needed)


NEEDS: dict[str, tuple[str, ...]] = {asset: _needs(asset) for asset in ASSETS}
"""Assets that each asset always requires. A crawl is not required for documents, which may come from files, nor are
canaries for a checkpoint, whose mixture may be set in the recipe."""
