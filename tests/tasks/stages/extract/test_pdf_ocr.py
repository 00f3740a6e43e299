"""OCR of the parser `pdf`: pages without text are read in the child process, within limits, and give the same bytes.

A package under the name of rapidocr, which finds the same lines on every page, plays the models; with `make oracles`
the real ones read a page.
"""

import json
import os
import sys
import textwrap
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from tasks.core.errors import InputError
from tasks.formats.pdf import models
from tasks.stages.extract import stage
from tasks.stages.extract.config import ExtractConfig
from tasks.stages.extract.guard import end_idle_children
from tasks.stages.extract.parser import parse_body
from tasks.stages.extract.stage import _guard
from tests.tasks.stages.extract.made_pdf import IMAGE, SCANNED, image, pdf
from tests.tasks.stages.extract.test_pdf import LEFT, PROSE, Run, beside, blocks, extracted
from tests.tasks.stages.extract.test_stage import documents, rejected

SCAN = {"resources": IMAGE, "others": {1000: image()}}
SETTINGS = {"ocr": "rapidocr", "ocr_dpi": 72}
PLAYED = """
import numpy as np

class RapidOCR:
    def __init__(self, params):
        assert params["EngineConfig.onnxruntime.intra_op_num_threads"] == 1
        open(params["Rec.model_path"]).close()

    def __call__(self, pixels):
        self.boxes, self.txts, self.scores = {found}
        return self

def box(y):
    return np.array([[50, y], [450, y], [450, y + 12], [50, y + 12]])
"""
FIRST, SECOND = "The ship went to sea with a crew of nine, and", "none of them had seen the ice."
SENTENCE = f"{FIRST} {SECOND}"
LINES = f"[box(100), box(112)], {(FIRST, SECOND)!r}, (0.9, 1)"
SMUDGE = "([box(100)], ('Smudge',), (0.4,))"
Played = Callable[[str], Path]


@pytest.fixture
def played(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Played]:
    """Installs packages whose RapidOCR finds what an expression says, here and in child processes."""

    def install(found: str) -> Path:
        folder = tmp_path / "site"
        for name, source in (
            ("rapidocr", PLAYED.format(found=found)),
            ("onnxruntime", ""),
            ("cv2", "setNumThreads = int"),
        ):
            (folder / name / "models").mkdir(parents=True, exist_ok=True)
            (folder / name / "__init__.py").write_text(source)
            info = folder / f"{name}-1.2.dist-info"
            info.mkdir(exist_ok=True)
            (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.2\n")
        for model in ("PP-OCRv6_det_small.onnx", "PP-OCRv6_rec_small.onnx"):
            (folder / "rapidocr" / "models" / model).write_text(model)
        monkeypatch.syspath_prepend(str(folder))
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH")))))
        _forget()
        return folder

    yield install
    _forget()


def _forget() -> None:
    end_idle_children()
    models.identity.cache_clear()
    for name in ("rapidocr", "onnxruntime", "cv2"):
        sys.modules.pop(name, None)


def test_scanned_pages_are_blocks_with_boxes_and_a_confidence(run_stage: Run, tmp_path: Path, played: Played) -> None:
    # The models may have more memory than pages, and are not certain of low pages.
    played(f"({LINES}) if np.empty(1 << 30, np.uint8).size and pixels.shape[0] > 800 else {SMUDGE}")
    smudged = pdf([SCANNED], **SCAN).replace(b"595 842", b"595 700")
    made = extracted(run_stage, tmp_path, {"a": pdf([PROSE, SCANNED], **SCAN), "b": smudged}, **SETTINGS)
    assert blocks(made)[2:] == [("paragraph", 2, SENTENCE)]
    place = beside(made, "layout/")[0]["layout"][2]
    assert (place["x0"], place["x1"]) == pytest.approx((50, 450), abs=0.5)
    assert (place["y0"], place["y1"]) == pytest.approx((101, 124), abs=2)
    pages = [(one["page"], one["needs_ocr"], one["confidence"]) for one in beside(made, "pages/")]
    assert pages == [(1, False, None), (2, False, pytest.approx(0.94, abs=0.01)), (1, True, None)]
    assert made.record.metrics["ocr_pages"] == 1
    assert rejected(made) == [("file://papers/b.pdf", "ocr_uncertain")]


def test_a_missing_extra_stops_the_stage_before_it_reads_a_file(
    run_stage: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[object] = []
    monkeypatch.setattr(models, "missing", lambda: ["rapidocr", "onnxruntime"])
    monkeypatch.setattr(stage, "read_unit", lambda unit, _: read.append(unit) or ())
    with pytest.raises(InputError, match=r"rapidocr and onnxruntime are not installed.*pip install 'sluice\[ocr\]'"):
        extracted(run_stage, tmp_path, {"a": pdf([SCANNED], **SCAN)}, **SETTINGS)
    assert not read


def test_packages_and_models_are_part_of_the_settings_only_with_ocr(played: Played) -> None:
    folder = played(LINES)
    first = _package(**SETTINGS)
    assert "rapidocr 1.2, onnxruntime 1.2, models " in first
    (folder / "rapidocr" / "models" / "PP-OCRv6_rec_small.onnx").write_text("another")
    models.identity.cache_clear()
    assert _package(**SETTINGS) != first
    assert "rapidocr" not in _package()
    assert "ocr" not in ExtractConfig.model_validate({"parsers": {"pdf": {}}}).parsers["pdf"]


def _package(**settings: object) -> str:
    package: str = ExtractConfig.model_validate({"parsers": {"pdf": settings}}).parsers["pdf"]["package"]
    return package


def test_a_page_beyond_its_cpu_limit_costs_its_file_only(played: Played) -> None:
    played(f"({LINES}) if pixels.shape[0] < 800 else [None for _ in iter(int, 1)]")
    config = ExtractConfig.model_validate({"parsers": {"pdf": {"ocr_page_cpu_s": 0.5, **SETTINGS}}})
    good = pdf([SCANNED], **SCAN).replace(b"595 842", b"595 700")
    read = partial(parse_body, "pdf", json.dumps(config.parsers["pdf"]))
    outcomes = _guard(config).run([partial(read, data, "a.pdf") for data in (pdf([SCANNED], **SCAN), good)])
    assert [getattr(one, "text", "") or getattr(one, "reason", "") for one in outcomes] == ["timeout", SENTENCE]


@pytest.mark.oracle("rapidocr")
def test_the_models_read_a_drawn_page(run_stage: Run, tmp_path: Path) -> None:
    made = extracted(run_stage, tmp_path, {"a": _picture(LEFT)}, ocr="rapidocr")
    assert [kind for kind, _, _ in blocks(made)] == ["paragraph"]
    assert documents(made)[0]["text"] == LEFT


def _picture(text: str) -> bytes:
    """A page that shows a text as an image at 200 dots per inch."""
    import matplotlib
    from PIL import Image, ImageDraw, ImageFont

    picture = Image.new("L", (1653, 600), "white")
    font = ImageFont.truetype(Path(matplotlib.get_data_path()) / "fonts/ttf/DejaVuSerif.ttf", 30)
    ImageDraw.Draw(picture).multiline_text((150, 100), "\n".join(textwrap.wrap(text, 70)), "black", font, spacing=14)
    packed = image(*picture.size).replace(b"\x80" * (1653 * 600), picture.tobytes())
    return pdf(["q 595 0 0 216 0 600 cm /Im Do Q\n"], resources=IMAGE, others={1000: packed})
