"""Contract of what-if: its funnel for other limits equals that of a later consolidate run.

Run the soak tests after a change of the memory per document.
"""

import tracemalloc
from pathlib import Path

import pytest

from tasks.core.artifact import Artifact
from tasks.run.recipe import Recipe, find_recipe
from tasks.run.runner import run_stage
from tasks.run.shell import main
from tasks.run.tracking import TrackingContext
from tasks.stages.consolidate.aligned_inputs import AlignedInputs
from tasks.stages.consolidate.config import ConsolidateConfig
from tasks.stages.consolidate.funnel import totals
from tasks.stages.consolidate.what_if import render, what_if
from tests.conftest import run_stage_in
from tests.tasks.stages.consolidate.test_stage import CONSOLIDATE, prepare, prose, text
from tests.tasks.stages.dedup.made import document

BEFORE = ConsolidateConfig()
AFTER = ConsolidateConfig(
    limits={"language": {"keep": ("en",)}, "gopher_quality": {"min_words": 1}},
    sources=("web", "code"),
    gold={"prose_score.score": 0.9},
)


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Artifact]:
    rows = [document(text(seed), f"w{seed}") for seed in range(4)]
    rows += [document(text(1, edited=4), "near", prose_score=0.4), document(text(90), "fr", language="fr")]
    spans = [{"kind": "email", "start": 9, "end": 24}]
    rows += [document(f"write to ann@example.org {text(91)}", "poor", poor=True, pii_spans=spans)]
    rows += [document(text(92), "code", source="code", language="la")]
    rows += [document(text(93), "bad", error="ValueError: no"), document(text(94), "book", prose_score=0.95)]
    refused = [{"record_id": f"<{number}>", "url": "", "reason": "too_short", "source": "web"} for number in range(3)]
    refused += [{"record_id": "<9>", "url": "", "reason": "poison", "source": "web"}]
    return prepare(tmp_path_factory.mktemp("inputs"), rows, rejected=refused)


def aligned(inputs: dict[str, Artifact]) -> AlignedInputs:
    return AlignedInputs(inputs["extracted"], inputs["attributes"], inputs["duplicates"], inputs["extracted"].store, "")


def test_both_funnels_equal_those_of_consolidate(inputs: dict[str, Artifact], tmp_path: Path) -> None:
    answer = what_if(BEFORE, AFTER, aligned(inputs))
    for config, told in ((BEFORE, answer.before), (AFTER, answer.after)):
        made = run_stage_in(tmp_path, CONSOLIDATE, config, inputs, version=f"{config is AFTER}", max_bad_share=1)
        rows = totals(made.table("funnel.parquet"), ["source", "step", "reason", "tier"])
        assert told == {(*row.values(),)[:4]: row["documents"] for row in rows}


def test_documents_whose_verdict_changes_are_counted_and_shown(inputs: dict[str, Artifact]) -> None:
    answer = what_if(BEFORE, AFTER, aligned(inputs))
    assert (answer.gained, answer.lost) == (1, 2)
    assert {(one.url.rpartition("/")[2], one.before, one.after) for one in answer.moved} == {
        ("poor", "gopher_quality_few_words", ""),
        ("fr", "", "language_other"),
        ("code", "", "language_other"),
    }
    shown = render(answer)
    assert "1 documents would be kept, 2 would be dropped, of 14 captures and files" in shown
    assert row(shown, "too_short") == ["3", "3"]
    assert row(shown, "kept") == ["6", "6"]
    assert (row(shown, "gold"), row(shown, "silver")) == (["0", "1", "+1"], ["6", "5", "-1"])
    assert "gopher_quality_few_words -> kept  https://example.org/poor\n  write to <email> " in shown
    assert "ann@example.org" not in shown
    assert len(what_if(BEFORE, AFTER, aligned(inputs), examples=1).moved) == 2


def test_the_examples_have_the_smallest_ids_for_any_number_of_parts(tmp_path: Path) -> None:
    rows = [document(text(seed), f"{seed}") for seed in range(12)]
    after = ConsolidateConfig(limits={"language": {"keep": ("de",)}})
    for parts in (1, 2, 5):
        answer = what_if(BEFORE, after, aligned(prepare(tmp_path / f"{parts}", rows, parts=parts)), examples=2)
        assert [one.id for one in answer.moved] == sorted(row["id"] for row in rows)[:2]
        assert answer.lost == 12


@pytest.mark.soak
def test_memory_does_not_grow_with_the_changed_verdicts(tmp_path: Path) -> None:
    after = ConsolidateConfig(limits={"language": {"keep": ("de",)}})

    def peak(parts: int) -> int:
        rows = [document(" ".join(prose(seed, 8)), f"{seed}") for seed in range(200 * parts)]
        held = aligned(prepare(tmp_path / f"{parts}", rows, parts=parts))
        what_if(BEFORE, BEFORE, held)
        tracemalloc.start()
        try:
            assert what_if(BEFORE, after, held, 1).lost == len(rows)
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    assert peak(20) < 1.5 * peak(4)


@pytest.fixture
def recipe(tmp_path: Path) -> Recipe:
    """A text of 14 words and one of 21 from files, and one that is too short to be a document."""
    texts = {
        "a": "The baker of the town was here on Monday, and he brought the bread.",
        "b": "The baker of the town was here on Tuesday, and he brought the bread. It was good and it was warm.",
        "short": "Hm.",
    }
    for name, content in texts.items():
        (tmp_path / f"{name}.txt").write_text(content)
    return find_recipe("demo").override(
        {
            "place.store": str(tmp_path / "store"),
            "crawl.enabled": False,
            "canary.current": {},
            "extract.files": [{"name": "texts", "kind": "text", "path": f"{tmp_path}/*.txt"}],
            "extract.min_chars": 5,
            "annotate.use": ["gopher_quality", "prose_score", "pii"],
            "consolidate.filters": ["gopher_quality"],
            "consolidate.limits": {"gopher_quality": {"min_words": 1, "min_stop_words": 0}},
            "consolidate.sources": ["texts"],
        }
    )


def make(recipe: Recipe, version: str, source_version: str | None = None, **changed: object) -> None:
    """Creates a version of the corpus; `changed` are overrides, with "__" for the dots."""
    mine = recipe.override({name.replace("__", "."): value for name, value in changed.items()})
    for stage in ("extract", "annotate", "dedup", "consolidate"):
        run_stage(mine, stage, version=version, source_version=source_version, tracking=TrackingContext("", "demo"))


def asked(recipe: Recipe, *arguments: str) -> int:
    return main(["what-if", "--recipe", recipe.text, *arguments])


def row(said: str, reason: str) -> list[str]:
    """Returns the numbers in the line of a reason, for the main source of the corpus."""
    several = [line.split() for line in said.splitlines() if line.startswith(("web ", "texts "))]
    (line,) = [words for words in several if reason in words]
    return [word for word in line if word.strip("+-").isdigit()]


MIN_WORDS = "consolidate.limits.gopher_quality.min_words"


def test_what_if_works_for_a_version_with_reused_inputs(recipe: Recipe, capsys: pytest.CaptureFixture[str]) -> None:
    make(recipe, "1")
    make(recipe, "2", "1", consolidate__limits__gopher_quality__min_words=2)
    for version in ("1", "2"):
        assert asked(recipe, "--version", version, "--set", f"{MIN_WORDS}=50") == 0
        assert "0 documents would be kept, 2 would be dropped, of " in capsys.readouterr().out
    assert asked(recipe, "--version", "3", "--set", f"{MIN_WORDS}=50") == 2
    assert "no artifact demo/extracted@3" in capsys.readouterr().err


def test_before_uses_the_settings_of_the_version_and_not_of_the_current_recipe(
    recipe: Recipe, capsys: pytest.CaptureFixture[str]
) -> None:
    make(recipe, "1")
    make(recipe, "2", "1", consolidate__limits__gopher_quality__min_stop_words=1, consolidate__mask_pii=False)
    assert asked(recipe, "--version", "2", "--set", f"{MIN_WORDS}=50") == 0
    said = capsys.readouterr().out
    assert "before: the settings of demo/documents@2" in said
    assert "limits.gopher_quality.min_stop_words = 1 (in the recipe 0), mask_pii = false (in the recipe true)" in said
    assert asked(recipe, "--version", "1", "--set", f"{MIN_WORDS}=50") == 0
    assert "in the recipe" not in capsys.readouterr().out


def test_overrides_apply_to_the_settings_of_the_version(recipe: Recipe, capsys: pytest.CaptureFixture[str]) -> None:
    make(recipe, "1", consolidate__limits__gopher_quality__min_words=18)
    assert asked(recipe, "--version", "1", "--set", "consolidate.limits.gopher_quality.min_stop_words=1") == 0
    said = capsys.readouterr().out
    assert "0 documents would be kept, 0 would be dropped" in said
    assert "after: the same with limits.gopher_quality.min_stop_words = 1 (before 0)" in said
    assert row(said, "gopher_quality_few_words") == ["1", "1"]
    assert asked(recipe, "--version", "1", "--set", f"{MIN_WORDS}=5") == 0
    assert "1 documents would be kept, 0 would be dropped" in capsys.readouterr().out


def test_without_documents_the_settings_of_the_recipe_are_used(
    recipe: Recipe, capsys: pytest.CaptureFixture[str]
) -> None:
    for stage in ("extract", "annotate", "dedup"):
        run_stage(recipe, stage, version="1", tracking=TrackingContext("", "demo"))
    assert asked(recipe, "--version", "1", "--set", f"{MIN_WORDS}=50") == 0
    said = capsys.readouterr().out
    assert "before: the settings of the recipe" in said
    assert "0 documents would be kept, 2 would be dropped" in said


def test_a_filter_measured_by_an_override_can_be_used(recipe: Recipe, capsys: pytest.CaptureFixture[str]) -> None:
    make(recipe, "1", annotate__use=["gopher_quality", "fineweb", "prose_score", "pii"])
    filters = ["--set", 'consolidate.filters=["gopher_quality", "fineweb"]']
    assert asked(recipe, "--version", "1", *filters, "--set", "consolidate.limits.fineweb.max_short=0.5") == 2
    assert "override of [consolidate]: limits: fineweb has no setting max_short" in capsys.readouterr().err
    assert asked(recipe, "--version", "1", *filters) == 0
    said = capsys.readouterr().out
    assert 'with filters = ["gopher_quality", "fineweb"] (before ["gopher_quality"])\n' in said
    assert "0 would be dropped, of 3 captures and files" in said
    assert asked(recipe, "--version", "1", "--set", 'consolidate.filters=["c4"]', "--set", "consolidate.limits={}") == 2
    assert 'consolidate.filters: "c4" is not measured in demo/attributes@1' in capsys.readouterr().err


def test_tiers_are_reported_if_any_document_is_gold(inputs: dict[str, Artifact]) -> None:
    assert "silver" not in render(what_if(BEFORE, BEFORE, aligned(inputs)))
    gold = ConsolidateConfig(gold={"prose_score.score": 0.9})
    answer = what_if(BEFORE, gold, aligned(inputs))
    assert (answer.gained, answer.lost) == (0, 0)
    assert answer.before["web", "kept", "", "silver"] == 6
    assert (answer.after["web", "kept", "", "silver"], answer.after["web", "kept", "", "gold"]) == (5, 1)


def test_equal_limits_change_no_verdict(inputs: dict[str, Artifact]) -> None:
    answer = what_if(BEFORE, BEFORE, aligned(inputs))
    assert (answer.before, answer.gained, answer.lost, answer.moved) == (answer.after, 0, 0, ())


def test_the_shell_refuses_fields_of_other_stages(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["what-if", "--recipe", "demo", "--set", "annotate.use=[]"]) == 2
    assert "annotate.use=[] is not a setting of consolidate" in capsys.readouterr().err


OWN = "consolidate.limits.texts.gopher_quality.min_words"


def test_limits_of_a_source_or_kind_can_be_overridden(recipe: Recipe, capsys: pytest.CaptureFixture[str]) -> None:
    make(recipe, "1")
    for scope in ("texts", "text"):
        own = f"consolidate.limits.{scope}.gopher_quality.min_words=18"
        assert asked(recipe, "--version", "1", "--set", own, "--set", f"{MIN_WORDS}=50") == 0
        said = capsys.readouterr().out
        assert "0 documents would be kept, 1 would be dropped" in said
        assert f'limits.{scope} = {{"gopher_quality": {{"min_words": 18}}}} (before none)' in said
    assert asked(recipe, "--version", "1", "--set", "consolidate.limits.textz.gopher_quality.min_words=1") == 2
    said = capsys.readouterr().err
    assert 'consolidate.limits: no filter, source or kind of source "textz"' in said
    assert 'Did you mean "text' in said


def test_limits_of_a_language_can_be_overridden(inputs: dict[str, Artifact]) -> None:
    french = {"lang": {"fr": {"gopher_quality": {"min_words": 1000}}}}
    answer = what_if(BEFORE, ConsolidateConfig(limits=french), aligned(inputs))
    assert [one.after for one in answer.moved if one.url.endswith("/fr")] == ["gopher_quality_few_words"]
    assert answer.lost == 1


def test_what_if_with_an_override_of_a_source_equals_the_run(
    recipe: Recipe, capsys: pytest.CaptureFixture[str]
) -> None:
    """The source is filtered because it has its own limits, both in the run and in what-if."""
    changed = recipe.override({OWN: 18})
    assert changed.consolidate.limits["texts"] == {"gopher_quality": {"min_words": 18}}
    make(recipe, "1")
    make(recipe, "2", "1", **{OWN.replace(".", "__"): 18})
    assert asked(recipe, "--version", "2", "--set", f"{OWN}=1") == 0
    said = capsys.readouterr().out
    assert 'before: the settings of demo/documents@2: limits.texts = {"gopher_quality": {"min_words": 18}}' in said
    assert "limits.texts.gopher_quality.min_words = 1 (before 18)" in said
    assert "1 documents would be kept, 0 would be dropped" in said
