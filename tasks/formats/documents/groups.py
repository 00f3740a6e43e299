"""Groups: columns of one version that are made independently, each group as an artifact with its own fingerprint.

A group is stored as `<recipe>/measured/<group>@<version>`:

    measured/<part>.parquet   `error` (null, or why the row has no value) and a struct column with the group's name.
                              Parts and row order are those of the documents; a hash of their ids in the file's
                              metadata identifies them (`tasks.formats.documents.document.ids_digest`)

The artifact that combines the groups of a version (`attributes`) has no columns itself. Its record lists the groups, in
their order, as inputs with the roles `measured:<group>` and with fingerprint and content: groups of this version, and
groups of earlier versions with the same fingerprint. This module reads these records and opens the groups that they
list.
"""

from tasks.core.artifact import Artifact, ArtifactId, InputRef
from tasks.core.errors import InputError

KIND = "measured"
"""Kind of the artifacts of groups, and the folder in them."""

_ROLE = f"{KIND}:"


def address_of(whole: ArtifactId, group: str) -> ArtifactId:
    """Returns the id of a group made for `whole`, the artifact that combines the groups."""
    return ArtifactId(f"{whole.name.rpartition('/')[0]}/{KIND}/{group}", whole.version)


def path_of(part: str) -> str:
    """Returns the path of a part of a group, relative to its artifact."""
    return f"{KIND}/{part}.parquet"


def ref_to(group: Artifact, name: str) -> InputRef:
    """Returns the reference to a group for the record of the artifact that combines the groups."""
    return group.ref(_ROLE + name)


def group_refs(whole: Artifact) -> dict[str, InputRef]:
    """Returns the references to groups in the record of `whole`, by name, in their order."""
    refs = whole.record.inputs
    return {ref.role.removeprefix(_ROLE): ref for ref in refs if ref.role.startswith(_ROLE)}


def groups_of(whole: Artifact) -> dict[str, Artifact]:
    """Opens the groups of a version, by name, in their order.

    Raises:
        InputError: a group is missing or was made again with another result.
    """
    return {name: _open(whole, name, ref) for name, ref in group_refs(whole).items()}


def unchanged_groups(whole: Artifact) -> dict[str, Artifact]:
    """Opens those groups of a version that exist and are unchanged, by name."""
    groups = {name: Artifact.find_unchanged(whole.store, ref) for name, ref in group_refs(whole).items()}
    return {name: group for name, group in groups.items() if group}


def group_of(whole: Artifact, name: str) -> Artifact:
    """Opens one group of a version.

    Raises:
        InputError: the version does not have the group, or the group is missing or was made again with another result.
    """
    ref = group_refs(whole).get(name)
    if ref is None:
        raise InputError(
            f'"{name}" is not measured in {whole.address}',
            f"run {whole.record.stage} under another version, with {name} among its settings",
        )
    return _open(whole, name, ref)


def _open(whole: Artifact, name: str, ref: InputRef) -> Artifact:
    if group := Artifact.find_unchanged(whole.store, ref):
        return group
    raise InputError(
        f"{whole.address} is made of {ref.address}, which is gone or has changed since",
        f"bring it back; or remove {whole.store.url(whole.address.path)} and run {whole.record.stage} again, which "
        f"measures {name} again and nothing that still exists",
    )
