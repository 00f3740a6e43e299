"""Which groups a version is made of, and which of them are there already (`tasks.core.groups`).

A group is what one annotator measures. Its fingerprint holds what bears on it and nothing else: the documents, the
annotator's code and settings, the models and files that it reads, and the groups whose findings it reads.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tasks.core.artifact import Artifact, InputRef, fingerprint
from tasks.core.config import changes, sha256_of_json
from tasks.core.errors import DriftError
from tasks.core.groups import Group, address_of, named_in, unchanged_groups
from tasks.core.ledger import Ledger
from tasks.core.stage import Inputs, Output
from tasks.filters.base import Annotator
from tasks.filters.catalogue import annotator
from tasks.stages.annotate.config import AnnotateConfig

log = logging.getLogger("sluice.annotate")

EXTERNAL = "annotator:"
"""Begins the role of an annotator's files outside the store."""


@dataclass(frozen=True)
class Wanted:
    """A group that the settings ask for; `inputs` are those of its record but for the groups that it reads."""

    group: Group
    inputs: tuple[InputRef, ...]
    fingerprint: str

    @property
    def name(self) -> str:
        """The annotator."""
        return self.group.annotator


def reads_of(one: Annotator, among: Sequence[str]) -> list[str]:
    """Returns the annotators, of those in use, whose findings an annotator reads."""
    return [other for other in among if other in (*one.reads, *one.needs)]


def models_of(one: Annotator, inputs: Mapping[str, Artifact]) -> dict[str, Artifact]:
    """Returns the artifacts with trained models that an annotator reads, by kind, as far as there are any."""
    return {kind: inputs[kind] for kind in sorted(one.trained()) if kind in inputs}


def wanted(config: AnnotateConfig, inputs: Inputs, version: int) -> dict[str, Wanted]:
    """Returns the groups that the settings ask for, by annotator in the order of `use`.

    Args:
        config: the stage's settings.
        inputs: the stage's inputs.
        version: the stage's.
    """
    found: dict[str, Wanted] = {}
    for name in config.use:
        one = annotator(name, config.settings[name])
        models = models_of(one, inputs)
        group = Group(
            annotator=name,
            code=one.version,
            settings=config.settings[name],
            reads={other: found[other].fingerprint for other in reads_of(one, list(found))},
            models={
                f"{kind}/{model}": _hash_of(artifact, model)
                for kind, artifact in models.items()
                for model in one.trained()[kind] or ("",)
            },
        )
        files = [inputs.external[role]] if (role := f"{EXTERNAL}{name}") in inputs.external else []
        documents = inputs["extracted"].ref("extracted")
        # Of the models only what `group` holds of them: another one in the same artifact bears on nothing.
        mark = fingerprint("annotate", version, name, group, [documents, *files])
        refs = (documents, *(artifact.ref(kind) for kind, artifact in models.items()), *files)
        found[name] = Wanted(group, refs, mark)
    return found


def _hash_of(artifact: Artifact, model: str) -> str:
    """Returns a hash of the files of one model in an artifact, or of all where `model` is ""."""
    prefix = f"{model}/" if model else ""
    files = [entry for part in artifact.parts for entry in part.files if entry.path.startswith(prefix)]
    return sha256_of_json(sorted((entry.path, entry.sha256) for entry in files))


def there_already(groups: Mapping[str, Wanted], output: Output) -> dict[str, Artifact]:
    """Returns the groups that need not be measured, by annotator.

    They are those of this version, left by a run that did not come to its end, and those that the source version holds.
    A group of this version that exists with another fingerprint, and of which no version is made, is cleared away.

    Raises:
        DriftError: a group exists with another fingerprint at this version, and a version is made of it.
    """
    found, before = {}, [unchanged_groups(one) for one in output.before]
    for name, group in groups.items():
        own = Artifact.find(output.store, address_of(output.address, name))
        if own and own.record.fingerprint != group.fingerprint:
            _clear(own, group, output)
            own = None
        several = (own, *(held.get(name) for held in before))
        same = (one for one in several if one and one.record.fingerprint == group.fingerprint)
        if artifact := next(same, None):
            found[name] = artifact
    return found


def _clear(own: Artifact, group: Wanted, output: Output) -> None:
    users = [one for one in Ledger(output.store, output.address.name) if _is_made_of(one, own)]
    if users:
        raise DriftError(
            f"{own.address} exists with another fingerprint: {_difference(own, group)}; "
            f"{users[0].address} is made of it",
            "give this run another version (recipe `version`, --version, or the form's field), or delete both",
        )
    log.warning("[%s] clearing what was measured differently: %s", own.address, _difference(own, group))
    own.remove()


def _is_made_of(attributes: Artifact, group: Artifact) -> bool:
    return str(group.address) in {ref.address for ref in named_in(attributes).values()}


def _difference(own: Artifact, group: Wanted) -> str:
    for path, old, new in changes(own.record.config, group.group.model_dump(mode="json"), ""):
        return f"{path} was {old!r} and is {new!r}"
    return "its documents, files or stage version are not what they were"
