"""Contract of what-if: the funnel that other limits would give is the one that consolidate then gives."""

from pathlib import Path

import pytest

from tasks.__main__ import main
from tasks.artifact import Artifact
from tasks.consolidate.config import ConsolidateConfig
from tasks.consolidate.funnel import EXTRACT, totals
from tasks.consolidate.joint import Joint
from tasks.consolidate.what_if import render, what_if
from tests.conftest import run_stage_in
from tests.tasks.consolidate.test_stage import CONSOLIDATE, prepare, text
from tests.tasks.dedup.made import document

BEFORE = ConsolidateConfig()
AFTER = ConsolidateConfig(
    limits={"language": {"keep": ("en",)}, "gopher_quality": {"min_words": 1}}, sources=("web", "code")
)


@pytest.fixture
def inputs(tmp_path: Path) -> dict[str, Artifact]:
    rows = [document(text(seed), f"w{seed}") for seed in range(4)]
    rows += [document(text(1, edited=4), "near", prose_score=0.4), document(text(90), "fr", language="fr")]
    rows += [document(f"{text(91)} write to ann@example.org", "poor", poor=True)]
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
    assert "gopher_quality_few_words -> kept  https://example.org/poor" in shown
    assert len(what_if(BEFORE, AFTER, joint(inputs), examples=1).moved) == 2


def test_the_same_limits_move_nothing(inputs: dict[str, Artifact]) -> None:
    answer = what_if(BEFORE, BEFORE, joint(inputs))
    assert (answer.before, answer.gained, answer.lost, answer.moved) == (answer.after, 0, 0, ())


def test_the_shell_refuses_fields_of_other_stages(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["what-if", "--recipe", "demo", "--set", "annotate.use=[]"]) == 2
    assert "annotate.use=[] bears on more than the join" in capsys.readouterr().err
