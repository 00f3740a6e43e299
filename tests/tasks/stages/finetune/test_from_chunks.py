"""Examples from chunks: title and headings as prompt, text as response, and a trace to the page."""

from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from tasks.core.artifact import Artifact
from tasks.core.errors import InputError
from tasks.formats.documents.examples import HELDOUT, Examples
from tasks.stages.finetune import ExamplesConfig
from tests.conftest import run_stage_in
from tests.corpora import kept_document
from tests.taken_down import take_down
from tests.tasks.stages.chunks.made import chunked, rows_of
from tests.tasks.stages.chunks.test_stage import pages, papers


def made(folder: Path, chunks: Artifact, *, takedown: Artifact | None = None, **settings: Any) -> Artifact:
    """The examples of all chunks, with the tokenizer of the chunks."""
    choice = {name: settings.pop(name) for name in ("sources", "tiers", "kinds", "languages") if name in settings}
    inputs = {"chunks": chunks, "tokenizer": tokenizer_of(chunks), **({"takedowns": takedown} if takedown else {})}
    config = ExamplesConfig.model_validate({"chunks": choice, "seq_len": 400, "heldout_share": 0, **settings})
    return run_stage_in(folder / "tuned", "tasks.stages.finetune.examples", config, inputs, kind="examples")


def tokenizer_of(chunks: Artifact) -> Artifact:
    from tasks.core.artifact import ArtifactId

    return Artifact.open_at(chunks.store, ArtifactId("test/tokenizer", "dev"))


def texts_of(chunks: Artifact, found: Examples, number: int) -> tuple[str, str]:
    """The unlearned and the learned part of an example, as text."""
    tokenizer = Tokenizer.from_str(tokenizer_of(chunks).read("tokenizer.json").decode())
    row = found[number]
    asked, learned = (row.tokens[row.learned == flag].tolist() for flag in (False, True))
    return tokenizer.decode(asked), tokenizer.decode(learned, skip_special_tokens=False)


def count(examples: Artifact, folder: str = "examples") -> int:
    found = Examples(examples, folder)
    return len(found.numbers(0)) + sum(len(found.numbers(number)) for number in range(1, found.sequences))


def test_the_text_is_learned_and_title_and_headings_are_not(tmp_path: Path) -> None:
    doors = " ".join(f"Door {n} of the museum opens at nine and closes at five." for n in range(12))
    text = f"# Museum\n\n## Doors\n\n{doors}\n\n## Windows\n\n{doors.replace('Door', 'Window')}"
    chunks = chunked(tmp_path, [kept_document("https://m.org/a", text, title="The house")], parts=1)
    rows = rows_of(chunks)
    found = Examples(made(tmp_path, chunks))
    assert [row["text"].startswith("#") for row in rows].count(True) == 2
    for number, row in enumerate(rows):
        asked, learned = texts_of(chunks, found, number)
        section = "Doors" if "Door " in row["text"] else "Windows"
        assert asked == f"### Instruction:\nThe house\nMuseum\n{section}\n\n### Response:\n"
        assert learned == f"{row['text'][row['text'].index(section[:-1] + ' ') :]}\n<|endoftext|>"
        assert found.source(found[number]) == {
            "chunk": row["id"], "document": row["document"], "url": "https://m.org/a", "source": "web"
        }  # fmt: skip


def test_a_chunk_without_title_and_headings_is_only_a_response(tmp_path: Path) -> None:
    chunks = chunked(tmp_path, [kept_document("https://m.org/a", "The doors of the museum open at nine.")], parts=1)
    asked, learned = texts_of(chunks, Examples(made(tmp_path, chunks)), 0)
    assert (asked, learned) == ("### Response:\n", "The doors of the museum open at nine.\n<|endoftext|>")


def test_an_example_of_a_pdf_file_names_page_and_boxes(tmp_path: Path) -> None:
    extracted = papers(tmp_path / "papers")
    (path,) = extracted.files("documents/")
    (document,), (layout,) = extracted.table(path).to_pylist(), rows_of(extracted, "layout/")
    kept = kept_document(document["url"], document["text"], **{name: document[name] for name in ("id", "source")})
    settings = {"parts": 1, "min_tokens": 8, "max_tokens": 1024}
    chunks = chunked(tmp_path / "made", [kept], layouts=[layout], before=[document], **settings)
    found = Examples(made(tmp_path, chunks, seq_len=1000))
    for number, row in enumerate(rows_of(chunks)):
        named = found.source(found[number])
        assert (named["url"], named["pages"], named["boxes"]) == (document["url"], [number + 1], row["boxes"])


def test_chunks_are_selected_by_source_tier_and_kind_and_the_others_counted(tmp_path: Path) -> None:
    code = kept_document("file://code/1", "```\n" + "total = first + second  # of all the doors\n" * 3 + "```", "code")
    chunks = chunked(tmp_path, [*pages(), code])
    rows = rows_of(chunks)
    for number, (column, value) in enumerate([("source", "code"), ("tier", "gold"), ("kind", "text")]):
        expected = sum(row[column] == value for row in rows)
        assert 0 < expected < len(rows)
        record = made(tmp_path / f"{number}", chunks, **{f"{column}s": (value,)}).record
        assert (record.rows_out, record.rejected["not_chosen"]) == (expected, len(rows) - expected)
    with pytest.raises(InputError, match="became an example to learn from"):
        made(tmp_path / "none", chunks, languages=("eo",))


def test_documents_taken_down_after_chunking_give_no_example(tmp_path: Path) -> None:
    chunks = chunked(tmp_path, pages())
    gone = [row for row in rows_of(chunks) if row["url"] == "https://m1.org/doors"]
    takedown = take_down(tmp_path, urls=("https://m1.org/doors",))
    examples = made(tmp_path, chunks, takedown=takedown)
    assert examples.record.rejected == {"takedown": len(gone)}
    found = Examples(examples)
    named = {one["url"] for number in range(found.sequences) for one in found.sources(number)}
    assert named == {row["url"] for row in rows_of(chunks)} - {"https://m1.org/doors"}


def test_all_chunks_of_a_held_out_document_are_held_out_and_never_learned(tmp_path: Path) -> None:
    rows = [row | {"id": f"{n:032x}"} for n, row in enumerate(pages() * 8)]
    rows = [
        row | {"url": f"{row['url']}/{n}", "text": row["text"].replace("Door", f"Door{n}")}
        for n, row in enumerate(rows)
    ]
    chunks = chunked(tmp_path, rows)
    examples = made(tmp_path, chunks, heldout_share=0.3)
    sides = [Examples(examples, folder) for folder in ("examples", HELDOUT)]
    documents = [{one["document"] for n in range(side.sequences) for one in side.sources(n)} for side in sides]
    assert not documents[0] & documents[1]
    assert len(documents[0] | documents[1]) == len(rows)
    assert 4 <= len(documents[1]) <= 20
    assert count(examples, HELDOUT) == examples.record.metrics["heldout"] > len(documents[1])
    assert count(examples) == examples.record.metrics["examples"]
