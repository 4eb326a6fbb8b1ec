"""The paper's traces, to the request.

Lives here: `paper_trace`: the recipe of its experiments (Poisson requests every 10 ms, rows in order, then shuffled).
Promises: the lengths and times that its scripts make with seed 0, without touching any global random state.
Must not know: where the pairs are from.
"""

import random
from collections.abc import Sequence

from jpaged.workloads.arrivals import paper_quanta
from jpaged.workloads.fits import MAX_TOTAL
from jpaged.workloads.workload import Workload


def paper_trace(
    pairs: Sequence[tuple[int, int]], rate: float, duration_s: float, *, seed: int = 0, name: str = "paper"
) -> Workload:
    """The trace of `rate` requests a second over `duration_s` out of (prompt, output) `pairs` in file order.

    Pairs of 2048 tokens and more are left out; of the others come as many of the first ones as there are arrivals, from
    the top again if they do not suffice; these are shuffled. So a short run has other mean lengths than a long one.
    Raises ValueError.
    """
    arrivals = paper_quanta(rate, duration_s, seed=seed)
    order = paper_rows(pairs, len(arrivals), seed=seed)
    return Workload(
        arrival_ns=arrivals,
        prompt_tokens=tuple(pairs[row][0] for row in order),
        output_tokens=tuple(pairs[row][1] for row in order),
        name=name,
        num_dropped=sum(sum(pair) >= MAX_TOTAL for pair in pairs),
    )


def paper_rows(
    pairs: Sequence[tuple[int, int]], count: int, *, max_total: int = MAX_TOTAL - 1, seed: int = 0
) -> list[int]:
    """Which rows of `pairs` the recipe takes for `count` requests, in order of arrival. Raises ValueError."""
    kept = [row for row, pair in enumerate(pairs) if sum(pair) <= max_total]
    if not kept and count:
        raise ValueError(f"pairs: none has at most {max_total} tokens in all; give shorter ones")
    rows = [kept[i % len(kept)] for i in range(count)]
    # The stream of random.seed(seed); random.shuffle(rows).
    random.Random(seed).shuffle(rows)
    return rows
