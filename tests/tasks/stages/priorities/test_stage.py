"""Proposed priorities: hosts with much of what the mixture wants more of, a page for a person, an accepted version."""

import json
from pathlib import Path

import pytest

from tasks.core.artifact import Artifact, ArtifactId
from tasks.core.commit import commit
from tasks.core.config import Config
from tasks.core.errors import RecipeError
from tasks.core.stage import Output, Report
from tasks.core.store import Store
from tasks.formats.tokens.plan import Plan
from tasks.run.recipe import Recipe
from tasks.stages.priorities import PrioritiesConfig
from tasks.stages.priorities.stage import demand, factors_of
from tasks.stages.tokens import PackConfig
from tests.conftest import run_stage_in
from tests.corpora import corpus, kept_document, tokens_in

LONG = " ".join(["water and stone"] * 40)


def pages(host: str, language: str, count: int) -> list[dict]:
    return [kept_document(f"https://{host}/{number}", f"{LONG} {number}", "web", language) for number in range(count)]


def proposal(folder: Path, weights: dict[str, float], by: str = "language", **settings: int) -> tuple[Artifact, Plan]:
    rows = pages("de.org:81", "de", 30) + pages("en.org", "en", 50) + pages("both.org", "de", 10)
    rows += pages("both.org", "en", 20)[10:] + corpus(30)
    made = tokens_in(folder, [row for row in rows if row["source"] == "web" or row["language"] == "en"])
    packed = run_stage_in(
        folder, "tasks.stages.tokens.pack", PackConfig(seq_len=32, by=by), {"shards": made.shards}, kind="packed"
    )
    output = Output(Store(str(folder)), ArtifactId("test/mixture", "dev"), "by-hand")
    with output.part("mixture", conserved=False) as part, part.file("mixture.json") as file:
        file.write(json.dumps({"weights": weights}).encode())
    mixture = commit(output, "by hand", 1, Config(), [], Report())
    inputs = {"documents": made.documents, "plan": packed, "mixture": mixture}
    config = PrioritiesConfig(enabled=True, **settings)
    return run_stage_in(folder, "tasks.stages.priorities.stage", config, inputs, kind="priorities"), Plan.open(packed)


def test_a_host_is_wanted_as_much_as_its_documents_are_relative_to_all_crawled_ones(tmp_path: Path) -> None:
    weights = {"de": 0.8, "en": 0.2}
    proposed, plan = proposal(tmp_path, weights, prior=0)
    found = {row["host"]: row for row in proposed.table("priorities.parquet").to_pylist()}
    wanted = demand(weights, plan.sequences)
    assert wanted["de"] == pytest.approx(0.8 / (plan.sequences["de"] / sum(plan.sequences.values())))
    assert found["both.org"]["documents"] == 20
    ratio = found["de.org:81"]["factor"] / found["en.org"]["factor"]
    assert ratio == pytest.approx(wanted["de"] / wanted["en"], rel=1e-3)
    assert found["both.org"]["factor"] == pytest.approx(
        (found["de.org:81"]["factor"] + found["en.org"]["factor"]) / 2, abs=2e-4
    )
    page = proposed.read("priorities.md").decode()
    assert '`[crawl] priorities = "test/priorities@dev"`' in page
    assert page.index("| de.org:81 |") < page.index("| both.org |") < page.index("| en.org |")


def test_a_mixture_of_sources_does_not_distinguish_crawled_hosts(tmp_path: Path) -> None:
    proposed, _ = proposal(tmp_path, {"web": 0.2, "code": 0.4, "my-books": 0.4}, by="source")
    assert set(proposed.table("priorities.parquet")["factor"].to_pylist()) == {1.0}
    assert "the mixture does not distinguish them" in proposed.read("priorities.md").decode()


def test_factors_are_bounded_and_few_documents_move_a_host_little() -> None:
    counts = {"all.org": {"de": 100}, "few.org": {"de": 1}, "other.org": {"en": 10_000}}
    factors = factors_of(PrioritiesConfig(largest=3.0), counts, {"de": 5.0, "en": 0.5})
    assert factors["all.org"] == 3.0
    assert 1 < factors["few.org"] < 3.0
    assert 1 / 3 <= factors["other.org"] < 1


@pytest.mark.parametrize("named", ["web/priorities@previous", "web/priorities", "web/mixture@v1"])
def test_only_a_named_version_of_a_proposal_is_accepted(named: str) -> None:
    crawl = {"seeds": ["https://example.org/"], "contact": "mailto:a@example.org", "priorities": named}
    with pytest.raises(RecipeError, match="names no proposal"):
        Recipe.from_text(json.dumps({"name": "r", "crawl": crawl}))


def test_a_mixture_of_sources_and_languages_together_gives_the_factors_of_its_crawled_components(
    tmp_path: Path,
) -> None:
    joint = {"web+de": 0.6, "web+en": 0.2, "code+en": 0.2}
    proposed, packed = proposal(tmp_path, joint, by="source+language", prior=0)
    assert {"web+de", "web+en", "code+en"} <= packed.sequences.keys()
    found = {row["host"]: row["factor"] for row in proposed.table("priorities.parquet").to_pylist()}
    wanted = demand(joint, packed.sequences)
    assert found["de.org:81"] / found["en.org"] == pytest.approx(wanted["web+de"] / wanted["web+en"], rel=1e-3)
