"""The DAG that removes files of old versions: only recipes with a policy have it, and only `remove` removes."""

from tasks.core.store import Store
from tests.airflow_home import states


def test_the_policy_of_a_recipe_is_applied_by_its_own_dag(recipes, dag_bag, documents, tmp_path):
    policy = "\n[place.retention]\nversions = 1\ngrace_days = 0\n"
    recipes("kept", policy)
    recipes("bounded", f'{policy}remove = true\nschedule = "0 4 * * 0"\n')
    recipes("forever")
    store = Store(str(tmp_path / "store"))
    for recipe in ("kept", "bounded"):
        for version in ("1", "2"):
            documents(recipe, version)
    bag = dag_bag().dags
    assert "forever.retention" not in bag
    assert (bag["kept.retention"].schedule, bag["bounded.retention"].schedule) == (None, "0 4 * * 0")
    for recipe in ("kept", "bounded"):
        assert states(bag[f"{recipe}.retention"].test()) == {"retention": "success"}
    assert not [path for path in store.list("kept") if path.endswith(".removed.json")]
    removed = [path for path in store.list("bounded") if path.endswith(".removed.json")]
    assert removed == ["bounded/documents/1/.removed.json"]
