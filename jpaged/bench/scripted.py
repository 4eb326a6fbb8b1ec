"""An executor without a device: what the host core alone does, at any size.

Lives here: ScriptedExecutor, and `host_engine`, an engine over it.
Promises: the same plans get the same answers; beams see likelihoods spread as a small language model spreads them.
Must not know: arrays, models.
"""

import random
from collections.abc import Iterator

from jpaged.config.engine import CacheConfig, SchedulerConfig
from jpaged.core.engine import Engine
from jpaged.core.scheduling.plan import SchedulerOutput, StepResult, TokenLogprobs
from jpaged.sim.scripted import TOKEN_ID, scripted_logprobs

VOCAB_SIZE = 50272


class ScriptedExecutor:
    """Answers every sample with the same id, and where logprobs are asked for, with made-up ones."""

    def __init__(self, seed: int = 0) -> None:
        self._uniforms: Iterator[float] = iter(random.Random(seed).random, None)
        self._asked: dict[int, int | None] = {}

    def execute(self, plan: SchedulerOutput) -> StepResult:
        """What the plan's samples gave."""
        for admitted in plan.admitted:
            self._asked[admitted.lane] = admitted.params.logprobs
        asked = [self._asked[sample.lane] for sample in plan.samples]
        token_ids = (TOKEN_ID,) * len(asked)
        if not any(asked):
            return StepResult(token_ids)
        return StepResult(token_ids, tuple(self._logprobs(count) if count else None for count in asked))

    def _logprobs(self, count: int) -> TokenLogprobs:
        return scripted_logprobs(count, self._uniforms)


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
