"""Recognition of the text of page bitmaps with the models in the wheel of rapidocr, an extra.

PP-OCRv6 small (PaddlePaddle; Apache-2.0) finds lines with a segmentation network (differentiable binarization: Liao et
al., AAAI 2020) and reads each with a network trained with CTC. The models read Latin script with its accents, Greek
letters of formulas, Chinese and Japanese; not Cyrillic, Arabic, Hebrew, Korean or Indic scripts. They are read from
the installed wheel; nothing is downloaded. Every line is read alone, by one thread, so that its text does not depend on
other lines or on the machine's load. Takes about 300 MB of memory, and 600 MB while it reads.
"""

from collections.abc import Sequence
from functools import cache
from hashlib import sha256
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tasks.formats.pdf.recognized import ReadPage, TextLine, read_page
from tasks.formats.pdf.render import Bitmap

PACKAGES = ("rapidocr", "onnxruntime")
MEMORY_BYTES = 1536 << 20
"""Address space that the models need beside that of the process; measured: 850 MiB for a page with 111 lines."""
_DETECTOR, _READER = "PP-OCRv6_det_small.onnx", "PP-OCRv6_rec_small.onnx"
_DETECTION_SIDE = 1280
"""Longer side of the bitmap in which lines are found, in pixels. They are read at full resolution."""
_UNLIMITED = 1_000_000


def missing() -> list[str]:
    """Returns the packages of the extra that are not installed."""
    return [package for package in PACKAGES if find_spec(package) is None]


@cache
def identity() -> str:
    """Returns the versions of the packages and the digest of the models, for fingerprints; "" if one is missing."""
    if missing():
        return ""
    digest = sha256()
    for name in (_DETECTOR, _READER):
        digest.update((_models() / name).read_bytes())
    packages = ", ".join(f"{package} {version(package)}" for package in PACKAGES)
    return f"{packages}, models {digest.hexdigest()[:12]}"


def recognize(bitmap: Bitmap) -> ReadPage | None:
    """Returns the lines of a page; None if too few of its letters are certain."""
    return read_page(lines_of(bitmap), bitmap)


def lines_of(bitmap: Bitmap) -> list[TextLine]:
    """Returns the lines of a bitmap with corners in pixels, in the order of the detector."""
    found = _engine()(bitmap.pixels)
    if found.boxes is None or found.txts is None:
        return []
    return [
        TextLine(text, _corners(box), float(score))
        for box, text, score in zip(found.boxes, found.txts, found.scores, strict=True)
    ]


def _corners(box: Any) -> Any:
    return tuple((float(x), float(y)) for x, y in box)


def _models() -> Path:
    spec = find_spec("rapidocr")
    places: Sequence[str] = (spec.submodule_search_locations if spec else None) or ()
    return Path(*places[:1]) / "models"


@cache
def _engine() -> Any:
    from rapidocr import RapidOCR

    return RapidOCR(
        params={
            "Global.log_level": "critical",
            "Global.max_side_len": _UNLIMITED,
            "Global.text_score": 0.0,
            "Global.use_cls": False,
            "EngineConfig.onnxruntime.intra_op_num_threads": 1,
            "EngineConfig.onnxruntime.inter_op_num_threads": 1,
            # A path keeps it from looking for the file in the network.
            "Det.model_path": str(_models() / _DETECTOR),
            "Det.limit_type": "max",
            "Det.limit_side_len": _DETECTION_SIDE,
            "Rec.model_path": str(_models() / _READER),
            "Rec.rec_batch_num": 1,
        }
    )
