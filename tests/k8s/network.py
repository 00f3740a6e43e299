"""Evaluates NetworkPolicies: whether a pod may connect to another pod or to an address.

A pod is its namespace and labels; traffic passes if the egress of one side and the ingress of the other allow it.
Policies that select a pod are additive; a pod that none selects is unrestricted.
"""

from dataclasses import dataclass
from ipaddress import ip_address, ip_network
from typing import Any

Object = dict[str, Any]


@dataclass(frozen=True)
class Pod:
    """A pod with the properties that policies use."""

    namespace: str
    labels: tuple[tuple[str, str], ...]


class Network:
    """The policies of a cluster.

    Args:
        objects: rendered objects; kinds other than NetworkPolicy are ignored.
    """

    def __init__(self, objects: list[Object]) -> None:
        self.policies = [one for one in objects if one["kind"] == "NetworkPolicy"]

    def lets(self, source: Pod, target: Pod | str, port: int, protocol: str = "TCP") -> bool:
        """Returns whether `source` may open a connection to a pod, or to an outside address."""
        out = self._passes(source, "Egress", target, port, protocol)
        return out and (isinstance(target, str) or self._passes(target, "Ingress", source, port, protocol))

    def _passes(self, pod: Pod, direction: str, other: Pod | str, port: int, protocol: str) -> bool:
        mine = [
            policy["spec"]
            for policy in self.policies
            if policy["metadata"]["namespace"] == pod.namespace
            and direction in policy["spec"]["policyTypes"]
            and selects(policy["spec"]["podSelector"], dict(pod.labels))
        ]
        rules = [rule for spec in mine for rule in spec.get(direction.lower(), [])]
        peers = "to" if direction == "Egress" else "from"
        return not mine or any(
            _port(rule.get("ports"), port, protocol)
            and (peers not in rule or any(_peer(peer, other, pod.namespace) for peer in rule[peers]))
            for rule in rules
        )


def selects(selector: Object, labels: dict[str, str]) -> bool:
    """Returns whether a label selector matches; raises KeyError for an unknown operator."""
    wanted = selector.get("matchLabels", {})
    return all(labels.get(key) == value for key, value in wanted.items()) and all(
        {
            "In": labels.get(one["key"]) in one.get("values", []),
            # As in Kubernetes: also matches if the label is absent.
            "NotIn": labels.get(one["key"]) not in one.get("values", []),
            "Exists": one["key"] in labels,
            "DoesNotExist": one["key"] not in labels,
        }[one["operator"]]
        for one in selector.get("matchExpressions", [])
    )


def _port(ports: list[Object] | None, port: int, protocol: str) -> bool:
    return ports is None or any(one["port"] == port and one.get("protocol", "TCP") == protocol for one in ports)


def _peer(peer: Object, other: Pod | str, namespace: str) -> bool:
    if "ipBlock" in peer:
        if not isinstance(other, str):
            return False  # an ipBlock never matches pods
        address, block = ip_address(other), peer["ipBlock"]
        # A socket sends IPv4 packets to an IPv4-mapped address.
        address = getattr(address, "ipv4_mapped", None) or address
        inside = address.version == ip_network(block["cidr"]).version and address in ip_network(block["cidr"])
        return inside and not any(address in ip_network(out) for out in block.get("except", []))
    if isinstance(other, str):
        return False
    spaces = peer.get("namespaceSelector", {"matchLabels": {"kubernetes.io/metadata.name": namespace}})
    in_space = selects(spaces, {"kubernetes.io/metadata.name": other.namespace})
    return in_space and selects(peer.get("podSelector", {}), dict(other.labels))
