"""Recognition of the text of page bitmaps with the models of rapidocr, an extra.

PP-OCRv6 small (PaddlePaddle; Apache-2.0) finds lines with a segmentation network (differentiable binarization: Liao et
al., AAAI 2020) and reads each with a network trained with CTC. They know Latin letters with their accents, Chinese and
Japanese; not Greek, Cyrillic, Arabic, Hebrew, Korean, Thai and Indic scripts. The models are files of the installed
wheel; nothing is downloaded. Each line is read alone and by one thread, so that its text depends neither on other lines
nor on the load of the machine.
"""

from functools import cache
from typing import Any

from tasks.formats.pdf.models import models
from tasks.formats.pdf.recognized import Corners, ReadPage, TextLine, read_upright
from tasks.formats.pdf.render import Bitmap

_DETECTION_SIDE = 1280
"""Longer side of the bitmap in which lines are found, in pixels: a fifth of the time and two thirds of the memory of
2,400, with the same words. Lines are read from the whole bitmap."""
_UNLIMITED = 1_000_000


def recognize(bitmap: Bitmap) -> ReadPage:
    """Returns the lines of a page; raises `Unread` if too few of its letters are certain."""
    return read_upright(bitmap, lines_of)


def lines_of(bitmap: Bitmap) -> list[TextLine]:
    """Returns the lines of a bitmap, in the order of the detector."""
    found = _engine()(bitmap.pixels)
    if found.boxes is None or found.txts is None:
        return []
    return [
        TextLine(text, _corners(box), float(score))
        for box, text, score in zip(found.boxes, found.txts, found.scores, strict=True)
    ]


def _corners(box: Any) -> Corners:
    first, second, third, fourth = ((float(x), float(y)) for x, y in box)
    return first, second, third, fourth


@cache
def _engine() -> Any:
    import cv2
    from rapidocr import RapidOCR

    cv2.setNumThreads(1)
    detector, reader = models()
    return RapidOCR(
        params={
            "Global.log_level": "critical",
            "Global.max_side_len": _UNLIMITED,
            "Global.text_score": 0.0,
            "Global.use_cls": False,
            "EngineConfig.onnxruntime.intra_op_num_threads": 1,
            "EngineConfig.onnxruntime.inter_op_num_threads": 1,
            # A path keeps it from looking for the file in the network.
            "Det.model_path": str(detector),
            "Det.limit_type": "max",
            "Det.limit_side_len": _DETECTION_SIDE,
            "Rec.model_path": str(reader),
            "Rec.rec_batch_num": 1,
        }
    )
