"""What a benchmark measures, and how.

Lives here: `throughput` and `latency`: timed runs of an LLM on a workload, as dictionaries of plain numbers.
Promises: programs are compiled before the clock starts; the prefix cache is emptied before each timed run.
Must not know: flags, printing.
"""

import resource
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from jpaged.bench.workload import BenchRequest, check_fits
from jpaged.core.sampling_params import SamplingParams
from jpaged.llm import LLM

PERCENTILES = (10, 25, 50, 75, 90, 99)


def throughput(
    llm: LLM, requests: list[BenchRequest], *, n: int = 1, num_warmups: int = 1, temperature: float = 0.0
) -> dict[str, Any]:
    """All requests at once, to their full length; requests/s and tokens/s of the whole.

    End-of-sequence ends nothing. Raises ValueError, before anything runs, if a request does not fit the engine.
    """
    prompts = [list(request.prompt_token_ids) for request in requests]
    params = _all_params(llm, requests, n, temperature)
    llm.warm_up()
    for _ in range(num_warmups):
        llm.generate(prompts[:1], params[:1], use_tqdm=False)
    llm.reset_prefix_cache()
    before = llm.stats()
    start = time.perf_counter()
    outputs = llm.generate(prompts, params, use_tqdm=False)
    elapsed = time.perf_counter() - start
    after = llm.stats()
    num_output = sum(len(completion.token_ids) for output in outputs for completion in output.outputs)
    num_prompt = sum(len(prompt) for prompt in prompts)
    steps = after["num_steps"] - before["num_steps"]
    host_ms = after["host_ms_per_step"] * after["num_steps"] - before["host_ms_per_step"] * before["num_steps"]
    return {
        "elapsed_time": elapsed,
        "num_requests": len(requests),
        "num_prompt_tokens": num_prompt,
        "num_output_tokens": num_output,
        "total_num_tokens": num_prompt + num_output,
        "requests_per_second": len(requests) / elapsed,
        "tokens_per_second": (num_prompt + num_output) / elapsed,
        "output_tokens_per_second": num_output / elapsed,
        "num_steps": steps,
        "host_ms_per_step": host_ms / steps,
        "compile_seconds": after["compile_seconds"],
        "compiled_programs": after["compiled_programs"],
        "num_preemptions": after["num_preemptions_recompute"] - before["num_preemptions_recompute"],
        "pages_total": after["pages_total"],
        "pages_used_peak": after["pages_used_peak"],
        "tail_waste_mean": after["tail_waste_mean"],
        "peak_memory_bytes": peak_memory(),
    }


def latency(
    llm: LLM,
    requests: list[BenchRequest],
    *,
    n: int = 1,
    num_iters_warmup: int,
    num_iters: int,
    temperature: float = 0.0,
    on_iteration: Callable[[], object] = lambda: None,
) -> dict[str, Any]:
    """One batch, several times: seconds from its start to the last token of its last request."""
    prompts = [list(request.prompt_token_ids) for request in requests]
    params = _all_params(llm, requests, n, temperature)
    llm.warm_up()
    latencies: list[float] = []
    for i in range(num_iters_warmup + num_iters):
        llm.reset_prefix_cache()
        start = time.perf_counter()
        llm.generate(prompts, params, use_tqdm=False)
        if i >= num_iters_warmup:
            latencies.append(time.perf_counter() - start)
        on_iteration()
    values = np.percentile(latencies, PERCENTILES)
    return {
        "avg_latency": float(np.mean(latencies)),
        "latencies": latencies,
        "percentiles": {str(p): float(value) for p, value in zip(PERCENTILES, values, strict=True)},
        "compile_seconds": llm.stats()["compile_seconds"],
        "peak_memory_bytes": peak_memory(),
    }


def peak_memory() -> dict[str, int]:
    """The most bytes used so far: the process's resident memory and, where the device tells, the device's."""
    import jax

    # Linux counts in KiB, macOS in bytes.
    unit = 1 if sys.platform == "darwin" else 1024
    peaks = {"host": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit}
    device = (jax.devices()[0].memory_stats() or {}).get("peak_bytes_in_use")
    if device is not None:
        peaks["device"] = device
    return peaks


def _all_params(llm: LLM, requests: list[BenchRequest], n: int, temperature: float) -> list[SamplingParams]:
    for i, request in enumerate(requests):
        check_fits(
            len(request.prompt_token_ids), request.output_tokens, llm.config.scheduler.max_model_len, f"request {i}"
        )
    return [
        SamplingParams(
            n=n, temperature=temperature, max_tokens=request.output_tokens, ignore_eos=True, detokenize=False
        )
        for request in requests
    ]
