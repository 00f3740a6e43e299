"""Components of a mixture: the values of a column of the documents, or of several columns together.

With `by = "source+language"` a component is a source in one language, `web+ja`. The values are labels (`labels`), which
have no plus sign, so a joint name has one meaning. A mixture names components, or groups of them by the beginning of
their names: `web` is the source in all its languages that the mixture does not name themselves.

The weight of a group is divided column by column, in the order of `by`: each value of a column gets a share in
proportion to its size to the power of alpha, which is 1 by default (natural shares), 0 for equal shares. A small
language is raised by an alpha below 1. The sizes q of XLM-R are sentences, those here sequences of equal length or,
for a tokenizer, bytes:

    p_i = q_i^alpha / sum_j q_j^alpha        alpha = 0.3: Conneau et al. 2020, "Unsupervised Cross-lingual
                                             Representation Learning at Scale" (XLM-R), arXiv 1911.02116, and mT5,
                                             arXiv 2010.11934; multilingual BERT 0.7. Temperature T = 1 / alpha.

A cap on the weights divides what is beyond it among the others. With alpha = 0 and a cap on the epochs this is UniMax:
Chung et al. 2023, "UniMax: Fairer and More Effective Language Sampling for Large-Scale Multilingual Pretraining", arXiv
2304.09151. Recipes import this module, so it imports only pydantic.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Annotated

from pydantic import Field

from tasks.core.config import nearest
from tasks.core.errors import RecipeError
from tasks.formats.tokens.labels import SOURCE
from tasks.formats.tokens.mixture import GRID, grid_weights

JOINT = "+"
"""Between the columns of `by`, and between the values in the name of a component. Labels write it as `%2B`."""

Alpha = dict[str, Annotated[float, Field(ge=0, le=1)]]
"""Column -> exponent of the sizes of its values, 0 .. 1."""

_EMPTY: Mapping[str, float] = {}


def columns_of(by: str) -> tuple[str, ...]:
    """Returns the columns whose values make a component.

    >>> columns_of("source+language")
    ('source', 'language')
    """
    return tuple(by.split(JOINT))


def joint_name(labels: Iterable[str]) -> str:
    """Returns the name of a component from the label in each column.

    >>> joint_name(["web", "ja"])
    'web+ja'
    """
    return JOINT.join(labels)


def component_weights(
    weights: Mapping[str, float],
    sizes: Mapping[str, int],
    by: str = SOURCE,
    alpha: Mapping[str, float] = _EMPTY,
    most: Mapping[str, float] = _EMPTY,
    where: str = "the mixture",
) -> dict[str, float]:
    """Returns the weight of every component, a multiple of 1/100,000, sorted by name.

    Args:
        weights: shares of components and groups, which sum to 1; {}: all components are one group.
        sizes: size of every component, above 0.
        by: the columns of the components, joined by "+".
        alpha: exponents by column; 1 for a column that is not named.
        most: the largest weight of some components, in force where the weight of a group is divided.
        where: names the setting in messages.

    >>> sizes = {"web+en": 900, "web+ja": 100, "books+en": 10}
    >>> component_weights({"web": 0.8, "books": 0.2}, sizes, "source+language", {"language": 0.5})
    {'books+en': 0.2, 'web+en': 0.6, 'web+ja': 0.2}

    Raises:
        RecipeError: a name is that of no component and no group, or a group with a weight has no component that is
            not named itself.
    """
    if not weights and not alpha:
        return grid_weights(sizes)
    columns = columns_of(by)
    divided: dict[str, float] = {}
    for name, members in _groups(weights, sizes, where).items():
        whole, depth = (weights[name], name.count(JOINT) + 1) if name else (1.0, 0)
        shares = _divided(whole, members, [alpha.get(column, 1.0) for column in columns], depth)
        divided |= _capped(shares, most) if len(members) > 1 else shares
    return grid_weights({component: divided.get(component, 0.0) for component in sizes})


def group_names(component: str) -> list[str]:
    """Returns the names that include a component, the longest, its own, first.

    >>> group_names("web+gold+ja")
    ['web+gold+ja', 'web+gold', 'web']
    """
    values = component.split(JOINT)
    return [JOINT.join(values[:count]) for count in range(len(values), 0, -1)]


def largest_weights(sizes: Mapping[str, int], cap: float, samples: int) -> dict[str, float]:
    """Returns the largest weight of each component that reads it at most `cap` times in `samples` sequences.

    Rounded down to the grid of weights, so that the rounding of a mixture does not exceed the cap.

    >>> largest_weights({"en": 900, "ja": 10}, 4, 1000)
    {'en': 3.6, 'ja': 0.04}
    """
    return {component: math.floor(cap * size / samples * GRID) / GRID for component, size in sizes.items()}


def _groups(weights: Mapping[str, float], sizes: Mapping[str, int], where: str) -> dict[str, dict[str, int]]:
    """Returns the components of each name, with their sizes; each belongs to the longest name that includes it."""
    if not weights:
        return {"": dict(sizes)}
    valid = {name: None for component in sorted(sizes) for name in group_names(component)}
    groups: dict[str, dict[str, int]] = {name: {} for name in sorted(weights)}
    for name in groups:
        if name not in valid:
            raise RecipeError(f'{where}: no source is called "{name}"', nearest(name, valid))
    for component in sorted(sizes):
        for name in group_names(component):
            if name in groups:
                groups[name][component] = sizes[component]
                break
    for name, members in groups.items():
        if weights[name] and not members:
            raise RecipeError(
                f'{where}: all of "{name}" is named with its values, so the rest of it has no text',
                f'remove "{name}", or some of the names that begin with it',
            )
    return groups


def _divided(whole: float, sizes: Mapping[str, int], exponents: list[float], depth: int) -> dict[str, float]:
    """Divides a weight among components, by the values of the columns from `depth` on."""
    if len(sizes) <= 1 or depth == len(exponents):
        return dict.fromkeys(sizes, whole)
    by_value: dict[str, dict[str, int]] = defaultdict(dict)
    for component, size in sizes.items():
        by_value[component.split(JOINT)[depth]][component] = size
    amounts = {value: float(sum(inside.values())) ** exponents[depth] for value, inside in by_value.items()}
    total, shares = math.fsum(amounts.values()), dict[str, float]()
    for value, inside in by_value.items():
        shares |= _divided(whole * amounts[value] / total, inside, exponents, depth + 1)
    return shares


def _capped(shares: Mapping[str, float], most: Mapping[str, float]) -> dict[str, float]:
    """Returns shares of the same sum, none above its cap; what is beyond a cap goes to the others in proportion.

    If all caps together are less than the sum, every share is beyond its cap, in proportion to the caps.
    """
    caps = {name: most.get(name, math.inf) for name in shares}
    whole, capped = math.fsum(shares.values()), dict[str, float]()
    if math.fsum(caps.values()) <= whole:
        scale = whole / math.fsum(caps.values()) if any(caps.values()) else 0.0
        return {name: cap * scale for name, cap in caps.items()} if scale else dict(shares)
    while True:
        rest = whole - math.fsum(capped.values())
        free = {name: share for name, share in shares.items() if name not in capped}
        total = math.fsum(free.values())
        result = capped | {name: share / total * rest if total else 0.0 for name, share in free.items()}
        beyond = {name: caps[name] for name in free if result[name] > caps[name]}
        if not beyond:
            return result
        capped |= beyond
