"""Repeated paragraphs: counted exactly, kept in the first text, marked with their place in others."""

import random
from collections import defaultdict
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tasks.core.artifact import Artifact
from tasks.core.errors import InputError
from tasks.formats.documents.document import PARAGRAPHS, REPEATED
from tasks.formats.documents.text import normalise
from tasks.stages.paragraphs import ParagraphsConfig
from tests.conftest import SCATTERED, run_stage_in
from tests.soak import soak_but
from tests.tasks.stages.dedup.made import REJECTED, corpus, document, rows_of, write

STAGE = "tasks.stages.paragraphs.stage"
FOOTER = "All rights of the harbour museum are reserved; write to the office for a licence."
COPIED = "A lighthouse keeper counts the ships that pass between dusk and dawn, every night."
SHORT = "Read more about ships"


def page(name: str, *lines: str, domain: str = "example.org", day: int = 1, **more: Any) -> dict[str, Any]:
    """A document of some lines, fetched on a day of January."""
    return document(
        "\n".join(lines),
        name,
        host=f"www.{domain}",
        fetched_at=datetime(2026, 1, 1, tzinfo=UTC) + timedelta(days=day),
        **more,
    )


def own(name: str) -> str:
    return f"This line of ten words stands on the page {name} alone."


def looked_at(folder: Path, rows: list[dict[str, Any]], parts: int = 2, workers: int = 0, **more: Any) -> Artifact:
    inputs = {"extracted": corpus(folder, rows, parts=parts)["extracted"]}
    return run_stage_in(folder, STAGE, ParagraphsConfig(enabled=True, **more), inputs, workers=workers)  # type: ignore[arg-type]


def found_in(made: Artifact, rows: list[dict[str, Any]], parts: int = 2) -> dict[str, Any]:
    """Findings in each document by the last part of its URL; None if there are none."""
    names = [row["url"].rpartition("/")[2] for start in range(parts) for row in sorted(rows[start::parts], key=_id)]
    return dict(zip(names, [row[REPEATED] for row in rows_of(made, f"{PARAGRAPHS}/")], strict=True))


def _id(row: dict[str, Any]) -> str:
    return str(row["id"])


SITES = [
    *(page(f"a{n}", own(f"a{n}"), "", FOOTER, domain="museum.org", day=n) for n in range(4)),
    *(page(f"b{n}", COPIED.upper(), own(f"b{n}"), SHORT, domain=f"copy{n}.org", day=9 - n) for n in range(3)),
    *(page(f"c{n}", own(f"c{n}"), SHORT, domain=f"copy{n}.org") for n in range(3)),
]


def test_all_texts_but_the_first_have_share_and_positions_of_repeated_paragraphs(tmp_path: Path) -> None:
    found = found_in(looked_at(tmp_path, SITES), SITES)
    assert {name for name, value in found.items() if value} == {"a1", "a2", "a3", "b0", "b1"}  # b2 was fetched before
    share = len(FOOTER) / len(FOOTER + own("a1"))
    begin = len(own("a1")) + 2
    assert found["a1"] == {
        "share": pytest.approx(share),
        "words_left": len(normalise(own("a1")).split()),
        "spans": [{"begin": begin, "end": begin + len(FOOTER)}],
    }
    (span,) = found["b0"]["spans"]
    assert SITES[4]["text"][span["begin"] : span["end"]] == COPIED.upper()


def test_repeats_within_a_site_and_between_sites_are_distinguished(tmp_path: Path) -> None:
    between = found_in(looked_at(tmp_path / "between", SITES, min_domains=2), SITES)
    assert {name for name, value in between.items() if value} == {"b0", "b1"}
    within = found_in(looked_at(tmp_path / "within", SITES, max_domains=1), SITES)
    assert {name for name, value in within.items() if value} == {"a1", "a2", "a3"}


def test_a_page_that_was_captured_again_repeats_nothing(tmp_path: Path) -> None:
    again = [page(f"again{n}", own("x"), COPIED.replace(",", " - "), day=n) for n in range(5)]
    other = [page(f"other{n}", own("y"), COPIED, day=n) for n in range(5)]
    two = [*again, *other]  # ten documents of two texts: fewer than three
    assert not any(found_in(looked_at(tmp_path / "two", two), two).values())
    both = [*again, *SITES]
    found = found_in(looked_at(tmp_path / "both", both), both)
    assert {name for name, value in found.items() if value and name[0] == "b"} == {"b0", "b1", "b2"}
    assert not any(found[f"again{n}"] for n in range(5))  # the first, and its copies, which dedup finds


def made_up(seed: int, documents: int) -> list[dict[str, Any]]:
    """Pages of random lines from a small pool (so that many repeat), on a few domains."""
    chance = random.Random(seed)
    lines = [f"Line {number} of the pool has these {number} words and some more of them." for number in range(40)]
    return [
        page(f"p{n}", *chance.choices(lines, k=chance.randint(1, 6)), domain=f"d{chance.randint(0, 5)}.org",
             day=chance.randint(0, 3))
        for n in range(documents)
    ]  # fmt: skip


def naive(rows: list[dict[str, Any]], least: int) -> dict[str, tuple[int, int, int, str]]:
    """Documents, texts, domains and the URL of the first document by paragraph, from plain sets."""
    where: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        for line in set(row["text"].split("\n")):
            where[line].append(row)
    counts = {
        line: (
            len(found),
            len({row["text"] for row in found}),
            len({row["host"] for row in found}),
            min(found, key=lambda row: (row["fetched_at"], row["id"]))["url"],
        )
        for line, found in where.items()
    }
    return {line: numbers for line, numbers in counts.items() if numbers[1] >= least}


def test_the_report_has_the_counts_of_a_plain_computation_for_any_parts_and_ranges(tmp_path: Path) -> None:
    rows = made_up(1, 60)
    expected = naive(rows, 5)
    for name, parts, bucket in (("one", 1, 1_000_000), ("many", 3, 10)):
        made = looked_at(tmp_path / name, rows, parts=parts, min_documents=5, bucket_paragraphs=bucket)
        table = made.table("boilerplate.parquet").to_pylist()
        found = {row["example"]: (row["documents"], row["texts"], row["domains"], row["url"]) for row in table}
        assert found == expected
        assert [row["documents"] for row in table] == sorted((row["documents"] for row in table), reverse=True)
        assert made.record.metrics["repeated"] == len(expected)
        firsts = {line: row["text"] for row in rows for line in expected if row["url"] == expected[line][3]}
        for row, value in ((row, found_in(made, rows, parts)[row["url"].rpartition("/")[2]]) for row in rows):
            lines = row["text"].split("\n")
            repeated = [line for line in lines if line in expected and firsts[line] != row["text"]]
            spans = value["spans"] if value else []
            assert [row["text"][span["begin"] : span["end"]] for span in spans] == repeated
            assert (value["share"] if value else 0) == pytest.approx(sum(map(len, repeated)) / sum(map(len, lines)))


@pytest.mark.parametrize("several", soak_but({0}, [SCATTERED, 2]))
def test_the_bytes_do_not_depend_on_the_workers(tmp_path: Path, several: int) -> None:
    rows = made_up(2, 40)
    one, two = (looked_at(tmp_path / f"{n}", rows, parts=3, workers=n, bucket_paragraphs=70) for n in (0, several))
    assert one.record.content == two.record.content


def test_the_page_shows_the_most_repeated_paragraphs_escaped_and_without_pii(tmp_path: Path) -> None:
    line = "<script>alert(1)</script> Write to ann@example.org if you want to reserve any of the rights."
    rows = [page(f"p{n}", own(f"p{n}"), line, domain=f"d{n}.org", day=n) for n in range(3)]
    made = looked_at(tmp_path, rows)
    shown = made.read("report.html").decode()
    assert "<script" not in shown
    assert "&lt;script&gt;alert(1)&lt;/script&gt; Write to &lt;email&gt; if you want" in shown
    assert "https://example.org/p0" in shown
    assert "ann@" not in shown
    (row,) = made.table("boilerplate.parquet").to_pylist()
    assert (row["documents"], row["domains"]) == (3, 3)


def test_documents_without_paragraphs_have_a_row_and_zero_documents_are_refused(tmp_path: Path) -> None:
    rows = [page("empty", ""), page("marks", "--", "* * *"), page("text", own("text"))]
    assert found_in(looked_at(tmp_path / "few", rows), rows) == {"empty": None, "marks": None, "text": None}
    empty = write(tmp_path / "none", "extracted", {"part-0": {"rejected": REJECTED.empty_table()}})
    with pytest.raises(InputError, match="holds no documents"):
        run_stage_in(tmp_path / "none", STAGE, ParagraphsConfig(enabled=True), {"extracted": empty})


def test_limits_that_no_paragraph_can_reach_are_refused() -> None:
    with pytest.raises(ValueError, match="max_domains = 1 is less than min_domains = 2: raise it, or set it to 0"):
        ParagraphsConfig(min_domains=2, max_domains=1)
