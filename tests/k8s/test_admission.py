"""Admission rules beyond the schema: no object of k8s/ is refused, and added defaults are accounted for."""

import copy

import pytest
import yaml

from tests.k8s.admission import TwiceError, cidr_refusal, limited, queue_refusals, read, refusals
from tests.k8s.conftest import FOLDERS, K8S
from tests.k8s.definitions import built_in
from tests.k8s.test_rendered_pods import gang, pod, recipe

__all__ = ["recipe"]

FILES = sorted(path for path in K8S.rglob("*.yaml") if "helm" not in path.parts)


@pytest.mark.parametrize("folder", FOLDERS)
def test_no_object_is_refused(folder, rendered):
    wrong = {f"{one['kind']} {one['metadata'].get('namespace')}/{one['metadata']['name']}": refusals(one)
             for one in rendered(folder)}  # fmt: skip
    assert {name: found for name, found in wrong.items() if found} == {}


@pytest.mark.parametrize("path", FILES, ids=[str(path.relative_to(K8S)) for path in FILES])
def test_no_file_has_a_duplicate_key(path):
    assert read(path)


def test_a_duplicate_key_is_found(tmp_path):
    (tmp_path / "x.yaml").write_text("kind: ConfigMap\nmetadata: {name: a}\ndata:\n  x: 1\n  y: 2\n  x: 3\n")
    with pytest.raises(TwiceError, match="line 4: x"):
        read(tmp_path / "x.yaml")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        *((good, "") for good in ("0.0.0.0/0", "10.0.0.0/8", "192.0.2.1/32", "::/0", "64:ff9b::/96", "2001:db8::/32")),
        ("::ffff:0:0/96", "is IPv4-mapped"),
        ("::ffff:10.0.0.0/104", "is IPv4-mapped"),
        ("10.0.0.1/8", "has bits beyond its prefix"),
        ("2001:db8::1/64", "has bits beyond its prefix"),
        *((bad, "is no CIDR") for bad in ("10.0.0.0", "10.0.0.0/33", "010.0.0.0/8", "10.0.0.0/08", "10.0.0.0/+8")),
        *((bad, "is no CIDR") for bad in ("example.org/8", "10.0.0/8", "::1::/64", "")),
    ],
)
def test_a_cidr_is_validated_as_by_the_server(text, why):
    assert cidr_refusal(text) == why


def policy(cidr, *out):
    block = {"cidr": cidr, **({"except": list(out)} if out else {})}
    spec = {"podSelector": {}, "policyTypes": ["Egress"], "egress": [{"to": [{"ipBlock": block}]}]}
    about = {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy"}
    return {**about, "metadata": {"name": "x", "namespace": "y"}, "spec": spec}


@pytest.mark.parametrize(
    ("cidr", "out", "said"),
    [
        ("::/0", ["::ffff:0:0/96"], "::ffff:0:0/96 is IPv4-mapped"),
        ("10.0.0.0/8", ["192.168.0.0/16"], "192.168.0.0/16 is no strict part of 10.0.0.0/8"),
        ("10.0.0.0/8", ["10.0.0.0/8"], "10.0.0.0/8 is no strict part of 10.0.0.0/8"),
        ("0.0.0.0/0", ["::1/128"], "::1/128 is no strict part of 0.0.0.0/0"),
        ("10.0.0.1/8", [], "10.0.0.1/8 has bits beyond its prefix"),
    ],
)
def test_a_policy_with_an_invalid_range_is_found(cidr, out, said):
    [found] = refusals(policy(cidr, *out))
    assert found.endswith(said)


def test_a_bad_name_label_or_key_is_found():
    made = {"apiVersion": "v1", "kind": "ConfigMap", "data": {"a/b": ""}}
    meta = {"name": "Not_A_Name", "labels": {"a": "x" * 64, "b/": "c"}, "annotations": {"-x": "y"}}
    assert len(refusals({**made, "metadata": meta})) == 5


def test_a_misplaced_field_from_a_patch_is_found(rendered):
    [one] = [
        copy.deepcopy(found)
        for found in rendered("overlays/kind")
        if found["kind"] == "ConfigMap" and found["metadata"]["name"] == "sluice-settings"
        and found["metadata"]["namespace"] == "sluice"
    ]  # fmt: skip
    assert built_in(one) == []
    one["metadata"]["SLUICE_RECIPES"] = "/opt/airflow/recipes"
    assert "SLUICE_RECIPES" in built_in(one)[0]


def only(objects, kind, namespace="sluice-work"):
    """Returns the one object of a kind, in a namespace or in none."""
    [found] = [one for one in objects if one["kind"] == kind and one["metadata"].get("namespace") in (namespace, None)]
    return found


@pytest.mark.parametrize("folder", FOLDERS)
def test_the_queue_covers_the_defaults_of_the_limit_range(folder, rendered, recipe):
    objects = rendered(folder)
    limits, queue = only(objects, "LimitRange"), only(objects, "ClusterQueue")
    added = {name for rule in limits["spec"]["limits"] for part in ("default", "defaultRequest") for name in rule[part]}
    for group in queue["spec"]["resourceGroups"]:
        assert added <= set(group["coveredResources"])
        for flavor in group["flavors"]:
            assert [one["name"] for one in flavor["resources"]] == group["coveredResources"]


@pytest.mark.parametrize("folder", ["base", "overlays/eks"])
def test_a_pod_and_a_gang_are_admitted_as_they_are_after_admission(folder, rendered, recipe):
    objects = rendered(folder)
    limits, queue = only(objects, "LimitRange"), only(objects, "ClusterQueue")
    made = recipe()
    rank = gang(made)["spec"]["replicatedJobs"][0]["template"]["spec"]
    for spec, pods in ((pod(made)[1]["spec"], 1), (rank["template"]["spec"], rank["completions"])):
        admitted = limited(spec, limits)
        assert admitted["containers"][0]["resources"]["requests"]["ephemeral-storage"] == "1Gi"
        assert queue_refusals(admitted, pods, queue) == []


def test_a_queue_that_does_not_cover_it_refuses_every_gang(rendered, recipe):
    objects = rendered("base")
    queue = copy.deepcopy(only(objects, "ClusterQueue"))
    for group in queue["spec"]["resourceGroups"]:
        group["coveredResources"].remove("ephemeral-storage")
    admitted = limited(pod(recipe())[1]["spec"], only(objects, "LimitRange"))
    assert queue_refusals(admitted, 1, queue) == ["resource ephemeral-storage unavailable in ClusterQueue"]


def test_the_gang_of_the_recipe_kind_is_admitted_on_kind(rendered):
    objects = rendered("overlays/kind")
    [text] = [one["data"]["kind.toml"] for one in objects if one["metadata"]["name"] == "sluice-recipes"]
    assert 'memory = "2Gi"' in text
    spec = {"containers": [{"resources": {"requests": {"cpu": "500m", "memory": "2Gi"}, "limits": {"memory": "2Gi"}}}]}
    assert queue_refusals(limited(spec, only(objects, "LimitRange")), 2, only(objects, "ClusterQueue")) == []


def test_a_limit_range_adds_missing_requests_and_limits():
    rule = {"type": "Container", "default": {"memory": "2Gi"}, "defaultRequest": {"cpu": "1", "memory": "1Gi"}}
    spec = {"containers": [{"name": "a"}, {"name": "b", "resources": {"limits": {"memory": "4Gi"}}}]}
    first, second = limited(spec, {"spec": {"limits": [rule]}})["containers"]
    assert first["resources"] == {"limits": {"memory": "2Gi"}, "requests": {"cpu": "1", "memory": "1Gi"}}
    assert second["resources"] == {"limits": {"memory": "4Gi"}, "requests": {"cpu": "1", "memory": "4Gi"}}
    assert yaml.safe_dump(spec) == yaml.safe_dump(copy.deepcopy(spec))
