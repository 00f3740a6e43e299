"""The parameters that the Helm charts document, as far as k8s/helm could use them.

From the parameter reference and the default values of Airflow's chart (1.19; 1.22 is installed), and the default values
of the charts of Kueue, JobSet and the Dask operator. Not checked here: what the templates of the chart make of a value.
"""

from typing import Any

FREE = None
"""A value that the chart passes on as it is, or whose content has a check of its own."""

_CONTEXTS = {"pod": FREE, "container": FREE}
_ACCOUNT = {"create": FREE, "name": FREE, "annotations": FREE, "automountServiceAccountToken": FREE}
_PLACE = {
    **{key: FREE for key in ("nodeSelector", "affinity", "tolerations", "topologySpreadConstraints")},
    **{key: FREE for key in ("priorityClassName", "annotations", "podAnnotations", "labels")},
}
_POD = {
    **_PLACE,
    **{key: FREE for key in ("command", "args", "env", "resources", "extraContainers", "extraInitContainers")},
    **{key: FREE for key in ("extraVolumes", "extraVolumeMounts", "containerLifecycleHooks", "securityContext")},
    "securityContexts": _CONTEXTS,
    "serviceAccount": _ACCOUNT,
}
_PROBE = {key: FREE for key in ("initialDelaySeconds", "timeoutSeconds", "failureThreshold", "periodSeconds")}
_COMPONENT = {
    **_POD,
    **{key: FREE for key in ("enabled", "replicas", "revisionHistoryLimit", "strategy", "hostAliases")},
    **{key: FREE for key in ("terminationGracePeriodSeconds", "safeToEvict", "updateStrategy")},
    "livenessProbe": {**_PROBE, "command": FREE, "scheme": FREE},
    "waitForMigrations": {"enabled": FREE, "env": FREE, "securityContexts": {"container": FREE}},
}
_BUDGET = {"enabled": FREE, "config": {"maxUnavailable": FREE, "minAvailable": FREE}}
_GROOMER = {"enabled": FREE, "retentionDays": FREE, "frequencyMinutes": FREE, "resources": FREE, "command": FREE}
_JOB = {
    **_POD,
    **{key: FREE for key in ("enabled", "ttlSecondsAfterFinished", "jobAnnotations", "restartPolicy")},
    **{key: FREE for key in ("useHelmHooks", "applyCustomEnv")},
}
_IMAGE = {"repository": FREE, "tag": FREE, "pullPolicy": FREE}

DOCUMENTED: dict[str, Any] = {
    **{key: FREE for key in ("executor", "airflowVersion", "airflowHome", "uid", "gid", "env", "secret", "labels")},
    **{key: FREE for key in ("defaultAirflowRepository", "defaultAirflowTag", "defaultAirflowDigest")},
    **{key: FREE for key in ("extraEnv", "extraEnvFrom", "volumes", "volumeMounts", "allowPodLaunching")},
    **{key: FREE for key in ("fernetKey", "apiSecretKey", "jwtSecret", "webserverSecretKey", "config", "podTemplate")},
    **{key: FREE for key in ("fernetKeySecretName", "apiSecretKeySecretName", "jwtSecretName")},
    "images": {
        **{name: _IMAGE for name in ("statsd", "redis", "pgbouncer", "gitSync", "pod_template")},
        "airflow": {**_IMAGE, "digest": FREE},
        "useDefaultImageForMigration": FREE,
        "migrationsWaitTimeout": FREE,
    },
    "rbac": {"create": FREE, "createSCCRoleBinding": FREE},
    "data": {
        "metadataSecretName": FREE,
        "resultBackendSecretName": FREE,
        "brokerUrlSecretName": FREE,
        "metadataConnection": FREE,
    },
    "enableBuiltInSecretEnvVars": {
        **{f"AIRFLOW__CORE__{name}": FREE for name in ("FERNET_KEY", "SQL_ALCHEMY_CONN")},
        **{"AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": FREE, "AIRFLOW_CONN_AIRFLOW_DB": FREE},
        **{"AIRFLOW__API__SECRET_KEY": FREE, "AIRFLOW__API_AUTH__JWT_SECRET": FREE},
        "AIRFLOW__WEBSERVER__SECRET_KEY": FREE,
    },
    "scheduler": {
        **_COMPONENT,
        "startupProbe": {**_PROBE, "command": FREE},
        "podDisruptionBudget": _BUDGET,
        "logGroomerSidecar": _GROOMER,
    },
    "apiServer": {
        **_COMPONENT,
        "startupProbe": {**_PROBE, "scheme": FREE},
        "readinessProbe": {**_PROBE, "scheme": FREE},
        "podDisruptionBudget": _BUDGET,
        **{key: FREE for key in ("service", "hpa", "networkPolicy", "apiServerConfig", "allowPodLogReading")},
    },
    "dagProcessor": {**_COMPONENT, "logGroomerSidecar": _GROOMER},
    "triggerer": {
        **_COMPONENT,
        "logGroomerSidecar": _GROOMER,
        "keda": FREE,
        "persistence": {key: FREE for key in ("enabled", "size", "storageClassName", "fixPermissions")},
    },
    "migrateDatabaseJob": _JOB,
    "createUserJob": _JOB,
    "webserver": {"enabled": FREE, "defaultUser": {"enabled": FREE}},
    "statsd": {
        **_POD,
        **{key: FREE for key in ("enabled", "uid", "service", "extraMappings", "overrideMappings")},
        **{key: FREE for key in ("extraNetworkPolicies", "terminationGracePeriodSeconds", "configMapAnnotations")},
    },
    **{name: {"enabled": FREE} for name in ("postgresql", "redis", "flower", "pgbouncer", "cleanup")},
    "ingress": {"apiServer": FREE, "statsd": FREE},
    "networkPolicies": {"enabled": FREE},
    "dags": {
        "mountPath": FREE,
        "persistence": FREE,
        "gitSync": {
            **{key: FREE for key in ("enabled", "repo", "branch", "rev", "ref", "depth", "maxFailures", "subPath")},
            **{key: FREE for key in ("credentialsSecret", "sshKeySecret", "knownHosts", "period", "wait", "env")},
            **{key: FREE for key in ("containerName", "uid", "envFrom", "resources", "extraVolumeMounts")},
            "securityContexts": {"container": FREE},
        },
    },
    "logs": {"persistence": FREE},
}

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


def undocumented(values: Any, known: Any = DOCUMENTED, at: str = "") -> list[str]:
    """Returns the paths in `values` that a chart does not document."""
    if known is FREE or not isinstance(values, dict):
        return []
    return [
        path
        for key, value in values.items()
        for path in ([f"{at}{key}"] if key not in known else undocumented(value, known[key], f"{at}{key}."))
    ]
