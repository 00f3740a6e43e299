"""Selection of the groups of a version: those that the settings request, and those that exist (`tasks.core.groups`).

A group is the column of one annotator. Its fingerprint covers exactly the inputs that affect it: the documents, the
annotator's code and settings, the models and files that it reads, and the groups whose attributes it reads.
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
from tasks.filters.catalogue import annotator
from tasks.stages.annotate.config import AnnotateConfig
from tasks.stages.annotate.measure import models_of, reads_of

log = logging.getLogger("sluice.annotate")

EXTERNAL = "annotator:"
"""Prefix of the role of an annotator's external files."""


@dataclass(frozen=True)
class RequestedGroup:
    """A group that the settings request; `inputs` are those of its record except for the groups that it reads."""

    group: Group
    inputs: tuple[InputRef, ...]
    fingerprint: str

    @property
    def name(self) -> str:
        """Name of the annotator."""
        return self.group.annotator


def requested_groups(config: AnnotateConfig, inputs: Inputs, version: int) -> dict[str, RequestedGroup]:
    """Returns the groups that the settings request, by annotator in the order of `use`.

    Args:
        config: the stage's settings.
        inputs: the stage's inputs.
        version: `VERSION` of the stage.
    """
    requested: dict[str, RequestedGroup] = {}
    for name in config.use:
        current = annotator(name, config.settings[name])
        models = models_of(current, inputs)
        group = Group(
            annotator=name,
            code=current.version,
            settings=config.settings[name],
            reads={other: requested[other].fingerprint for other in reads_of(current, list(requested))},
            models={
                f"{kind}/{model}": _hash_of(artifact, model)
                for kind, artifact in models.items()
                for model in current.trained()[kind] or ("",)
            },
        )
        files = [inputs.external[role]] if (role := f"{EXTERNAL}{name}") in inputs.external else []
        documents = inputs["extracted"].ref("extracted")
        # `group` has the hashes of the models that are read: other models in the same artifact do not count.
        group_fingerprint = fingerprint("annotate", version, name, group, [documents, *files])
        refs = (documents, *(artifact.ref(kind) for kind, artifact in models.items()), *files)
        requested[name] = RequestedGroup(group, refs, group_fingerprint)
    return requested


def _hash_of(artifact: Artifact, model: str) -> str:
    """Returns a hash of the files of one model in an artifact, or of all files if `model` is ""."""
    prefix = f"{model}/" if model else ""
    files = [entry for part in artifact.parts for entry in part.files if entry.path.startswith(prefix)]
    return sha256_of_json(sorted((entry.path, entry.sha256) for entry in files))


def existing_groups(groups: Mapping[str, RequestedGroup], output: Output) -> dict[str, Artifact]:
    """Returns the groups that exist with the requested fingerprint, by annotator.

    Looks for them at this version, where an interrupted run may have left some, and at the source version. Removes a
    group of this version that exists with another fingerprint and that no `attributes` artifact refers to.

    Raises:
        DriftError: a group exists with another fingerprint at this version, and an artifact refers to it.
    """
    found, earlier = {}, [unchanged_groups(attributes) for attributes in output.before]
    for name, group in groups.items():
        own = Artifact.find(output.store, address_of(output.address, name))
        if own and own.record.fingerprint != group.fingerprint:
            _clear(own, group, output)
            own = None
        candidates = (own, *(existing.get(name) for existing in earlier))
        matching = (other for other in candidates if other and other.record.fingerprint == group.fingerprint)
        if artifact := next(matching, None):
            found[name] = artifact
    return found


def _clear(own: Artifact, group: RequestedGroup, output: Output) -> None:
    users = [artifact for artifact in Ledger(output.store, output.address.name) if _is_made_of(artifact, own)]
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


def _difference(own: Artifact, group: RequestedGroup) -> str:
    for path, old, new in changes(own.record.config, group.group.model_dump(mode="json"), ""):
        return f"{path} was {old!r} and is {new!r}"
    return "its documents, files or stage version are not what they were"
