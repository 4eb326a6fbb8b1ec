"""Where the host's time in a step goes: named stages, each also a span of the profiler's trace."""

import time
from collections import defaultdict
from collections.abc import Callable, Generator
from contextlib import contextmanager

import jax


class Stages:
    """Seconds in each named stage so far. In the stage WAIT the host has nothing to do but wait for the device.

    `clock` gives the seconds; a benchmark may count CPU time instead.
    """

    WAIT = "wait"

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self.seconds: defaultdict[str, float] = defaultdict(float)

    @contextmanager
    def span(self, name: str) -> Generator[None]:
        """Count what runs inside as the stage `name`; without a trace that costs a few microseconds."""
        start = self._clock()
        with jax.profiler.TraceAnnotation(name):
            yield
        self.seconds[name] += self._clock() - start

    @property
    def host_time(self) -> float:
        """Seconds in all stages but WAIT."""
        return sum(seconds for name, seconds in self.seconds.items() if name != self.WAIT)
