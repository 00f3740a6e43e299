"""Pages read by a vision model behind an endpoint: each answer is asked once, checked, and recorded.

A server on loopback plays the model.
"""

import json
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from tasks.core.artifact import Artifact
from tasks.core.config import parse
from tasks.core.errors import InputError, RecipeError, TransientError
from tasks.formats.documents.structure import markdown
from tasks.formats.pdf.document import BitmapReader, read_pdf
from tasks.formats.pdf.endpoint import Client, Endpoint
from tasks.formats.pdf.recognized import Unread
from tasks.formats.pdf.render import Bitmap
from tasks.formats.pdf.vision import VisionReader, png
from tasks.stages.extract.config import ExtractConfig
from tasks.stages.extract.guard import end_idle_children
from tasks.stages.extract.parsers.pdf import Pdf
from tests.tasks.stages.extract.made_pdf import pdf
from tests.tasks.stages.extract.test_pdf import PROSE, Run, beside, blocks, extracted
from tests.tasks.stages.extract.test_stage import rejected

KEY = "sk-very-secret-4711"
WORDS = "The ship went to sea with a crew of nine, and none of them had seen the ice."
ANSWER = f"# On the ice\n\n{WORDS}\n\n| port | days |\n|---|---|\n| Vardo | 7 |\n\n$$\nE = mc^2\n$$\n"
Reply = tuple[int, Mapping[str, str], bytes] | float
"""Status, headers and body of a reply, or the seconds after which the connection is closed without one; a body with the
header `Slow` is sent byte by byte, with so many seconds between them, a reply with `Late` begins after so many."""


def said(text: str | None, finish_reason: str = "stop", **headers: str) -> Reply:
    choice = {"message": {"role": "assistant", "content": text}, "finish_reason": finish_reason}
    return 200, headers, json.dumps({"choices": [choice]}).encode()


class Model:
    """The server; its next replies are `replies`, of which the last is given for ever."""

    def __init__(self) -> None:
        self.replies: list[Reply] = [said(ANSWER)]
        self.asked: list[dict[str, Any]] = []
        self.keys: list[str | None] = []
        self.start()

    def start(self, port: int = 0) -> None:
        model = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                model.asked.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
                model.keys.append(self.headers.get("Authorization"))
                assert self.path == "/v1/chat/completions"
                reply = model.replies.pop(0) if len(model.replies) > 1 else model.replies[0]
                if isinstance(reply, float):
                    time.sleep(reply)
                    self.close_connection = True
                    return
                status, headers, body = reply
                time.sleep(float(headers.get("Late", 0)))
                self.send_response(status)
                for name, value in {"Content-Length": str(len(body)), **headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                for at in range(len(body) if "Slow" in headers else 0):
                    time.sleep(float(headers["Slow"]))
                    self.wfile.write(body[at : at + 1])
                self.wfile.write(b"" if "Slow" in headers else body)

            def log_message(self, *message: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self.port = self._server.server_port
        self.url = f"http://127.0.0.1:{self.port}/v1"
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def end(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> Iterator[Model]:
    monkeypatch.setenv("VISION_KEY", KEY)
    end_idle_children()  # they have the environment of an earlier test
    played = Model()
    yield played
    played.end()
    end_idle_children()


def settings(played: Model, folder: Path, **others: object) -> dict[str, Any]:
    return {"url": played.url, "model": "olm", "answers": str(folder / "answers"), "key": "env:VISION_KEY", **others}


def endpoint(played: Model, folder: Path, **others: object) -> Endpoint:
    return Endpoint.model_validate(settings(played, folder, **others))


def page(words: int = 60, text: str = "") -> Bitmap:
    """A bitmap at 72 dots per inch with strokes like those of so many words; `text` makes it another page."""
    pixels = np.full((842, 595, 3), 255, np.uint8)
    for number in range(words * 6):
        row, column = divmod(number, 60)
        pixels[40 + 12 * row : 48 + 12 * row, 50 + 8 * column] = 0
    pixels[0, : len(text)] = 0
    return Bitmap(pixels, 595.0, 842.0, 1.0)


def drawn(letters: int = 240, shift: int = 0) -> str:
    """Operators of a page that shows strokes without a text layer."""
    return "".join(f"{50 + 8 * (at % 60)} {700 - shift - 12 * (at // 60)} 1.2 8 re f\n" for at in range(letters))


@pytest.fixture
def pauses() -> list[float]:
    return []


@pytest.fixture
def reader(model: Model, tmp_path: Path, pauses: list[float]) -> Callable[..., VisionReader]:
    def make(**others: object) -> VisionReader:
        settings = endpoint(model, tmp_path, **others)
        return VisionReader(settings, Client(settings, pauses.append))

    return make


def unread(reader: VisionReader, bitmap: Bitmap) -> str:
    with pytest.raises(Unread) as reason:
        reader.read(bitmap)
    return reason.value.reason


def contents(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file())


def test_pages_become_blocks_and_a_repeated_run_asks_nothing_and_gives_the_same(
    run_stage: Run, tmp_path: Path, model: Model, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.DEBUG)
    files = {"a": pdf([PROSE, drawn()]), "b": pdf([drawn(shift=5)])}
    model.replies = [said(ANSWER), said("I'm sorry, I cannot read this page.")]

    def run(folder: str) -> Artifact:
        (tmp_path / folder).mkdir()
        return extracted(run_stage, tmp_path / folder, files, ocr="endpoint", endpoint=settings(model, tmp_path))

    made = run("first")
    assert blocks(made)[2:] == [
        ("heading", 2, "On the ice"),
        ("paragraph", 2, WORDS),
        ("table", 2, "port\tdays\nVardo\t7"),
        ("formula", 2, "$$E = mc^2$$"),
    ]
    assert [(one["page"], one["needs_ocr"], one["confidence"]) for one in beside(made, "pages/")] == [
        (1, False, None),
        (2, False, None),
        (1, True, None),
    ]
    assert rejected(made) == [("file://papers/b.pdf", "ocr_apology")]
    assert made.record.metrics["ocr_pages"] == 1
    assert len(model.asked) == 2
    assert set(model.keys) == {f"Bearer {KEY}"}
    assert beside(run("second"), "documents/") == beside(made, "documents/")
    assert len(model.asked) == 2
    out, err = capfd.readouterr()
    assert KEY not in caplog.text + out + err
    assert KEY.encode() not in contents(tmp_path)


def test_pages_without_an_answer_that_can_be_used_are_counted_by_reason(
    run_stage: Run, tmp_path: Path, model: Model
) -> None:
    files = {"a": pdf([PROSE, *(drawn(shift=shift) for shift in range(4))]), "b": pdf([drawn(shift=9)])}
    looped = said("one two three four five six seven eight nine " * 30)
    model.replies = [looped, (400, {}, b""), looped, said("I'm sorry, I cannot read this page.")]
    ocr = {"ocr": "endpoint", "ocr_max_pages": 3, "endpoint": settings(model, tmp_path)}
    made = extracted(run_stage, tmp_path, files, **ocr)
    pages = {"2": "ocr_repetition", "3": "ocr_no_answer", "4": "ocr_repetition", "5": "needs_ocr"}
    assert rejected(made) == [
        *((f"file://papers/a.pdf#page={page}", reason) for page, reason in pages.items()),
        ("file://papers/b.pdf", "ocr_apology"),
    ]
    assert made.record.rejected == {"needs_ocr": 1, "ocr_apology": 1, "ocr_no_answer": 1, "ocr_repetition": 2}
    unread = [one["unread"] for one in beside(made, "pages/")]
    assert unread == ["", "ocr_repetition", "ocr_no_answer", "ocr_repetition", "", "ocr_apology"]


def test_the_document_has_the_structure_that_the_marks_say(model: Model, reader: Callable[..., VisionReader]) -> None:
    first = "## On the ice\n\n- nine men\n\nand no dog\n\n# The ship\n\n```\nlog:\n  none\n```\n\nIt went to sea with a"
    model.replies = [said(first), said("crew of nine, and no ice.")]
    read = read_pdf(pdf([drawn(), drawn(60)]), bitmaps=BitmapReader(reader().read, 72))
    assert markdown(read.blocks) == f"{first} crew of nine, and no ice."
    assert [page.needs_ocr for page in read.pages] == [False, False]
    assert {(piece.page, piece.box) for block in read.blocks for piece in block.pieces} == {
        (1, (0.0, 0.0, 595.0, 842.0)),
        (2, (0.0, 0.0, 595.0, 842.0)),
    }
    assert read.title == "The ship"


def test_a_refused_key_stops_the_stage_with_one_sentence(run_stage: Run, tmp_path: Path, model: Model) -> None:
    model.replies = [(401, {}, f"invalid key {KEY}".encode())]
    with pytest.raises(InputError, match=r"v1 refuses the key at env:VISION_KEY \(HTTP 401\)\. Correct") as stopped:
        extracted(run_stage, tmp_path, {"a": pdf([drawn()])}, ocr="endpoint", endpoint=settings(model, tmp_path))
    assert len(model.asked) == 1
    assert KEY not in str(stopped.value)


def test_a_missing_key_stops_the_stage_before_it_reads_a_file(
    run_stage: Run, tmp_path: Path, model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("VISION_KEY")
    with pytest.raises(InputError, match="not found at env:VISION_KEY"):
        extracted(run_stage, tmp_path, {"a": pdf([drawn()])}, ocr="endpoint", endpoint=settings(model, tmp_path))
    assert not model.asked


def test_a_killed_server_stops_the_stage_and_a_later_run_asks_for_the_other_pages_only(
    tmp_path: Path, model: Model, reader: Callable[..., VisionReader]
) -> None:
    first, second = page(text="1"), page(text="12")
    assert reader().read(first).blocks
    model.end()
    with pytest.raises(TransientError, match=r"cannot be reached \(\w+\)\. Start the model server"):
        reader().read(second)
    model.start(model.port)
    model.asked.clear()
    later = reader()
    assert later.read(first).blocks
    assert not model.asked
    assert later.read(second).blocks
    assert len(model.asked) == 1


@pytest.mark.parametrize(
    ("reply", "pause"),
    [
        ((429, {"Retry-After": "7"}, b""), 7),
        ((503, {"Retry-After": "Sun, 06 Nov 1994 08:49:37 GMT"}, b""), 1),
        ((429, {"Retry-After": "86400"}, b""), 120),
        ((200, {}, b"<html>Bad gateway</html>"), 1),
        ((200, {}, b'{"choices": []}'), 1),
        ((200, {"Content-Length": "900"}, b'{"choices": ['), 1),
        (0.0, 1),
        (said(ANSWER, Late="20"), 1),
        (said(ANSWER, Slow="0.1"), 1),
    ],
    ids=["429", "503", "429 for a day", "garbage", "no choice", "killed halfway", "closed", "slow", "dribbled"],
)
def test_a_request_that_fails_for_the_moment_is_repeated_after_a_pause(
    reply: Reply, pause: float, model: Model, tmp_path: Path, pauses: list[float]
) -> None:
    def wait(seconds: float) -> None:
        pauses.append(seconds)
        client._endpoint = patient  # only the first answer, which takes 20 seconds or more, is too slow
        while len(model.replies) > 1:  # a busy server may not have seen the first request
            time.sleep(0.01)

    model.replies = [reply, said(ANSWER)]
    patient = endpoint(model, tmp_path)
    takes_long = isinstance(reply, tuple) and not reply[1].keys().isdisjoint(("Late", "Slow"))
    client = Client(endpoint(model, tmp_path, timeout_s=0.7) if takes_long else patient, wait)
    read = VisionReader(patient, client).read(page())
    assert [block.kind for block in read.blocks] == ["heading", "paragraph", "table", "formula"]
    assert pauses == [pause]
    assert model.asked[0] == model.asked[1]


def test_a_page_that_is_never_answered_needs_ocr_and_three_in_a_row_stop_the_stage(
    model: Model, reader: Callable[..., VisionReader], pauses: list[float]
) -> None:
    model.replies = [*[(500, {}, b"")] * 6, said(ANSWER), (500, {}, b"")]
    one = reader(tries=3)
    assert unread(one, page(text="1")) == unread(one, page(text="12")) == "no_answer"
    assert pauses == [1, 2, 1, 2]
    assert one.read(page(text="123")).blocks
    assert unread(one, page(text="1234")) == unread(one, page(text="12345")) == "no_answer"
    with pytest.raises(TransientError, match=r"has not read 3 pages in a row \(HTTP 500\)"):
        one.read(page(text="123456"))


def test_an_invalid_request_is_not_repeated_and_a_wrong_model_is_named(
    model: Model, reader: Callable[..., VisionReader]
) -> None:
    model.replies = [(400, {}, b""), (404, {}, b"")]
    one = reader()
    assert unread(one, page(text="1")) == "no_answer"
    with pytest.raises(InputError, match="has no model olm"):
        one.read(page(text="12"))
    assert len(model.asked) == 2


def test_the_request_shows_the_page_and_nothing_is_left_to_chance(
    model: Model, reader: Callable[..., VisionReader]
) -> None:
    reader(prompt="Read.").read(page())
    (asked,) = model.asked
    text, picture = asked.pop("messages")[0]["content"]
    assert text == {"type": "text", "text": "Read."}
    assert picture["image_url"]["url"].startswith("data:image/png;base64,iVBORw0KGgo")
    assert asked == {"model": "olm", "max_tokens": 8192, "temperature": 0, "seed": 0}


@pytest.mark.parametrize("color", [False, True])
def test_the_picture_is_the_bitmap(color: bool, tmp_path: Path) -> None:
    from matplotlib.image import imread

    bitmap = page()
    if color:
        bitmap.pixels[100:200, 100:150] = (255, 128, 0)
    (tmp_path / "page.png").write_bytes(png(bitmap))
    seen = np.rint(255 * imread(tmp_path / "page.png")).astype(np.uint8)
    assert (seen == (bitmap.pixels[:, :, ::-1] if color else bitmap.pixels[:, :, 0])).all()


@pytest.mark.parametrize("damage", [lambda data: data[:-40], lambda data: data.replace(b"crew", b"crow")])
def test_a_damaged_record_is_asked_again_and_replaced(
    damage: Callable[[bytes], bytes], tmp_path: Path, model: Model, reader: Callable[..., VisionReader]
) -> None:
    first = reader().read(page())
    (path,) = (tmp_path / "answers").rglob("*.json")
    whole = path.read_bytes()
    path.write_bytes(damage(whole))
    assert reader().read(page()) == first
    assert len(model.asked) == 2
    assert path.read_bytes() == whole


def test_other_pixels_models_and_prompts_are_other_requests(model: Model, reader: Callable[..., VisionReader]) -> None:
    changed: list[dict[str, object]] = [{}, {"model": "other"}, {"prompt": "Read."}, {"max_tokens": 9}]
    for others in [*changed, *changed]:
        reader(**others).read(page())
    reader().read(page(text="1"))
    assert len(model.asked) == 5


def test_of_two_workers_both_use_the_answer_that_was_recorded_first(
    model: Model, reader: Callable[..., VisionReader], monkeypatch: pytest.MonkeyPatch
) -> None:
    model.replies = [said("Another text of the same page."), said(ANSWER)]
    early, late = reader(), reader()
    ask = late._client.ask

    def asked_meanwhile(picture: bytes) -> Any:
        early.read(page())
        return ask(picture)

    monkeypatch.setattr(late._client, "ask", asked_meanwhile)
    assert [block.lines for block in late.read(page()).blocks] == [("Another text of the same page.",)]


def test_a_refused_answer_is_recorded_with_its_reason(
    tmp_path: Path, model: Model, reader: Callable[..., VisionReader]
) -> None:
    model.replies = [said(ANSWER, "length")]
    assert unread(reader(), page()) == unread(reader(), page()) == "length"
    assert len(model.asked) == 1
    (path,) = (tmp_path / "answers").rglob("*.json")
    record = json.loads(path.read_bytes())
    assert (record["refused"], record["answer"]["text"]) == ("length", ANSWER)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"url": "http://gpu.corp:8000/v1"}, "over_http = true"),
        ({"url": f"https://me:{KEY}@host/v1"}, "must not contain a login"),
        ({"url": f"https://host/v1?key={KEY}"}, "must be an address"),
        ({"url": f"https://me:{KEY}@[host/v1"}, "must be an address"),
        ({"url": f"https://host:{KEY}/v1"}, "must be an address"),
        ({"key": KEY}, "must not be in a recipe"),
        ({"answers": "answers"}, "is not absolute"),
    ],
)
def test_settings_that_would_leak_or_lose_something_are_refused(
    wrong: dict[str, str], message: str, tmp_path: Path, model: Model
) -> None:
    parsers = {"pdf": {"ocr": "endpoint", "endpoint": settings(model, tmp_path, **wrong)}}
    with pytest.raises(RecipeError, match=message) as refused:
        parse(ExtractConfig, {"parsers": parsers}, "recipe")
    assert KEY not in str(refused.value)


def test_the_section_and_the_engine_need_each_other(model: Model, tmp_path: Path) -> None:
    for wrong in ({"ocr": "endpoint"}, {"endpoint": settings(model, tmp_path)}):
        with pytest.raises(ValidationError, match="need each other"):
            Pdf.model_validate(wrong)
    assert "endpoint" not in Pdf().model_dump(mode="json")


def test_a_file_of_many_slow_pages_waits_no_longer_than_poll_can(model: Model, tmp_path: Path) -> None:
    slow = settings(model, tmp_path, timeout_s=3600.0)
    assert Pdf.model_validate({"ocr": "endpoint", "endpoint": slow}).wait_s < 2**31 / 1000
