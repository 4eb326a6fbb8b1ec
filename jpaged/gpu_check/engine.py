"""The sections `engine`, `page_sizes`, `swap` and `devices`: the whole engine, on random weights of a model's shape.

A step's time is that of decode steps alone, prompts cached and programs compiled before. Tokens of
several devices are compared in float32, where sums differ in the last bits.
"""

import time
from statistics import median
from typing import Any

import jax
import numpy as np

from jpaged.bench.measure import setup
from jpaged.core.plan import MoveKind, PageMove
from jpaged.core.requests.sampling_params import SamplingParams
from jpaged.gpu_check.sections import SectionRun
from jpaged.runtime.page_mover import PageMover
from jpaged.runtime.programs import ProgramTable
from jpaged.serving.llm import LLM
from pallas_kernels import KVPages

MODEL, SMALL_MODEL, TINY_MODEL = "llama-3-8b", "opt-1.3b", "smollm2-135m"


def check_engine(run: SectionRun) -> None:
    """`batches`: milliseconds per step beside the bytes it must read over the bandwidth that `device` measured."""
    largest, prompt = (4, 20) if run.tiny else (128, 256)
    llm = _llm(run, TINY_MODEL if run.tiny else MODEL, rows=largest, length=prompt + 64)
    run.keep(**_about(llm), load_seconds=run.seconds - run.left, batches=[])
    batches = (4,) if run.tiny else (128, 32, 8)
    for batch in run.in_time(batches, "batch {}".format, needed=1.0 if run.tiny else 30.0):
        run.found["batches"].append(_step_time(run, llm, batch, prompt))
        run.found |= _about(llm)


def sweep_page_sizes(run: SectionRun) -> None:
    """`page_sizes`: milliseconds per step with pages of each size."""
    rows, prompt = (2, 20) if run.tiny else (64, 256)
    run.found["page_sizes"] = []
    sizes = (16, 4) if run.tiny else (16, 128, 8, 32, 64, 1)
    for size in run.in_time(sizes, "pages of {}".format, needed=1.0 if run.tiny else 12.0):
        llm = _llm(run, TINY_MODEL if run.tiny else SMALL_MODEL, rows=rows, length=prompt + 64, page_size=size)
        run.found["page_sizes"].append(_about(llm) | _step_time(run, llm, rows, prompt))
        del llm


def check_swap(run: SectionRun) -> None:
    """`same_bytes`: pages come back from the host as they went; then an engine short of pages swaps and ends its work.

    `num_wrong` counts what was not as it must be. That the tokens are those of an engine with room is told, not
    demanded: steps of other sizes round otherwise on a GPU.
    """
    trip = _round_trip()
    run.keep(num_wrong=int(not trip["same_bytes"]), **trip)
    prompts = _prompts(4, 24, 1000)
    params = SamplingParams(n=2, temperature=1.0, max_tokens=16, ignore_eos=True, seed=1, detokenize=False)
    outputs: dict[str, Any] = {}
    for name, pages in (("short", 14), ("ample", 200)):
        llm = LLM(TINY_MODEL, load_format="dummy", dtype="float32", max_num_seqs=8, max_num_batched_tokens=32,
                  max_model_len=48, page_size=8, num_pages=pages, num_host_pages=64, preemption_mode="swap",
                  enable_prefix_caching=False)  # fmt: skip
        outputs[name] = [[list(c.token_ids) for c in o.outputs] for o in llm.generate(prompts, params, use_tqdm=False)]
        stats = llm.stats()
        run.keep(**{name: {key: value for key, value in stats.items() if isinstance(value, int | float | str)}})
    swapped = run.found["short"]["num_preemptions_swap"] > 0
    whole = all(len(ids) == 16 for group in outputs["short"] for ids in group)
    run.found |= {"swapped": swapped, "all_finished": whole, "same_tokens": outputs["short"] == outputs["ample"]}
    run.found["num_wrong"] += (not swapped) + (not whole)


def check_devices(run: SectionRun) -> None:
    """`sizes`: for 1, 2, 4, 8 devices as far as they are there, the share of greedy tokens that one device gives.

    A first token that differs is counted in `num_wrong`: later ones may part where two are almost equally likely.
    Beside it, the time of a decode step of an 8B model in bfloat16 by number of devices.
    """
    there = len(jax.devices())
    sizes = [size for size in (1, 2, 4, 8) if size <= there]
    run.keep(num_wrong=0, num_devices=there, sizes=[])
    alone: list[list[int]] = []
    for size in run.in_time(sizes, "{} devices".format, needed=1.0 if run.tiny else 20.0):
        ids = _tokens(size)
        alone = alone or ids
        same = np.equal(alone, ids)
        found: dict[str, Any] = {"tensor_parallel_size": size, "same_tokens": float(same.mean())}
        run.found["num_wrong"] += int((~same[:, 0]).sum())
        run.found["sizes"].append(found)
        run.flush()
        if not run.tiny and there > 1 and run.has_time(f"step time of {size} devices", needed=30.0):
            llm = _llm(run, MODEL, rows=32, length=320, tensor_parallel_size=size)
            found["step_ms"] = 1e3 * median(_step_samples(llm, _prompts(32, 256, 1000), 4, 36, repeats=3))


def _tokens(size: int) -> list[list[int]]:
    """What greedy decoding with n sequences, cached prefixes and a pool too small for all gives on `size` devices."""
    llm = LLM(
        "opt-125m", load_format="dummy", dtype="float32", tensor_parallel_size=size, page_size=8, num_pages=40,
        num_host_pages=32, max_num_seqs=8, max_num_batched_tokens=64, max_model_len=96,
    )  # fmt: skip
    params = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True, detokenize=False)
    outputs = llm.generate(_prompts(6, 40, 1000), params, use_tqdm=False)
    return [list(output.outputs[0].token_ids) for output in outputs]


def _llm(run: SectionRun, model: str, *, rows: int, length: int, page_size: int = 16, **options: Any) -> LLM:
    pages_a_row = -(-length // page_size)
    return LLM(
        model,
        load_format="dummy",
        dtype="float32" if run.tiny else "bfloat16",
        page_size=page_size,
        num_pages=rows * pages_a_row + 8,
        max_num_seqs=rows,
        max_num_batched_tokens=max(16, rows),
        max_model_len=length,
        **options,
    )


def _about(llm: LLM) -> dict[str, Any]:
    stats = llm.stats()
    return setup(llm) | {name: stats[name] for name in ("compiled_programs", "compile_seconds", "host_ms_per_step")}


def _prompts(batch: int, length: int, vocab_size: int) -> list[list[int]]:
    return np.random.default_rng(0).integers(1, vocab_size, (batch, length)).tolist()


def _step_time(run: SectionRun, llm: LLM, batch: int, prompt: int) -> dict[str, Any]:
    few, many = (2, 6) if run.tiny else (4, 36)
    prompts = _prompts(batch, prompt, llm.config.model.vocab_size)
    samples = _step_samples(llm, prompts, few, many, repeats=2 if run.tiny else 5)
    seconds = sorted(samples)[len(samples) // 2]
    found = {"batch": batch, "context": prompt + many // 2, "step_ms": 1e3 * seconds,
             "step_ms_samples": [1e3 * sample for sample in samples],
             "tokens_per_second": batch / seconds if seconds > 0 else None}  # fmt: skip
    return found | _bound(run, llm, batch, prompt + many // 2, seconds)


def _step_samples(llm: LLM, prompts: list[list[int]], few: int, many: int, repeats: int) -> list[float]:
    """Seconds of a decode step: the difference of a long and a short run, prompts in the cache, over their steps."""

    def seconds(tokens: int) -> float:
        params = SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True, detokenize=False)
        start = time.perf_counter()
        llm.generate(prompts, params, use_tqdm=False)
        return time.perf_counter() - start

    # As long as the longest that is timed, and longer than a shape borrows another's program.
    for tokens in (many, few, many):
        seconds(tokens)
    return [(seconds(many) - seconds(few)) / (many - few) for _ in range(repeats)]


def _bound(run: SectionRun, llm: LLM, batch: int, context: int, seconds: float) -> dict[str, Any]:
    """What a step must read, and the share of the copy's bandwidth that this makes of its time."""
    model = llm.config.model
    itemsize = 4 if llm.config.dtype == "float32" else 2
    weights = model.num_step_params * itemsize
    kv = batch * context * model.kv_bytes_per_token(itemsize, 0)
    found: dict[str, Any] = {"weight_bytes": weights, "kv_bytes": kv}
    bandwidth = run.before.get("device", {}).get("result", {}).get("copy_gb_per_second")
    if bandwidth:
        bound = (weights + kv) / (bandwidth * 1e9)
        found |= {"bound_ms": 1e3 * bound, "share_of_bandwidth": bound / seconds if seconds > 0 else None}
    return found


def _round_trip() -> dict[str, Any]:
    """Whether pages that go to the host and come back elsewhere are the same, bit by bit."""
    keys = jax.random.split(jax.random.key(0), 2)
    k, v = (jax.random.normal(key, (3, 24, 8, 2, 64), "bfloat16") for key in keys)
    before = [np.asarray(array)[:, 1:20].view(np.uint16) for array in (k, v)]
    pool = KVPages(k, v)
    mover = PageMover(pool, ProgramTable())
    mover.run(pool, [PageMove(MoveKind.SWAP_OUT, 1 + i, i) for i in range(19)])
    back = [PageMove(MoveKind.SWAP_IN, i, 23 - i) for i in range(19)]
    pool = mover.run(jax.tree.map(jax.numpy.zeros_like, pool), back)
    after = [np.asarray(array)[:, 5:24][:, ::-1].view(np.uint16) for array in (pool.k, pool.v)]
    kinds = sorted(memory.kind for memory in jax.devices()[0].addressable_memories())
    return {"same_bytes": all((a == b).all() for a, b in zip(before, after, strict=True)), "memory_kinds": kinds}
