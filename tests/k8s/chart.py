"""The official chart of Airflow, as far as available, and the documented parameters of controller charts.

Reads the schema and the default values of the chart (version 1.20) from the real test data, adds the keys of 1.21 and
1.22 that k8s/helm uses, and merges the files of k8s/helm over them like Helm. `values_chart` writes a chart of this
schema whose only template prints the values, so that Helm itself merges, validates and renders templates in them. The
chart's own templates are rendered if `SLUICE_AIRFLOW_CHART` names the chart's folder or archive.
"""

import gzip
import json
import re
from functools import cached_property
from pathlib import Path
from typing import Any

import jsonschema
import yaml

Object = dict[str, Any]

RELEASE, NAMESPACE = "airflow", "sluice"


def _check(job: str) -> list[str]:
    quiet = "CONNECTION_CHECK_MAX_COUNT=0 AIRFLOW__LOGGING__LOGGING_LEVEL=ERROR"
    return ["sh", "-c", f"{quiet} exec /entrypoint \\\nairflow jobs check {job}\n"]


CONTAINERS: dict[str, dict[str, list[Any]]] = {
    "migrate-database": {"args": ["bash", "-c", "exec \\\nairflow db migrate"], "probes": []},
    "wait-for-migrations": {"args": ["airflow", "db", "check-migrations", "--migration-wait-timeout=60"], "probes": []},
    "api-server": {"args": ["bash", "-c", "exec airflow api-server"], "probes": []},
    "scheduler": {
        "args": ["bash", "-c", "exec airflow scheduler"],
        "probes": [_check("--job-type SchedulerJob --local")],
    },
    "dag-processor": {
        "args": ["bash", "-c", "exec airflow dag-processor"],
        "probes": [_check("--local --job-type DagProcessorJob")],
    },
    "triggerer": {
        "args": ["bash", "-c", "exec airflow triggerer"],
        "probes": [_check("--job-type TriggererJob --local")],
    },
    "airflow-cleanup-pods": {
        "args": ["bash", "-c", "exec airflow kubernetes cleanup-pods --namespace={{ .Release.Namespace }}"],
        "probes": [],
    },
}
"""Arguments and probes of the containers of Airflow's image in chart 1.22, as it renders them for Airflow 3."""

KEYS_OF = {
    "migrate-database": "migrateDatabaseJob",
    "api-server": "apiServer",
    "scheduler": "scheduler",
    "dag-processor": "dagProcessor",
    "triggerer": "triggerer",
    "airflow-cleanup-pods": "cleanup",
}
"""Container -> key of its component in the chart's values; the init container for migrations has none."""


def commands(values: Object) -> dict[str, dict[str, list[Any]]]:
    """Returns `CONTAINERS` with the arguments and probes that `values` set."""
    found = {}
    for name, one in CONTAINERS.items():
        own = values.get(KEYS_OF.get(name, ""), {})
        args = [word.replace("{{ .Release.Namespace }}", NAMESPACE) for word in own.get("args") or one["args"]]
        probe = own.get("livenessProbe", {}).get("command")
        found[name] = {"args": args, "probes": [probe] if probe else one["probes"]}
    return found


# Components that the chart enables by the version of Airflow and not by `enabled`: absent from 3 on.
_BEFORE_3 = {"webserver"}

# The last lines replace helpers of the chart that its default values call.
_SHOWN = """
{{- range $name, $one := .Values }}
{{- if and (kindIs "map" $one) (hasKey $one "args") }}
---
args: {{ tpl (toYaml $one.args) $ | nindent 2 }}
{{- end }}
{{- end }}
---
airflow_local_settings.py: {{ tpl .Values.airflowLocalSettings . | quote }}
---
envFrom: {{ tpl .Values.extraEnvFrom . | nindent 2 }}
---
config: {{ tpl (toYaml .Values.config) . | nindent 2 }}
{{- define "airflow.fullname" }}airflow{{ end }}
{{- define "airflow_dags" }}/opt/airflow/dags{{ end }}
{{- define "airflow_pod_template_file" }}/opt/airflow/pod_templates{{ end }}
{{- define "dag_bundle_config_list" }}[]{{ end }}
{{- define "cpu_count" }}1{{ end }}
"""


_BOOLEAN: Object = {"type": "boolean"}
NEWER: dict[str, Object] = {
    "enableServiceLinks": _BOOLEAN,
    "dags.gitSync.recommendedProbeSetting": _BOOLEAN,
    "workers.kubernetes.serviceAccount": {
        "type": "object",
        "additionalProperties": False,
        "properties": {"create": _BOOLEAN, "name": {"type": "string"}, "annotations": {"type": "object"}},
    },
}
"""Keys of 1.21 and 1.22, by their release notes: path -> schema."""

DEPRECATED = ("workers.serviceAccount", "webserver")
"""Keys that 1.21 and 1.22 warn of, and whose schema does not say so."""

WARNED_UNLESS_SET = ("enableServiceLinks", "dags.gitSync.recommendedProbeSetting")
"""Keys whose default values 1.22 warns of."""


class AirflowChart:
    """The schema and the default values of the chart.

    Args:
        shared_data: folder of the real test data.
    """

    def __init__(self, shared_data: Path) -> None:
        [self._schema] = (shared_data / "helm").glob("airflow-*.values.schema.json.gz")
        [self._defaults] = (shared_data / "helm").glob("airflow-*.values.yaml.gz")

    @cached_property
    def schema(self) -> Object:
        """Returns the JSON schema of the values."""
        found: Object = json.loads(gzip.decompress(self._schema.read_bytes()))
        for path, schema in NEWER.items():
            *above, last = path.split(".")
            inside = found["properties"]
            for key in above:
                inside = inside[key]["properties"]
            assert last not in inside, f"{path} is in this schema: remove it from NEWER"
            inside[last] = schema
        return found

    @cached_property
    def defaults(self) -> Object:
        """Returns the default values."""
        found: Object = yaml.safe_load(gzip.decompress(self._defaults.read_bytes()))
        return found

    def errors(self, values: Object) -> list[str]:
        """Returns the schema errors of `values` merged over the defaults, with paths."""
        found = jsonschema.Draft7Validator(self.schema).iter_errors(merged(self.defaults, values))
        return [f"{'.'.join(map(str, error.path))}: {error.message}" for error in found]

    def unknown(self, values: Object) -> list[str]:
        """Returns the paths in `values` that are neither in the chart's schema nor in its defaults."""
        return list(_unknown(values, self.schema, self.defaults, ""))

    def deprecated(self, values: Object) -> list[str]:
        """Returns the paths of which the chart warns: those in `values`, and those that `values` leave out."""
        absent = [path for path in WARNED_UNLESS_SET if _at(values, path) is None]
        return [*_deprecated(values, self.schema, ""), *(path for path in DEPRECATED if _at(values, path)), *absent]

    def accounts(self, values: Object) -> dict[str, str]:
        """Returns the service accounts that the chart creates for `values`: component -> name."""
        whole = merged(self.defaults, values)
        return {
            component: account["name"] or f"{RELEASE}-{_kebab(component)}"
            for component, account in _accounts(whole)
            if account["create"]
        }

    def accounts_of_others(self, values: Object) -> dict[str, str | None]:
        """Returns the service accounts that components use and the chart does not create: component -> name."""
        whole = merged(self.defaults, values)
        return {component: account["name"] for component, account in _accounts(whole) if not account["create"]}

    def values_chart(self, folder: Path) -> Path:
        """Writes a chart with this schema and these defaults whose template prints the templated values."""
        (folder / "templates").mkdir(parents=True)
        about = {"apiVersion": "v2", "name": RELEASE, "version": "1.20.0", "appVersion": whole_version(self.defaults)}
        (folder / "Chart.yaml").write_text(yaml.safe_dump(about))
        (folder / "values.yaml").write_bytes(gzip.decompress(self._defaults.read_bytes()))
        (folder / "values.schema.json").write_text(json.dumps(self.schema))
        (folder / "templates" / "shown.yaml").write_text(_SHOWN)
        return folder


def whole_version(values: Object) -> str:
    """Returns the version of Airflow in values."""
    return str(values["airflowVersion"])


def merged(base: Object, over: Object) -> Object:
    """Merges values like Helm: objects by key, lists as a whole, null removes a key."""
    found = dict(base)
    for key, value in over.items():
        if value is None:
            found.pop(key, None)
        elif isinstance(value, dict) and isinstance(found.get(key), dict):
            found[key] = merged(found[key], value)
        else:
            found[key] = value
    return found


def _accounts(whole: Object) -> list[tuple[str, Object]]:
    found = {
        name: one["serviceAccount"]
        for name, one in whole.items()
        if isinstance(one, dict) and "serviceAccount" in one and one.get("enabled", True) and name not in _BEFORE_3
    }
    # From 1.22 on this replaces the older key if it is set, also for the decision whether to create an account.
    if own := _at(whole, "workers.kubernetes.serviceAccount"):
        found["workers"] = own
    return list(found.items())


def _at(values: Any, path: str) -> Any:
    """Returns the value at a path; None if there is none."""
    for key in path.split("."):
        values = values.get(key) if isinstance(values, dict) else None
    return values


def _deprecated(values: Any, schema: Object, at: str) -> list[str]:
    known = schema.get("properties", {})
    found = []
    for key, value in values.items() if isinstance(values, dict) else ():
        if "deprecated" in str(known.get(key, {}).get("description", "")).lower():
            found.append(f"{at}{key}")
        elif isinstance(value, dict):
            found += _deprecated(value, known.get(key, {}), f"{at}{key}.")
    return found


def _kebab(component: str) -> str:
    plain = component.removesuffix("s") if component == "workers" else component
    return re.sub(r"(?<!^)(?=[A-Z])", "-", plain).lower()


def _unknown(values: Any, schema: Object, defaults: Any, at: str) -> list[str]:
    # The chart allows `additionalProperties` in many places, so a misspelled key would be accepted and ignored.
    if not isinstance(values, dict) or not schema.get("properties"):
        return []
    known = schema["properties"]
    inside = defaults if isinstance(defaults, dict) else {}
    return [
        path
        for key, value in values.items()
        for path in (
            _unknown(value, known.get(key, {}), inside.get(key), f"{at}{key}.")
            if key in known or key in inside
            else [f"{at}{key}"]
        )
    ]


FREE = None
"""A value that the chart passes on as it is, or whose content has a check of its own."""

CONTROLLERS: dict[str, Any] = {
    "kueue.yaml": {
        "enablePrometheus": FREE,
        "enableCertManager": FREE,
        "controllerManager": {
            **{key: FREE for key in ("featureGates", "manager", "replicas", "nodeSelector", "tolerations")},
            "podDisruptionBudget": {"enabled": FREE, "minAvailable": FREE},
        },
        "managerConfig": {"controllerManagerConfigYaml": FREE},
    },
    "jobset.yaml": {
        "image": FREE,
        "controller": {
            **{key: FREE for key in ("replicas", "leaderElection", "resources", "securityContext", "env")},
            **{key: FREE for key in ("podSecurityContext", "nodeSelector", "affinity", "tolerations")},
        },
        "certManager": {"enable": FREE},
        "prometheus": {"enable": FREE},
    },
    "dask-operator.yaml": {
        "image": {"name": FREE, "tag": FREE, "pullPolicy": FREE},
        "rbac": {"create": FREE, "cluster": FREE},
        "serviceAccount": {"create": FREE, "annotations": FREE, "name": FREE},
        **{key: FREE for key in ("podSecurityContext", "securityContext", "resources", "volumes", "volumeMounts")},
        **{key: FREE for key in ("kopfArgs", "nodeSelector", "tolerations", "affinity", "metrics")},
        "workerAllocation": {"size": FREE, "delay": FREE},
    },
}
"""From the default values of the charts of Kueue, JobSet and the Dask operator, whose schemas are not at hand."""


def undocumented(values: Any, known: Any, at: str = "") -> list[str]:
    """Returns the paths in `values` that a chart does not document."""
    if known is FREE or not isinstance(values, dict):
        return []
    return [
        path
        for key, value in values.items()
        for path in ([f"{at}{key}"] if key not in known else undocumented(value, known[key], f"{at}{key}."))
    ]
