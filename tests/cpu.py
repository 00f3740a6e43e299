"""CPU seconds that mean the same on a slow or a busy machine, for tests of bounded work."""

import time

_LOOP = 2_000_000
_USUAL_S = 0.23
"""CPU seconds of the loop on the machine that the bounds of the tests were chosen on, with nothing beside it."""


def cpu_limit(seconds: float) -> float:
    """Returns `seconds` of that machine in CPU seconds of this one, as it is now; never fewer.

    Processes that share a core and its caches take each other's CPU time up, so that the same work costs more.
    """
    took = []
    for _ in range(3):
        begin = time.process_time()
        sum(number * number for number in range(_LOOP))
        took.append(time.process_time() - begin)
    return seconds * max(1.0, max(took) / _USUAL_S)
