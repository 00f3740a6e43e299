"""Contract of the audit page: a uniform and stable sample of every verdict, escaped, with personal data masked.

Run the soak tests after a change of how the sample is drawn.
"""

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from tasks.filters.batch import DocumentBatch
from tasks.filters.catalogue import annotator
from tasks.stages.consolidate.audit import SAMPLE, choose, merge, page, samples
from tasks.stages.consolidate.config import ConsolidateConfig
from tasks.stages.consolidate.funnel import FUNNEL, HOSTS, PAIRS
from tests.tasks.stages.consolidate.test_stage import consolidate, text
from tests.tasks.stages.dedup.made import document, rows_of

HOSTILE = "<script>alert(1)</script>"


def test_samples_are_the_smallest_ids_of_every_reason() -> None:
    reasons = [["b"], [], ["a", "b"], ["b"], [], ["b"]]
    assert choose(reasons, ["3", "9", "5", "1", "2", "0"], 2) == [4, 1, 2, 5, 3]


def test_the_page_shows_kept_and_rejected_documents_escaped(tmp_path: Path) -> None:
    rows = [document(f"{HOSTILE} {text(seed)}", f"{seed}{HOSTILE}") for seed in range(4)]
    rows += [document(f"write to ann@example.org {text(9)}", "poor", poor=True)]
    rows[-1]["pii_spans"] = [{"kind": "email", "start": 9, "end": 24}]
    made = consolidate(tmp_path, rows, ConsolidateConfig(samples=2))
    shown = made.read("audit.html").decode()
    assert "<script" not in shown
    assert shown.count("&lt;script&gt;alert(1)&lt;/script&gt;") >= 2
    assert "kept: 2 of 4" in shown
    assert "gopher_quality_few_words: 1 of 1" in shown
    assert "ann@example.org" not in shown
    assert "write to &lt;email&gt;" in shown


def test_samples_are_grouped_by_verdict_with_the_deciding_values(tmp_path: Path) -> None:
    rows = [document(text(seed), f"{seed}") for seed in range(3)] + [document(text(9), "poor", poor=True)]
    whole = consolidate(tmp_path, rows).read("audit.html").decode()
    assert "3 of 4 captures and files are kept (75.0%)" in whole
    _, poor = whole.split("<summary>gopher_quality_few_words: 1 of 1</summary>")
    shown, shut = poor.split("<details")
    assert "gopher_quality: " in shown
    assert "gopher_quality: " not in shut


@pytest.mark.soak
def test_samples_do_not_depend_on_the_number_of_workers_or_parts(tmp_path: Path) -> None:
    rows = [document(text(seed), f"{seed}", poor=seed % 3 == 0) for seed in range(12)]
    config = ConsolidateConfig(samples=2)
    made = [
        consolidate(tmp_path / f"{parts} {workers}", rows, config, parts=parts, workers=workers)
        for parts, workers in ((1, 0), (2, 0), (2, 2), (3, 0), (5, 0))
    ]
    pages = [one.read("audit.html").decode() for one in made]
    assert set(pages) == {pages[0]}
    kept = sorted((row["id"], row["url"]) for row in rows if not row["poor"])
    assert [f"<b>{url}</b>" in pages[0] for _, url in kept] == [True] * 2 + [False] * 6


def test_samples_of_many_parts_are_never_in_memory_at_once() -> None:
    def part(number: int) -> pa.Table:
        fixed = {"reason": "", "url": "", "source": "web", "language": "en", "reasons": [], "measured": "{}"}
        ids = [f"{(number * 7919 + row) % 1000:08d}" for row in range(5)]
        return pa.Table.from_pylist([{**fixed, "id": id_, "text": "t" * 1500} for id_ in ids], schema=SAMPLE)

    peak = 0

    def parts() -> Iterator[pa.Table]:
        nonlocal peak
        for number in range(200):
            peak = max(peak, pa.total_allocated_bytes() - before)
            yield part(number)

    before = pa.total_allocated_bytes()
    found = merge(parts(), 3)
    assert found.column("id").to_pylist() == [f"{row:08d}" for row in range(3)]
    assert peak < 20 * part(0).nbytes


def test_a_poisoned_document_is_listed_without_its_text(tmp_path: Path) -> None:
    rows = [document(text(seed), f"{seed}") for seed in range(3)]
    rows += [document(f"mail ann@example.org {text(9)}", "bad", error="ValueError: no")]
    shown = consolidate(tmp_path, rows, max_bad_share=0.5).read("audit.html").decode()
    assert "poison: 1 of 1" in shown
    assert "https://example.org/bad" in shown
    assert "ann@example.org" not in shown
    assert shown.count("its personal data could not be masked") == 1


def test_the_sample_of_a_million_line_document_is_short() -> None:
    long = "\n".join("a" * 1_000_000)
    judged = pa.table({"c4": annotator("c4", {}).annotate(DocumentBatch([long, "Home"]))})
    documents = pa.table(
        {
            "id": ["a", "b"],
            "url": ["https://example.org/" + "u" * 100_000, "u"],
            "source": ["web"] * 2,
            "language": ["en"] * 2,
        }
    )
    found = samples(documents, judged, [["c4_few_sentences"]] * 2, [long, "Home"])
    assert found.nbytes < 10_000
    assert json.loads(found.column("measured")[0].as_py())["c4"]["dropped_lines"] == 1_000_000
    hosts = pa.table([["h" * 100_000], [1], [1], [1]], schema=HOSTS)
    shown = page(FUNNEL.empty_table(), hosts, PAIRS.empty_table(), found).decode()
    assert len(shown) < 10_000
    assert "dropped_lines 1,000,000" in shown
    assert "sentences 0" in shown


def test_documents_are_gold_by_their_marks_or_their_source(tmp_path: Path) -> None:
    rows = [document(text(1), "a", prose_score=0.9), document(text(2), "b"), document(text(3), "c", source="books")]
    config = ConsolidateConfig(gold={"prose_score.score": 0.8}, trusted=("books",))
    tiers = {row["url"][-1]: row["tier"] for row in rows_of(consolidate(tmp_path / "gold", rows, config), "kept/")}
    assert tiers == {"a": "gold", "b": "silver", "c": "gold"}
    plain = consolidate(tmp_path / "none", rows)
    assert {row["tier"] for row in rows_of(plain, "kept/")} == {"silver"}
    assert b"silver" not in plain.read("audit.html")


def test_languages_are_listed_by_their_documents_whether_kept_or_not() -> None:
    ended = [("web", "de", "kept", "", "silver", 2, 9), ("web", "fr", "language", "language_other", "", 5, None)]
    rows = [dict(zip(FUNNEL.names, row, strict=True)) for row in ended]
    tables = (HOSTS.empty_table(), PAIRS.empty_table(), SAMPLE.empty_table())
    shown = page(pa.Table.from_pylist(rows, schema=FUNNEL), *tables).decode()
    assert 0 < shown.index(">French (fr)<") < shown.index(">German (de)<")


def test_a_sample_is_shown_in_its_language_and_direction() -> None:
    row = {"reason": "", "id": "1", "url": "u", "source": "web", "reasons": [], "measured": "{}", "text": "طعام"}
    shown = page(
        FUNNEL.empty_table(),
        HOSTS.empty_table(),
        PAIRS.empty_table(),
        pa.Table.from_pylist([{**row, "language": "ar"}], schema=SAMPLE),
    ).decode()
    assert "(web, Arabic (ar))" in shown
    assert '<pre dir=auto lang="ar">طعام</pre>' in shown


def test_documents_between_two_languages_are_listed_by_pair(tmp_path: Path) -> None:
    def measured(label: str, second: str, second_score: float) -> dict[str, dict[str, object]]:
        return {"language": {"label": label, "score": 0.6, "second": second, "second_score": second_score}}

    found = [("hr", "sr", 0.3), ("hr", "sr", 0.4), ("hr", "sr", 0.29), ("id", "ms", 0.6), ("en", "und", 0.0)]
    rows = [document(text(seed), f"{seed}", measured=measured(*one), poor=seed == 0) for seed, one in enumerate(found)]
    made = consolidate(tmp_path, rows)
    assert [tuple(row.values()) for row in made.table("language_pairs.parquet").to_pylist()] == [
        ("hr", "sr", 2, 1),
        ("id", "ms", 1, 1),
    ]
    assert b"<td>Croatian (hr) or Serbian (sr)<td class=n>2<td class=n>1<td class=n>50.0%" in made.read("audit.html")


def test_documents_of_each_host_are_counted(tmp_path: Path) -> None:
    rows = [document(text(seed), f"{seed}", host=f"h{seed % 2}", poor=seed == 0) for seed in range(5)]
    table = consolidate(tmp_path, rows).table("hosts.parquet")
    found = {row["host"]: (row["documents"], row["kept"]) for row in table.to_pylist()}
    assert found == {"h0": (3, 2), "h1": (2, 2)}
    assert table.column("host").to_pylist() == ["h0", "h1"]


def test_the_bytes_of_the_page_are_unchanged() -> None:
    # They are part of the content of documents, and so of fingerprints of derived artifacts.
    ended = [
        ("web", "en", "kept", "", "gold", 2000, 123_456),
        ("web", "", "extract", "no_text<b>", "", 7, None),
        ("web", "de", "kept", "", "silver", 30, 1_500_000),
        ("web", "en", "quality", "gopher_quality_few_words", "", 1_234_567, 10**10),
        ("bo'oks & co", "en", "kept", "", "silver", 3, 999),
        ("web", "en", "dedup", "near_duplicate", "", 1, 10**12),
    ]
    hostile = "<script>alert('x')</script> & \"q\"  é"
    found = {"few_words": 3, "mean": 1.5, "flag": True, "why": hostile, "none": None}
    measured = json.dumps({"gopher_quality": found, "language": "e<n", "x": [1, 2], "n": 1_234_567})
    few = "gopher_quality_few_words"
    documents = [
        ("", "1", f"https://e.org/?{hostile}", "web", "he", [], measured, f"text {hostile}"),
        (few, "2", "https://e.org/2", f"web{hostile}", "", [few, "b'<ad", "c"], measured, ""),
        ("no_text<b>", "3", "u", "web", hostile, ["no_text<b>"], "{}", "t"),
    ]
    hosts = [("a" * 400, 1000, 500, 12_345), ("b.<i>", 3, 0, 0)]

    def table(schema: pa.Schema, rows: list[tuple[object, ...]]) -> pa.Table:
        return pa.Table.from_pylist([dict(zip(schema.names, row, strict=True)) for row in rows], schema=schema)

    shown = page(table(FUNNEL, ended), table(HOSTS, hosts), PAIRS.empty_table(), table(SAMPLE, documents))
    empty = page(*(schema.empty_table() for schema in (FUNNEL, HOSTS, PAIRS, SAMPLE)))
    assert [hashlib.sha256(one).hexdigest()[:16] for one in (shown, empty)] == ["a777d511d27abfcb", "96673c951924c2f6"]
