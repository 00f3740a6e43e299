"""Metadata of a document: the fields other than the text of a row of a dump, as one JSON object.

Pure functions. Equal rows give equal bytes.
"""

import base64
import json
import math
from collections.abc import Mapping
from datetime import date, datetime, time, timedelta
from typing import Any


def fields_json(fields: Mapping[str, Any], limit: int) -> tuple[str, tuple[str, ...]]:
    """Returns fields as JSON, sorted by name, and the names of fields that were left out to keep to the limit.

    Numbers that are not finite become null, times ISO 8601, durations seconds, bytes base64, other values text.

    Args:
        fields: the fields by name; None values are left out.
        limit: maximum bytes of JSON; the longest fields are left out until it fits.

    Raises:
        RecursionError: a value is nested too deeply.

    >>> fields_json({"date": date(2026, 1, 2), "stars": 5, "none": None}, 100)
    ('{"date":"2026-01-02","stars":5}', ())
    >>> fields_json({"a": "x" * 99, "b": 1}, 20)
    ('{"b":1}', ('a',))
    """
    parts = {name: f"{_json(name)}:{_json(value)}" for name, value in sorted(fields.items()) if value is not None}
    size = 2 + sum(len(text.encode()) + 1 for text in parts.values())
    left_out = []
    for name in sorted(parts, key=lambda name: (-len(parts[name]), name)):
        if size <= limit:
            break
        size -= len(parts.pop(name).encode()) + 1
        left_out.append(name)
    return "{" + ",".join(parts.values()) + "}" if parts else "", tuple(sorted(left_out))


def _json(value: Any) -> str:
    try:
        text = _encoded(value)
    except ValueError:
        text = _encoded(_finite(value))
    # A JSON escape may be a lone surrogate, which UTF-8 cannot represent.
    return text.encode("utf-8", "replace").decode()


def _encoded(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), sort_keys=True, allow_nan=False, default=_plain)


def _plain(value: Any) -> Any:
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return str(value)


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {name: _finite(item) for name, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, list | tuple) else value
