"""Settings for an external cluster: every `SLUICE_TEST_*` variable, read in one place.

README.md in this folder describes them for people.
"""

import json
import os
from dataclasses import dataclass, field
from pathlib import Path

PREFIX = "SLUICE_TEST_"


def given(name: str, default: str = "") -> str:
    """The value of `SLUICE_TEST_<name>`."""
    return os.environ.get(PREFIX + name, default).strip()


def _pod_env() -> dict[str, str]:
    env: dict[str, str] = json.loads(given("POD_ENV", "{}"))
    if python := given("PYTHON"):
        env = {"PATH": f"{Path(python).parent}:/usr/local/bin:/usr/bin:/bin", **env}
    return env


@dataclass(frozen=True)
class Settings:
    """The settings of the cluster of KUBECONFIG."""

    kube_config: str = field(default_factory=lambda: os.environ.get("KUBECONFIG", ""))
    namespace: str = field(default_factory=lambda: given("NAMESPACE"))
    image: str = field(default_factory=lambda: given("IMAGE"))
    store: str = field(default_factory=lambda: given("STORE"))
    template: str = field(default_factory=lambda: given("POD_TEMPLATE"))
    volumes: tuple[str, ...] = field(default_factory=lambda: tuple(one for one in given("VOLUMES").split(",") if one))
    host_network: bool = field(default_factory=lambda: given("HOST_NETWORK") in ("1", "yes", "true"))
    pod_env: dict[str, str] = field(default_factory=_pod_env)
    nodes: tuple[str, ...] = field(default_factory=lambda: tuple(one for one in given("NODES").split(",") if one))
    gpus: int = field(default_factory=lambda: int(given("GPUS", "1")))
    queue: str = field(default_factory=lambda: given("QUEUE"))
    dask_service: str = field(default_factory=lambda: given("DASK_SERVICE"))
    stop_kubelet: str = field(default_factory=lambda: given("STOP_KUBELET"))
    start_kubelet: str = field(default_factory=lambda: given("START_KUBELET"))
    lose_node: str = field(default_factory=lambda: given("LOSE_NODE"))
    return_node: str = field(default_factory=lambda: given("RETURN_NODE"))
    slowness: float = field(default_factory=lambda: float(given("SLOWNESS", "3")))
