"""Label and field selectors, and the patch types of the API."""

import copy
import re
from typing import Any

from tests.cluster.bed.resources import ApiError, Object

_SET = re.compile(r"^(?P<key>\S+)\s+(?P<how>in|notin)\s*\((?P<values>[^)]*)\)$")
_MERGE_KEYS = ("name", "type", "mountPath", "key", "uid", "containerPort", "ip")


def labels_match(selector: str, labels: dict[str, str]) -> bool:
    """Whether `labels` match a selector such as `a=b,c!=d,!e,f,g in (h, i)`."""
    terms = [term.strip() for term in re.split(r",(?![^(]*\))", selector or "") if term.strip()]
    return all(_label(term, labels or {}) for term in terms)


def _label(term: str, labels: dict[str, str]) -> bool:
    if found := _SET.match(term):
        values = {one.strip() for one in found["values"].split(",")}
        return (labels.get(found["key"]) in values) == (found["how"] == "in")
    if "!=" in term:
        key, _, value = term.partition("!=")
        return labels.get(key.strip()) != value.strip()
    if "=" in term:
        key, _, value = term.replace("==", "=").partition("=")
        return labels.get(key.strip()) == value.strip()
    return term[1:].strip() not in labels if term.startswith("!") else term in labels


def fields_match(selector: str, obj: Object) -> bool:
    """Whether `obj` matches a field selector such as `metadata.name=x,status.phase!=Running`."""
    for term in (one.strip() for one in (selector or "").split(",") if one.strip()):
        differs = "!=" in term
        path, _, wanted = term.partition("!=") if differs else term.replace("==", "=").partition("=")
        if (str(at(obj, path) or "") == wanted) == differs:
            return False
    return True


def at(obj: Any, path: str) -> Any:
    """The value at a dotted path, or None."""
    for step in path.split("."):
        obj = obj.get(step) if isinstance(obj, dict) else None
    return obj


def patched(obj: Object, patch: Any, content_type: str) -> Object:
    """Returns a patched copy of `obj`."""
    if "json-patch" in content_type:
        return _json_patch(copy.deepcopy(obj), patch)
    if not isinstance(patch, dict):
        raise ApiError(400, "BadRequest", "error decoding patch: the body is no object")
    return _merge(copy.deepcopy(obj), patch, strategic="strategic" in content_type)


def _merge(old: Any, new: Any, strategic: bool) -> Any:
    if isinstance(new, dict):
        merged = old if isinstance(old, dict) else {}
        for key, value in new.items():
            if value is None:
                merged.pop(key, None)
            else:
                merged[key] = _merge(merged.get(key), value, strategic)
        return merged
    if strategic and isinstance(new, list) and isinstance(old, list):
        return _merge_list(old, new)
    return copy.deepcopy(new)


def _merge_list(old: list[Any], new: list[Any]) -> list[Any]:
    """Lists of objects with a merge key are merged by it; any other list is replaced."""
    items = [one for one in (*old, *new) if isinstance(one, dict)]
    key = next((one for one in _MERGE_KEYS if items and all(one in item for item in items)), None)
    if key is None or len(items) < len(old) + len(new):
        return copy.deepcopy(new)
    merged = {item[key]: item for item in old}
    for item in new:
        if item.get("$patch") == "delete":
            merged.pop(item[key], None)
        else:
            merged[item[key]] = _merge(merged.get(item[key]), item, strategic=True)
    return list(merged.values())


def _json_patch(obj: Any, operations: list[Object]) -> Any:
    for one in operations:
        *way, last = [step.replace("~1", "/").replace("~0", "~") for step in one["path"].split("/")[1:]]
        parent = obj
        for step in way:
            parent = parent[int(step)] if isinstance(parent, list) else parent[step]
        _json_operation(parent, last, one)
    return obj


def _json_operation(parent: Any, last: str, one: Object) -> None:
    key: Any = (len(parent) if last == "-" else int(last)) if isinstance(parent, list) else last
    there = key < len(parent) if isinstance(parent, list) else key in parent
    if one["op"] == "test" and (not there or parent[key] != one["value"]):
        raise ApiError(422, "Invalid", f"the server rejected our request: testing path {one['path']} failed")
    if one["op"] == "remove" and not there:
        raise ApiError(422, "Invalid", f"remove operation does not apply: {one['path']} does not exist")
    if one["op"] == "remove":
        del parent[key]
    elif one["op"] == "add" and isinstance(parent, list):
        parent.insert(key, one["value"])
    elif one["op"] in ("add", "replace"):
        parent[key] = one["value"]
