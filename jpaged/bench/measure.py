"""`throughput`, `latency`, `shared_prefix`: timed runs of an LLM on a workload, as dictionaries of plain numbers.

Programs are compiled before the clock starts, and the prefix cache is emptied before each timed run.
"""

import resource
import sys
import time
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import jax
import numpy as np
from tqdm import tqdm

from jpaged.core.engine import Engine
from jpaged.core.requests.sampling_params import SamplingParams
from jpaged.runtime.model_runner import ModelRunner
from jpaged.serving.llm import LLM
from jpaged.workloads import Workload, WorkloadSpec, build_workload, load_workload

PERCENTILES = (10, 25, 50, 75, 90, 99)


def throughput(
    llm: LLM,
    requests: Workload,
    *,
    n: int = 1,
    num_warmups: int = 1,
    temperature: float = 0.0,
    during: AbstractContextManager[object] = nullcontext(),  # noqa: B008
) -> dict[str, Any]:
    """All requests at once, to their full length; requests/s and tokens/s of the whole. The run is within `during`.

    Arrivals of the workload are ignored, end-of-sequence ends nothing. Raises ValueError, before anything runs, if a
    request does not fit the engine.
    """
    prompts, params = _prompts_and_params(llm, requests, n, temperature)
    start_up = _start_up(llm, prompts[0])
    for _ in range(num_warmups):
        llm.generate(prompts[:1], params[:1], use_tqdm=False)
    llm.reset_prefix_cache()
    idle, stages = llm.runner.idle_time, stage_seconds(llm.engine, llm.runner)
    with during:
        outputs, elapsed, before, after = _timed(llm, prompts, params)
    stages = {name: s - stages.get(name, 0.0) for name, s in stage_seconds(llm.engine, llm.runner).items()}
    num_output = sum(len(completion.token_ids) for output in outputs for completion in output.outputs)
    num_prompt = sum(requests.prompt_tokens)
    steps = after["num_steps"] - before["num_steps"]
    totals = ("compile_seconds", "compiled_programs", "pages_total", "pages_used_peak", "tail_waste_mean")
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
        "host_stages_ms": {name: 1e3 * seconds / steps for name, seconds in stages.items()},
        "device_idle_share": (llm.runner.idle_time - idle) / elapsed,
        "num_preemptions": after["num_preemptions_recompute"] - before["num_preemptions_recompute"],
        **{name: after[name] for name in totals},
        "start_up": start_up,
        "peak_memory_bytes": peak_memory(),
        "known_memory_bytes": known_memory(llm),
    }


def latency(
    llm: LLM,
    requests: Workload,
    *,
    n: int = 1,
    num_iters_warmup: int,
    num_iters: int,
    temperature: float = 0.0,
    use_tqdm: bool = False,
) -> dict[str, Any]:
    """One batch, several times: seconds from its start to the last token of its last request.

    `use_tqdm` shows on the error stream how far it is.
    """
    prompts, params = _prompts_and_params(llm, requests, n, temperature)
    start_up = _start_up(llm, prompts[0])
    latencies: list[float] = []
    for i in tqdm(range(num_iters_warmup + num_iters), disable=not use_tqdm, desc="Iterations"):
        llm.reset_prefix_cache()
        start = time.perf_counter()
        llm.generate(prompts, params, use_tqdm=False)
        if i >= num_iters_warmup:
            latencies.append(time.perf_counter() - start)
    values = np.percentile(latencies, PERCENTILES)
    return {
        "avg_latency": float(np.mean(latencies)),
        "latencies": latencies,
        "percentiles": {str(p): float(value) for p, value in zip(PERCENTILES, values, strict=True)},
        "compile_seconds": llm.stats()["compile_seconds"],
        "start_up": start_up,
        "peak_memory_bytes": peak_memory(),
    }


def shared_prefix(
    llm: LLM,
    *,
    prefix_tokens: int,
    num_requests: int,
    pinned: bool,
    own_tokens: tuple[int, int] = (16, 48),
    output_tokens: tuple[int, int] = (32, 64),
    seed: int = 0,
) -> dict[str, Any]:
    """Requests that begin with one prefix, all at once: pages at peak, and seconds (the paper's Fig. 16).

    Each goes on with tokens of its own and gets some, greedily: both counts are uniform between two. `pinned`: the
    prefix is computed and pinned before the clock starts, as in the paper; its seconds are told apart.
    """
    spec = WorkloadSpec(
        lengths="uniform",
        arrivals="all_at_once",
        num_requests=num_requests,
        prompt_tokens=own_tokens,
        output_tokens=output_tokens,
        shared_prefix_tokens=prefix_tokens,
        seed=seed,
    )
    prompts, params = _prompts_and_params(llm, build_workload(spec), 1, 0.0)
    llm.warm_up()
    start = time.perf_counter()
    held = llm.pin_prefix("shared", prompts[0][:prefix_tokens]) if pinned else 0
    pinning = time.perf_counter() - start
    outputs, elapsed, before, after = _timed(llm, prompts, params)
    if pinned:
        llm.unpin_prefix("shared")
    counters = ("num_steps", "num_tokens_computed", "prefix_hit_tokens", "num_preemptions_recompute")
    totals = ("pages_used_peak", "pages_saved_peak", "pages_total", "num_running_peak")
    return {
        "prefix_tokens": prefix_tokens,
        "prefix_tokens_held": held,
        "pinning_time": pinning,
        "num_requests": num_requests,
        "elapsed_time": elapsed,
        "requests_per_second": num_requests / elapsed,
        **{name: after[name] for name in totals},
        **{name: after[name] - before[name] for name in counters},
        "token_ids": [output.outputs[0].token_ids for output in outputs],
    }


def machine() -> dict[str, Any]:
    """Where it was measured."""
    device = jax.devices()[0]
    return {"device": f"{device.platform}: {device.device_kind}", "jax": jax.__version__}


def setup(llm: LLM) -> dict[str, Any]:
    """What was measured: enough to tell two results apart."""
    return machine() | {
        "model": llm.options.model,
        "dtype": llm.config.dtype,
        "page_size": llm.config.cache.page_size,
        "max_num_seqs": llm.config.scheduler.max_num_seqs,
        "max_num_batched_tokens": llm.config.scheduler.max_num_batched_tokens,
        "attention_implementation": llm.attention_implementation,
        "config_digest": llm.config.digest(),
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


def _timed(llm: LLM, prompts: list[list[int]], params: list[SamplingParams]) -> tuple[list[Any], float, Any, Any]:
    """The outputs, the seconds that they took, and the engine's numbers before and after."""
    before = llm.stats()
    start = time.perf_counter()
    outputs = llm.generate(prompts, params, use_tqdm=False)
    return outputs, time.perf_counter() - start, before, llm.stats()


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


def fixed_requests(num_prompts: int, input_len: int, output_len: int) -> Workload:
    """`num_prompts` requests of `input_len` prompt and `output_len` output tokens, all at once."""
    arrivals, prompts, outputs = ((each,) * num_prompts for each in (0, input_len, output_len))
    return Workload(arrival_ns=arrivals, prompt_tokens=prompts, output_tokens=outputs)


def read_requests(path: Path, num_prompts: int | None) -> Workload:
    """The first `num_prompts` requests (None: all) of a file of jpaged.workloads. Raises ValueError naming the line."""
    requests = load_workload(path)
    if num_prompts is not None and len(requests) < num_prompts:
        raise ValueError(f"num_prompts={num_prompts}: {path} has {len(requests)} requests; ask for fewer")
    return requests.rows(range(len(requests) if num_prompts is None else num_prompts))


def check_fits(llm: LLM, requests: Workload) -> None:
    """Raise ValueError if the engine would end a request early, or refuse it."""
    limit = llm.config.scheduler.max_model_len
    for i, (prompt, output) in enumerate(zip(requests.prompt_tokens, requests.output_tokens, strict=True)):
        if prompt + output > limit:
            raise ValueError(
                f"request {i}: {prompt} prompt and {output} output tokens are more than max_model_len={limit}; shorten "
                "them or raise max_model_len"
            )


def _prompts_and_params(
    llm: LLM, requests: Workload, n: int, temperature: float
) -> tuple[list[list[int]], list[SamplingParams]]:
    check_fits(llm, requests)
    vocab_size = llm.config.model.vocab_size
    prompts = [list(requests.token_ids(i, vocab_size)) for i in range(len(requests))]
    params = [
        SamplingParams(n=n, temperature=temperature, max_tokens=output, ignore_eos=True, detokenize=False)
        for output in requests.output_tokens
    ]
    return prompts, params
