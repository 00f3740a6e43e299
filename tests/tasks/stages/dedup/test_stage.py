import hashlib
import logging
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tasks.core.artifact import Artifact, ArtifactId
from tasks.core.errors import InputError
from tasks.core.store import Store
from tasks.formats.documents.groups import KIND
from tasks.stages.dedup import DedupConfig
from tests.conftest import SCATTERED, run_stage_in
from tests.soak import soak_but
from tests.tasks.stages.dedup.made import corpus, document, rows_of, write

DEDUP = "tasks.stages.dedup.stage"


def prose(seed: int, words: int = 120) -> list[str]:
    return [hashlib.blake2b(f"{seed} {index}".encode(), digest_size=3).hexdigest() for index in range(words)]


def edited(words: list[str], places: range, mark: str) -> str:
    return " ".join(mark + word if index in places else word for index, word in enumerate(words))


def dedup(folder: Path, rows: list[dict[str, Any]], config: DedupConfig | None = None, **options: Any) -> Artifact:
    return run_stage_in(folder, DEDUP, config or DedupConfig(), corpus(folder, rows), **options)


def verdicts(artifact: Artifact) -> dict[str, tuple[str | None, str | None]]:
    return {row["id"]: (row["duplicate_of"], row["kind"]) for row in rows_of(artifact, "duplicates/")}


def mixed_corpus() -> list[dict[str, Any]]:
    rows = []
    for seed in range(12):
        words = prose(seed)
        rows.append(document(" ".join(words), f"{seed}/first", prose_score=0.4 + seed / 100))
        rows.append(document(edited(words, range(5), "x"), f"{seed}/near"))
        if seed % 3 == 0:
            rows.append(document(" ".join(words).upper() + "!", f"{seed}/copy", prose_score=0.9))
    return rows


def test_equal_texts_are_exact_duplicates_whatever_their_case_and_punctuation(tmp_path: Path) -> None:
    one, two = document("Hello there, general reader!", "a"), document("hello THERE general   reader", "b")
    other = document("Something else entirely is written here", "c")
    found = verdicts(dedup(tmp_path, [one, two, other]))
    keeper, copy = sorted([one["id"], two["id"]])
    assert found == {keeper: (None, None), copy: (keeper, "exact"), other["id"]: (None, None)}


BRAILLE = "\u2813\u2811\u2807\u2807\u2815 \u283a\u2815\u2817\u2807\u2819"
CODE = "def area(width, height):\n    return width {} height\n"
ROWS = "id;east;north\n" + "".join(f"{n};{n * 7}.25;{n * 3}{{}}5\n" for n in range(40))


@pytest.mark.parametrize("text", [BRAILLE, "\U0001f600 \U0001f680", "... --- ...", CODE, ROWS, "plain words"])
def test_equal_texts_are_exact_duplicates_whatever_they_consist_of(tmp_path: Path, text: str) -> None:
    one, two = document(text, "a"), document(text.replace(" ", "\n ") if text != ROWS else text, "b")
    keeper, copy = sorted([one["id"], two["id"]])
    found = verdicts(dedup(tmp_path, [one, two, document("Something else entirely is written here", "c")]))
    assert {keeper: found[keeper], copy: found[copy]} == {keeper: (None, None), copy: (keeper, "exact")}


@pytest.mark.parametrize(
    "texts",
    [
        ("...", "---", "", "", BRAILLE, BRAILLE[::-1], "\U0001f600", "\U0001f680"),
        [CODE.replace("{}", sign) for sign in "+-*"],
        ("return a + b", "return a - b", "return A + b"),
        [ROWS.replace("{}", mark) for mark in ".,"],
    ],
    ids=["without_words", "code", "short_code", "data"],
)
def test_texts_that_differ_in_signs_alone_are_no_duplicates_unless_they_are_prose(
    tmp_path: Path, texts: Sequence[str]
) -> None:
    found = dedup(tmp_path, [document(text, str(number)) for number, text in enumerate(texts)])
    kinds = Counter(kind for _, kind in verdicts(found).values())
    # Letters of another case are a near copy of code.
    assert kinds == Counter({None: len(texts) - 1, "near": 1} if "return A + b" in texts else {None: len(texts)})


def test_a_long_file_with_one_changed_operator_is_a_near_copy(tmp_path: Path) -> None:
    lines = [f"total_{n} = total_{n} + rows[{n}].value" for n in range(60)]
    changed = [lines[0].replace("+", "-"), *lines[1:]]
    found = verdicts(dedup(tmp_path, [document("\n".join(text), str(at)) for at, text in enumerate((lines, changed))]))
    assert sorted(kind or "" for _, kind in found.values()) == ["", "near"]


@pytest.mark.parametrize(
    ("better", "worse"),
    [
        ({"prose_score": 0.6}, {"prose_score": 0.5, "fetched_at": datetime(2020, 1, 1, tzinfo=UTC)}),
        ({"fetched_at": datetime(2025, 1, 1, tzinfo=UTC)}, {"fetched_at": datetime(2025, 1, 2, tzinfo=UTC)}),
        ({"fetched_at": datetime(2026, 1, 1, tzinfo=UTC)}, {"fetched_at": None}),
        ({"id": "0" * 32}, {"id": "f" * 32}),
    ],
)
def test_the_keeper_is_the_best_then_the_earliest_then_the_smallest_id(
    tmp_path: Path, better: dict[str, Any], worse: dict[str, Any]
) -> None:
    keeper = document("one and the same text in both", "keeper", **better)
    copy = document("one and the same text in both", "copy", **worse)
    assert verdicts(dedup(tmp_path, [copy, keeper]))[copy["id"]] == (keeper["id"], "exact")


def test_a_near_duplicate_names_its_keeper_and_exact_similarity(tmp_path: Path) -> None:
    words = prose(1, 100)
    first = document(" ".join(words), "first", prose_score=0.9)
    near = document(edited(words, range(4), "x"), "near")
    (row,) = [row for row in rows_of(dedup(tmp_path, [first, near]), "duplicates/") if row["id"] == near["id"]]
    assert (row["duplicate_of"], row["kind"], row["cluster"]) == (first["id"], "near", first["id"])
    assert row["jaccard"] == pytest.approx(92 / 100)  # 96 shingles each, the first 4 differ


def test_a_chain_of_near_copies_never_drops_a_text_that_is_not_near_its_keeper(tmp_path: Path) -> None:
    words = prose(7, 200)
    chain = [
        document(edited(words, range(12 * step), "x"), f"c{step}", prose_score=0.9 - step / 10) for step in range(4)
    ]
    artifact = dedup(tmp_path, chain)
    rows = {row["id"]: row for row in rows_of(artifact, "duplicates/")}
    assert len({row["cluster"] for row in rows.values()}) == 1
    linked = {(row["better"], row["worse"]) for row in rows_of(artifact, "pairs/")}
    assert linked == {(one["id"], two["id"]) for one, two in pairwise(chain)}
    assert {row["id"]: row["duplicate_of"] for row in rows.values()} == {
        chain[0]["id"]: None,
        chain[1]["id"]: chain[0]["id"],
        chain[2]["id"]: None,  # near chain[1], which is dropped, but not near chain[0], which is kept
        chain[3]["id"]: chain[2]["id"],
    }


def test_two_texts_below_the_threshold_are_both_kept(tmp_path: Path) -> None:
    words = prose(3)
    rows = [document(" ".join(words), "a"), document(edited(words, range(20), "x"), "b")]
    assert set(verdicts(dedup(tmp_path, rows)).values()) == {(None, None)}
    loose = DedupConfig(jaccard=0.6, minhash={"bands": 32, "rows": 4})
    assert sorted(kind or "" for _, kind in verdicts(dedup(tmp_path / "loose", rows, loose)).values()) == ["", "near"]


@pytest.mark.parametrize("workers", soak_but({0}, [SCATTERED, 2, 8]))
def test_files_are_byte_identical_on_any_number_of_workers(tmp_path: Path, workers: int) -> None:
    made = [dedup(tmp_path / str(number), mixed_corpus(), workers=number) for number in (0, workers)]
    assert len({artifact.record.content for artifact in made}) == 1
    assert made[0].record.metrics["near_duplicates"] == 12


def test_the_order_and_the_parts_of_the_input_do_not_change_a_verdict(tmp_path: Path) -> None:
    rows = mixed_corpus()
    forward = run_stage_in(tmp_path / "a", DEDUP, DedupConfig(), corpus(tmp_path / "a", rows, 1))
    back = run_stage_in(tmp_path / "b", DEDUP, DedupConfig(pairs_per_part=3), corpus(tmp_path / "b", rows[::-1], 5))
    assert verdicts(forward) == verdicts(back)
    pairs = [{tuple(row.values()) for row in rows_of(artifact, "pairs/")} for artifact in (forward, back)]
    assert pairs[0] == pairs[1] != set()


def test_every_document_gets_one_row_in_the_order_of_the_documents(tmp_path: Path) -> None:
    inputs = corpus(tmp_path, mixed_corpus(), 3)
    artifact = run_stage_in(tmp_path, DEDUP, DedupConfig(), inputs)
    assert artifact.record.rows_in == artifact.record.rows_out == len(mixed_corpus())
    for path in inputs["extracted"].files("documents/"):
        ids = inputs["extracted"].table(path).column("id").to_pylist()
        assert artifact.table(path.replace("documents/", "duplicates/")).column("id").to_pylist() == ids


def test_exact_and_near_can_each_be_disabled(tmp_path: Path) -> None:
    rows = mixed_corpus()
    only_near = dedup(tmp_path / "near", rows, DedupConfig(exact=False))
    only_exact = dedup(tmp_path / "exact", rows, DedupConfig(near=False))
    assert {kind for _, kind in verdicts(only_near).values()} == {None, "near"}
    assert {kind for _, kind in verdicts(only_exact).values()} == {None, "exact"}
    assert rows_of(only_near, "pairs/")
    assert not rows_of(only_exact, "pairs/")
    neither = dedup(tmp_path / "neither", rows, DedupConfig(exact=False, near=False))
    assert set(verdicts(neither).values()) == {(None, None)}


def test_a_large_bucket_is_bounded_and_counted_and_its_copies_are_still_found(tmp_path: Path) -> None:
    words = prose(5, 300)
    rows = [document(edited(words, range(step, step + 1), "x"), f"t{step}") for step in range(20)]
    settings = {"max_bucket": 3}
    artifact = dedup(tmp_path, rows, DedupConfig(minhash=settings))
    assert artifact.record.metrics["large_buckets"] > 0
    assert artifact.record.metrics["near_duplicates"] == 19
    assert artifact.record.metrics["candidate_pairs"] < 20 * 19 / 2


def test_a_source_that_loses_most_of_its_documents_raises_an_alarm(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rows = [document("the same words again and again", f"t{index}", source="templates") for index in range(5)]
    rows += [document(" ".join(prose(index)), f"w{index}") for index in range(5)]
    with caplog.at_level(logging.WARNING, "sluice.dedup"):
        metrics = dedup(tmp_path, rows).record.metrics
    assert (metrics["loss_share/templates"], metrics["loss_share/web"]) == (0.8, 0.0)
    assert metrics["sources_over_alarm_share"] == 1.0
    assert "source templates loses 80 %" in caplog.text


def test_attributes_of_other_documents_are_refused(tmp_path: Path) -> None:
    inputs = corpus(tmp_path, [document("a b c", "a"), document("d e f", "b")], 1)
    other = corpus(tmp_path / "other", [document("a b c", "a"), document("d e f", "z")], 1)
    with pytest.raises(InputError, match="do not hold the same documents in the same order"):
        run_stage_in(tmp_path, DEDUP, DedupConfig(), {**inputs, "prose_score": other["prose_score"]})
    fewer = write(tmp_path, "fewer", {"part-00000-of-00009": {KIND: pa.table({"error": [None]})}})
    with pytest.raises(InputError, match="have different parts"):
        run_stage_in(tmp_path, DEDUP, DedupConfig(), {**inputs, "prose_score": fewer}, kind="b")


def test_bands_that_need_more_permutations_than_configured_are_refused() -> None:
    with pytest.raises(ValueError, match="20 bands x 8 rows need 160 permutations, but there are 128"):
        DedupConfig(minhash={"bands": 20, "rows": 8})


def reopened(folder: Path) -> dict[str, Any]:
    store = Store(str(folder))
    kinds = {"extracted": "extracted", "attributes": "attributes", "prose_score": "measured/prose_score"}
    return {role: Artifact.open_at(store, ArtifactId(f"test/{kind}", "dev")) for role, kind in kinds.items()}
