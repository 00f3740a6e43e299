"""Pages read by a vision model behind an endpoint, with a record of each answer.

Reads bitmaps of pages; writes `<2 digits>/<key>.json` below the folder or store `answers`, one record per page:
{request, answer, refused, sha256}. The key is the SHA-256 of the request: the pixels, the model, the prompt and the
limits. A page with a record is not asked again, so that a repeated run gives the same bytes, whatever the model answers
by then. A record is created once; of two workers that ask for the same page at the same time, both use the first
answer. A damaged record is asked and written again. Whether an answer is used is decided at each reading, by the checks
of `plausibility`; `refused` tells a reader of the record the reason at its writing.
"""

import json
import struct
import zlib
from functools import cache
from hashlib import sha256
from typing import Any

import numpy as np

from tasks.core.store import AlreadyPublished, Store
from tasks.formats.pdf.endpoint import SEED, TEMPERATURE, Answer, Client, Endpoint
from tasks.formats.pdf.marked_page import blocks_of, text_of
from tasks.formats.pdf.plausibility import ink_of, refusal
from tasks.formats.pdf.recognized import ReadPage, Unread
from tasks.formats.pdf.render import Bitmap

_PNG = b"\x89PNG\r\n\x1a\n"
_GREY, _COLOR = 0, 2
_PACKING = 6


class VisionReader:
    """Reads pages; remembers over all files how many pages in a row the endpoint has not read.

    Args:
        endpoint: the settings.
        client: asks the model; by default over HTTP.
    """

    def __init__(self, endpoint: Endpoint, client: Client | None = None) -> None:
        self._endpoint = endpoint
        self._client = client or Client(endpoint)
        self._answers = Store(endpoint.answers)

    def read(self, bitmap: Bitmap) -> ReadPage:
        """Returns what a page says.

        Raises:
            Unread: the endpoint gives no answer, or an implausible one.
            InputError, TransientError: see `Client.ask`.
            StoreError, TransientError: the records cannot be read or written.
        """
        answer = self._answer(bitmap)
        if answer is None:
            raise Unread("no_answer")
        if reason := self._refusal(answer, bitmap):
            raise Unread(reason)
        box = (0.0, 0.0, bitmap.width, bitmap.height)
        return ReadPage(None, blocks=blocks_of(text_of(answer.text), box), width=bitmap.width, height=bitmap.height)

    def _refusal(self, answer: Answer, bitmap: Bitmap) -> str:
        return refusal(text_of(answer.text), answer.finish_reason, ink_of(bitmap), self._endpoint.prompt)

    def _answer(self, bitmap: Bitmap) -> Answer | None:
        """Returns the recorded answer, else that of the endpoint, which it records."""
        request = self._request(bitmap)
        key = _digest(request)
        path = f"{key[:2]}/{key}.json"
        found, damaged = self._recorded(path, request)
        if found is not None:
            return found
        answer = self._client.ask(png(bitmap))
        if answer is None:
            return None
        content = {"request": request, "answer": {"text": answer.text, "finish_reason": answer.finish_reason}}
        record = {**content, "refused": self._refusal(answer, bitmap), "sha256": _digest(content)}
        data = json.dumps(record, ensure_ascii=False, indent=1).encode()
        if not damaged:
            try:
                self._answers.publish(path, data)
            except AlreadyPublished:
                return self._recorded(path, request)[0] or answer
        else:
            with self._answers.write(path) as file:
                file.write(data)
        return answer

    def _request(self, bitmap: Bitmap) -> dict[str, Any]:
        rows, columns, _ = bitmap.pixels.shape
        return {
            "pixels": sha256(np.ascontiguousarray(bitmap.pixels).data).hexdigest(),
            "size": [columns, rows],
            "model": self._endpoint.model,
            "prompt": self._endpoint.prompt,
            "max_tokens": self._endpoint.max_tokens,
            "temperature": TEMPERATURE,
            "seed": SEED,
        }

    def _recorded(self, path: str, request: dict[str, Any]) -> tuple[Answer | None, bool]:
        """Returns the recorded answer to a request, if there is one, and whether there is a damaged record."""
        try:
            record = json.loads(self._answers.read(path))
        except FileNotFoundError:
            return None, False
        except (ValueError, RecursionError):
            return None, True
        try:
            content = {"request": request, "answer": record["answer"]}
            if record["sha256"] != _digest(content):
                return None, True
            return Answer(record["answer"]["text"], record["answer"]["finish_reason"]), False
        except (LookupError, TypeError, ValueError):
            return None, True


@cache
def reader(endpoint: Endpoint) -> VisionReader:
    """Returns the reader of this process for these settings."""
    return VisionReader(endpoint)


def png(bitmap: Bitmap) -> bytes:
    """Returns a page as PNG (ISO/IEC 15948): 8 bits per sample, grey if the page has no colors."""
    pixels = bitmap.pixels[:, :, ::-1]
    rows, columns, _ = pixels.shape
    grey = bool((pixels[:, :, 0] == pixels[:, :, 1]).all() and (pixels[:, :, 1] == pixels[:, :, 2]).all())
    samples = (pixels[:, :, 1] if grey else pixels).reshape(rows, -1)
    lines = np.zeros((rows, 1 + samples.shape[1]), np.uint8)  # each line begins with its filter: none
    lines[:, 1:] = samples
    header = struct.pack(">IIBBBBB", columns, rows, 8, _GREY if grey else _COLOR, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(lines.data, _PACKING)), (b"IEND", b""))
    return _PNG + b"".join(_chunk(kind, data) for kind, data in chunks)


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(data, zlib.crc32(kind)))


def _digest(content: dict[str, Any]) -> str:
    return sha256(json.dumps(content, ensure_ascii=False, sort_keys=True).encode()).hexdigest()
