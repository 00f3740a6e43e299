"""Admission rules of an API server beyond the schema of an object, in Python: those that k8s/ once violated.

CIDRs as NetworkPolicies take them since Kubernetes 1.36 (KEP-4858, strict validation of IPs and CIDRs); names, label
and annotation keys; strict YAML decoding (no duplicate keys); the defaults of a LimitRange for a container; the
resources that a Kueue ClusterQueue must cover.
"""

import copy
import re
from collections.abc import Iterator
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import yaml
from kubernetes.utils.quantity import parse_quantity

Object = dict[str, Any]

_NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_WORD = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")
_KEY = re.compile(r"[-._a-zA-Z0-9]{1,253}")
_PREFIX = re.compile(r"0|[1-9][0-9]{0,2}")


class TwiceError(ValueError):
    """A mapping has a duplicate key, of which YAML silently keeps the last one."""


class _Strict(yaml.SafeLoader):
    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        keys = [self.construct_object(key, deep=deep) for key, _ in node.value]
        twice = sorted({str(key) for key in keys if keys.count(key) > 1})
        if twice:
            raise TwiceError(f"line {node.start_mark.line + 1}: {', '.join(twice)}")
        return super().construct_mapping(node, deep)


def read(path: Path) -> list[Object]:
    """Returns the documents of a YAML file; raises TwiceError."""
    return [one for one in yaml.load_all(path.read_text(), _Strict) if one]


def refusals(found: Object) -> list[str]:
    """Returns the reasons why the API server would refuse a schema-valid object, with paths; empty if it would not."""
    return [*_names(found), *_networks(found)]


def cidr_refusal(text: str) -> str:
    """Returns why a CIDR is refused in a new object, or "".

    >>> cidr_refusal("10.0.0.0/8"), cidr_refusal("::ffff:0:0/96")
    ('', 'is IPv4-mapped')
    """
    address, slash, prefix = text.partition("/")
    if not slash or not _PREFIX.fullmatch(prefix):
        return "is no CIDR"
    try:
        network = ip_network(text, strict=False)
    except ValueError:
        return "is no CIDR"  # including leading zeros of an octet
    if address.lower().startswith("::ffff:") or getattr(network.network_address, "ipv4_mapped", None):
        return "is IPv4-mapped"
    return (
        "" if str(network.network_address) == str(ip_network(address).network_address) else "has bits beyond its prefix"
    )


def limited(spec: Object, limits: Object) -> Object:
    """Returns a pod spec with the defaults of a LimitRange for each container.

    Like the LimitRanger after the defaults of the API: a limit without a request also sets the request.
    """
    spec = copy.deepcopy(spec)
    for one in [*spec.get("initContainers", []), *spec["containers"]]:
        sizes = one.setdefault("resources", {})
        sizes["requests"] = {**(sizes.get("limits") or {}), **(sizes.get("requests") or {})}
        for rule in (rule for rule in limits["spec"]["limits"] if rule["type"] == "Container"):
            sizes["limits"] = {**rule.get("default", {}), **(sizes.get("limits") or {})}
            sizes["requests"] = {**rule.get("default", {}), **rule.get("defaultRequest", {}), **sizes["requests"]}
    return spec


def queue_refusals(spec: Object, pods: int, queue: Object) -> list[str]:
    """Returns why a ClusterQueue would never admit this number of pods, by flavor; empty if one of its flavors can."""
    asked: dict[str, Any] = {}
    for one in spec["containers"]:
        for name, amount in one["resources"]["requests"].items():
            asked[name] = asked.get(name, 0) + parse_quantity(amount) * pods
    said = []
    for group in queue["spec"]["resourceGroups"]:
        if missing := sorted(asked.keys() - set(group["coveredResources"])):
            return [f"resource {missing[0]} unavailable in ClusterQueue"]
        for flavor in group["flavors"]:
            room = {one["name"]: parse_quantity(str(one["nominalQuota"])) for one in flavor["resources"]}
            short = sorted(name for name, amount in asked.items() if amount > room[name])
            if not short:
                return []
            said.append(f"insufficient quota for {', '.join(short)} in flavor {flavor['name']}")
    return said


def _names(found: Object) -> Iterator[str]:
    meta = found["metadata"]
    for name in filter(None, (meta.get("name"), meta.get("namespace"))):
        # Names of roles and bindings can be any path segment.
        if not _NAME.fullmatch(name) and "rbac" not in found["apiVersion"]:
            yield f"metadata: {name!r} is no name"
    for what in ("labels", "annotations"):
        for key, value in (meta.get(what) or {}).items():
            prefix, _, word = key.rpartition("/")
            if (prefix and not _NAME.fullmatch(prefix)) or not word or not _WORD.fullmatch(word):
                yield f"metadata.{what}: {key!r} is no key"
            if what == "labels" and not _WORD.fullmatch(value):
                yield f"metadata.labels.{key}: {value!r} is no value"
    for key in (found.get("data") or {}) if found["kind"] in ("ConfigMap", "Secret") else ():
        if not _KEY.fullmatch(key):
            yield f"data: {key!r} is no key"


def _networks(found: Object) -> Iterator[str]:
    if found["kind"] != "NetworkPolicy":
        return
    for way, peers in (("egress", "to"), ("ingress", "from")):
        for rule in found["spec"].get(way) or []:
            for block in (peer["ipBlock"] for peer in rule.get(peers, []) if "ipBlock" in peer):
                yield from _block(block)


def _block(block: Object) -> Iterator[str]:
    for text in (block["cidr"], *block.get("except", [])):
        if why := cidr_refusal(text):
            yield f"ipBlock: {text} {why}"
            return
    outer = ip_network(block["cidr"])
    for text in block.get("except", []):
        inner = ip_network(text)
        if inner.version != outer.version or not inner.subnet_of(outer) or inner == outer:  # type: ignore[arg-type]
            yield f"ipBlock.except: {text} is no strict part of {block['cidr']}"
