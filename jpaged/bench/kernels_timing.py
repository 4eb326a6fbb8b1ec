"""How kernels are timed: several ways of doing the same in turns, so that what disturbs one disturbs all.

Every way is compiled and run before the clock starts.
"""

import time
from collections.abc import Callable, Mapping
from statistics import quantiles
from typing import Any, NamedTuple

import jax

Run = Callable[[], Any]
"""One call of a compiled program; what it returns may still be on its way."""


class Timing(NamedTuple):
    """Seconds per call: the median of `repeats`, and the tenth and ninetieth percentile."""

    seconds: float
    seconds_low: float
    seconds_high: float
    repeats: int


def compiled_run(function: Callable[..., Any], *given: Any) -> Run:
    """`function(*given)`, compiled."""
    program = jax.jit(function).lower(*given).compile()
    return lambda: program(*given)


def donating_run(held: list[Any], function: Callable[..., tuple[Any, Any]], *given: Any) -> Run:
    """`function(held[0], *given)`, compiled; `held[0]` is donated to it, and replaced by the first thing it returns.

    A call returns the second, or the first where the second is None.
    """
    program = jax.jit(function, donate_argnums=0, keep_unused=True).lower(held[0], *given).compile()

    def run() -> Any:
        held[0], out = program(held[0], *given)
        return held[0] if out is None else out

    return run


def alternate(
    runs: Mapping[str, Run],
    *,
    repeats: int = 11,
    sample_seconds: float = 4e-3,
    budget: float = 30.0,
    parts: int = 1,
) -> dict[str, Timing]:
    """The time of a call of each run, taken in turns A B C, C B A, ..., after a call of each that is not timed.

    A sample is as many calls as take `sample_seconds`. `budget` bounds the whole: fewer repeats then, three at least.
    Where a call does the same `parts` times, the time is that of one.
    """
    calls: dict[str, int] = {}
    round_seconds = 0.0
    for name, run in runs.items():
        jax.block_until_ready(run())
        once = min(_sample(run, 1) for _ in range(2))
        calls[name] = max(1, min(200, round(sample_seconds / max(once, 1e-7))))
        round_seconds += calls[name] * once
    repeats = max(3, min(repeats, int(budget / max(round_seconds, 1e-9))))
    samples: dict[str, list[float]] = {name: [] for name in runs}
    names = list(runs)
    for i in range(repeats):
        for name in names if i % 2 == 0 else reversed(names):
            samples[name].append(_sample(runs[name], calls[name]) / parts)
    cuts = {name: quantiles(values, n=10, method="inclusive") for name, values in samples.items()}
    return {name: Timing(cut[4], cut[0], cut[-1], repeats) for name, cut in cuts.items()}


def _sample(run: Run, calls: int) -> float:
    start = time.perf_counter()
    for _ in range(calls):
        result = run()
    jax.block_until_ready(result)
    return (time.perf_counter() - start) / calls
