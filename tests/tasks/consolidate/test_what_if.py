"""Contract of what-if: the funnel that other limits would give is the one that consolidate then gives."""

import tracemalloc
from pathlib import Path

import pytest

from tasks.__main__ import main
from tasks.artifact import Artifact
from tasks.consolidate.config import ConsolidateConfig
from tasks.consolidate.funnel import EXTRACT, totals
from tasks.consolidate.joint import Joint
from tasks.consolidate.what_if import render, what_if
from tasks.recipe import find_recipe
from tasks.runner import run_stage
from tasks.tracking import TrackingContext
from tests.conftest import run_stage_in
from tests.tasks.consolidate.test_stage import CONSOLIDATE, prepare, prose, text
from tests.tasks.dedup.made import document

BEFORE = ConsolidateConfig()
AFTER = ConsolidateConfig(
    limits={"language": {"keep": ("en",)}, "gopher_quality": {"min_words": 1}}, sources=("web", "code")
)


@pytest.fixture
def inputs(tmp_path: Path) -> dict[str, Artifact]:
    rows = [document(text(seed), f"w{seed}") for seed in range(4)]
    rows += [document(text(1, edited=4), "near", prose_score=0.4), document(text(90), "fr", language="fr")]
    spans = [{"kind": "email", "start": 9, "end": 24}]
    rows += [document(f"write to ann@example.org {text(91)}", "poor", poor=True, pii_spans=spans)]
    rows += [document(text(92), "code", source="code", language="la")]
    return prepare(tmp_path, rows)


def joint(inputs: dict[str, Artifact]) -> Joint:
    return Joint(inputs["extracted"], inputs["attributes"], inputs["duplicates"], inputs["extracted"].store, "")


def test_both_funnels_are_those_that_consolidate_gives(inputs: dict[str, Artifact], tmp_path: Path) -> None:
    answer = what_if(BEFORE, AFTER, joint(inputs))
    for config, told in ((BEFORE, answer.before), (AFTER, answer.after)):
        made = run_stage_in(tmp_path, CONSOLIDATE, config, inputs, version=f"{config is AFTER}")
        rows = totals(made.table("funnel.parquet"), ["source", "step", "reason"])
        assert told == {(row["source"], row["reason"]): row["documents"] for row in rows if row["step"] != EXTRACT}


def test_documents_that_change_side_are_counted_and_shown(inputs: dict[str, Artifact]) -> None:
    answer = what_if(BEFORE, AFTER, joint(inputs))
    assert (answer.gained, answer.lost) == (1, 2)
    assert {(one.url.rpartition("/")[2], one.before, one.after) for one in answer.moved} == {
        ("poor", "gopher_quality_few_words", ""),
        ("fr", "", "language_other"),
        ("code", "", "language_other"),
    }
    shown = render(answer)
    assert "1 documents would be kept, 2 would go, of 8" in shown
    assert "gopher_quality_few_words -> kept  https://example.org/poor\n  write to <email> " in shown
    assert "ann@example.org" not in shown
    assert len(what_if(BEFORE, AFTER, joint(inputs), examples=1).moved) == 2


def test_the_examples_are_those_of_the_smallest_ids_in_any_number_of_parts(tmp_path: Path) -> None:
    rows = [document(text(seed), f"{seed}") for seed in range(12)]
    after = ConsolidateConfig(limits={"language": {"keep": ("de",)}})
    for parts in (1, 2, 5):
        answer = what_if(BEFORE, after, joint(prepare(tmp_path / f"{parts}", rows, parts=parts)), examples=2)
        assert [one.id for one in answer.moved] == sorted(row["id"] for row in rows)[:2]
        assert answer.lost == 12


def test_memory_does_not_grow_with_the_documents_that_move(tmp_path: Path) -> None:
    after = ConsolidateConfig(limits={"language": {"keep": ("de",)}})

    def peak(parts: int) -> int:
        rows = [document(" ".join(prose(seed, 8)), f"{seed}") for seed in range(200 * parts)]
        held = joint(prepare(tmp_path / f"{parts}", rows, parts=parts))
        what_if(BEFORE, BEFORE, held)
        tracemalloc.start()
        try:
            assert what_if(BEFORE, after, held, 1).lost == len(rows)
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    assert peak(20) < 1.5 * peak(4)


def test_a_version_that_reused_earlier_inputs_can_be_asked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, day in (("a", "Monday"), ("b", "Tuesday")):
        (tmp_path / f"{name}.txt").write_text(f"The baker of the town was here on {day}, and he brought the bread.")
    recipe = find_recipe("demo").override(
        {
            "place.store": str(tmp_path / "store"),
            "crawl.enabled": False,
            "extract.files": [{"name": "texts", "kind": "text", "path": f"{tmp_path}/*.txt"}],
            "extract.min_chars": 1,
            "annotate.use": ["gopher_quality", "prose_score", "pii"],
            "consolidate.filters": ["gopher_quality"],
            "consolidate.limits": {"gopher_quality": {"min_words": 1, "min_stop_words": 0}},
            "consolidate.sources": ["texts"],
        }
    )
    changed = recipe.override({"consolidate.limits.gopher_quality.min_words": 2})
    for one, version, source in ((recipe, "1", None), (changed, "2", "1")):
        for stage in ("extract", "annotate", "dedup", "consolidate"):
            run_stage(one, stage, version=version, source_version=source, tracking=TrackingContext("", "demo"))
    stricter = ["--set", "consolidate.limits.gopher_quality.min_words=50"]
    for version in ("1", "2"):
        assert main(["what-if", "--recipe", changed.text, "--version", version, *stricter]) == 0
        assert "0 documents would be kept, 2 would go, of 2" in capsys.readouterr().out
    assert main(["what-if", "--recipe", changed.text, "--version", "3", *stricter]) == 2
    assert "no artifact demo/extracted@3" in capsys.readouterr().err


def test_the_same_limits_move_nothing(inputs: dict[str, Artifact]) -> None:
    answer = what_if(BEFORE, BEFORE, joint(inputs))
    assert (answer.before, answer.gained, answer.lost, answer.moved) == (answer.after, 0, 0, ())


def test_the_shell_refuses_fields_of_other_stages(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["what-if", "--recipe", "demo", "--set", "annotate.use=[]"]) == 2
    assert "annotate.use=[] bears on more than the join" in capsys.readouterr().err
