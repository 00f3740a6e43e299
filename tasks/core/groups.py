"""Groups: columns of one version that are made on their own, each group an artifact with its own fingerprint.

A group is stored as `<recipe>/measured/<group>@<version>`:

    measured/<part>.parquet   `error` (null, or why the row has no value) and a struct column with the group's name, by
                              the part names and the row order of the documents; a hash of their ids in the file's
                              metadata identifies them (`tasks.formats.documents.document.mark_of`)

The whole of a version has no columns. Its record names, as inputs of the roles `measured:<group>` and in their order,
the groups of the version, with fingerprint and content: its own, and those of earlier versions with the same
fingerprint. Reads these records and opens the groups that they name.
"""

from tasks.core.artifact import Artifact, ArtifactId, InputRef
from tasks.core.errors import InputError

KIND = "measured"
"""The kind of the groups' artifacts, and the folder in them."""

_ROLE = f"{KIND}:"


def address_of(whole: ArtifactId, group: str) -> ArtifactId:
    """Returns the id of a group that was made for `whole`."""
    return ArtifactId(f"{whole.name.rpartition('/')[0]}/{KIND}/{group}", whole.version)


def path_of(part: str) -> str:
    """Returns the path of one part of a group, relative to its artifact."""
    return f"{KIND}/{part}.parquet"


def ref_to(group: Artifact, name: str) -> InputRef:
    """Returns the reference to a group for the record of the whole."""
    return group.ref(_ROLE + name)


def named_in(whole: Artifact) -> dict[str, InputRef]:
    """Returns the groups that the record of `whole` names, by name, in their order."""
    refs = whole.record.inputs
    return {ref.role.removeprefix(_ROLE): ref for ref in refs if ref.role.startswith(_ROLE)}


def groups_of(whole: Artifact) -> dict[str, Artifact]:
    """Opens the groups of a version, by name, in their order.

    Raises:
        InputError: a group is missing or has changed since.
    """
    return {name: _opened(whole, name, ref) for name, ref in named_in(whole).items()}


def unchanged_groups(whole: Artifact) -> dict[str, Artifact]:
    """Opens the groups of a version that exist and are unchanged, by name."""
    found = {name: _unchanged(whole, ref) for name, ref in named_in(whole).items()}
    return {name: group for name, group in found.items() if group}


def group_of(whole: Artifact, name: str) -> Artifact:
    """Opens one group of a version; raises InputError where the version does not have it, or it is missing."""
    ref = named_in(whole).get(name)
    if ref is None:
        raise InputError(
            f'"{name}" is not measured in {whole.address}',
            f"run {whole.record.stage} under another version, with {name} among its settings",
        )
    return _opened(whole, name, ref)


def _opened(whole: Artifact, name: str, ref: InputRef) -> Artifact:
    if group := _unchanged(whole, ref):
        return group
    raise InputError(
        f"{whole.address} is made of {ref.address}, which is gone or has changed since",
        f"bring it back; or remove {whole.store.url(whole.address.path)} and run {whole.record.stage} again, which "
        f"measures {name} again and nothing that still exists",
    )


def _unchanged(whole: Artifact, ref: InputRef) -> Artifact | None:
    group = Artifact.find(whole.store, ArtifactId.parse(ref.address))
    same = group and (group.record.fingerprint, group.record.content) == (ref.fingerprint, ref.content)
    return group if same else None
