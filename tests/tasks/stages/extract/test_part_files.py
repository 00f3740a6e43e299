"""Contract of tasks.stages.extract.part_files: documents are read in the order of their ids, however much text they
hold."""

import random

import pyarrow as pa
import pytest

from tasks.formats.documents.document import DOCUMENT
from tasks.stages.extract import part_files
from tasks.stages.extract.part_files import OrderedDocuments


def document(number: int) -> dict[str, object]:
    texts = dict.fromkeys(("record_id", "url", "host", "title", "language_hint", "source", "payload_digest"), "")
    return {**texts, "warc_file": "", "id": f"{number:032x}", "text": f"é{number}" * (1 + number % 90)}


@pytest.mark.parametrize("held", [1, 500, 5_000, 1 << 20])
def test_documents_are_returned_in_order_from_memory_and_disk(monkeypatch: pytest.MonkeyPatch, held: int) -> None:
    monkeypatch.setattr(part_files, "BUFFER_BYTES", held)
    numbers = list(range(300))
    random.Random(1).shuffle(numbers)
    with OrderedDocuments() as documents:
        for number in numbers:
            documents.add(document(number))
        tables = list(documents.tables())
        found = pa.concat_tables(tables).to_pylist()
    assert [row["text"] for row in found] == [document(number)["text"] for number in range(300)]
    assert documents.rows == 300
    assert documents.text_bytes == sum(len(row["text"].encode()) for row in found)
    assert all(table.schema.equals(DOCUMENT) for table in tables)
    assert len(tables) == {1: 300, 1 << 20: 1}.get(held, len(tables))


def test_no_documents_give_no_tables() -> None:
    with OrderedDocuments() as documents:
        assert list(documents.tables()) == []
