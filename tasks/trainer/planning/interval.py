"""How often to save, where a run is interrupted now and then.

With d the seconds that a checkpoint delays the run and M the mean time between failures, the time lost is least at
about sqrt(2 d M) (Young 1974, "A first order approximation to the optimum checkpoint interval"); Daly 2006 ("A higher
order estimate of the optimum checkpoint interval for restart dumps", equation 37) adds terms for a d that is not small.
"""

import math


def best_interval(delay_s: float, mtbf_s: float) -> float:
    """Returns the seconds of training between two checkpoints, after Daly.

    >>> round(best_interval(10, 36_000)), round((2 * 10 * 36_000) ** 0.5)
    (842, 849)
    """
    if delay_s >= 2 * mtbf_s:
        return mtbf_s
    ratio = delay_s / (2 * mtbf_s)
    return math.sqrt(2 * delay_s * mtbf_s) * (1 + math.sqrt(ratio) / 3 + ratio / 9) - delay_s


def lost_share(interval_s: float, delay_s: float, restart_s: float, mtbf_s: float) -> float:
    """Returns the time lost to checkpoints and failures as a share of that of the training (Young's first order).

    Checkpoints take d of every interval; a failure loses half an interval and the restart.

    >>> round(lost_share(842, 10, 300, 36_000), 4)
    0.0319
    """
    return delay_s / interval_s + (interval_s / 2 + restart_s) / mtbf_s
