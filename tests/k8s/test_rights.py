"""Rights in Kubernetes: exactly those that the Airflow operators need."""

import importlib
import pkgutil

import pytest

import operators

DASK = "kubernetes.dask.org"
GANGS = {("jobset.x-k8s.io", "jobsets"), ("trainer.kubeflow.org", "trainjobs")}
CREATED = {("", "pods"), *GANGS, (DASK, "daskclusters"), (DASK, "daskautoscalers")}
WATCHED = {"get", "list"}


def kinds_that_operators_use():
    """Returns every kind of object in the modules of operators/, as (API group, plural)."""
    return kinds_in(module.name for module in pkgutil.walk_packages(operators.__path__, "operators."))


def kinds_that_triggers_use():
    """As above, for the modules that run in the triggerer."""
    return kinds_in(f"operators.{name}" for name in ("pods.trigger", "pods.pending", "pods.logs", "jobsets.trigger"))


def kinds_in(modules):
    from operators.pods.api import Kind

    found = set()
    for module in modules:
        for value in vars(importlib.import_module(module)).values():
            if isinstance(value, Kind):
                group = value.base.removeprefix("/apis/").split("/")[0] if value.base.startswith("/apis/") else ""
                found.add((group, value.plural))
    return found


def rights(objects, account, namespace):
    """Returns the rights of an account in a namespace: (API group, resource) -> verbs."""
    roles = {(one["kind"], one["metadata"].get("namespace"), one["metadata"]["name"]): one for one in objects}
    bindings = [
        one
        for one in objects
        if one["kind"] in ("RoleBinding", "ClusterRoleBinding")
        and one["metadata"].get("namespace") in (namespace, None)
        and (account, "sluice") in {(who["name"], who["namespace"]) for who in one["subjects"]}
    ]
    allowed = {}
    for binding in bindings:
        role = roles[binding["roleRef"]["kind"], binding["metadata"].get("namespace"), binding["roleRef"]["name"]]
        for rule in role["rules"]:
            for name in ((group, resource) for group in rule["apiGroups"] for resource in rule["resources"]):
                allowed.setdefault(name, set()).update(rule["verbs"])
    return allowed


def test_a_task_pod_that_starts_work_has_the_rights_of_its_operators(rendered):
    allowed = rights(rendered("base"), "airflow-worker", "sluice-work")
    for kind in kinds_that_operators_use():
        assert allowed.get(kind, set()) >= WATCHED, kind
    for kind in CREATED:
        assert allowed[kind] >= {"create", "get", "list", "watch", "delete"}, kind
    # The log reader records its position in the pod.
    assert "patch" in allowed["", "pods"]
    assert allowed["", "pods/log"] == {"get"}


def test_the_triggerer_may_watch_and_delete_but_not_create(rendered):
    allowed = rights(rendered("base"), "airflow-triggerer", "sluice-work")
    for kind in kinds_that_triggers_use():
        assert allowed.get(kind, set()) >= WATCHED, kind
    for kind in (("", "pods"), *GANGS):
        assert allowed[kind] >= {"get", "list", "watch", "delete"}, kind
    assert "patch" in allowed["", "pods"], "the log reader notes in the pod how far it has read"
    assert allowed["", "pods/log"] == {"get"}
    assert not any("create" in verbs for verbs in allowed.values())
    assert not any(group == DASK for group, _ in allowed)


def test_the_cleanup_may_only_remove_task_pods(rendered):
    base = rendered("base")
    assert rights(base, "airflow-cleanup", "sluice") == {("", "pods"): {"list", "delete"}}
    assert rights(base, "airflow-cleanup", "sluice-work") == {}


def test_a_scheduler_may_run_task_pods_but_not_touch_their_work(rendered):
    base = rendered("base")
    assert rights(base, "airflow-scheduler", "sluice")["", "pods"] == {
        *("create", "get", "list", "watch", "patch", "delete")
    }
    assert rights(base, "airflow-scheduler", "sluice-work") == {}


def test_task_pods_and_triggerer_have_no_rights_in_airflows_namespace(rendered):
    for account in ("airflow-worker", "airflow-triggerer"):
        assert set(rights(rendered("base"), account, "sluice")) == {("", "nodes")}


@pytest.mark.parametrize(
    "account",
    ["airflow-task", "airflow-crawler", "airflow-dag-processor", "airflow-migrate", "airflow-statsd", "mlflow"],
)
def test_accounts_without_rights_have_no_token(account, rendered):
    base = rendered("base")
    assert rights(base, account, "sluice") == rights(base, account, "sluice-work") == {}
    [found] = [one for one in base if one["kind"] == "ServiceAccount" and one["metadata"]["name"] == account]
    assert found["automountServiceAccountToken"] is False


def test_trainers_and_dask_have_no_right_and_no_token(rendered):
    base = rendered("base")
    bound = {who["name"] for one in base if one["kind"].endswith("RoleBinding") for who in one["subjects"]}
    accounts = {
        one["metadata"]["name"]: one["automountServiceAccountToken"]
        for one in base
        if one["kind"] == "ServiceAccount" and one["metadata"]["namespace"] == "sluice-work"
    }
    assert accounts == {"trainer": False, "dask": False}
    assert not bound & set(accounts)


def test_no_rule_is_a_wildcard_and_none_allows_exec_secrets_or_roles(rendered):
    for folder in ("base", "overlays/kind", "overlays/eks"):
        for one in rendered(folder):
            for rule in one.get("rules", []) if one["kind"] in ("Role", "ClusterRole") else []:
                every = [*rule["apiGroups"], *rule["resources"], *rule["verbs"]]
                assert "*" not in every
                assert not {"pods/exec", "pods/attach", "pods/portforward", "secrets", "roles"} & set(rule["resources"])
                if one["kind"] == "ClusterRole":
                    assert set(rule["verbs"]) <= {"get", "list", "watch"}
