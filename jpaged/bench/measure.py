"""What a benchmark measures, and how.

Lives here: `throughput` and `latency`: timed runs of an LLM on a workload, as dictionaries of plain numbers.
Promises: programs are compiled before the clock starts; the prefix cache is emptied before each timed run.
Must not know: flags, printing.
"""

import resource
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import jax
import numpy as np

from jpaged.bench.workload import BenchRequest, check_fits
from jpaged.core.engine import Engine
from jpaged.core.requests.sampling_params import SamplingParams
from jpaged.runtime.model_runner import ModelRunner
from jpaged.serving.llm import LLM

PERCENTILES = (10, 25, 50, 75, 90, 99)


def throughput(
    llm: LLM,
    requests: list[BenchRequest],
    *,
    n: int = 1,
    num_warmups: int = 1,
    temperature: float = 0.0,
    during: Callable[[], AbstractContextManager[object]] = nullcontext,
) -> dict[str, Any]:
    """All requests at once, to their full length; requests/s and tokens/s of the whole. It is run within `during()`.

    End-of-sequence ends nothing. Raises ValueError, before anything runs, if a request does not fit the engine.
    """
    prompts = [list(request.prompt_token_ids) for request in requests]
    params = _all_params(llm, requests, n, temperature)
    start_up = _start_up(llm, prompts[0])
    for _ in range(num_warmups):
        llm.generate(prompts[:1], params[:1], use_tqdm=False)
    llm.reset_prefix_cache()
    before = llm.stats()
    idle, stages = llm.runner.idle_time, _host_stages(llm)
    with during():
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
        "host_stages_ms": {name: 1e3 * (s - stages.get(name, 0.0)) / steps for name, s in _host_stages(llm).items()},
        "device_idle_share": (llm.runner.idle_time - idle) / elapsed,
        "compile_seconds": after["compile_seconds"],
        "compiled_programs": after["compiled_programs"],
        "num_preemptions": after["num_preemptions_recompute"] - before["num_preemptions_recompute"],
        "pages_total": after["pages_total"],
        "pages_used_peak": after["pages_used_peak"],
        "tail_waste_mean": after["tail_waste_mean"],
        "start_up": start_up,
        "peak_memory_bytes": peak_memory(),
        "known_memory_bytes": known_memory(llm),
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
    start_up = _start_up(llm, prompts[0])
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
        "start_up": start_up,
        "peak_memory_bytes": peak_memory(),
    }


def peak_memory() -> dict[str, int]:
    """The most bytes used so far: the process's resident memory and, where the device tells, the device's."""
    # Linux counts in KiB, macOS in bytes.
    unit = 1 if sys.platform == "darwin" else 1024
    peaks = {"host": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit}
    device = (jax.devices()[0].memory_stats() or {}).get("peak_bytes_in_use")
    if device is not None:
        peaks["device"] = device
    return peaks


def known_memory(llm: LLM) -> dict[str, int]:
    """Bytes of what the engine is known to hold: weights, page pool, and the temporaries of its greediest program."""
    runner = llm.runner
    return {
        "weights": sum(leaf.nbytes for leaf in jax.tree.leaves(runner.params)),
        "pool": runner.kv_pages.nbytes,
        "temporaries": max(runner.programs.read(lambda p: p.memory_analysis().temp_size_in_bytes).values(), default=0),
    }


def stage_seconds(engine: Engine, runner: ModelRunner) -> dict[str, float]:
    """Seconds so far in each stage of the host's part of a step; "wait" is for the device."""
    return {"schedule": engine.schedule_time, **runner.stages.seconds, "update": engine.update_time}


def _host_stages(llm: LLM) -> dict[str, float]:
    return stage_seconds(llm.engine, llm.runner)


def _start_up(llm: LLM, prompt: list[int]) -> dict[str, float | int]:
    """Seconds until the engine was built, until one prompt had its first token, and until all programs were compiled;
    and how many of the programs were on disk already."""
    start = time.perf_counter()
    llm.generate([prompt], SamplingParams(temperature=0.0, max_tokens=1, detokenize=False), use_tqdm=False)
    first_token = time.perf_counter()
    llm.warm_up()
    programs = llm.runner.programs
    return {
        "load_seconds": llm.load_seconds,
        "first_token_seconds": llm.load_seconds + first_token - start,
        "warm_up_seconds": time.perf_counter() - first_token,
        "num_programs": len(programs),
        "num_programs_from_cache": programs.num_cached,
    }


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
