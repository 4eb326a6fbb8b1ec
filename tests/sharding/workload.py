"""What the tests of sharding ask an engine: greedy and sampled requests, in a pool that is too small for them."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from jpaged import LLM, SamplingParams
from jpaged.core.engine import Engine
from tests.engine.tiny import random_prompts, token_ids

COMMON = random_prompts(1, 17, 17, seed=9)[0]
PROMPTS = [[*COMMON[:k], *tail] for k, tail in zip((8, 0, 17, 12, 3), random_prompts(5, 4, 9, seed=3), strict=True)]
PARAMS = [
    SamplingParams(temperature=0.0, max_tokens=14, ignore_eos=True),
    SamplingParams(temperature=0.0, max_tokens=12, repetition_penalty=1.2, min_tokens=4, logprobs=2),
    SamplingParams(n=3, temperature=1.0, seed=11, max_tokens=11, ignore_eos=True),
    SamplingParams(temperature=0.0, max_tokens=10, ignore_eos=True, logit_bias={7: 2.0}),
    SamplingParams(n=2, temperature=0.8, seed=7, max_tokens=9, ignore_eos=True),
]
ENGINE = {
    "max_num_seqs": 10, "max_num_batched_tokens": 64, "max_model_len": 64, "page_size": 4, "num_pages": 20,
    "num_host_pages": 40, "watermark": 0.0,
}  # fmt: skip
MODES = ("swap", "recompute")
EVENTS = ("num_preemptions_recompute", "num_preemptions_swap", "num_page_copies", "prefix_hit_tokens")


def sharded_llm(model: str, **options: Any) -> LLM:
    """An engine whose pool holds 20 pages of 4 tokens."""
    return LLM(model, **(ENGINE | options))


def answers(model: str, modes: Sequence[str] = MODES, **options: Any) -> dict[str, Any]:
    """The ids of all requests, preempted in each of `modes`, once more out of the prefix cache; and what happened."""
    llm = sharded_llm(model, preemption_mode="swap", **options)
    events = dict.fromkeys(EVENTS, 0)
    ids = []
    for mode in modes:
        scheduler = dataclasses.replace(llm.config.scheduler, preemption_mode=mode)
        llm.loop.engine = llm.engine = Engine(
            scheduler, llm.config.cache, llm.runner, vocab_size=llm.config.model.vocab_size
        )
        ids.append([token_ids(llm.generate(PROMPTS, PARAMS, use_tqdm=False)) for _ in range(2)])
        stats = llm.stats()
        for name in EVENTS:
            events[name] += stats[name]
        assert stats["pages_free"] == stats["pages_total"]
    return {"ids": ids, "events": events, "devices": len(llm.runner.kv_pages.k.devices())}
