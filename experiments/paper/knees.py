"""At which rate a system's latency reaches half a second per token.

The rate is known to about 1 %: it is interpolated, in the logarithm of the latency, in a narrow bracket.
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from experiments.config import ExperimentConfig
from experiments.paper.plans import Plan
from experiments.paper.published import KNEE_S

TOLERANCE = 0.01
_NEAR = 0.2
# The step up from a latency below so large a part of the level.
_UP = ((0.1, 1.3), (0.25, 1.1), (1.0, 1.05))
# A search that has tried this many rates is in trouble that more rates do not mend.
MOST_RATES = 40


class Curve(NamedTuple):
    """Latencies by rate, the rate at 0.5 s per token, and the digests of the runs."""

    points: list[tuple[float, float]]
    knee: float
    digests: tuple[str, ...]


def bracket(points: dict[float, float], level: float = KNEE_S) -> tuple[float | None, float | None]:
    """The rates next to where the latency first reaches `level`; None where there is none on that side."""
    rates = sorted(points)
    high = next((rate for rate in rates if points[rate] >= level), None)
    low = max((rate for rate in rates if high is None or rate < high), default=None)
    return low, high


def knee(points: dict[float, float], level: float = KNEE_S) -> float:
    """The rate at `level`, straight in the logarithm of the latency between its neighbours.

    Raises ValueError if the points do not bracket it.
    """
    low, high = bracket(points, level)
    if low is None or high is None:
        raise ValueError(f"no latency on one side of {level} s per token among {points}: run more rates")
    part = math.log(level / points[low]) / math.log(points[high] / points[low])
    return low + (high - low) * part


def next_rate(points: dict[float, float], level: float = KNEE_S, tolerance: float = TOLERANCE) -> float | None:
    """The rate to try next; None if the knee is known well enough. `points` has one rate or more."""
    low, high = bracket(points, level)
    if high is None:
        assert low is not None
        return _digits(low * next(step for part, step in _UP if points[low] < level * part))
    if low is None:
        return _digits(high / (1.3 if points[high] > 4 * level else 1.06))
    # Latency grows five times as fast as the rate and more, so a point this near the level settles a wider bracket.
    nearest = min(abs(math.log(points[rate] / level)) for rate in (low, high))
    if high / low <= 1 + (8 if nearest <= _NEAR else 2) * tolerance:
        return None
    # A quarter of the bracket goes at least, so that a curve which is flat and then steep does not creep.
    edge = (high - low) / 4
    return _digits(min(max(knee(points, level), low + edge), high - edge))


def _digits(rate: float) -> float:
    return float(f"{rate:.4g}")


def curve(config_at: Callable[[float], ExperimentConfig], rates: Sequence[float], guess: float) -> Plan[Curve]:
    """Latencies at `rates` (at `guess` if there are none), and at as many more as the knee takes."""
    wanted = sorted(set(rates)) or [_digits(guess)]
    points: dict[float, float] = {}
    digests: list[str] = []
    while wanted:
        configs = [config_at(rate) for rate in wanted]
        summaries = yield configs
        for rate, config, summary in zip(wanted, configs, summaries, strict=True):
            latency = summary["mean_normalized_latency_s"]
            if not isinstance(latency, float):
                raise ValueError(f"rate={rate}: no request finished; lengthen duration_s")
            points[rate] = latency
            digests.append(config.digest())
        following = next_rate(points)
        wanted = [] if following is None else [following]
        if len(points) > MOST_RATES:
            raise ValueError(f"{len(points)} rates do not find where the latency is {KNEE_S} s per token: {points}")
    return Curve(sorted(points.items()), knee(points), tuple(digests))
