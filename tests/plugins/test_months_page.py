"""The page of a recipe's months."""

import json

from tasks.core.artifact import ArtifactId
from tasks.core.commit import commit
from tasks.core.config import Config
from tasks.core.stage import Output, Report
from tasks.core.store import Store
from tasks.core.version_index import VERSIONS
from tests.plugins.conftest import HOSTILE

PAGE = "/sluice/months?recipe=test"


def entry(version, **more):
    documents = {"captured": 10, "kept": 8, "new": 5, "changed": 3, "replaced": 0, "duplicates": 2, "gone": 1}
    return {
        "version": version,
        "ended": "",
        "documents": documents,
        "tokens": {"new": 500, "all": 2000, "since": ""},
        "seconds": {"encode": 2.0},
        "champion": None,
        "scores": {},
        **more,
    }


def report(folder, version, history, alerts=(), in_force=(), present=()):
    content = {
        "recipe": "test",
        "version": version,
        "compared_with": [one["version"] for one in history[:-1]],
        "history": history,
        "drift": [{"name": "domains", "psi": 1.5, "needed": 0.25, "alert": True, "moved": [[HOSTILE, 0.0, 0.5]]}],
        "alerts": list(alerts),
        "regret": {
            "models": ["m1"], "months": ["m1", "m2"], "bpb": [[1.5, 1.75]],
            "in_distribution": 1.5, "backward": None, "forward": 1.75,
        },
        "takedowns": {"in_force": dict(in_force), "present": list(present)},
        "needs": [one["text"] for one in alerts],
    }  # fmt: skip
    output = Output(Store(str(folder)), ArtifactId("test/month", version), version)
    with output.part("month", conserved=False) as part, part.file("month.json") as file:
        file.write(json.dumps(content).encode())
    return commit(output, "month", 1, Config(), [], Report(metrics={VERSIONS: float(len(history))}))


def test_the_newest_month_is_shown_with_alerts_and_tables_and_leads_to_the_others(get, versions):
    report(versions, "m1", [entry("m1")])
    alert = {"kind": "new_language", "what": "fr", "text": f"5.0% are in fr {HOSTILE}"}
    report(versions, "m2", [entry("m1"), entry("m2", seconds={"encode": 0.5})], [alert], {"url": 2}.items())
    text = get(PAGE).text
    assert "test: m2" in text
    assert HOSTILE not in text
    for said in ("new language", "5.0% are in fr", "in no current artifact", "Compared with m1", "2 url"):
        assert said in text
    assert "version=m1" in text
    costs = text.partition('<tbody id="costs">')[2].partition("</tbody>")[0]
    assert "0.25" in costs, "a quarter of the first month"
    assert "1.75" in text.partition('<tbody id="regret">')[2].partition("</tbody>")[0]


def test_an_earlier_month_that_ended_early_says_why(get, versions):
    report(versions, "m1", [entry("m1", ended="12 new training tokens")], present=["test/documents@m0"])
    report(versions, "m2", [entry("m1"), entry("m2")])
    text = get(f"{PAGE}&version=m1").text
    assert "This month ended early: 12 new training tokens." in text
    assert "Nothing." in text


def test_a_recipe_without_months_says_how_to_get_one(get, versions):
    answer = get(PAGE)
    assert answer.status_code == 404
    assert "test has no months. Add [cycle] to the recipe, or run <code>sluice month" in answer.text
    assert 'aria-current="page">Months</a>' in answer.text, "it keeps its tabs"
    assert get(f"{PAGE}&version=none").status_code == 404


def test_months_are_a_tab_of_the_recipe(get, versions):
    assert "/sluice/months?recipe=test" in get("/sluice/recipe/test").text
