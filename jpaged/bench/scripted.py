"""An executor without a device: what the host core alone does, at any size.

Lives here: ScriptedExecutor, and `host_engine`, an engine over it.
Promises: the same plans get the same answers; beams see likelihoods spread as a small language model spreads them.
Must not know: arrays, models.
"""

import math
import random
from bisect import bisect_right

from jpaged.config import CacheConfig, SchedulerConfig
from jpaged.core.engine import Engine
from jpaged.core.output import SchedulerOutput, StepResult, TokenLogprobs

VOCAB_SIZE = 50272
# Of SmolLM2-135M-Instruct, four beams on a dozen instructions, 2,748 draws: quantiles of the likelihood of the
# likeliest token, of the second's part of the rest, and the median part of what is then left of each further one.
_QUANTILES = (0.0, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0)
_FIRST = (0.05, 0.177, 0.235, 0.408, 0.705, 0.971, 0.999, 0.9999)
_SECOND = (0.08, 0.12, 0.149, 0.233, 0.396, 0.685, 0.96, 0.99)
_FURTHER = (0.23, 0.165, 0.13, 0.11, 0.1)


class ScriptedExecutor:
    """Answers every sample with the same id, and where logprobs are asked for, with made-up ones."""

    def __init__(self, seed: int = 0) -> None:
        self._rng = random.Random(seed)
        self._asked: dict[int, int | None] = {}

    def execute(self, plan: SchedulerOutput) -> StepResult:
        """What the plan's samples gave."""
        for admitted in plan.admitted:
            self._asked[admitted.row_slot] = admitted.params.logprobs
        asked = [self._asked[sample.row_slot] for sample in plan.samples]
        if not any(asked):
            return StepResult((7,) * len(plan.samples))
        return StepResult((7,) * len(asked), tuple(self._logprobs(count) if count else None for count in asked))

    def _logprobs(self, count: int) -> TokenLogprobs:
        rest, likelihoods = 1.0, list[float]()
        for i in range(count):
            part = self._draw(_FIRST) if i == 0 else self._draw(_SECOND) if i == 1 else _FURTHER[min(i - 2, 4)]
            likelihoods.append(rest * part)
            rest *= 1.0 - part
        logprobs = sorted((math.log(likelihood) for likelihood in likelihoods), reverse=True)
        return TokenLogprobs(logprobs[0], 1, tuple(range(count)), tuple(logprobs))

    def _draw(self, values: tuple[float, ...]) -> float:
        """A number with these quantiles, linear between them."""
        u = self._rng.random()
        i = bisect_right(_QUANTILES, u)
        share = (u - _QUANTILES[i - 1]) / (_QUANTILES[i] - _QUANTILES[i - 1])
        return values[i - 1] + share * (values[i] - values[i - 1])


def host_engine(
    *, num_pages: int, max_num_seqs: int, budget: int, max_model_len: int = 2048, num_host_pages: int = 0, seed: int = 0
) -> Engine:
    """An engine with pages of 16 tokens, no prefix cache, and nothing behind it."""
    return Engine(
        SchedulerConfig(max_num_seqs=max_num_seqs, max_num_batched_tokens=budget, max_model_len=max_model_len),
        CacheConfig(num_pages=num_pages, page_size=16, num_host_pages=num_host_pages, enable_prefix_caching=False),
        ScriptedExecutor(seed),
        vocab_size=VOCAB_SIZE,
    )
