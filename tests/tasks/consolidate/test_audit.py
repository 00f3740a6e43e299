"""Contract of the audit page: a fair and stable sample of every verdict, safe to open, with personal data masked."""

from pathlib import Path

from tasks.consolidate.audit import choose
from tasks.consolidate.config import ConsolidateConfig
from tests.tasks.consolidate.test_stage import consolidate, text
from tests.tasks.dedup.made import document, rows_of

HOSTILE = "<script>alert(1)</script>"


def test_the_smallest_ids_of_every_reason_are_shown() -> None:
    reasons = [["b"], [], ["a", "b"], ["b"], [], ["b"]]
    assert choose(reasons, ["3", "9", "5", "1", "2", "0"], 2) == [4, 1, 2, 5, 3]


def test_the_page_shows_what_was_kept_and_what_went_and_runs_nothing_of_it(tmp_path: Path) -> None:
    rows = [document(f"{HOSTILE} {text(seed)}", f"{seed}{HOSTILE}") for seed in range(4)]
    rows += [document(f"write to ann@example.org {text(9)}", "poor", poor=True)]
    rows[-1]["pii_spans"] = [{"kind": "email", "start": 9, "end": 24}]
    made = consolidate(tmp_path, rows, ConsolidateConfig(samples=2))
    page = made.read("audit.html").decode()
    assert "<script" not in page
    assert page.count("&lt;script&gt;alert(1)&lt;/script&gt;") >= 2
    assert "kept: 2 of 4" in page
    assert "gopher_quality_few_words: 1 of 1" in page
    assert "ann@example.org" not in page
    assert "write to &lt;email&gt;" in page


def test_samples_are_folded_by_verdict_with_the_numbers_that_decided(tmp_path: Path) -> None:
    rows = [document(text(seed), f"{seed}") for seed in range(3)] + [document(text(9), "poor", poor=True)]
    page = consolidate(tmp_path, rows).read("audit.html").decode()
    assert "3 of 4 captures and files are kept (75.0%)" in page
    _, poor = page.split("<summary>gopher_quality_few_words: 1 of 1</summary>")
    shown, shut = poor.split("<details")
    assert "gopher_quality: " in shown
    assert "gopher_quality: " not in shut


def test_what_is_shown_does_not_depend_on_the_number_of_workers_or_parts(tmp_path: Path) -> None:
    rows = [document(text(seed), f"{seed}", poor=seed % 3 == 0) for seed in range(12)]
    pages = {consolidate(tmp_path / str(n), rows, workers=n).read("audit.html") for n in (0, 2)}
    assert len(pages) == 1


def test_documents_are_gold_by_their_marks_or_their_source(tmp_path: Path) -> None:
    rows = [document(text(1), "a", prose_score=0.9), document(text(2), "b"), document(text(3), "c", source="books")]
    config = ConsolidateConfig(gold={"prose_score.score": 0.8}, trusted=("books",))
    tiers = {row["url"][-1]: row["tier"] for row in rows_of(consolidate(tmp_path / "gold", rows, config), "kept/")}
    assert tiers == {"a": "gold", "b": "silver", "c": "gold"}
    assert {row["tier"] for row in rows_of(consolidate(tmp_path / "none", rows), "kept/")} == {"silver"}


def test_what_each_host_gave_is_counted(tmp_path: Path) -> None:
    rows = [document(text(seed), f"{seed}", host=f"h{seed % 2}", poor=seed == 0) for seed in range(5)]
    table = consolidate(tmp_path, rows).table("hosts.parquet")
    found = {row["host"]: (row["documents"], row["kept"]) for row in table.to_pylist()}
    assert found == {"h0": (3, 2), "h1": (2, 2)}
    assert table.column("host").to_pylist() == ["h0", "h1"]
