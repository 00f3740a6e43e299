"""Small labeled texts for the tests of the classifiers: encyclopedic sentences against shop pages."""

import json
import random
from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa

from tasks.core.artifact import Artifact
from tasks.formats.documents.document import DOCUMENT
from tests.corpora import by_hand, kept_document

_READ = pa.schema([DOCUMENT.field(name) for name in ("id", "url", "host", "source", "text")])
"""The fields of a document that classifiers read, and its URL."""
_LEARNED = ("the river", "an empire", "the theorem", "a mineral", "the council", "this species", "the treaty")
_VERBS = ("was described by", "is found near", "was proved in", "is related to", "was signed at", "belongs to")
_SHOP = ("buy", "cart", "free shipping", "sale", "log in", "click here", "50% off", "subscribe", "menu", "home")


def learned(seed: int) -> str:
    draw = random.Random(seed)
    sentences = [f"{draw.choice(_LEARNED)} {draw.choice(_VERBS)} {draw.choice(_LEARNED)} {seed}" for _ in range(12)]
    return ". ".join(sentences).capitalize() + "."


def shop(seed: int) -> str:
    draw = random.Random(10_000 + seed)
    return "\n".join(f"{draw.choice(_SHOP)} {draw.choice(_SHOP)} {seed}" for _ in range(15))


def jsonl(path: Path, rows: Iterable[dict]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def extracted_in(folder: Path, texts: Iterable[str], source: str = "web", hosts: int = 40, parts: int = 3) -> Artifact:
    """Commits texts as the artifact test/extracted in the format of `extract`."""
    rows = [kept_document(f"https://h{number % hosts}.org/{number}", text, source) for number, text in enumerate(texts)]
    return by_hand(folder, "extracted", parts, {"documents": (_READ, rows)})
