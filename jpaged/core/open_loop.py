"""Requests that arrive when they arrive, whether or not the engine keeps up.

A request is added before the first step that starts at or after its arrival, on any clock; so a run on a virtual clock
that shows the same times makes the same plans.
"""

import time
from collections import abc
from collections.abc import Callable
from itertools import pairwise
from typing import Protocol

from jpaged.core.engine_loop import EngineLoop
from jpaged.core.errors import REFUSALS
from jpaged.core.requests.request import Request, RequestMetrics
from jpaged.core.requests.response import Response


class TimedClock(Protocol):
    """A clock in whole nanoseconds, which can also be waited on."""

    @property
    def now_ns(self) -> int:
        """Nanoseconds since the run's start."""
        ...

    def now(self) -> float:
        """The same in seconds."""
        ...

    def advance_to(self, time_ns: int) -> None:
        """Return when it is that late."""
        ...


class MonotonicClock:
    """The machine's monotonic clock, from `start` on."""

    def __init__(self) -> None:
        self._origin = time.perf_counter_ns()

    def start(self) -> None:
        """Let the run's time begin now."""
        self._origin = time.perf_counter_ns()

    @property
    def now_ns(self) -> int:
        """Nanoseconds since the start."""
        return time.perf_counter_ns() - self._origin

    def now(self) -> float:
        """The same in seconds."""
        return self.now_ns / 1e9

    def advance_to(self, time_ns: int) -> None:
        """Sleep until it is that late."""
        while (left := time_ns - self.now_ns) > 0:
            time.sleep(left / 1e9)


Leap = Callable[[int | None, int | None], int]


class OpenLoop:
    """Runs timed requests through an engine: `requests` with their arrivals in nanoseconds, which never fall.

    `metrics[i]` is the metrics of request i; None: it was refused, for the reason in `refused[i]`. `leap`, if given,
    may run several steps at once and says how many it ran; it is told when the next request arrives and when the
    run is to end (None: never). `outputs`: fill `responses` too, by request number; not with a leap, which gives none.
    """

    def __init__(
        self,
        loop: EngineLoop,
        clock: TimedClock,
        requests: abc.Sequence[Request],
        arrivals_ns: abc.Sequence[int],
        *,
        leap: Leap | None = None,
        outputs: bool = False,
    ) -> None:
        check_arrivals(requests, arrivals_ns)
        if leap is not None and outputs:
            raise ValueError("outputs=True with a leap, whose steps give none: leave one of them out")
        self.loop = loop
        self.clock = clock
        self.metrics: list[RequestMetrics | None] = []
        self.responses: dict[int, Response] = {}
        self.refused: dict[int, str] = {}
        self._requests = requests
        self._arrivals_ns = arrivals_ns
        self._leap = leap
        self._outputs = outputs

    def run(self, until_ns: int | None = None) -> None:
        """Run until every request has finished, or until the first step that would start at or after `until_ns`."""
        while until_ns is None or self.clock.now_ns < until_ns:
            self._add_arrived()
            upcoming = self._next_arrival()
            if not self.loop.has_unfinished:
                if upcoming is None:
                    return
                self.clock.advance_to(upcoming if until_ns is None else min(upcoming, until_ns))
                continue
            if self._leap is not None and self._leap(upcoming, until_ns):
                continue
            for response in self.loop.step():
                response.read()

    def _next_arrival(self) -> int | None:
        number = len(self.metrics)
        return self._arrivals_ns[number] if number < len(self._arrivals_ns) else None

    def _add_arrived(self) -> None:
        now_ns = self.clock.now_ns
        while (arrival := self._next_arrival()) is not None and arrival <= now_ns:
            number = len(self.metrics)
            request = self._requests[number]
            try:
                self.metrics.append(self._add(number, request))
            except REFUSALS as error:
                self.refused[number] = str(error)
                self.metrics.append(None)

    def _add(self, number: int, request: Request) -> RequestMetrics | None:
        if not self._outputs:
            return self.loop.add_unread(request)
        self.responses[number] = self.loop.add(request)
        return self.responses[number].metrics


def check_arrivals(requests: abc.Sequence[Request], arrivals_ns: abc.Sequence[int]) -> None:
    """Raise ValueError unless each request has an arrival, and these never fall."""
    if len(requests) != len(arrivals_ns):
        raise ValueError(f"{len(requests)} requests and {len(arrivals_ns)} arrivals: give one each")
    if any(later < earlier for earlier, later in pairwise(arrivals_ns)):
        raise ValueError("arrivals_ns must not fall: sort the requests by arrival")
