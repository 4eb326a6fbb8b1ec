"""The section `devices`: one model over as many GPUs as there are.

Lives here: check_devices.
Promises: with one device it says so and is right; tokens are compared in float32, where sums differ in the last bits.
Must not know: meshes, collectives.
"""

from typing import Any

import jax
import numpy as np

from jpaged.core.requests.sampling_params import SamplingParams
from jpaged.gpu_check.sections import SectionRun
from jpaged.serving.llm import LLM

MODEL, TINY_MODEL = "llama-3-8b", "opt-125m"
LENGTH, OUTPUT = 96, 24


def check_devices(run: SectionRun) -> None:
    """`sizes`: for 1, 2, 4, 8 devices as far as they are there, the share of greedy tokens that one device gives.

    A first token that differs is counted in `num_wrong`: later ones may part where two are almost equally likely.
    Beside it, the time of a decode step of an 8B model in bfloat16 by number of devices.
    """
    there = len(jax.devices())
    sizes = [size for size in (1, 2, 4, 8) if size <= there]
    run.found |= {"num_wrong": 0, "num_devices": there, "sizes": []}
    run.flush()
    alone: list[list[int]] = []
    for size in sizes:
        if not run.has_time(f"{size} devices", needed=1.0 if run.tiny else 20.0):
            break
        ids = _tokens(size)
        alone = alone or ids
        equal = np.mean(
            [a == b for one, other in zip(alone, ids, strict=True) for a, b in zip(one, other, strict=True)]
        )
        firsts = sum(one[0] != other[0] for one, other in zip(alone, ids, strict=True))
        found: dict[str, Any] = {"tensor_parallel_size": size, "same_tokens": float(equal)}
        run.found["num_wrong"] += firsts
        run.found["sizes"].append(found)
        run.flush()
        if not run.tiny and there > 1 and run.has_time(f"step time of {size} devices", needed=30.0):
            found["step_ms"] = _step_ms(size)
            run.flush()


def _tokens(size: int) -> list[list[int]]:
    """What greedy decoding with n sequences, cached prefixes and a pool too small for all gives on `size` devices."""
    llm = LLM(
        TINY_MODEL, load_format="dummy", dtype="float32", tensor_parallel_size=size, page_size=8, num_pages=40,
        num_host_pages=32, max_num_seqs=8, max_num_batched_tokens=64, max_model_len=LENGTH,
    )  # fmt: skip
    prompts = np.random.default_rng(0).integers(1, 1000, (6, 40)).tolist()
    params = SamplingParams(temperature=0.0, max_tokens=OUTPUT, ignore_eos=True, detokenize=False)
    return [list(output.outputs[0].token_ids) for output in llm.generate(prompts, params, use_tqdm=False)]


def _step_ms(size: int) -> float:
    from jpaged.gpu_check.engine import seconds_of

    llm = LLM(
        MODEL, load_format="dummy", dtype="bfloat16", tensor_parallel_size=size, num_pages=32 * 20 + 8,
        max_num_seqs=32, max_num_batched_tokens=64, max_model_len=320,
    )  # fmt: skip
    prompts = np.random.default_rng(0).integers(1, 1000, (32, 256)).tolist()
    for tokens in (36, 4, 36):
        seconds_of(llm, prompts, tokens)
    short, long = (min(seconds_of(llm, prompts, tokens) for _ in range(3)) for tokens in (4, 36))
    return 1e3 * (long - short) / 32
