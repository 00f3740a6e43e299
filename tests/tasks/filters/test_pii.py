"""The annotator of personal data and its filter."""

import sys

import pyarrow as pa
import pytest
from pydantic import ValidationError

from tasks.core.errors import InputError
from tasks.filters.base import fields
from tasks.filters.batch import DocumentBatch
from tasks.filters.pii import Pii, PiiDense


def test_spans_have_kind_start_and_end_in_code_points() -> None:
    column = Pii().annotate(DocumentBatch(["Grüße 👋: jo@example.org", "nothing here"]))
    assert column.field("spans").to_pylist() == [[{"kind": "email", "start": 9, "end": 23}], []]
    assert column.type.field("spans").type.value_type.field("start").type == pa.int32()
    assert not column.type.field("spans").nullable


def test_an_empty_batch_and_empty_texts_are_measured() -> None:
    assert len(Pii().annotate(DocumentBatch([]))) == 0
    assert Pii().annotate(DocumentBatch(["", " "])).field("per_1000_words").to_pylist() == [0.0, 0.0]


def test_matches_of_a_document_do_not_depend_on_others() -> None:
    texts = ["Call", "4155550123", "jo@example.org", "SSN 123-45-6789"]
    alone = [Pii().annotate(DocumentBatch([text])).to_pylist()[0] for text in texts]
    assert Pii().annotate(DocumentBatch(texts)).to_pylist() == alone


def test_only_the_configured_kinds_and_countries_are_searched() -> None:
    batch = DocumentBatch(["jo@example.org, 415-555-0123, 020 7946 0958"])
    spans = Pii(kinds=("phone",), countries=("GB",)).annotate(batch).field("spans").to_pylist()[0]
    assert [(span["kind"], span["start"]) for span in spans] == [("phone", 30)]
    with pytest.raises(ValidationError):
        Pii(kinds=("names",))  # type: ignore[arg-type]


def test_names_without_spacy_are_an_error_that_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "spacy", None)
    with pytest.raises(InputError, match="Install the extra"):
        Pii(names="pipeline").prepare({})


def test_the_filter_drops_documents_denser_than_its_limit() -> None:
    text = "jo@example.org " + "word " * 99
    found = fields(Pii().annotate(DocumentBatch([text, "word " * 100])))
    dense = PiiDense(max_per_1000_words=9, min_spans=1)
    assert [(reason, mask.tolist()) for reason, mask in dense.reasons(found)] == [("pii_dense", [True, False])]
    assert PiiDense(max_per_1000_words=10, min_spans=1).verdict(text) is None
    assert PiiDense(max_per_1000_words=9, min_spans=2).verdict(text) is None
