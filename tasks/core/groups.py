"""Groups: the measurements of one annotator for all documents, each group an artifact with its own fingerprint.

A group is stored as `<recipe>/measured/<annotator>@<version>`:

    measured/<part>.parquet   `error` (null, or the exception of the annotator) and the annotator's struct column, with
                              the part names and the row order of the documents; a hash of their ids in the file's
                              metadata identifies them (`tasks.formats.documents.document.mark_of`)

The artifact `attributes` of a version has no columns. Its record names, as inputs of the roles `measured:<annotator>`
and in the order of `[annotate] use`, the groups of the version, with fingerprint and content: its own, and those of
earlier versions with the same fingerprint. Reads these records and opens the groups that they name.
"""

from typing import Any

from tasks.core.artifact import Artifact, ArtifactId, InputRef
from tasks.core.config import Config
from tasks.core.errors import InputError

KIND = "measured"
"""The kind of the groups' artifacts, and the folder in them."""

_ROLE = f"{KIND}:"


class Group(Config):
    """Settings in the record of a group: with the documents they determine its content."""

    annotator: str
    code: int
    """Version of the annotator's code (`Annotator.version`)."""
    settings: dict[str, Any]
    reads: dict[str, str]
    """Fingerprints of the groups that the annotator reads, by annotator."""
    models: dict[str, str]
    """Hashes of the trained models that it reads, by kind and name; other models of the same artifact do not count."""


def address_of(attributes: ArtifactId, annotator: str) -> ArtifactId:
    """Returns the id of the group of an annotator that was measured for `attributes`."""
    return ArtifactId(f"{attributes.name.rpartition('/')[0]}/{KIND}/{annotator}", attributes.version)


def path_of(part: str) -> str:
    """Returns the path of one part of a group, relative to its artifact."""
    return f"{KIND}/{part}.parquet"


def ref_to(group: Artifact, annotator: str) -> InputRef:
    """Returns the reference to a group for the record of `attributes`."""
    return group.ref(_ROLE + annotator)


def named_in(attributes: Artifact) -> dict[str, InputRef]:
    """Returns the groups that the record of `attributes` names, by annotator, in the order of `[annotate] use`."""
    refs = attributes.record.inputs
    return {ref.role.removeprefix(_ROLE): ref for ref in refs if ref.role.startswith(_ROLE)}


def groups_of(attributes: Artifact) -> dict[str, Artifact]:
    """Opens the groups of a version, by annotator, in the order of `[annotate] use`.

    Raises:
        InputError: a group is missing or has changed since.
    """
    return {name: _opened(attributes, name, ref) for name, ref in named_in(attributes).items()}


def unchanged_groups(attributes: Artifact) -> dict[str, Artifact]:
    """Opens the groups of a version that exist and are unchanged, by annotator."""
    found = {name: _unchanged(attributes, ref) for name, ref in named_in(attributes).items()}
    return {name: group for name, group in found.items() if group}


def group_of(attributes: Artifact, annotator: str) -> Artifact:
    """Opens one group of a version; raises InputError where the version has not measured it, or it is missing."""
    ref = named_in(attributes).get(annotator)
    if ref is None:
        raise InputError(
            f'"{annotator}" is not measured in {attributes.address}',
            f'add "{annotator}" to annotate.use, and run annotate under another version',
        )
    return _opened(attributes, annotator, ref)


def _opened(attributes: Artifact, annotator: str, ref: InputRef) -> Artifact:
    if group := _unchanged(attributes, ref):
        return group
    raise InputError(
        f"{attributes.address} is made of {ref.address}, which is gone or has changed since",
        f"bring it back; or remove {attributes.store.url(attributes.address.path)} and run annotate again, which "
        f"measures {annotator} again and nothing that still exists",
    )


def _unchanged(attributes: Artifact, ref: InputRef) -> Artifact | None:
    group = Artifact.find(attributes.store, ArtifactId.parse(ref.address))
    same = group and (group.record.fingerprint, group.record.content) == (ref.fingerprint, ref.content)
    return group if same else None
