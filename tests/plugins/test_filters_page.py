"""The page of the filters: its counts are those that consolidate then makes; it starts a version with its limits."""

import re
from html import unescape

import pytest

from tasks.core.artifact import Artifact, ArtifactId
from tasks.core.store import Store
from tasks.run.forecast import changed_settings
from tasks.run.recipe import find_recipe
from tasks.stages.consolidate.config import ConsolidateConfig
from tasks.stages.consolidate.sampling import FEWEST_PARTS, estimate
from tasks.stages.paragraphs import ParagraphsConfig
from tests.airflow_home import DAGS
from tests.conftest import run_stage_in
from tests.plugins.conftest import HOSTILE
from tests.tasks.stages.consolidate.test_contaminated import ITEM, looked_at
from tests.tasks.stages.consolidate.test_stage import CONSOLIDATE, prepare, prose, text
from tests.tasks.stages.dedup.made import document

PAGE = "/sluice/filters?recipe=test&version=dev"
OWN = ConsolidateConfig(limits={"web": {"gopher_quality": {"min_words": 60}}}, kinds={"web": "web", "code": "text"})


def rows(count=40):
    """Documents whose measurements lie on both sides of several limits; some are copies, one is hostile."""
    made = []
    for seed in range(count):
        words = {"words": 40 + 5 * seed, "letters": 40 + 5 * seed}
        repeats = {"chars": 1000, "top_2gram": 10 * seed}
        measured = {"gopher_quality": words, "gopher_repetition": repeats}
        name = f"{seed}?{HOSTILE}" if seed == 20 else f"{seed}"
        words_of = HOSTILE + text(20) if seed == 20 else text(seed % 33)
        made.append(document(words_of, name, measured=measured, language_score=seed / count,
                             source="code" if seed % 10 == 9 else "web"))  # fmt: skip
    return made


@pytest.fixture
def inputs(recipes, tmp_path):
    """A recipe `test` with a small corpus, and its artifacts up to the documents."""
    recipes("test")
    made = prepare(tmp_path / "store", rows(), parts=4)
    run_stage_in(tmp_path / "store", CONSOLIDATE, OWN, made, kind="documents")
    return made


def cards(page):
    """Returns the numbers of the page's cards by title."""
    found = re.findall(r"<div><dt>(.*?)</dt><dd><span class=\"value\">(.*?)</span></dd></div>", page, re.DOTALL)
    return {title: int(re.sub(r"<.*|,", "", value)) for title, value in found}


@pytest.mark.parametrize(
    ("limit", "value"),
    [
        ("limits.web.gopher_quality.min_words", 120),
        ("limits.web.gopher_quality.min_words", 1),
        ("limits.gopher_quality.max_words", 130),
        ("limits.language.min_score", 0.2),
        ("limits.gopher_repetition.max_top_ngram.2", 0.1),
        ("limits.gopher_repetition.max_top_ngram.2", 0.35),
    ],
)
def test_the_counts_of_a_limit_are_those_that_consolidate_then_makes(get, inputs, tmp_path, limit, value):
    shown = cards(get(f"{PAGE}&{limit}={value}").text)
    made = run_stage_in(
        tmp_path / "store", CONSOLIDATE, changed_settings(OWN, {limit: value}), inputs, kind="documents", version="new"
    )
    before = Artifact.open_at(Store(str(tmp_path / "store")), ArtifactId("test/documents", "dev"))
    kept = [{row for path in one.files("kept/") for row in one.table(path, ["id"])["id"].to_pylist()}
            for one in (before, made)]  # fmt: skip
    assert shown == {
        "documents kept by this version": len(kept[0]),
        "kept with the changed limits": len(kept[1]),
        "kept instead of dropped": len(kept[1] - kept[0]),
        "dropped instead of kept": len(kept[0] - kept[1]),
    }
    assert kept[0] != kept[1]


PARAGRAPH = " ".join(prose(99, 12))
"""A paragraph of twelve words that some documents repeat."""

QUOTED = {12: 14, 13: 17, 14: 20, 15: 16}
"""Words of the evaluation item at the beginning of a document, by its number."""

GOLD = ConsolidateConfig(gold={"prose_score.score": 0.5, "gopher_quality.words": 100}, trusted=("code",),
                         limits={"gopher_quality": {"max_words": 220}})  # fmt: skip


@pytest.fixture
def signals(recipes, tmp_path):
    """Documents of which some have an evaluation item, some repeated paragraphs, and some reach the tier gold."""
    recipes("test")
    made = [
        document(
            " ".join([*ITEM[: QUOTED.get(seed, 0)], *prose(seed, 30)])
            + f"\n{PARAGRAPH}" * (seed % 4 if seed < 12 else 0),
            f"{seed}",
            prose_score=seed / 20,
            measured={"gopher_quality": {"words": 40 + 10 * seed}},
            source="code" if seed == 19 else "web",
        )
        for seed in range(20)
    ]
    store = tmp_path / "store"
    inputs = looked_at(store, made, parts=4)
    extracted = {"extracted": inputs["extracted"]}
    inputs["paragraphs"] = run_stage_in(
        store, "tasks.stages.paragraphs.stage", ParagraphsConfig(enabled=True), extracted, kind="paragraphs"
    )
    own = GOLD.model_copy(update={"contaminated_share": 0.9})
    run_stage_in(store, CONSOLIDATE, own, inputs, kind="documents")
    return own, inputs


def test_limits_of_contamination_repetition_and_gold_count_as_consolidate_does(get, signals, tmp_path):
    own, inputs = signals
    store = tmp_path / "store"
    before = tiers(Artifact.open_at(Store(str(store)), ArtifactId("test/documents", "dev")))
    for number, (limit, changed) in enumerate([
        ("contaminated_share=0.5", {"contaminated_share": 0.5}),
        ("repeated_share=0.3", {"repeated_share": 0.3}),
        ("gold.prose_score.score=0.25", {"gold": {**GOLD.gold, "prose_score.score": 0.25}}),
        ("gold.gopher_quality.words=180", {"gold": {**GOLD.gold, "gopher_quality.words": 180}}),
    ]):  # fmt: skip
        after = tiers(
            run_stage_in(
                store, CONSOLIDATE, own.model_copy(update=changed), inputs, kind="documents", version=f"{number}"
            )
        )
        assert cards(get(f"{PAGE}&{limit}").text) == {
            "documents kept by this version": len(before),
            "kept with the changed limits": len(after),
            "kept instead of dropped": len(after.keys() - before.keys()),
            "dropped instead of kept": len(before.keys() - after.keys()),
            "gold in this version": [*before.values()].count("gold"),
            "gold with the changed limits": [*after.values()].count("gold"),
        }
        assert before != after


def tiers(documents):
    """Returns the tiers of the kept documents by id."""
    return {row["id"]: row["tier"] for path in documents.files("kept/") for row in documents.table(path).to_pylist()}


def test_each_signal_has_its_histogram_and_gold_is_overridden_as_a_whole(get, signals):
    page = get(f"{PAGE}&gold.prose_score.score=0.25").text
    found = dict(re.findall(r'name="([^"]+)" value="([^"]*)" data-own', page))
    assert [found[name] for name in ("contaminated_share", "repeated_share", "gold.prose_score.score")] == [
        "0.9", "0.5", "0.25"
    ]  # fmt: skip
    assert "<code>silver</code> 10 of 19 documents" in page
    from sluice_ui import filters

    own, asked = signals[0], {"gold.prose_score.score": 0.25, "repeated_share": 0.4}
    overrides = filters._overrides(find_recipe("test"), filters._changed(own, asked))
    assert overrides["consolidate.gold"] == {**GOLD.gold, "prose_score.score": 0.25}
    assert overrides["consolidate.repeated_share"] == 0.4
    assert overrides["consolidate.contaminated_share"] == 0.9


def test_each_numeric_limit_has_a_histogram_of_the_values_and_its_own_number(get, inputs):
    page = get(PAGE).text
    found = dict(re.findall(r'name="(limits\.[^"]+)" value="([^"]*)"', page))
    assert found["limits.web.gopher_quality.min_words"] == "60"
    assert found["limits.gopher_repetition.max_top_ngram.2"] == "0.2"
    assert "limits.gopher_quality.min_words" not in found  # no document is judged by the general one
    assert page.count('<svg class="histogram"') == len(found) + 1  # one limit has two reasons
    assert "All 40 documents of the version are read." in page
    assert "gopher_quality_few_words</code> 4 of 36 documents" in page
    assert "With the changed limits" not in page


def test_documents_that_change_sides_are_shown_with_value_and_text_and_escaped(get, inputs):
    page = get(f"{PAGE}&limits.language.min_score=0.55").text
    row = page.partition(f"test&amp;version=dev&amp;what={rows()[20]['id']}")[2].partition("</tr>")[0]
    assert '<td class="number">0.5</td>' in row
    assert "&lt;script&gt;" in row
    assert "<img" not in page
    stricter = get(f"{PAGE}&limits.web.gopher_quality.min_words=1").text
    assert "<td>gopher_quality_few_words</td><td>kept</td>" in re.sub(r"\s*\n\s*", "", stricter)


def test_a_value_that_is_no_limit_is_explained(get, inputs):
    for value in ("x", "-1", "nan", "1e999", HOSTILE):
        answer = get(f"{PAGE}&limits.language.min_score={value}")
        assert answer.status_code == 200, value
        assert '<p class="warning">' in answer.text, value
        assert "<img" not in answer.text
    assert get(f"{PAGE}&limits.unknown.least=3").status_code == 200
    assert get("/sluice/filters?recipe=test&version=v9").status_code == 404


def test_a_large_version_is_read_as_a_sample_with_intervals(get, recipes, tmp_path, monkeypatch):
    from sluice_ui import filters

    recipes("test")
    made = prepare(tmp_path / "store", rows(60), parts=FEWEST_PARTS + 4)
    run_stage_in(tmp_path / "store", CONSOLIDATE, OWN, made, kind="documents")
    whole = cards(get(f"{PAGE}&limits.gopher_quality.max_words=200").text)
    monkeypatch.setattr(filters, "MOST", 24)
    page = get(f"{PAGE}&limits.gopher_quality.max_words=200").text
    assert "The version has 60 documents. The first documents of 8 of its files" in page
    assert page.count(" to ") >= 4
    ends = [int(end) for end in re.search(r"kept with the changed.*?\((\d+) to (\d+)\)", page, re.DOTALL).groups()]
    assert ends[0] <= whole["kept with the changed limits"] <= ends[1]


def test_the_interval_of_a_sample_holds_the_truth_in_19_of_20_draws():
    import random

    draw = random.Random(3)
    sizes = [draw.randint(20, 60) for _ in range(200)]
    counts = [sum(draw.random() < share for _ in range(size)) for size in sizes if (share := draw.betavariate(3, 4))]
    held = 0
    for _ in range(1000):
        chosen = draw.sample(range(200), 12)
        found = estimate([counts[at] for at in chosen], [sizes[at] for at in chosen], sum(sizes), 200)
        held += found.low <= sum(counts) <= found.high
    assert held >= 920


@pytest.fixture
def corpus_dag(client, inputs):
    """Puts the corpus DAG of the recipe `test` into Airflow's database, switched on."""
    from airflow.dag_processing.bundles.manager import DagBundlesManager
    from airflow.dag_processing.dagbag import DagBag, sync_bag_to_db
    from airflow.models.dag import DagModel
    from airflow.utils.session import create_session

    DagBundlesManager().sync_bundles_to_db()
    sync_bag_to_db(DagBag(str(DAGS / "corpus.py"), bundle_name="dags-folder"), "dags-folder", None)
    with create_session() as session:
        session.get(DagModel, "test.corpus").is_paused = False


def test_the_button_starts_the_corpus_of_a_new_version_with_the_changed_limits(browse, corpus_dag):
    from airflow.models.dagrun import DagRun
    from airflow.utils.session import create_session

    address = f"{PAGE}&limits.language.min_score=0.2"
    form = browse("op", "GET", address).text
    token = unescape(re.search(r'name="token" value="([^"]*)"', form)[1])
    assert "consolidate.limits.language.min_score = 0.2" in form
    answer = browse("op", "POST", address, data={"token": token, "new_version": "v2"}, follow_redirects=False)
    assert answer.status_code == 303, answer.text
    assert browse("op", "POST", address, data={"token": "", "new_version": "v2"}).status_code == 403
    with create_session() as session:
        [run] = DagRun.find(dag_id="test.corpus", session=session)
    assert run.run_id.startswith("v2__")
    assert (run.conf["version"], run.conf["source_version"]) == ("v2", "dev")
    assert run.conf["overrides"]["consolidate.limits.language.min_score"] == 0.2
    assert run.conf["overrides"]["consolidate.limits.web"] == {"gopher_quality": {"min_words": 60}}
