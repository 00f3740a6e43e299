"""Declaration of a stage without its code: settings, inputs, the version before, policies.

Each package of `tasks.stages` declares its stages as `STAGES` in its `__init__`, beside their settings. That imports no
code of the stages, because DAG files read it at parse time; the catalogue (`tasks.run.catalogue`) finds it there.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from tasks.core.config import Config


@dataclass(frozen=True)
class Input:
    """An artifact of the stage's own version, or of the source version where that has none.

    Args:
        kind: kind of the artifact; "segment/*" is the one of the stage's own member.
        files: prefixes of the files that are read, where not all of them are. The input then counts in the fingerprint
            by the content of these files alone, and the stage cannot open any other.
        members_of: kind of the artifact whose record names the members, where all members of a mapped stage are read.
        group: name of the group, where one of the artifacts that `kind` is made of is read (`tasks.core.groups`).
        optional: whether it is read only where the recipe has the stage that makes it.
        when: dotted recipe field; an optional input is read only where that is true, too.
        or_of_base: whether, where the recipe has no stage that makes it, the stage reads what the base of the
            recipe's fine-tuning was made with; of the tokenizer alone.
    """

    kind: str
    files: tuple[str, ...] = ()
    members_of: str = ""
    group: str = ""
    optional: bool = False
    when: str = ""
    or_of_base: bool = False


@dataclass(frozen=True)
class Named:
    """An artifact of any recipe and version, or several, that a setting names by id.

    Args:
        field: field of the stage's section, or dotted path in it, with an id (version "previous": the newest other one
            when the run began), or with several; "" or () where there is none.
    """

    field: str


@dataclass(frozen=True)
class Previous:
    """An input that is read of the version before: the newest other version that was completed.

    Args:
        kind: kind of the artifact; "crawldb/*" is the one of the stage's own member.
        completed_by: kind of the artifact that completes a version. A version without it is never a previous version.
        members: dotted recipe field with the number of members of `kind`; "" where it has none.
        accumulates: whether it has what all versions before it have, so that no version may be passed over: one that
            was begun from an older one than the newest by now is refused. A version that reads no input of its own, but
            those of a source version, has the version before of that one: it is another result of the same cycle, and
            not the next cycle.
        when: dotted recipe field; the version before is read where it is true. "": always.
    """

    kind: str
    completed_by: str
    members: str = ""
    accumulates: bool = False
    when: str = ""


@dataclass(frozen=True)
class Takedowns:
    """The takedowns in force (`tasks.formats.documents.tombstones`), where there are some.

    They are of any version, of the stage's own recipe and of the recipes whose artifacts it names.

    Args:
        role: role in which the stage reads them.
        when: dotted recipe field; they are read where it is true. "": always.
    """

    role: str = "takedowns"
    when: str = ""


@dataclass(frozen=True)
class StageSpec:
    """One stage: its settings, its inputs, its output and its policies.

    Args:
        name: name of the stage, and of its task in the DAG.
        dag: the DAG it is part of: "crawl", "corpus", "tokens", "canary", "pretrain", "finetune" or "takedown".
        output: kind of the artifact it writes; of a mapped stage one per member, `<kind>/<member>`.
        config: class of its settings. The stage runs only where their property `active` is true.
        section: section of the recipe with its settings; by default its name.
        module: module with `VERSION` and `run`, relative to the package that declares the stage.
        asset: name of the Airflow Asset that the output completes and that later DAGs wait for; "" for none. A DAG
            without one is an operation on what the others have made, such as "takedown".
        inputs: role -> artifact that it reads.
        previous: role -> artifact of the version before.
        decided_by: role of an input whose record determines the previous version that all stages of this version read;
            of those that read the web, the takedowns, too.
        takedowns: the takedowns that it reads; None: it reads none.
        before: stages that wait for it in the DAG, though they read nothing of it.
        mapped: whether it runs once per member ("p0", "arm-0-seed-1").
        reads_web: whether it reads the web, so that equal settings and inputs do not give an equal result.
    """

    name: str
    dag: str
    output: str
    config: type[Config]
    section: str = ""
    module: str = "stage"
    asset: str = ""
    inputs: Mapping[str, Input | Named] = field(default_factory=dict)
    previous: Mapping[str, Previous] = field(default_factory=dict)
    decided_by: str = ""
    takedowns: Takedowns | None = None
    before: tuple[str, ...] = ()
    mapped: bool = False
    reads_web: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "section", self.section or self.name)

    @property
    def own_inputs(self) -> dict[str, Input]:
        """Inputs of its own version, by role."""
        return {role: given for role, given in self.inputs.items() if isinstance(given, Input)}

    @property
    def named(self) -> dict[str, str]:
        """Fields of its section that name artifacts, by role."""
        return {role: given.field for role, given in self.inputs.items() if isinstance(given, Named)}

    @property
    def input_files(self) -> dict[str, tuple[str, ...]]:
        """Prefixes of the files that are read, by role of the inputs of which not all are."""
        return {role: given.files for role, given in self.own_inputs.items() if given.files}

    @property
    def of_other_versions(self) -> frozenset[str]:
        """Roles of inputs that are no part of its version: nothing that the version has is looked for in them."""
        return frozenset({*self.named, *self.previous})

    def input_kinds(self, *, required: bool = False) -> tuple[str, ...]:
        """Returns the kinds, without members, that it reads of its own version; `required`: those it always reads."""
        found = [given for given in self.own_inputs.values() if not (required and given.optional)]
        return tuple(dict.fromkeys(given.kind.partition("/")[0] for given in found))
