"""What a sampler might have said: ids without a model, and likelihoods as a small language model spreads them.

A sample depends on (seed, request, index, position) alone: not on the batch, the memory, the order of steps.
"""

import hashlib
import math
from bisect import bisect_right
from collections.abc import Iterator

from jpaged.core.plan import SchedulerOutput, StepResult, TokenLogprobs

TOKEN_ID = 7
# Of SmolLM2-135M-Instruct, four beams on a dozen instructions, 2,748 samples: quantiles of the likelihood of the
# likeliest token, of the second's part of the rest, and the median part of what is then left of each further one.
_QUANTILES = (0.0, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0)
_FIRST = (0.05, 0.177, 0.235, 0.408, 0.705, 0.971, 0.999, 0.9999)
_SECOND = (0.08, 0.12, 0.149, 0.233, 0.396, 0.685, 0.96, 0.99)
_FURTHER = (0.23, 0.165, 0.13, 0.11, 0.1)
_MASK = (1 << 64) - 1


def scripted_logprobs(count: int, uniforms: Iterator[float]) -> TokenLogprobs:
    """The logprobs of the `count` likeliest tokens, ids 0, 1, ...; up to two of `uniforms` (in [0, 1)) are taken."""
    rest, likelihoods = 1.0, list[float]()
    for i in range(count):
        part = _quantile((_FIRST, _SECOND)[i], next(uniforms)) if i < 2 else _FURTHER[min(i - 2, 4)]
        likelihoods.append(rest * part)
        rest *= 1.0 - part
    logprobs = sorted((math.log(likelihood) for likelihood in likelihoods), reverse=True)
    return TokenLogprobs(logprobs[0], 1, tuple(range(count)), tuple(logprobs))


class SimulatedSampler:
    """Answers every sample with the same id, and where logprobs are asked for, with made-up ones."""

    def __init__(self, seed: int = 0) -> None:
        self._seed = seed
        self._asked: dict[int, tuple[int, int]] = {}

    def answer(self, plan: SchedulerOutput) -> StepResult:
        """What the plan's samples gave."""
        asked = self._asked
        for admitted in plan.admitted:
            asked.pop(admitted.lane, None)
            if admitted.params.logprobs:
                key = f"{self._seed}/{admitted.request_id}/{admitted.index}"
                row_key = int.from_bytes(hashlib.sha256(key.encode()).digest()[:8])
                asked[admitted.lane] = admitted.params.logprobs, row_key
        token_ids = (TOKEN_ID,) * len(plan.samples)
        if not asked or not any(sample.lane in asked for sample in plan.samples):
            return StepResult(token_ids)
        return StepResult(token_ids, tuple(self._logprobs(plan, *sample) for sample in plan.samples))

    def _logprobs(self, plan: SchedulerOutput, row: int, lane: int) -> TokenLogprobs | None:
        if lane not in self._asked:
            return None
        count, row_key = self._asked[lane]
        _, start, num_tokens = plan.rows[row]
        return scripted_logprobs(count, _uniforms(row_key, start + num_tokens))


def _uniforms(row_key: int, position: int) -> Iterator[float]:
    """Numbers in [0, 1) that depend on the arguments alone (SplitMix64, at places 2 * position and on)."""
    place = 2 * position
    while True:
        place += 1
        z = (row_key + place * 0x9E3779B97F4A7C15) & _MASK
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
        yield ((z ^ (z >> 31)) >> 11) * 2.0**-53


def _quantile(values: tuple[float, ...], u: float) -> float:
    """The value at `u` of a distribution with these quantiles, linear between them."""
    i = bisect_right(_QUANTILES, u)
    share = (u - _QUANTILES[i - 1]) / (_QUANTILES[i] - _QUANTILES[i - 1])
    return values[i - 1] + share * (values[i] - values[i - 1])
