"""Small engines for tests: a tiny random LLaMA, prompts of ids, and what an engine answers to them."""

import random
from pathlib import Path
from typing import Any

from jpaged import LLM, SamplingParams

TINY_LLAMA = str(Path(__file__).parents[1] / "fixtures" / "tiny" / "llama")
GREEDY = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)


def tiny_llm(model: str = TINY_LLAMA, **options: Any) -> LLM:
    """An engine with room for 8 sequences of 64 tokens, unless `options` say otherwise."""
    return LLM(model, **{"max_num_seqs": 8, "max_num_batched_tokens": 64, "max_model_len": 64, **options})


def random_prompts(count: int, low: int, high: int, *, seed: int = 0, vocab_size: int = 96) -> list[list[int]]:
    """`count` prompts of `low` to `high` random ids."""
    rng = random.Random(seed)
    return [[rng.randrange(4, vocab_size) for _ in range(rng.randint(low, high))] for _ in range(count)]


def token_ids(outputs: Any) -> list[list[list[int]]]:
    """The generated ids of each sequence of each output."""
    return [[completion.token_ids for completion in output.outputs] for output in outputs]


def generate(llm: LLM, prompts: list[list[int]], params: Any = GREEDY) -> list[list[list[int]]]:
    """The generated ids; afterwards the engine holds nothing."""
    ids = token_ids(llm.generate(prompts, params, use_tqdm=False))
    llm.engine.scheduler.check()
    assert llm.stats()["pages_free"] == llm.stats()["pages_total"]
    return ids
