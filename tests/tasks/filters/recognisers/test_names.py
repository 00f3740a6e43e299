"""Names by a spaCy pipeline: a tiny one, whose only component is a list of two names."""

from pathlib import Path

import pytest

from tasks.core.errors import InputError
from tasks.filters import pii
from tasks.filters.batch import DocumentBatch
from tasks.filters.pii import Pii

spacy = pytest.importorskip("spacy", reason="the extra `ner` is not installed")


@pytest.fixture
def pipeline(tmp_path: Path) -> str:
    nlp = spacy.blank("en")
    patterns = [{"label": "PERSON", "pattern": "Ann Roe"}, {"label": "ORG", "pattern": "Roe Works"}]
    nlp.add_pipe("entity_ruler").add_patterns(patterns)
    nlp.to_disk(tmp_path / "pipeline")
    return str(tmp_path / "pipeline")


def test_persons_become_spans_and_other_entities_do_not(pipeline: str) -> None:
    annotator = Pii(names=pipeline)
    annotator.prepare({})
    spans = (
        annotator.annotate(DocumentBatch(["Ann Roe of Roe Works, ann@example.org", "nobody"]))
        .field("spans")
        .to_pylist()
    )
    assert [(span["kind"], span["start"]) for span in spans[0]] == [("person", 0), ("email", 22)]
    assert spans[1] == []


def test_a_long_text_is_read_in_chunks_with_correct_offsets(pipeline: str) -> None:
    text = "x " * 30_000 + "\nAnn Roe\n" + "y" * 50_000 + " Ann Roe"
    starts = [span.start for span in pii.NameRecogniser(pipeline).find([text])[0]]
    assert [text[start : start + 7] for start in starts] == ["Ann Roe", "Ann Roe"]


def test_the_files_of_the_pipeline_are_in_the_fingerprint(pipeline: str) -> None:
    assert f"{pipeline}/meta.json" in Pii(names=pipeline).external()
    assert Pii().external() == []


def test_a_folder_without_a_pipeline_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="has no spaCy pipeline"):
        Pii(names=str(tmp_path)).prepare({})
