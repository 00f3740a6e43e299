"""Values for the charts: documented keys, settings that Airflow has, accounts and secrets by name, nothing unpinned."""

import configparser
import importlib
import re

import pytest
import yaml

from tests.k8s.chart import CONTROLLERS, undocumented
from tests.k8s.conftest import K8S
from tests.k8s.render import containers

AIRFLOW = ("airflow.yaml", "airflow-kind.yaml", "airflow-eks.yaml", "airflow-git-sync.yaml")
COMPONENTS = ("scheduler", "apiServer", "dagProcessor", "triggerer", "migrateDatabaseJob", "statsd")


@pytest.mark.parametrize("name", AIRFLOW)
def test_every_key_is_one_that_the_chart_documents(name, values):
    assert undocumented(values(name)) == []


@pytest.mark.parametrize("name", CONTROLLERS)
def test_every_key_for_a_controller_is_one_that_its_chart_documents(name, values):
    assert undocumented(values(name), CONTROLLERS[name]) == []


def test_a_misspelt_key_would_be_found():
    assert undocumented({"scheduler": {"podDisruptionbudget": {}}}) == ["scheduler.podDisruptionbudget"]


def options():
    """Returns every (section, option) of the installed Airflow and of the providers in the image."""
    import airflow

    core = yaml.safe_load((K8S.parent / airflow.__path__[0] / "config_templates" / "config.yml").read_text())
    sections = list(core.items())
    for provider in ("cncf.kubernetes", "common.io", "amazon"):
        info = importlib.import_module(f"airflow.providers.{provider}.get_provider_info").get_provider_info()
        sections += info.get("config", {}).items()
    return {(section, option) for section, found in sections for option in found["options"]}


@pytest.mark.parametrize("name", AIRFLOW)
def test_every_setting_is_one_that_airflow_or_a_provider_has(name, values):
    set_here = {(section, option) for section, found in values(name).get("config", {}).items() for option in found}
    assert set_here - options() == set()


# What is otherwise on a cluster, and why.
OTHERWISE = {
    ("core", "executor"),  # a pod per task
    ("core", "parallelism"),  # pods and not the cores of one machine bound it
}


def test_the_cluster_runs_with_the_settings_of_airflow_cfg(values):
    read = configparser.RawConfigParser()
    read.read(K8S.parent / "airflow.cfg")
    chart = values("airflow.yaml")["config"]
    here = {(section, option): read[section][option] for section in read.sections() for option in read[section]}
    differ = {
        name: (value, chart.get(name[0], {}).get(name[1]))
        for name, value in here.items()
        if name in options() and str(chart.get(name[0], {}).get(name[1])) != value
    }
    assert set(differ) == OTHERWISE


def test_no_password_key_or_connection_stands_in_the_values(values):
    for name in AIRFLOW:
        found = values(name)
        for key in ("fernetKey", "apiSecretKey", "jwtSecret", "webserverSecretKey"):
            assert key not in found
        assert "metadataConnection" not in found.get("data", {})
    base = values("airflow.yaml")
    assert base["createUserJob"] == {"enabled": False}
    assert base["webserver"] == {"defaultUser": {"enabled": False}}
    assert base["postgresql"]["enabled"] is base["redis"]["enabled"] is False


def test_the_chart_takes_its_accounts_from_the_base_and_makes_no_roles(values, rendered):
    base = values("airflow.yaml")
    there = {one["metadata"]["name"] for one in rendered("base") if one["kind"] == "ServiceAccount"}
    assert base["rbac"] == {"create": False}
    for component in COMPONENTS:
        account = base[component]["serviceAccount"]
        assert account["create"] is False
        assert account["name"] in there


def test_every_component_is_sized_and_locked_down(values):
    base = values("airflow.yaml")
    for component in COMPONENTS:
        found = base[component]
        assert {"cpu", "memory"} <= set(found["resources"]["requests"]), component
        assert "memory" in found["resources"]["limits"], component
        assert found["securityContexts"]["pod"]["runAsNonRoot"] is True, component
        assert found["securityContexts"]["pod"]["seccompProfile"] == {"type": "RuntimeDefault"}, component
        container = found["securityContexts"]["container"]
        assert container["readOnlyRootFilesystem"] is True, component
        assert container["capabilities"] == {"drop": ["ALL"]}, component
        if component not in ("statsd", "migrateDatabaseJob"):
            assert found["waitForMigrations"]["securityContexts"]["container"] == container


def test_every_component_has_a_disruption_budget_from_the_chart_or_the_base(values, rendered):
    base = values("airflow.yaml")
    own = {
        one["spec"]["selector"]["matchLabels"]["component"]
        for one in rendered("base")
        if one["kind"] == "PodDisruptionBudget" and "component" in one["spec"]["selector"]["matchLabels"]
    }
    by_chart = {name for name in COMPONENTS if base[name].get("podDisruptionBudget", {}).get("enabled")}
    assert by_chart == {"scheduler", "apiServer"}
    assert {"dag-processor", "triggerer", "statsd"} <= own


def test_every_secret_that_is_asked_for_is_made_for_kind(values, rendered, templates):
    base = values("airflow.yaml")
    asked = {base[f"{key}SecretName"] for key in ("fernetKey", "apiSecretKey")} | {base["jwtSecretName"]}
    asked |= {base["data"]["metadataSecretName"], "airflow-users"}
    for one in rendered("overlays/kind"):
        for container in containers(one["spec"]["template"]["spec"]) if "template" in one.get("spec", {}) else []:
            for entry in container.get("env", []):
                asked |= {entry.get("valueFrom", {}).get("secretKeyRef", {}).get("name")} - {None}
            asked |= {entry["secretRef"]["name"] for entry in container.get("envFrom", []) if "secretRef" in entry}
    script = (K8S / "kind.sh").read_text()
    assert asked == set(re.findall(r"^ +secret sluice ([\w-]+) ", script, re.M))


def test_versions_are_said_once(values):
    versions = dict(
        line.split("=") for line in (K8S / "versions.env").read_text().splitlines() if line and not line.startswith("#")
    )
    assert values("airflow.yaml")["images"]["airflow"]["tag"] == versions["SLUICE_IMAGES"]
    assert values("airflow.yaml")["defaultAirflowTag"] == versions["SLUICE_IMAGES"]
    assert values("dask-operator.yaml")["image"]["tag"] == versions["DASK_OPERATOR_CHART"]
    pins = dict(line.split("==") for line in (K8S.parent / "requirements.txt").read_text().splitlines() if "==" in line)
    assert values("airflow.yaml")["airflowVersion"] == pins["apache-airflow"]


def test_the_dask_operator_holds_rights_in_its_own_namespace_only(values):
    found = values("dask-operator.yaml")
    assert found["rbac"] == {"create": True, "cluster": False}
    assert found["kopfArgs"] == ["--namespace=sluice-work"]
