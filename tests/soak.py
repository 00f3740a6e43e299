"""Selects the cases of a test for `make test`; the others run only in `make soak`."""

from collections.abc import Collection, Iterable
from typing import Any

import pytest


def soak_but(every_time: Collection[int], cases: Iterable[Any]) -> list[Any]:
    """Returns the cases for `pytest.mark.parametrize`; those at the positions `every_time` are part of `make test`.

    A case of several arguments is a tuple, as for `parametrize` itself.
    """
    params = []
    for at, case in enumerate(cases):
        values = case if isinstance(case, tuple) else (case,)
        params.append(pytest.param(*values, marks=() if at in every_time else pytest.mark.soak))
    assert len(params) > max(every_time), "no such case"
    return params
