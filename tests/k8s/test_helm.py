"""Values for the charts: valid by their schemas and for Helm, existing settings of Airflow, nothing unpinned."""

import configparser
import importlib
import json
import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
import yaml

from tasks.demo.supervise import IMPORTS, operators_of_dags
from tests.k8s.chart import CONTAINERS, CONTROLLERS, KEYS_OF, NAMESPACE, RELEASE, commands, merged, undocumented
from tests.k8s.conftest import K8S
from tests.k8s.definitions import built_in
from tests.k8s.render import containers, pod_of

AIRFLOW = ("airflow.yaml", "airflow-kind.yaml", "airflow-eks.yaml", "airflow-git-sync.yaml")
# As passed to Helm in docs/kubernetes.md and kind.sh.
INSTALLED = {
    "kind": ("airflow.yaml", "airflow-kind.yaml"),
    "eks": ("airflow.yaml", "airflow-eks.yaml"),
    "eks-git": ("airflow.yaml", "airflow-eks.yaml", "airflow-git-sync.yaml"),
}
COMPONENTS = ("scheduler", "apiServer", "dagProcessor", "triggerer", "migrateDatabaseJob", "statsd", "cleanup")


@pytest.fixture(params=INSTALLED)
def installed(request, values):
    """The values of one installation of Airflow, merged like Helm."""
    found = {}
    for name in INSTALLED[request.param]:
        found = merged(found, values(name))
    return found


def test_the_schema_of_the_chart_accepts_the_values(installed, chart):
    assert chart.errors(installed) == []


@pytest.mark.parametrize("name", AIRFLOW)
def test_every_key_is_one_that_the_chart_has(name, values, chart):
    assert chart.unknown(values(name)) == []


def test_misspelled_and_outdated_keys_are_found(chart):
    assert chart.unknown({"scheduler": {"podDisruptionbudget": {}}}) == ["scheduler.podDisruptionbudget"]
    [error] = chart.errors({"enableBuiltInSecretEnvVars": {"AIRFLOW__CORE__SQL_ALCHEMY_CONN": False}})
    assert "AIRFLOW__CORE__SQL_ALCHEMY_CONN" in error


def test_no_key_is_one_that_the_chart_warns_of(installed, chart):
    assert chart.deprecated(installed) == []


def test_deprecated_keys_are_found(chart):
    old = {
        "workers": {"serviceAccount": {"create": False}, "replicas": 2},
        "webserver": {"defaultUser": {"enabled": False}},
        "scheduler": {"securityContext": {"runAsUser": 1}},
    }
    assert set(chart.deprecated(old)) == {
        *("workers.serviceAccount", "workers.replicas", "webserver", "webserver.defaultUser"),
        *("scheduler.securityContext", "enableServiceLinks", "dags.gitSync.recommendedProbeSetting"),
    }


@pytest.mark.parametrize("container", KEYS_OF)
def test_images_are_tested_with_the_commands_of_the_chart(container, chart):
    assert chart.defaults[KEYS_OF[container]]["args"] == CONTAINERS[container]["args"]


def test_helm_accepts_the_values_and_renders_their_templates(installed, chart, tmp_path):
    helm = pytest.importorskip("helm_python", reason="helm_python is not installed: pip install helm-python-sdk")
    with helm.Chart.load(chart.values_chart(tmp_path / "airflow")) as made:
        made.validate_schema(installed)
        [text] = made.render(installed, name=RELEASE, namespace=NAMESPACE).values()
    shown = {key: value for one in yaml.safe_load_all(text) if one for key, value in one.items()}
    assert {one["configMapRef"]["name"] for one in shown["envFrom"] if "configMapRef" in one} == {"sluice-settings"}
    assert shown["config"]["kubernetes_executor"]["pod_template_file"].startswith("/opt/airflow/k8s/pods/executor")
    compile(shown["airflow_local_settings.py"], "airflow_local_settings.py", "exec")


def test_the_chart_creates_no_account_of_the_base(installed, chart, rendered):
    there = {one["metadata"]["name"] for one in rendered("base") if one["kind"] == "ServiceAccount"}
    assert set(chart.accounts(installed).values()) & there == set()
    used = chart.accounts_of_others(installed)
    assert set(used.values()) <= there
    assert set(used) >= {"workers", "scheduler", "triggerer", "apiServer", "dagProcessor", "migrateDatabaseJob"}


def test_an_account_with_two_owners_is_found(chart):
    assert chart.accounts({"executor": "KubernetesExecutor"})["workers"] == "airflow-worker"


@pytest.fixture
def whole_chart(installed):
    """The objects rendered by the official chart; skips without a chart."""
    helm = pytest.importorskip("helm_python", reason="helm_python is not installed: pip install helm-python-sdk")
    if "SLUICE_AIRFLOW_CHART" not in os.environ:
        pytest.skip("no chart: set SLUICE_AIRFLOW_CHART to the folder or archive of Airflow's chart")
    with helm.Chart.load(os.environ["SLUICE_AIRFLOW_CHART"]) as made:
        made.validate_schema(installed)
        texts = made.render(installed, name=RELEASE, namespace=NAMESPACE)
    warnings = [text for name, text in texts.items() if name.endswith("NOTES.txt") and "WARNING" in text]
    assert warnings == []
    return [
        one for name, text in texts.items() if not name.endswith("NOTES.txt") for one in yaml.safe_load_all(text) if one
    ]


def test_no_object_of_the_chart_is_one_of_the_base(whole_chart, rendered):
    def named(objects):
        return {(one["kind"], one["metadata"].get("namespace", NAMESPACE), one["metadata"]["name"]) for one in objects}

    assert len(whole_chart) > 10
    assert named(whole_chart) & named(rendered("base")) == set()


def test_every_object_of_the_chart_is_valid_and_its_pods_are_locked_down(whole_chart, rendered):
    accounts = {one["metadata"]["name"] for one in rendered("base") if one["kind"] == "ServiceAccount"}
    for one in whole_chart:
        name = f"{one['kind']} {one['metadata']['name']}"
        assert built_in(one) == [], name
        if spec := pod_of(one):
            assert spec["serviceAccountName"] in accounts, name
            assert spec["securityContext"]["runAsNonRoot"] is True, name
            for container in containers(spec):
                assert container["securityContext"]["readOnlyRootFilesystem"] is True, name
                assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}, name


def test_the_commands_and_probes_of_the_chart_are_those_that_the_image_is_tested_with(whole_chart, installed):
    rendered = {}
    for one in whole_chart:
        spec = one["spec"]["jobTemplate"]["spec"]["template"]["spec"] if one["kind"] == "CronJob" else pod_of(one)
        for container in containers(spec) if spec else ():
            probes = [container[kind]["exec"]["command"] for kind in ("livenessProbe", "startupProbe")
                      if "exec" in container.get(kind, {})]  # fmt: skip
            rendered[container["name"]] = (container.get("args"), probes)
    names = {"migrate-database": "run-airflow-migrations", "wait-for-migrations": "wait-for-airflow-migrations"}
    for name, expected in commands(installed).items():
        args, probes = rendered[names.get(name, name)]
        assert args == expected["args"], name
        assert [probe for probe in probes if probe not in expected["probes"]] == [], name


@pytest.mark.parametrize("name", [*CONTROLLERS, "dask-operator-eks.yaml"])
def test_every_controller_key_is_documented_by_its_chart(name, values):
    assert undocumented(values(name), CONTROLLERS[name.replace("-eks", "")]) == []


@cache
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
def test_every_setting_exists_in_airflow_or_a_provider(name, values):
    set_here = {(section, option) for section, found in values(name).get("config", {}).items() for option in found}
    assert set_here - options() == set()


# Differences on a cluster, with reasons.
OTHERWISE = {
    ("core", "executor"),  # a pod per task
    ("core", "parallelism"),  # limited by pods and not by the cores of one machine
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


def test_the_values_have_no_password_key_or_connection(values):
    for name in AIRFLOW:
        found = values(name)
        for key in ("fernetKey", "apiSecretKey", "jwtSecret", "webserverSecretKey"):
            assert key not in found
        assert "metadataConnection" not in found.get("data", {})
    base = values("airflow.yaml")
    assert base["createUserJob"] == {"enabled": False}
    assert base["postgresql"]["enabled"] is base["redis"]["enabled"] is False


def test_the_chart_takes_its_accounts_from_the_base_and_makes_no_roles(values, rendered):
    base = values("airflow.yaml")
    there = {one["metadata"]["name"] for one in rendered("base") if one["kind"] == "ServiceAccount"}
    assert base["rbac"] == {"create": False}
    for component in (*(base[name] for name in COMPONENTS), base["workers"]["kubernetes"]):
        account = component["serviceAccount"]
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
        if component not in ("statsd", "migrateDatabaseJob", "cleanup"):
            assert found["waitForMigrations"]["securityContexts"]["container"] == container


def test_airflow_keys_are_files_and_not_environment_variables(installed):
    """Each key is disabled as a variable, and its command reads an existing file of the volume."""
    [volume] = [one for one in installed["volumes"] if one["name"] == "keys"]
    [mount] = [one for one in installed["volumeMounts"] if one["name"] == "keys"]
    files = {
        f"{mount['mountPath']}/{item['path']}": source["secret"]["name"]
        for source in volume["projected"]["sources"]
        for item in source["secret"]["items"]
    }
    commands = {one["name"]: one["value"].removeprefix("cat ") for one in installed["env"] if "CMD" in one["name"]}
    built_in_names = {name for name in installed["enableBuiltInSecretEnvVars"] if name.startswith("AIRFLOW__")}
    assert {f"{name}_CMD" for name in built_in_names if "WEBSERVER" not in name} == set(commands)
    assert not any(installed["enableBuiltInSecretEnvVars"].values())
    assert {path: files[path] for path in commands.values()} == files
    names = [installed[f"{key}SecretName"] for key in ("fernetKey", "apiSecretKey")]
    assert {*names, installed["jwtSecretName"], installed["data"]["metadataSecretName"]} == set(files.values())
    assert mount["readOnly"] is True


STARTED = """
import json
from airflow import settings
from airflow.configuration import conf
from kubernetes.client import models as k8s

def account(task_id):
    pod = k8s.V1Pod(metadata=k8s.V1ObjectMeta(labels={"task_id": task_id}), spec=k8s.V1PodSpec(containers=[]))
    settings.pod_mutation_hook(pod)
    return pod.spec.service_account_name

keys = [conf.get(*one) for one in ASKED]
print(json.dumps({"keys": keys, "accounts": [account(one) for one in ("fetch", "render", "extract")]}))
"""


def test_airflow_takes_its_keys_from_files_and_the_crawlers_account_from_its_local_settings(values, tmp_path):
    """A process of the real Airflow, with the values' environment and local settings, and files as volumes."""
    chart = values("airflow.yaml")
    given = {one["name"]: one["value"] for one in chart["env"]}
    environment = {name: value.replace("/run/secrets/airflow", str(tmp_path)) for name, value in given.items()}
    contents = [f"sqlite:///{value.removeprefix('cat ')}.db" for value in environment.values()]
    for value, content in zip(environment.values(), contents, strict=True):
        Path(value.removeprefix("cat ")).write_text(content)
    # The mount path of the chart.
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "airflow_local_settings.py").write_text(chart["airflowLocalSettings"])
    asked = [name.removesuffix("_CMD").removeprefix("AIRFLOW__").lower().split("__") for name in environment]
    plain = {name: value for name, value in os.environ.items() if f"{name}_CMD" not in environment}
    done = subprocess.run(
        [sys.executable, "-c", STARTED.replace("ASKED", str(asked))],
        env={**plain, **environment, "AIRFLOW_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    found = json.loads(done.stdout.splitlines()[-1])
    assert found == {"keys": contents, "accounts": ["airflow-crawler", "airflow-crawler", None]}


def test_pods_of_failed_tasks_are_deleted_after_an_hour_by_an_airflow_command(values):
    from airflow.cli.cli_parser import get_parser

    found = values("airflow.yaml")
    assert found["config"]["kubernetes_executor"]["delete_worker_pods_on_failure"] == "False"
    assert found["cleanup"]["enabled"] is True
    name, *arguments = [one.replace("{{ .Release.Namespace }}", NAMESPACE) for one in found["cleanup"]["args"]]
    read = get_parser().parse_args(arguments)
    assert (name, read.namespace) == ("airflow", NAMESPACE)
    assert read.min_completed_minutes == 60
    assert read.min_pending_minutes >= 24 * 60, "a task pod may wait for a node"
    assert found["cleanup"]["schedule"] == "*/15 * * * *"


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


def test_every_referenced_secret_is_created_on_kind(values, rendered, templates):
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


def test_versions_are_stated_once(values):
    versions = dict(
        line.split("=") for line in (K8S / "versions.env").read_text().splitlines() if line and not line.startswith("#")
    )
    assert values("airflow.yaml")["images"]["airflow"]["tag"] == versions["SLUICE_IMAGES"]
    assert values("airflow.yaml")["defaultAirflowTag"] == versions["SLUICE_IMAGES"]
    assert values("dask-operator.yaml")["image"]["tag"] == versions["DASK_OPERATOR_CHART"]
    pins = dict(line.split("==") for line in (K8S.parent / "requirements.txt").read_text().splitlines() if "==" in line)
    assert values("airflow.yaml")["airflowVersion"] == pins["apache-airflow"]


def test_on_eks_images_of_others_are_the_same_versions_by_digest(values):
    """Here with digests of zeros, as for the images of this repository: each installation writes its own."""
    pairs = [
        (values("airflow.yaml")["images"]["statsd"]["tag"], values("airflow-eks.yaml")["images"]["statsd"]["tag"]),
        (values("dask-operator.yaml")["image"]["tag"], values("dask-operator-eks.yaml")["image"]["tag"]),
    ]
    for version, pinned in pairs:
        assert re.fullmatch(rf"{re.escape(version)}@sha256:[0-9a-f]{{64}}", pinned)


def test_the_dask_operator_has_rights_only_in_its_own_namespace(values):
    found = values("dask-operator.yaml")
    assert found["rbac"] == {"create": True, "cluster": False}
    assert found["kopfArgs"] == ["--namespace=sluice-work"]


def test_the_dag_processor_imports_what_the_dag_files_import(values):
    (given,) = values("airflow.yaml")["dagProcessor"]["env"]
    assert (given["name"], given["value"].split()) == (IMPORTS, operators_of_dags())
