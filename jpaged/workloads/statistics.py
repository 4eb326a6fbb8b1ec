"""What a workload is like, in numbers.

Plain numbers; standard deviations divide by n, quantiles interpolate linearly.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from jpaged.config.declaration import require_int
from jpaged.workloads.workload import SECOND, Workload

QUANTILES = (1, 5, 10, 25, 50, 75, 90, 95, 99)


@dataclass(frozen=True, slots=True)
class LengthStats:
    """One column of token counts; `quantiles` are (percent, tokens), `mean_inverse` is the mean of 1 / tokens."""

    mean: float
    std: float
    min: int
    max: int
    quantiles: tuple[tuple[int, float], ...]
    mean_inverse: float

    def quantile(self, percent: int) -> float:
        """The length that `percent` of the requests do not exceed; a KeyError names the percentages there are."""
        return dict(self.quantiles)[percent]


@dataclass(frozen=True, slots=True)
class PrefixReuse:
    """Blocks of all prompts, and how many of them an infinite prefix cache has when their request comes."""

    block_tokens: int
    num_blocks: int
    num_hits: int

    @property
    def share(self) -> float:
        """The part of all blocks that is found."""
        return self.num_hits / self.num_blocks


@dataclass(frozen=True, slots=True)
class WorkloadStats:
    """What `describe` says. `rate` is requests per second of the span between first and last, None without a span.

    `gap_cv` is the standard deviation of the gaps over their mean: 1 for Poisson arrivals, None without a span.
    `prefix_reuse` is None where nothing is shared.
    """

    num_requests: int
    prompt: LengthStats
    output: LengthStats
    span_s: float
    rate: float | None
    gap_cv: float | None
    prefix_reuse: PrefixReuse | None


def describe(workload: Workload, *, block_tokens: int = 16) -> WorkloadStats:
    """Lengths, arrivals and sharing of `workload`; `block_tokens` as in `prefix_reuse`. Raises ValueError if empty."""
    if not len(workload):
        raise ValueError(f"workload {workload.name!r} has no requests to describe; give it some")
    gaps = np.diff(np.asarray(workload.arrival_ns, np.int64)) / SECOND
    span = (workload.arrival_ns[-1] - workload.arrival_ns[0]) / SECOND
    shares = workload.prefix_ids is not None or workload.session is not None or workload.shared_prefix_tokens > 0
    return WorkloadStats(
        num_requests=len(workload),
        prompt=_lengths(workload.prompt_tokens),
        output=_lengths(workload.output_tokens),
        span_s=span,
        rate=len(gaps) / span if span else None,
        gap_cv=float(gaps.std() / gaps.mean()) if span else None,
        prefix_reuse=prefix_reuse(workload, block_tokens=block_tokens) if shares else None,
    )


def prefix_reuse(workload: Workload, *, block_tokens: int = 16) -> PrefixReuse:
    """What a cache that forgets nothing finds, if each request is done before the next comes.

    With `prefix_ids` blocks are those of the trace, a prompt's last and shorter one too, and a hit is one of the
    longest known prefix. Otherwise blocks have `block_tokens` tokens and only full ones are found: of the prompt and
    answer of the session's turn before, and of the shared prefix. Raises ValueError.
    """
    if workload.prefix_ids is not None and workload.prefix_unit is not None:
        known, hits = dict[tuple[int, int], int](), 0
        for ids in workload.prefix_ids:
            # Each known prefix has a number; that of the prefix before it and a block's id lead to it.
            prefix = 0
            for block in ids:
                hits += (prefix, block) in known
                prefix = known.setdefault((prefix, block), len(known) + 1)
        return PrefixReuse(workload.prefix_unit, sum(map(len, workload.prefix_ids)), hits)
    require_int("block_tokens", block_tokens, 1, None)
    written, hits = dict[int, int](), 0
    for row, prompt in enumerate(workload.prompt_tokens):
        known_tokens = workload.shared_prefix_tokens if row else 0
        if workload.session is not None:
            known_tokens = max(known_tokens, written.get(workload.session[row], 0))
            written[workload.session[row]] = prompt + workload.output_tokens[row]
        hits += min(known_tokens, prompt) // block_tokens
    return PrefixReuse(block_tokens, sum(-(-prompt // block_tokens) for prompt in workload.prompt_tokens), hits)


def _lengths(column: Sequence[int]) -> LengthStats:
    values = np.asarray(column, np.int64)
    at = np.percentile(values, QUANTILES).tolist()
    return LengthStats(
        mean=float(values.mean()),
        std=float(values.std()),
        min=int(values.min()),
        max=int(values.max()),
        quantiles=tuple(zip(QUANTILES, at, strict=True)),
        mean_inverse=float((1.0 / values).mean()),
    )
