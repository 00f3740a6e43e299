"""Declaration of a stage without its code: settings, inputs, output, scheduling.

Each package of `tasks.stages` declares its stages as `STAGES` in its `__init__`, together with their settings. This
imports no stage code, because DAG files read it at parse time. The catalogue (`tasks.run.catalogue`) collects all
declarations.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tasks.core.config import Config

MOST_MEMBERS = 10_000
"""The most members of a mapped stage: each is a task of Airflow, whose scheduler starts about one a second."""


@dataclass(frozen=True)
class Input:
    """An artifact of the stage's own version, or of the source version if the own version has none.

    Args:
        kind: kind of the artifact; "segment/*" is the artifact of the stage's own member.
        files: prefixes of the files that the stage reads; () for all files. With prefixes, only the content of these
            files is part of the fingerprint, and the stage cannot open any other file.
        members_of: kind of the artifact whose record lists the members, if the stage reads all members of a mapped
            stage.
        group: name of the group (`tasks.formats.documents.groups`), if the stage reads one of the groups of `kind`.
        optional: read the input only if the recipe has the stage that makes it.
        when: dotted recipe field; an optional input is read only if this field is true, too.
        member: returns the member of `kind`, or of `members_of`, that is read, from the stage's own member and its
            settings; with "" the input is left out. None for artifacts without members.
        earlier: the artifact was made by an earlier pass through the same stages, so the input does not order them.
        variant: returns the variant whose artifact is read (`variant_version`), from the stage's own member and its
            settings. A tuple of names reads one artifact of each, and with () the input is left out; with "" the
            artifact of the own version is read.
        or_of_base: if the recipe has no stage that makes the artifact, read the one that the base model of the
            recipe's fine-tuning was made with; only for the tokenizer.
    """

    kind: str
    files: tuple[str, ...] = ()
    members_of: str = ""
    group: str = ""
    optional: bool = False
    when: str = ""
    member: Callable[[str, Any], str] | None = None
    earlier: bool = False
    variant: Callable[[str, Any], str | tuple[str, ...]] | None = None
    or_of_base: bool = False


def variant_version(version: str, variant: str) -> str:
    """Returns the version of the artifacts of a variant: the recipe with other settings, made from a version's inputs.

    >>> variant_version("2026-11", "strict")
    '2026-11.strict'
    """
    return f"{version}.{variant}"


@dataclass(frozen=True)
class NamedInput:
    """One artifact or several, of any recipe and version, whose ids a setting gives.

    Args:
        field: field of the stage's section, or dotted path in it, with one id or a sequence of ids; "" or () for none.
            With the version "previous", the newest other version when the run began.
    """

    field: str


@dataclass(frozen=True)
class PreviousInput:
    """An input from the previous version: the newest other version that is complete.

    Args:
        kind: kind of the artifact; "crawldb/*" is the artifact of the stage's own member.
        completed_by: kind of the artifact that completes a version. A version without it is never a previous version.
        members: dotted recipe field with the number of members of `kind`; "" if it has no members.
        accumulates: whether the artifact contains the content of all versions before it, so that no version may be
            skipped. A run is rejected if its version began from a version that is no longer the newest. A version that
            reads only inputs of a source version has the same previous version as the source version: it is another
            result of the same cycle, not the next cycle.
        when: dotted recipe field; the input is read only if it is true. "" for always.
        unless: kind of an artifact that marks the completing one, such as a rejection; a version with the mark is never
            a previous version. "" for none.
    """

    kind: str
    completed_by: str
    members: str = ""
    accumulates: bool = False
    when: str = ""
    unless: str = ""


@dataclass(frozen=True)
class Takedowns:
    """The takedowns in force (`tasks.formats.documents.tombstones`), if there are any.

    They are read from all versions of the stage's own recipe and of the recipes of its `NamedInput`s.

    Args:
        role: role in which the stage reads them.
        when: dotted recipe field; they are read only if it is true. "" for always.
    """

    role: str = "takedowns"
    when: str = ""


@dataclass(frozen=True)
class StageSpec:
    """One stage: its settings, its inputs, its output and its scheduling.

    Args:
        name: name of the stage, and of its task in the DAG.
        dag: the DAG it is part of: "crawl", "corpus", "tokens", "canary", "pretrain", "finetune" or "takedown".
        output: kind of the artifact it writes; a mapped stage writes one per member, `<kind>/<member>`.
        config: class of its settings. The stage runs only if their property `active` is true.
        section: section of the recipe with its settings; by default its name.
        module: module with `VERSION` and `run`, relative to the package that declares the stage.
        asset: name of the Airflow Asset that the output completes and that later DAGs wait for; "" for none. A DAG
            without an asset is an operation on existing artifacts, such as "takedown".
        inputs: artifacts that it reads, by role.
        previous: artifacts of the previous version that it reads, by role.
        decided_by: role of an input whose record determines the previous version that all stages of this version read,
            and for stages that read the web also the takedowns.
        takedowns: the takedowns that it reads; None if it reads none.
        before: stages that wait for it in the DAG without reading its output.
        mapped: whether it runs once per member ("p0", "arm-0-seed-1").
        reads_web: whether it reads the web, so that equal settings and inputs do not give an equal result.
        when: dotted recipe field; the stage is part of a recipe only if it is true. "" for always.
    """

    name: str
    dag: str
    output: str
    config: type[Config]
    section: str = ""
    module: str = "stage"
    asset: str = ""
    inputs: Mapping[str, Input | NamedInput] = field(default_factory=dict)
    previous: Mapping[str, PreviousInput] = field(default_factory=dict)
    decided_by: str = ""
    takedowns: Takedowns | None = None
    before: tuple[str, ...] = ()
    mapped: bool = False
    reads_web: bool = False
    when: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "section", self.section or self.name)

    @property
    def own_inputs(self) -> dict[str, Input]:
        """Inputs of its own version, by role."""
        return {role: source for role, source in self.inputs.items() if isinstance(source, Input)}

    @property
    def named_inputs(self) -> dict[str, str]:
        """Fields of its section that give ids of artifacts, by role."""
        return {role: source.field for role, source in self.inputs.items() if isinstance(source, NamedInput)}

    @property
    def of_other_versions(self) -> frozenset[str]:
        """Roles of inputs from other versions; searches for the artifacts of a version do not follow them."""
        variants = (role for role, source in self.own_inputs.items() if source.variant)
        return frozenset({*self.named_inputs, *self.previous, *variants})

    def input_kinds(self, *, required: bool = False) -> tuple[str, ...]:
        """Returns the kinds, without members, that it reads from its own version; `required`: without optional ones.

        Kinds that it reads only from an earlier pass through the same stages are left out.
        """
        read = [source for source in self.own_inputs.values() if not source.earlier]
        sources = [source for source in read if not (required and source.optional)]
        return tuple(dict.fromkeys(source.kind.partition("/")[0] for source in sources))
