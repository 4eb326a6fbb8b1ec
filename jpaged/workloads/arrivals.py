"""When requests come: nanoseconds from the start of a run.

The same seed gives the same nanoseconds; asking for more requests changes none of the first ones.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from itertools import count

import numpy as np

from jpaged.config.declaration import require_int
from jpaged.workloads.streams import fractions, stream
from jpaged.workloads.workload import MAX_NUMBER, SECOND

QUANTUM_NS = 10_000_000
CHUNK = 4096
MAX_REQUESTS = 10_000_000
"""What fits a machine's memory; a mistake in a rate is found before it fills it."""


def poisson(
    rate: float, *, seed: int, num_requests: int | None = None, duration_s: float | None = None
) -> tuple[int, ...]:
    """Arrivals of a Poisson process of `rate` per second: the first `num_requests`, or those before `duration_s`."""
    require_rate(rate)
    bits = stream(seed, "gaps")
    gaps = _endless(lambda: [-math.log(u) / rate for u in fractions(bits, CHUNK)])
    return _collect(_summed(gaps), num_requests, duration_s)


def gamma(
    rate: float, burstiness: float, *, seed: int, num_requests: int | None = None, duration_s: float | None = None
) -> tuple[int, ...]:
    """Arrivals with gaps of gamma(shape `burstiness`, mean 1 / `rate`): CV 1 / sqrt(burstiness); below 1 is burstier.

    That is the burstiness of vLLM's bench, whose gaps are then rescaled so that the last arrival is at exactly
    number / rate. These are not, so that the process stays what its name says; `rescaled` does it.
    Drawn by NumPy's Generator, whose gamma numbers may change with NumPy (save what must be kept).
    """
    require_rate(rate)
    require_positive("burstiness", burstiness, low=1e-3)
    rng = np.random.Generator(stream(seed, "gaps"))
    gaps = _endless(lambda: (rng.standard_gamma(burstiness, CHUNK) / (rate * burstiness)).tolist())
    return _collect(_summed(gaps), num_requests, duration_s)


def uniform(rate: float, *, num_requests: int | None = None, duration_s: float | None = None) -> tuple[int, ...]:
    """Arrivals 1 / `rate` apart, the first at 0."""
    require_rate(rate)
    gap = SECOND / Fraction(rate)
    return _collect((round(i * gap) for i in count()), num_requests, duration_s)


def paper_quanta(rate: float, duration_s: float, *, seed: int = 0) -> tuple[int, ...]:
    """Arrivals as in the paper's experiments: a Poisson number of requests every 10 ms, all at the start of the 10 ms.

    The numbers are those of `numpy.random.seed(seed)` and `numpy.random.poisson(rate * 0.01)`, a stream that NumPy
    has frozen; the global state is not touched. An hour at 2 per second has 7,280 requests with seed 0.
    """
    require_rate(rate)
    require_positive("duration_s", duration_s)
    if rate * duration_s > MAX_REQUESTS:
        raise ValueError(f"duration_s={duration_s}: more than {MAX_REQUESTS} requests arrive; lower it or the rate")
    num_quanta = Fraction(duration_s) * SECOND / QUANTUM_NS
    counts = np.random.RandomState(seed).poisson(rate * 0.01, size=int(num_quanta))
    return tuple((np.repeat(np.arange(len(counts)), counts) * QUANTUM_NS).tolist())


def rescaled(arrival_ns: Sequence[int], rate: float) -> tuple[int, ...]:
    """The same arrivals stretched so that the last is at exactly number / `rate`, as vLLM's bench does."""
    require_rate(rate)
    if not arrival_ns or not arrival_ns[-1]:
        raise ValueError("arrival_ns: all are at 0, so no stretching gives them a rate; give arrivals that differ")
    factor = len(arrival_ns) * SECOND / Fraction(rate) / arrival_ns[-1]
    return tuple(round(at * factor) for at in arrival_ns)


def require_rate(rate: object) -> None:
    """Raise ValueError unless `rate` is a number of requests per second, from 1e-6 on."""
    require_positive("rate", rate, low=1e-6)


def require_positive(name: str, value: object, low: float = 0.0) -> None:
    """Raise ValueError unless `value` is a finite number above 0, and at least `low`."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf or value < low:
        raise ValueError(f"{name}={value!r}: must be a finite number {f'of at least {low}' if low else 'above 0'}")


def _endless(chunk: Callable[[], list[float]]) -> Iterator[float]:
    while True:
        yield from chunk()


def _summed(gaps: Iterator[float]) -> Iterator[int]:
    # Each gap is rounded by itself: sums of integers do not depend on the order of additions.
    at = 0
    for gap in gaps:
        at += round(gap * SECOND)
        yield at


def _collect(times: Iterator[int], num_requests: int | None, duration_s: float | None) -> tuple[int, ...]:
    if (num_requests is None) == (duration_s is None):
        raise ValueError(f"num_requests={num_requests!r}, duration_s={duration_s!r}: give one of the two")
    if duration_s is not None:
        require_positive("duration_s", duration_s)
    if num_requests is not None:
        require_int("num_requests", num_requests, 1, MAX_REQUESTS)
    stop = MAX_NUMBER if duration_s is None else Fraction(duration_s) * SECOND
    taken = list[int]()
    for at in times:
        if at >= stop or len(taken) == num_requests:
            break
        taken.append(at)
        if len(taken) > MAX_REQUESTS:
            raise ValueError(f"duration_s={duration_s}: more than {MAX_REQUESTS} requests arrive; lower it or the rate")
    if num_requests is not None and len(taken) < num_requests:
        raise ValueError(f"num_requests={num_requests}: the rate is so low that they arrive after 36 years; raise it")
    return tuple(taken)
