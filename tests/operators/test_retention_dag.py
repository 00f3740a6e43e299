"""The DAG that removes files of old versions: only recipes with a policy have it, and only `remove` removes."""

import os
import time

from tasks.core.store import Store
from tests.airflow_home import states


def log_of(folder, dag, days):
    """A task's log, to which nothing was added for some days."""
    log = folder / f"dag_id={dag}" / "run_id=1" / "task_id=extract" / "attempt=1.log"
    log.parent.mkdir(parents=True)
    log.write_text("done")
    for path in (log, *log.parents[:2]):
        os.utime(path, (time.time() - days * 86_400,) * 2)
    return log


def test_the_policy_of_a_recipe_is_applied_by_its_own_dag(recipes, dag_bag, documents, tmp_path, monkeypatch):
    monkeypatch.setenv("AIRFLOW__LOGGING__BASE_LOG_FOLDER", str(tmp_path / "logs"))
    ages = {("bounded.corpus", 40): False, ("bounded.tokens", 20): True, ("kept.corpus", 40): True}
    logs = {log_of(tmp_path / "logs", dag, days): stays for (dag, days), stays in ages.items()}
    policy = "\n[place.retention]\nversions = 1\ngrace_days = 0\n"
    recipes("kept", f"{policy}log_days = 30\n")
    recipes("bounded", f'{policy}remove = true\nlog_days = 30\nschedule = "0 4 * * 0"\n')
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
    assert {log: log.exists() for log in logs} == logs
