"""What sharing pages saves: within a request (the paper's Fig. 15), and between requests (its Fig. 16).

Lives here: `memory_saved` on the host core alone, `shared_prefix` on a whole engine.
Promises: the paper's definitions; plain numbers.
Must not know: flags, printing.
"""

import random
import time
from typing import Any, Literal

from jpaged.bench.scripted import VOCAB_SIZE, host_engine
from jpaged.bench.workload import BenchRequest, shaped
from jpaged.core.engine import Engine
from jpaged.core.requests.request import Request, beam_params
from jpaged.core.requests.sampling_params import BeamSearchParams, SamplingParams

Method = Literal["parallel", "beam"]
# OPT-13B on an A100-40GB: pages of its pool and of the host's, and the most tokens of a step.
NUM_PAGES, NUM_HOST_PAGES, BUDGET = 984, 1638, 2560
# What the paper's section 6.3 saw, in percent: Alpaca by width, ShareGPT from the least to the most.
PAPER: dict[tuple[str, Method], dict[int, float]] = {
    ("alpaca", "parallel"): {2: 6.09, 4: 8.53, 6: 9.79},
    ("alpaca", "beam"): {2: 37.56, 4: 53.13, 6: 55.16},
    ("sharegpt", "parallel"): {2: 16.2, 6: 30.5},
    ("sharegpt", "beam"): {2: 44.3, 6: 66.3},
}


def memory_saved(
    shape: str, method: Method, width: int, *, num_requests: int, num_pages: int = NUM_PAGES, seed: int = 0
) -> dict[str, Any]:
    """The share of pages that sharing saves while more requests wait than the pool can hold.

    As the paper has it: 1 - 1 / mean over steps of (pages of all running block tables / pages held), from when a
    quarter of the requests has finished until nobody waits. Raises ValueError if the pool holds nearly all of them.
    """
    engine = host_engine(
        num_pages=num_pages, num_host_pages=NUM_HOST_PAGES, max_num_seqs=2048, budget=BUDGET, seed=seed
    )
    for i, request in enumerate(shaped(shape, num_requests, VOCAB_SIZE, seed)):
        engine.add(_request(i, request, method, width))
    while engine.stats.num_requests_finished < num_requests / 4:
        engine.step()
    before = engine.stats.sharing_steps
    num_steps, num_running = _drain_queue(engine)
    if not num_steps:
        raise ValueError(f"num_requests={num_requests}: the pool holds nearly all of them at once; give more requests")
    ratio, steps = (now - then for now, then in zip(engine.stats.sharing_steps, before, strict=True))
    paper = PAPER[shape, method].get(width)
    return {
        "shape": shape,
        "method": method,
        "width": width,
        "num_requests": num_requests,
        "num_pages": num_pages,
        "num_steps": num_steps,
        "num_running_mean": num_running / num_steps,
        "saved": max(0.0, 1 - steps / ratio),
        "paper": None if paper is None else paper / 100,
        "num_preemptions": engine.scheduler.num_preemptions + engine.scheduler.num_preemptions_swap,
    }


def _drain_queue(engine: Engine) -> tuple[int, int]:
    """Step until nobody waits; how many steps that took, and the summed number of running sequences."""
    num_steps = num_running = 0
    while engine.scheduler.waiting:
        engine.step()
        num_steps += 1
        num_running += engine.scheduler.num_running
    return num_steps, num_running


def _request(number: int, request: BenchRequest, method: Method, width: int) -> Request:
    beam = None
    params = SamplingParams(n=width, max_tokens=request.output_tokens, ignore_eos=True)
    if method == "beam":
        beam = BeamSearchParams(beam_width=width, max_tokens=request.output_tokens, ignore_eos=True)
        params = beam_params(beam, 0)
    return Request(
        request_id=str(number), prompt_token_ids=request.prompt_token_ids, params=params, beam=beam, seed=number
    )


def shared_prefix(
    llm: Any,
    *,
    prefix_tokens: int,
    num_requests: int,
    pinned: bool,
    own_tokens: tuple[int, int] = (16, 48),
    output_tokens: tuple[int, int] = (32, 64),
    seed: int = 0,
) -> dict[str, Any]:
    """Requests that begin with one prefix, all at once: pages at peak, and seconds.

    Each goes on with tokens of its own and gets some, greedily: both counts are uniform between two. `pinned`: the
    prefix is computed and pinned before the clock starts, as in the paper; its seconds are told apart.
    """
    rng = random.Random(f"prefix:{seed}")
    size = llm.config.model.vocab_size
    prefix = [rng.randrange(size) for _ in range(prefix_tokens)]
    prompts = [[*prefix, *(rng.randrange(size) for _ in range(rng.randint(*own_tokens)))] for _ in range(num_requests)]
    params = [
        SamplingParams(temperature=0.0, max_tokens=rng.randint(*output_tokens), ignore_eos=True, detokenize=False)
        for _ in prompts
    ]
    llm.warm_up()
    start = time.perf_counter()
    held = llm.pin_prefix("shared", prefix) if pinned else 0
    pinning = time.perf_counter() - start
    before = llm.stats()
    start = time.perf_counter()
    outputs = llm.generate(prompts, params, use_tqdm=False)
    elapsed = time.perf_counter() - start
    after = llm.stats()
    if pinned:
        llm.unpin_prefix("shared")
    counters = ("num_steps", "num_tokens_computed", "prefix_hit_tokens", "num_preemptions_recompute")
    return {
        "prefix_tokens": prefix_tokens,
        "prefix_tokens_held": held,
        "pinning_time": pinning,
        "num_requests": num_requests,
        "elapsed_time": elapsed,
        "requests_per_second": num_requests / elapsed,
        "pages_used_peak": after["pages_used_peak"],
        "pages_saved_peak": after["pages_saved_peak"],
        "pages_total": after["pages_total"],
        "num_running_peak": after["num_running_peak"],
        **{name: after[name] - before[name] for name in counters},
        "token_ids": [output.outputs[0].token_ids for output in outputs],
    }
