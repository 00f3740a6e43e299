"""Declaration of a stage without its code: inputs, output, settings, DAG.

Each package of `tasks.stages` has a module `wiring` with one `StageSpec` per stage. These import nothing else, because
DAG files read them at parse time.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field


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
    """

    kind: str
    completed_by: str
    members: str = ""
    accumulates: bool = False


@dataclass(frozen=True)
class StageSpec:
    """One stage: its module, its settings, its inputs and its output.

    Args:
        name: name of the stage, and of its task in the DAG.
        module: module with `VERSION` and `run`.
        section: section of the recipe with its settings.
        dag: the DAG it is part of: "crawl", "corpus", "tokens", "canary", "pretrain", "finetune" or "takedown".
        output: kind of the artifact it writes; of a mapped stage one per member, `<kind>/<member>`.
        asset: name of the Airflow Asset that the output completes and that later DAGs wait for; "" for none. A DAG
            without one is an operation on what the others have made, such as "takedown".
        inputs: role -> kind; "segment/*" is the artifact of the stage's own member.
        input_files: role -> prefixes of the files that are read, where not all of them are. Such an input counts in the
            fingerprint by the content of these files alone, and the stage cannot open any other.
        fan_in: role -> (kind, kind of the artifact whose record names the members): all members of a mapped stage.
        groups: role -> (kind, annotator): one of the artifacts that `kind` is made of (`tasks.core.groups`).
        optional_inputs: role -> kind, read where the recipe has the stage that makes it.
        optional_if: role of these -> dotted recipe field; the input is read where that is true, too.
        named: role -> field of its section, or dotted path in it, with the id of an artifact, of any recipe and version
            ("previous": the newest other one when the run began), or with several; "" or () where there is none.
        previous: role -> artifact of the version before.
        previous_if: dotted recipe field; the version before is read where it is true. "": always.
        previous_as: role of an input whose record determines the previous version that all stages of this version
            read; of those that read the web, the takedowns, too.
        takedowns: role in which it reads the takedowns in force (`formats.documents.tombstones`), of any version, where
            there are some; of its own recipe and of those whose artifacts it names. "": it reads none.
        takedowns_if: dotted recipe field; takedowns are read where it is true. "": always.
        tokenizer_of_base: whether its input `tokenizer` is that of the base of a fine-tuning where the recipe has none.
        mapped: whether it runs once per member ("p0", "arm-0-seed-1").
        conditional: whether it runs only where the property `active` of its section of the recipe is true.
        reads_web: whether it reads the web, so that equal settings and inputs do not give an equal result.
    """

    name: str
    module: str
    section: str
    dag: str
    output: str
    asset: str = ""
    inputs: Mapping[str, str] = field(default_factory=dict)
    input_files: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    fan_in: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    groups: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    optional_inputs: Mapping[str, str] = field(default_factory=dict)
    optional_if: Mapping[str, str] = field(default_factory=dict)
    named: Mapping[str, str] = field(default_factory=dict)
    previous: Mapping[str, Previous] = field(default_factory=dict)
    previous_if: str = ""
    previous_as: str = ""
    takedowns: str = ""
    takedowns_if: str = ""
    tokenizer_of_base: bool = False
    mapped: bool = False
    conditional: bool = False
    reads_web: bool = False

    @property
    def of_other_versions(self) -> frozenset[str]:
        """Roles of inputs that are no part of its version: nothing that the version has is looked for in them."""
        return frozenset({*self.named, *self.previous})

    def required_kinds(self) -> tuple[str, ...]:
        """Returns the kinds, without members, that it reads of its own version in any case."""
        several = (kind for kind, _ in (*self.fan_in.values(), *self.groups.values()))
        return tuple(dict.fromkeys(kind.partition("/")[0] for kind in (*self.inputs.values(), *several)))

    def input_kinds(self) -> tuple[str, ...]:
        """Returns the kinds, without members, that it reads of its own version where they are there."""
        return tuple(dict.fromkeys((*self.required_kinds(), *self.optional_inputs.values())))
