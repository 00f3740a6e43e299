"""The models of rapidocr, an extra: where its wheel has them, and what identifies them in fingerprints.

Reads the files of the installed package. Imports nothing of it, because recipes are read where it is not installed.
"""

from collections.abc import Sequence
from functools import cache
from hashlib import sha256
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

_PACKAGES = ("rapidocr", "onnxruntime")
_DETECTOR, _READER = "PP-OCRv6_det_small.onnx", "PP-OCRv6_rec_small.onnx"


def missing() -> list[str]:
    """Returns the packages of the extra that are not installed."""
    return [package for package in _PACKAGES if find_spec(package) is None]


def models() -> tuple[Path, Path]:
    """Returns the models that find lines and read them, in the installed package."""
    spec = find_spec("rapidocr")
    places: Sequence[str] = (spec.submodule_search_locations if spec else None) or ()
    folder = Path(*places[:1]) / "models"
    return folder / _DETECTOR, folder / _READER


@cache
def identity() -> str:
    """Returns the versions of the packages and the digest of the models; "" if a package is missing."""
    if missing():
        return ""
    digest = sha256()
    for path in models():
        digest.update(path.read_bytes())
    packages = ", ".join(f"{package} {version(package)}" for package in _PACKAGES)
    return f"{packages}, models {digest.hexdigest()[:12]}"
