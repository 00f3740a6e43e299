"""k8s/ and the pods of the operators against a real API server with its admission plug-ins, if its binaries exist.

Set KUBEBUILDER_ASSETS to a folder with `etcd` and `kube-apiserver` of Kubernetes 1.30 or newer (`setup-envtest use -p
path` creates one). Custom resources are applied if the CRDs of their projects are available (the real test data):
then the server also checks their CEL rules.
"""

import asyncio
import json
import time

import pytest

from tests.conftest import SHARED_DATA
from tests.k8s.admission import cidr_refusal, limited
from tests.k8s.apiserver import BINARIES, Answered, ApiServer, found_binaries
from tests.k8s.conftest import FOLDERS
from tests.k8s.definitions import definitions_in
from tests.k8s.test_admission import only, policy
from tests.k8s.test_rendered_pods import gang, pod, recipe

__all__ = ["recipe"]

OLDEST = (1, 30)
STRICT_CIDRS = (1, 36)
CUSTOM = ("jobset.x-k8s.io", "kueue.x-k8s.io", "kubernetes.dask.org")
pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """The API server, one for this file."""
    binaries = found_binaries()
    if binaries is None:
        pytest.skip(f"no {' and '.join(BINARIES)}: set KUBEBUILDER_ASSETS to a folder that holds them")
    one = ApiServer(tmp_path_factory.mktemp("apiserver"), binaries)
    version = one.version
    if version < OLDEST:
        one.close()
        pytest.skip(f"kube-apiserver {version} is older than the {OLDEST} that k8s/ is written for")
    for crd in definitions_in(SHARED_DATA / "crds"):
        one.apply(crd)
    yield one
    one.close()


def apply(server, objects):
    """Applies objects in the order of `kubectl apply -k`, namespaces first; returns refusals by name.

    Custom resources without an available CRD are skipped.
    """
    refused = {}
    for one in sorted(objects, key=lambda one: one["kind"] != "Namespace"):
        if one["apiVersion"].startswith(CUSTOM) and not server.serves(one):
            continue
        try:
            server.apply(one)
        except Answered as error:
            refused[f"{one['kind']} {one['metadata']['name']}"] = str(error)
    return refused


@pytest.fixture
def applied(server, rendered):
    """The base, as far as the server has its kinds."""
    apply(server, rendered("base"))


@pytest.mark.parametrize("folder", FOLDERS)
def test_every_object_is_accepted_with_strict_validation(folder, server, rendered):
    assert apply(server, rendered(folder)) == {}


def test_a_field_that_does_not_exist_is_refused(server, applied):
    stray = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "x", "namespace": "sluice"}}
    stray["metadata"]["SLUICE_RECIPES"] = "/opt/airflow/recipes"
    with pytest.raises(Answered, match=r"SLUICE_RECIPES"):
        server.apply(stray)


@pytest.mark.parametrize("text", ["::ffff:0:0/96", "64:ff9b::/96", "10.0.0.1/8", "10.0.0.0/8", "010.0.0.0/8", "::/0"])
def test_a_cidr_is_validated_as_by_the_real_server(server, applied, text):
    if server.version < STRICT_CIDRS:
        pytest.skip(f"CIDRs are validated strictly from Kubernetes {STRICT_CIDRS} on")
    made = policy(text)
    made["metadata"]["namespace"] = "sluice"
    if cidr_refusal(text):
        with pytest.raises(Answered, match="422"):
            server.apply(made)
    else:
        assert server.apply(made)


def account(server, name):
    made = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name, "namespace": "sluice-work"}}
    server.apply(made)


def test_an_operators_pod_passes_admission_and_gets_the_limit_range_defaults(server, applied, recipe, rendered):
    account(server, "trainer")
    body = pod(recipe())[1]
    body["metadata"] |= {"name": f"placed-{time.monotonic_ns()}", "namespace": "sluice-work"}
    body["spec"]["containers"][0]["resources"]["requests"]["nvidia.com/gpu"] = "1000"
    body["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] = "1000"
    server.call("DELETE", "/api/v1/namespaces/sluice-work/resourcequotas/work")  # 1000 GPUs exceed it
    stored = server.create(body)
    sizes = stored["spec"]["containers"][0]["resources"]
    expected = limited(body["spec"], only(rendered("base"), "LimitRange"))["containers"][0]["resources"]
    assert sizes["requests"].keys() == expected["requests"].keys()
    assert sizes["limits"].keys() == expected["limits"].keys()
    assert sizes["requests"]["nvidia.com/gpu"] == "1k", "as the server writes it"
    server.call("DELETE", f"/api/v1/namespaces/sluice-work/pods/{stored['metadata']['name']}?gracePeriodSeconds=0")


def test_a_gang_is_accepted(server, applied, recipe):
    made = gang(recipe())
    if not server.serves(made):
        pytest.skip("the definition of JobSet is not here: the real test data is missing")
    assert server.apply(made)["spec"]["replicatedJobs"]


def test_a_watch_survives_a_server_that_has_not_loaded_rbac_yet(server, applied, monkeypatch):
    """A user with a role, and an API server that is killed and restarted three times during its watch."""
    from operators.pods.api import PODS, Api

    rights = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "watch", "get"]}]
    about = {"apiVersion": "rbac.authorization.k8s.io/v1", "metadata": {"name": "looks", "namespace": "sluice-work"}}
    server.apply({**about, "kind": "Role", "rules": rights})
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "looks"}
    subject = {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "airflow"}
    server.apply({**about, "kind": "RoleBinding", "roleRef": reference, "subjects": [subject]})
    monkeypatch.setattr("operators.pods.api.TICK_S", 0.2)
    extras = {"kube_config_path": str(server.kube_config(server.user)), "in_cluster": False}
    monkeypatch.setenv("AIRFLOW_CONN_IT", json.dumps({"conn_type": "kubernetes", "extra": extras}))
    looks = 0

    async def look() -> None:
        nonlocal looks
        async for _ in Api("it", extras=extras).follow(PODS, "sluice-work"):
            looks += 1

    async def restarted() -> None:
        for _ in range(3):
            await asyncio.to_thread(server.stop)
            await asyncio.to_thread(server.start)
            seen = looks
            deadline = time.monotonic() + 60
            while looks < seen + 3:
                assert not looking.done(), looking.exception()
                assert time.monotonic() < deadline
                await asyncio.sleep(0.1)

    async def both() -> None:
        nonlocal looking
        looking = asyncio.ensure_future(look())
        while not looks:
            await asyncio.sleep(0.1)
        await restarted()
        looking.cancel()

    looking = None
    asyncio.run(both())
