"""Kubernetes quantities (`500m`, `16Gi`, `4`) as numbers, and what a pod requests in total."""

from collections import Counter
from collections.abc import Iterable

from tests.cluster.bed.resources import Object

_UNITS = {"m": 1e-3, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}


def number(quantity: str | float) -> float:
    """Cores, bytes or pieces.

    >>> number("500m"), number("1Gi"), number("4")
    (0.5, 1073741824.0, 4.0)
    """
    text = str(quantity)
    for unit in sorted(_UNITS, key=len, reverse=True):
        if text.endswith(unit):
            return float(text.removesuffix(unit)) * _UNITS[unit]
    return float(text)


def canonical(quantity: str | float) -> str:
    """A quantity as the API server stores it: the largest unit of its kind that leaves a whole number.

    >>> canonical("1000"), canonical("0.5"), canonical("2048Mi"), canonical("1500"), canonical("0")
    ('1k', '500m', '2Gi', '1500', '0')
    """
    text = str(quantity)
    if text.endswith("i"):
        units = [(unit, size) for unit, size in _UNITS.items() if unit.endswith("i")]
    else:
        units = [(unit, size) for unit, size in _UNITS.items() if not unit.endswith("i") and unit != "m"]
    whole = number(text)
    if whole != int(whole):
        return f"{round(whole * 1000)}m"
    for unit, size in sorted(units, key=lambda one: -one[1]):
        if whole and whole % size == 0:
            return f"{int(whole / size)}{unit}"
    return str(int(whole))


def requests(spec: Object) -> dict[str, float]:
    """The total requests of a pod's containers; `pods` counts the pod itself."""
    asked: Counter[str] = Counter({"pods": 1})
    for one in spec.get("containers") or []:
        sizes = one.get("resources") or {}
        for what, amount in {**(sizes.get("limits") or {}), **(sizes.get("requests") or {})}.items():
            asked[what] += number(amount)  # type: ignore[assignment]
    return dict(asked)


def total(many: Iterable[dict[str, float]]) -> dict[str, float]:
    """The sum."""
    result: dict[str, float] = {}
    for one in many:
        for what, amount in one.items():
            result[what] = result.get(what, 0.0) + amount
    return result
