"""The dossier of a version's model as a download: a child process makes it on request, and it is sent as a ZIP file.

The child runs `sluice dossier`, so the files are those of the shell, byte for byte. It reads the texts of all
kept documents; for a larger version the page shows the command instead.
"""

import subprocess
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from threading import Lock
from typing import IO, Annotated

from fastapi import HTTPException, Query
from fastapi.responses import StreamingResponse

from sluice_ui.access import Name, User, VersionName, readable, router
from sluice_ui.frame import HEADERS, size
from tasks.core import child_process
from tasks.core.artifact import Artifact, ArtifactId
from tasks.core.errors import InputError
from tasks.run import lineage
from tasks.run.recipe import Recipe
from tasks.run.runner import open_store

MOST_BYTES = 2**30
"""Maximum size of the files of kept documents, in bytes."""

MOST_SENT = 2**28
"""Maximum size of the files of a dossier, in bytes."""

TIMEOUT_S = 120.0
"""Time after which the child is killed."""

_NEEDED = ("checkpoint", "shards", "documents")
_MADE = (1980, 1, 1, 0, 0, 0)
"""Time of all files in the ZIP file, so that equal files give equal bytes."""

_CHUNK = 1 << 20
_one_at_a_time = Lock()

Text = Annotated[str, Query(max_length=300)]


def refusal(checkpoint: Artifact | None) -> str:
    """Returns why there is no dossier to download, as a sentence; "" if there is one.

    Args:
        checkpoint: the model of the version; None without one.
    """
    if checkpoint is None:
        return "A dossier is about a trained model, and this version has none yet."
    try:
        artifacts = lineage.chain_of(checkpoint)
    except InputError as error:
        return f"{error}."
    if missing := [kind for kind in _NEEDED if kind not in artifacts]:
        return f"The artifact {missing[0]} that the model was made from is gone."
    kept = artifacts["documents"].total("kept/").bytes
    if kept > MOST_BYTES:
        recipe = checkpoint.address.name.partition("/")[0]
        return (
            f"The kept documents have {size(kept)}, and the server reads {size(MOST_BYTES)}. Make it in a shell: "
            f"sluice dossier --recipe {recipe} --version {checkpoint.address.version} FOLDER"
        )
    return ""


def zipped(recipe: Recipe, version: str, provider: str, contact: str) -> IO[bytes]:
    """Returns the ZIP file of a dossier, an open file without a name, at its beginning.

    Raises:
        InputError: it cannot be made, takes too long or is too large, or another one is being made.
    """
    if not _one_at_a_time.acquire(blocking=False):
        raise InputError("this server is making another dossier", "try again in a minute")
    try:
        with tempfile.TemporaryDirectory(prefix="sluice-dossier-") as scratch:
            folder = Path(scratch) / "dossier"
            _make(recipe, version, provider, contact, folder)
            files = sorted(path for path in folder.iterdir() if path.is_file())
            if sum(path.stat().st_size for path in files) > MOST_SENT:
                raise InputError(f"the dossier has more than {size(MOST_SENT)}", "make it in a shell")
            made = tempfile.TemporaryFile()  # noqa: SIM115 - the response closes it
            with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
                for path in files:
                    entry = zipfile.ZipInfo(f"dossier-{recipe.name}-{version}/{path.name}", _MADE)
                    entry.external_attr = 0o644 << 16
                    with path.open("rb") as source, archive.open(entry, "w") as target:
                        while piece := source.read(_CHUNK):
                            target.write(piece)
            made.seek(0)
            return made
    finally:
        _one_at_a_time.release()


def _make(recipe: Recipe, version: str, provider: str, contact: str, folder: Path) -> None:
    command = child_process.command("tasks", "dossier", "--recipe", recipe.name, "--version", version)
    command += [f"--provider={provider}", f"--contact={contact}", str(folder)]
    try:
        ran = subprocess.run(
            command, env=child_process.environment(), capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise InputError(f"the dossier takes longer than {TIMEOUT_S:.0f} s", "make it in a shell") from None
    if ran.returncode:
        last = (ran.stderr.strip().splitlines() or ["no message"])[-1]
        raise InputError(f"the dossier failed ({last})", f"run: {' '.join(command[1:-1])} FOLDER")


def _pieces(file: IO[bytes]) -> Iterator[bytes]:
    with file:
        while piece := file.read(_CHUNK):
            yield piece


routes = router()


@routes.get("/dossier.zip")
def download(
    recipe: Name, version: VersionName, user: User, provider: Text = "", contact: Text = ""
) -> StreamingResponse:
    """The dossier of a version's model, for users who may read the recipe's DAGs."""
    found = readable(recipe, user)
    if why := refusal(Artifact.find(open_store(found), ArtifactId(f"{recipe}/checkpoint", version))):
        raise HTTPException(404, why)
    try:
        made = zipped(found, version, provider, contact)
    except InputError as error:
        raise HTTPException(503, str(error)) from None
    name = f"dossier-{recipe}-{version}.zip"
    kept = {**HEADERS, "Content-Disposition": f'attachment; filename="{name}"'}
    return StreamingResponse(_pieces(made), media_type="application/zip", headers=kept)
