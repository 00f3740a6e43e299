import hashlib
import io
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pydantic import ValidationError

from tasks.core.artifact import Artifact, InputRef
from tasks.core.errors import InputError, NothingNewError
from tasks.stages.consolidate.aligned_inputs import AlignedInputs
from tasks.stages.consolidate.config import ConsolidateConfig
from tasks.stages.consolidate.funnel import FUNNEL, STEPS, draw, left_after_steps, step_labels, totals
from tasks.stages.consolidate.rules import check_measured
from tasks.stages.consolidate.what_if import what_if
from tasks.stages.dedup import DedupConfig
from tests.conftest import SCATTERED, run_stage_in
from tests.soak import soak_but
from tests.tasks.stages.dedup.made import corpus, document, rows_of, write

CONSOLIDATE = "tasks.stages.consolidate.stage"


def prose(seed: int, words: int = 150) -> list[str]:
    return [hashlib.blake2b(f"{seed} {index}".encode(), digest_size=3).hexdigest() for index in range(words)]


def text(seed: int, edited: int = 0) -> str:
    return " ".join(("x" if index < edited else "") + word for index, word in enumerate(prose(seed)))


def prepare(folder: Path, rows: list[dict[str, Any]], **options: Any) -> dict[str, Artifact]:
    inputs = corpus(folder, rows, **options)
    return {**inputs, "duplicates": run_stage_in(folder, "tasks.stages.dedup.stage", DedupConfig(), inputs)}


def consolidate(
    folder: Path,
    rows: list[dict[str, Any]],
    config: ConsolidateConfig | None = None,
    rejected: list[dict[str, Any]] | None = None,
    parts: int = 2,
    **options: Any,
) -> Artifact:
    inputs = prepare(folder, rows, rejected=rejected, parts=parts)
    return run_stage_in(folder, CONSOLIDATE, config or ConsolidateConfig(), inputs, **options)


def kept(artifact: Artifact) -> set[str]:
    return {row["id"] for row in rows_of(artifact, "kept/")}


def rejected(artifact: Artifact) -> dict[str, dict[str, Any]]:
    return {row["id"]: row for row in rows_of(artifact, "rejected/")}


def test_a_document_is_rejected_for_its_first_reason_and_all_reasons_are_recorded(tmp_path: Path) -> None:
    rows = [
        document(text(1), "fine"),
        document(text(2), "all", language="fr", language_score=0.2, poor=True),
        document(text(3), "unsure", language_score=0.2),
        document(text(4), "poor", poor=True),
    ]
    artifact = consolidate(tmp_path, rows, ConsolidateConfig(limits={"language": {"keep": ("en",), "min_score": 0.5}}))
    assert kept(artifact) == {rows[0]["id"]}
    gone = rejected(artifact)
    assert gone[rows[1]["id"]]["reason"] == "language_other"
    assert gone[rows[1]["id"]]["reasons"] == ["language_other", "language_unsure", "gopher_quality_few_words"]
    assert (gone[rows[2]["id"]]["reason"], gone[rows[3]["id"]]["reason"]) == (
        "language_unsure",
        "gopher_quality_few_words",
    )
    assert artifact.record.rejected == {"gopher_quality_few_words": 1, "language_other": 1, "language_unsure": 1}
    assert (artifact.record.rows_in, artifact.record.rows_out) == (4, 1)


def test_every_rule_except_unread_documents_can_be_disabled(tmp_path: Path) -> None:
    rows = [
        document(text(1), "a", language="fr"),
        document(text(1), "b", poor=True),
        document(text(2), "c", error="ValueError: no"),
    ]
    artifact = consolidate(tmp_path, rows, ConsolidateConfig(filters=(), dedup=False), max_bad_share=0.5)
    assert kept(artifact) == {rows[0]["id"], rows[1]["id"]}
    assert rejected(artifact)[rows[2]["id"]]["reasons"] == ["poison"]


def test_too_many_unread_documents_are_reported_with_the_location_of_their_causes(tmp_path: Path) -> None:
    rows = [document(text(seed), f"{seed}") for seed in range(3)]
    rows.append(document(text(9), "bad", error="ValueError: no"))
    where = "/test/measured/gopher_repetition/dev/measured/"
    said = rf"1 of 4 rows could not be processed.*causes in the column `error` of .*{where}"
    with pytest.raises(InputError, match=said) as caught:
        consolidate(tmp_path, rows)
    assert "quarantine" not in str(caught.value)
    assert (tmp_path / "test" / "measured" / "gopher_repetition" / "dev" / "measured").is_dir()
    with pytest.raises(InputError, match="2 of 2 rows could not be processed"):
        consolidate(tmp_path / "all", [document(text(seed), f"{seed}", error="no") for seed in range(2)])


def test_filters_apply_to_their_sources(tmp_path: Path) -> None:
    rows = [
        document(text(1), "a", source="code", language="la", language_score=0.1),
        document(text(2), "b", source="code", language="la", poor=True),
        document(text(3), "c", language="la"),
    ]
    limits = {"language": {"keep": ("en",), "min_score": 0.5}}
    assert kept(consolidate(tmp_path / "web", rows, ConsolidateConfig(limits=limits))) == {rows[0]["id"], rows[1]["id"]}
    rows.append(document(text(4), "d"))
    assert kept(consolidate(tmp_path / "all", rows, ConsolidateConfig(limits=limits, sources=None))) == {rows[3]["id"]}


@pytest.mark.parametrize("sources", [None, ("web", "books")])
def test_trusted_sources_skip_filters_but_not_deduplication(tmp_path: Path, sources: tuple[str, ...] | None) -> None:
    rows = [
        document(text(1), "a", source="books", language="la", language_score=0.1, poor=True),
        document(text(1), "b", source="books", language="la", poor=True),
        document(text(2), "c", source="books", error="ValueError: no"),
        document(text(3), "d", poor=True),
    ]
    config = ConsolidateConfig(limits={"language": {"keep": ("en",)}}, sources=sources, trusted=("books",))
    artifact = consolidate(tmp_path, rows, config, max_bad_share=0.5)
    (row,) = rows_of(artifact, "kept/")
    assert (row["source"], row["tier"]) == ("books", "gold")
    reasons = {gone["reason"] for gone in rejected(artifact).values()}
    assert reasons == {"duplicate_exact", "poison", "gopher_quality_few_words"}


def test_a_copy_is_rejected_and_names_its_keeper(tmp_path: Path) -> None:
    rows = [
        document(text(1), "best", prose_score=0.9),
        document(text(1).upper(), "exact"),
        document(text(1, edited=5), "near"),
    ]
    artifact = consolidate(tmp_path, rows)
    assert kept(artifact) == {rows[0]["id"]}
    gone = rejected(artifact)
    assert {row["duplicate_of"] for row in gone.values()} == {rows[0]["id"]}
    assert {row["reason"] for row in gone.values()} == {"duplicate_exact", "duplicate_near"}


def test_copies_of_a_dropped_keeper_can_be_kept(tmp_path: Path) -> None:
    rows = [
        document(text(1), "best", prose_score=0.9, poor=True),
        document(text(1, edited=5), "second", prose_score=0.8),
        document(text(1, edited=5) + "!", "third", prose_score=0.7),
        document(text(1, edited=6), "fourth", prose_score=0.6),
    ]
    artifact = consolidate(tmp_path, rows)
    assert kept(artifact) == {rows[1]["id"]}
    gone = rejected(artifact)
    assert gone[rows[0]["id"]]["reasons"] == ["gopher_quality_few_words"]
    assert (gone[rows[2]["id"]]["reason"], gone[rows[2]["id"]]["duplicate_of"]) == ("duplicate_exact", rows[1]["id"])
    assert (gone[rows[3]["id"]]["reason"], gone[rows[3]["id"]]["duplicate_of"]) == ("duplicate_near", rows[1]["id"])
    assert artifact.record.metrics["promoted"] == 1


def test_copies_of_a_dropped_keeper_that_are_not_near_each_other_are_all_kept(tmp_path: Path) -> None:
    left, middle, right = text(1), text(1, edited=12), text(1, edited=24)  # neighbors: 0.85, ends: 0.72
    rows = [
        document(middle, "middle", prose_score=0.9, language="fr"),
        document(left, "left"),
        document(right, "right"),
    ]
    assert kept(consolidate(tmp_path / "all", rows)) == {rows[0]["id"]}
    english = ConsolidateConfig(limits={"language": {"keep": ("en",)}})
    assert kept(consolidate(tmp_path / "en", rows, english)) == {rows[1]["id"], rows[2]["id"]}


def test_a_copy_that_also_fails_a_rule_records_both_reasons(tmp_path: Path) -> None:
    rows = [
        document(text(1), "best", prose_score=0.9),
        document(text(1), "copy", poor=True),
    ]
    gone = rejected(consolidate(tmp_path, rows))[rows[1]["id"]]
    assert gone["reasons"] == ["gopher_quality_few_words", "duplicate_exact"]
    assert gone["duplicate_of"] == rows[0]["id"]


def test_personal_data_is_masked_in_kept_documents(tmp_path: Path) -> None:
    words = f"write to ann@example.org today {text(1)}"
    row = document(words, "a", pii_spans=[{"kind": "email", "start": 9, "end": 24}]) | {"title": "Ann, ann@example.org"}
    artifact = consolidate(tmp_path / "masked", [row])
    (found,) = rows_of(artifact, "kept/")
    assert found["text"] == words.replace("ann@example.org", "<email>")
    assert artifact.record.metrics["pii_masked"] == 1
    assert found["title"] == "Ann, <email>"
    (plain,) = rows_of(consolidate(tmp_path / "plain", [row], ConsolidateConfig(mask_pii=False)), "kept/")
    assert (plain["text"], plain["title"]) == (words, row["title"])


def test_a_span_outside_the_text_stops_the_stage_with_the_document(tmp_path: Path) -> None:
    row = document("short text", "a", pii_spans=[{"kind": "email", "start": 5, "end": 99}])
    with pytest.raises(InputError, match=rf"document {row['id']}: the email span 5..99 is outside the text of 10"):
        consolidate(tmp_path, [row])


def funnel_corpus() -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    rows = [document(text(seed), f"w{seed}") for seed in range(6)]
    rows += [document(text(1, edited=4), "near"), document(text(2), "exact"), document(text(90), "fr", language="fr")]
    rows += [document(text(91), "short", poor=True)]
    rows += [document(text(seed), f"c{seed}", source="code") for seed in (100, 101)]
    refused = [
        {"record_id": f"<urn:{index}>", "url": f"https://example.org/{index}", "reason": "too_short", "source": "web"}
        for index in range(3)
    ]
    refused += [{"record_id": "", "url": "file://code/x.py", "reason": "too_large", "source": "code"}]
    return rows, refused


def test_the_funnel_adds_up_from_captures_to_kept(tmp_path: Path) -> None:
    rows, refused = funnel_corpus()
    artifact = consolidate(tmp_path, rows, ConsolidateConfig(limits={"language": {"keep": ("en",)}}), rejected=refused)
    funnel = artifact.table("funnel.parquet").to_pylist()
    assert sum(row["documents"] for row in funnel) == len(rows) + len(refused)
    assert sum(row["bytes"] or 0 for row in funnel) == sum(len(row["text"].encode()) for row in rows)
    by_reason = totals(artifact.table("funnel.parquet"), ["source", "step", "reason"])
    counted = {(row["source"], row["step"], row["reason"]): row["documents"] for row in by_reason}
    assert counted == {
        ("code", "extract", "too_large"): 1,
        ("code", "kept", ""): 2,
        ("web", "extract", "too_short"): 3,
        ("web", "language", "language_other"): 1,
        ("web", "quality", "gopher_quality_few_words"): 1,
        ("web", "dedup", "duplicate_exact"): 1,
        ("web", "dedup", "duplicate_near"): 1,
        ("web", "kept", ""): 6,
    }
    assert [row["step"] for row in by_reason if row["source"] == "web"] == sorted(
        (row["step"] for row in by_reason if row["source"] == "web"), key=STEPS.index
    )
    metrics = artifact.record.metrics
    assert (metrics["captures"], metrics["kept"], metrics["gone_in_dedup"], metrics["kept/web"]) == (16, 8, 2, 6)
    assert (metrics["gold"], metrics["silver"]) == (0, 8)
    assert artifact.record.rows_in == artifact.record.rows_out + sum(artifact.record.rejected.values())


def test_the_funnel_has_the_tiers_of_kept_documents(tmp_path: Path) -> None:
    rows, refused = funnel_corpus()
    config = ConsolidateConfig(gold={"language.score": 0.95}, trusted=("code",))
    artifact = consolidate(tmp_path, [*rows, document(text(7), "w7", language_score=0.99)], config, refused)
    funnel = totals(artifact.table("funnel.parquet"), ["source", "step", "tier"])
    kept = {(row["source"], row["tier"]): row["documents"] for row in funnel if row["step"] == "kept"}
    assert kept == {("code", "gold"): 2, ("web", "gold"): 1, ("web", "silver"): 7}
    assert {row["tier"] for row in funnel if row["step"] != "kept"} == {""}
    metrics = artifact.record.metrics
    assert (metrics["gold"], metrics["silver"], metrics["kept"]) == (3, 7, 10)
    shown = artifact.read("audit.html").decode()
    assert "10 of 17 captures and files are kept (58.8%), 3 of them gold." in shown
    assert "<td>of these gold<td" in shown


@pytest.mark.parametrize("workers", soak_but({0}, [SCATTERED, 2, 8]))
def test_files_are_byte_identical_on_any_number_of_workers(tmp_path: Path, workers: int) -> None:
    rows, refused = funnel_corpus()
    made = [consolidate(tmp_path / str(count), rows, workers=count, rejected=refused) for count in (0, workers)]
    assert len({artifact.record.content for artifact in made}) == 1


def test_kept_documents_are_in_the_order_of_the_input_and_carry_language_and_score(tmp_path: Path) -> None:
    rows, _ = funnel_corpus()
    artifact = consolidate(tmp_path, rows)
    for path in artifact.files("kept/"):
        table = artifact.table(path)
        ids = table.column("id").to_pylist()
        assert ids == sorted(ids)
        assert set(table.column("language").to_pylist()) <= {"en", "fr"}
        assert table.column("prose_score").to_pylist() == [0.5] * len(ids)


def test_keeping_nothing_is_an_error_that_names_the_main_reasons(tmp_path: Path) -> None:
    rows = [document(text(seed), f"{seed}", language="fr") for seed in range(3)]
    rows += [document(text(9), "q", poor=True)]
    message = r"none of 4 captures and files is left \(language_other 3, gopher_quality_few_words 1\)"
    with pytest.raises(InputError, match=message) as raised:
        consolidate(tmp_path, rows, ConsolidateConfig(limits={"language": {"keep": ("en",)}}))
    assert raised.type is InputError  # the limits are wrong; it is not that nothing is new
    assert not list((tmp_path / "test" / "tasks-stages-consolidate-stage").rglob(".artifact.json"))


@pytest.mark.parametrize(("short", "error"), [(1, NothingNewError), (4, InputError)])
def test_a_later_version_of_mostly_unchanged_pages_has_nothing_new(tmp_path: Path, short: int, error: type) -> None:
    """Unless limits have dropped most of it."""
    unchanged = [
        {"record_id": f"<urn:{index}>", "url": f"https://example.org/{index}", "reason": "revisit", "source": "web"}
        for index in range(3)
    ]
    rows = [document(text(seed), f"{seed}", poor=True) for seed in range(short)]
    inputs = prepare(tmp_path, rows, rejected=unchanged, parts=1)
    index = InputRef(role="index", address="test/dedup_index@1", fingerprint="", content="")
    duplicates = inputs["duplicates"]
    record = duplicates.record.model_copy(update={"inputs": (*duplicates.record.inputs, index)})
    later = {**inputs, "duplicates": Artifact(duplicates.store, duplicates.address, record)}
    for given, expected in ((inputs, InputError), (later, error)):
        with pytest.raises(InputError, match="captures and files is left") as raised:
            run_stage_in(tmp_path, CONSOLIDATE, ConsolidateConfig(), given)
        assert raised.type is expected


def test_inputs_that_are_not_co_partitioned_are_refused(tmp_path: Path) -> None:
    rows = [document(text(seed), f"{seed}") for seed in range(4)]
    inputs = prepare(tmp_path, rows)
    other = prepare(tmp_path / "other", [document(text(seed), f"other {seed}") for seed in range(4)])
    for role in ("attributes", "duplicates"):
        with pytest.raises(InputError, match="do not hold the same documents in the same order"):
            run_stage_in(tmp_path, CONSOLIDATE, ConsolidateConfig(), {**inputs, role: other[role]}, kind=f"bad-{role}")
    parts = {"part-00000-of-00001": {"duplicates": pa.table({"id": ["a"]})}}
    with pytest.raises(InputError, match="has other parts than test/extracted@dev"):
        run_stage_in(
            tmp_path, CONSOLIDATE, ConsolidateConfig(), {**inputs, "duplicates": write(tmp_path, "fewer", parts)}
        )


def test_the_funnel_is_plotted(tmp_path: Path) -> None:
    from PIL import Image

    rows, refused = funnel_corpus()
    funnel = consolidate(tmp_path, rows, rejected=refused).table("funnel.parquet")
    image = Image.open(io.BytesIO(draw(funnel, "demo/documents@dev")))
    assert image.format == "PNG"
    assert image.width > 600
    assert len(image.convert("RGB").getcolors(1 << 20) or []) > 3


def test_a_bar_of_the_funnel_has_the_documents_after_its_step() -> None:
    ended = [("extract", "short", 8), ("language", "other", 4), ("quality", "few", 2), ("dedup", "near", 1)]
    rows = [("web", "en", step, reason, "", documents, None) for step, reason, documents in ended]
    funnel = pa.table(list(zip(*rows, ("web", "en", "kept", "", "silver", 1, 9), strict=True)), schema=FUNNEL)
    left = {label: left_after_steps(funnel)["web"][index] for index, label in step_labels(funnel).items()}
    assert left == {
        "captures": 16,
        "after extract": 8,
        "after language": 4,
        "after quality": 2,
        "kept (after dedup)": 1,
    }


def test_a_funnel_with_dollar_signs_in_names_is_plotted(tmp_path: Path) -> None:
    rows = [("web", "$e^$", "kept", "", "gold", 3, 9), ("$we^$b", "en", "quality", "topic_$x^$", "", 2, 9)]
    funnel = pa.table(list(zip(*rows, strict=True)), schema=FUNNEL)
    assert draw(funnel, "$demo^$/documents@dev").startswith(b"\x89PNG")


def test_unmeasured_attributes_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    inputs = prepare(tmp_path, [document(text(seed), f"{seed}") for seed in range(3)])
    aligned = AlignedInputs(
        inputs["extracted"], inputs["attributes"], inputs["duplicates"], inputs["extracted"].store, ""
    )
    for config, said in (
        (ConsolidateConfig(filters=("language", "c4")), r'"c4" is not measured in test/attributes@dev.*annotate\.use'),
        (ConsolidateConfig(filters=("c4",), dedup=False), r'consolidate\.filters: "c4" is not measured'),
        (ConsolidateConfig(gold={"quality.score": 0.5}), r'consolidate\.gold: "quality" is not measured'),
        (ConsolidateConfig(gold={"qualty.score": 0.5}), r'no annotator "qualty" in test/.*"quality"\?'),
        (
            ConsolidateConfig(gold={"prose_score.nope": 0.5}),
            'prose_score measures no "nope" in test/attributes@dev. Choose from score',
        ),
        (ConsolidateConfig(gold={"language.label": 0.5}), r'"language.label" is not a number \(string\)'),
        (ConsolidateConfig(gold={"pii.spans": 0.5}), r'"pii.spans" is not a number \(list'),
    ):
        with pytest.raises(InputError, match=said):
            run_stage_in(tmp_path, CONSOLIDATE, config, inputs)
        with pytest.raises(InputError, match=said):
            what_if(ConsolidateConfig(), config, aligned)
    assert not list((tmp_path / "test" / "tasks-stages-consolidate-stage").rglob("*.parquet"))


def test_a_limit_on_an_unused_model_is_refused() -> None:
    limits = {"classifier": {"at_most": {"qualty": 0.5}}}
    config = ConsolidateConfig(filters=("classifier",), limits=limits, mask_pii=False)
    attributes = pa.schema({"classifier": pa.struct({"quality": pa.float32()})})
    said = r'limits\.classifier\.at_most: "qualty" is not measured .* in demo/attributes@1\. Did you mean "quality"\?'
    with pytest.raises(InputError, match=said):
        check_measured(config, attributes, "demo/attributes@1")


def test_a_boolean_can_make_a_document_gold(tmp_path: Path) -> None:
    rows = [document(text(1), "a"), document(text(2), "b")]
    made = consolidate(tmp_path, rows, ConsolidateConfig(gold={"gopher_quality.english": 1}))
    assert {row["tier"] for row in rows_of(made, "kept/")} == {"gold"}


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"filters": ("language", "language")}, "language is named twice"),
        ({"gold": {"quality.score": float("nan")}}, "finite"),
        ({"gold": {"quality.score": float("inf")}}, "finite"),
        ({"filters": ("classifier",), "limits": {"classifier": {"at_least": {"q": float("nan")}}}}, "finite"),
    ],
)
def test_settings_that_would_fail_in_the_stage_are_refused_in_the_recipe(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        ConsolidateConfig(**wrong)


def test_a_pdf_that_a_crawl_captured_has_the_limits_of_pdf(tmp_path: Path) -> None:
    page, pdf = document(text(1), "page", poor=True), document(text(2), "a.pdf", poor=True, paged=True)
    config = ConsolidateConfig(kinds={"web": "web"}, limits={"pdf": {"gopher_quality": {"min_words": 1}}})
    assert kept(consolidate(tmp_path / "pdf", [page, pdf], config)) == {pdf["id"]}
    web = config.model_copy(update={"limits": {**config.limits, "web": {"gopher_quality": {"min_words": 1000}}}})
    with pytest.raises(InputError, match="none of 2 captures and files"):
        consolidate(tmp_path / "web", [page, pdf], web)


def test_limits_of_a_kind_or_source_apply_only_to_its_documents(tmp_path: Path) -> None:
    kinds = {"web": "web", "books": "pdf", "papers": "pdf"}
    rows = [document(text(seed), f"d{seed}", source=source, poor=True) for seed, source in enumerate(kinds)]
    assert kept(consolidate(tmp_path / "all", [*rows, document(text(9), "good")])) >= {row["id"] for row in rows[1:]}
    limits = {"pdf": {"gopher_quality": {"min_words": 1}}, "papers": {"gopher_quality": {"min_words": 1000}}}
    config = ConsolidateConfig(sources=None, kinds=kinds, limits=limits)
    made = consolidate(tmp_path / "own", rows, config)
    assert kept(made) == {rows[1]["id"]}
    few = ["gopher_quality_few_words"]
    assert {row["source"]: row["reasons"] for row in rejected(made).values()} == {"web": few, "papers": few}


def test_documents_of_languages_without_limits_are_counted_and_kept(tmp_path: Path) -> None:
    rows = [document(text(1), "en"), document(text(2), "xal", language="xal"), document(text(3), "fr", language="fr")]
    made = consolidate(tmp_path, rows)
    assert kept(made) == {row["id"] for row in rows}
    assert made.record.metrics["without_language_limits"] == 1
    assert "1 documents have languages without limits of their own (xal 1)" in made.record.note


def test_a_source_that_loses_almost_everything_gives_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rows = [document(text(seed), f"w{seed}") for seed in range(10)]
    rows += [document(text(50 + seed), f"p{seed}", source="papers", poor=seed > 0) for seed in range(11)]
    made = consolidate(tmp_path / "most", rows, ConsolidateConfig(sources=None))
    assert "source papers loses 10 of its 11 documents (gopher_quality_few_words 10)" in caplog.text
    assert "[consolidate.limits.papers.<filter>]" in caplog.text
    assert "source web" not in caplog.text
    metrics = made.record.metrics
    assert (metrics["sources_nearly_lost"], metrics["filtered_share/web"]) == (1, 0)
    assert metrics["filtered_share/papers"] == pytest.approx(10 / 11)
    caplog.clear()
    made = consolidate(tmp_path / "fewer", rows[:-1], ConsolidateConfig(sources=None))
    assert made.record.metrics["filtered_share/papers"] == 0.9
    assert "limits of its own" not in caplog.text
    copies = [document(text(3), f"copy{seed}", source="mirror") for seed in range(3)]
    made = consolidate(tmp_path / "copies", [*rows[:10], *copies], ConsolidateConfig(sources=None))
    assert made.record.metrics["filtered_share/mirror"] == 0
    assert "limits of its own" not in caplog.text
