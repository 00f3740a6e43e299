"""Strict checks of objects: built-in kinds by the schemas of Kubernetes, custom ones by the CRDs of their projects.

Reads the CustomResourceDefinitions of JobSet, Kueue, Kubeflow Trainer and dask-kubernetes from the real test data.
Their schemas allow unknown fields, since the API server prunes them; here a field missing in the schema is
an error at any depth. Checks by webhooks or CEL rules are not included.
"""

import gzip
import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml

KUBERNETES = "1.36"
Object = dict[str, Any]

_CUSTOM = ("jobset.x-k8s.io", "kueue.x-k8s.io", "kubernetes.dask.org", "trainer.kubeflow.org")


def is_custom(found: Object) -> bool:
    """Returns whether an object is of a custom kind."""
    return str(found["apiVersion"]).split("/")[0] in _CUSTOM


def built_in(found: Object) -> list[str]:
    """Returns the errors of strict validation of an object of a built-in kind: unknown fields, wrong types."""
    return list(_built_in(json.dumps(found)))


@cache  # folders of k8s/ have most objects in common
def _built_in(found: str) -> tuple[str, ...]:
    try:
        kubernetes_validate.validate(json.loads(found), KUBERNETES, strict=True)
    except kubernetes_validate.ValidationError as error:
        return (f"{'.'.join(map(str, error.path))}: {error.message}",)
    return ()


class Definitions:
    """The custom resource definitions of a folder.

    Args:
        folder: its files are `*.yaml.gz`, one definition each.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def errors(self, found: Object) -> list[str]:
        """Returns the errors of an object of any kind, with paths; empty if it is valid.

        Raises:
            KeyError: a custom resource without a definition in the folder.
        """
        if not is_custom(found):
            return built_in(found)
        # The definitions do not describe metadata, which is the same for every object.
        about = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": found["metadata"]}
        return [*_custom(self.folder, json.dumps(found)), *built_in(about)]


@cache
def _custom(folder: Path, text: str) -> tuple[str, ...]:
    found = json.loads(text)
    schema = _schemas(folder)[found["apiVersion"], found["kind"]]
    wrong = jsonschema.Draft202012Validator(schema).iter_errors(found)
    return tuple(f"{'.'.join(map(str, one.path))}: {one.message}" for one in wrong)


def definitions_in(folder: Path) -> Iterator[Object]:
    """Yields the CustomResourceDefinitions in the `*.yaml.gz` of a folder; none if the folder does not exist."""
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    for path in sorted(folder.glob("*.yaml.gz")):
        yield from filter(None, yaml.load_all(gzip.decompress(path.read_bytes()), loader))


@cache
def _schemas(folder: Path) -> dict[tuple[str, str], Object]:
    found = {}
    for definition in definitions_in(folder):
        spec = definition["spec"]
        for version in spec["versions"]:
            schema = _closed(version["schema"]["openAPIV3Schema"])
            text = {"type": "string"}
            schema["properties"] |= {"apiVersion": text, "kind": text, "metadata": {"type": "object"}}
            found[f"{spec['group']}/{version['name']}", spec["names"]["kind"]] = schema
    return found


def _closed(schema: Any) -> Any:
    """Forbids unknown fields in every object of an OpenAPI schema, in place."""
    if isinstance(schema, list):
        for one in schema:
            _closed(one)
        return schema
    if not isinstance(schema, dict):
        return schema
    if schema.get("x-kubernetes-int-or-string"):
        schema.pop("type", None)  # `anyOf` of integer and string
    schema.pop("format", None)
    for name in ("properties", "items", "additionalProperties", "anyOf", "oneOf", "allOf"):
        inside = schema.get(name)
        for one in inside.values() if name == "properties" and isinstance(inside, dict) else [inside]:
            _closed(one)
    if "properties" in schema and not schema.get("x-kubernetes-preserve-unknown-fields"):
        schema.setdefault("additionalProperties", False)
    return schema


@pytest.fixture(scope="session")
def definitions(shared_data: Path) -> Definitions:
    """The definitions of the real test data."""
    return Definitions(shared_data / "crds")
