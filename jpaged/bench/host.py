"""What the host core costs, without a device: schedule and update of a step, and the page allocator.

Times are of the thread's own CPU time, since a shared machine would disturb any other.
"""

import time
from statistics import median, quantiles
from typing import Any

from jpaged.config.options import CacheConfig, SchedulerConfig
from jpaged.core.cache.page_pool import PagePool, pages_for
from jpaged.core.engine import Engine
from jpaged.core.requests.request import Request
from jpaged.core.requests.sampling_params import SamplingParams
from jpaged.sim.clock import VirtualClock
from jpaged.sim.cost_model import LinearCostModel
from jpaged.sim.executor import SimExecutor

ROWS = (64, 256, 1024)
PAGE_SIZE = 16
VOCAB_SIZE = 50272
PROMPT_TOKENS = 128
BUDGET = 2048


def host(rows: tuple[int, ...] = ROWS, *, num_steps: int = 200) -> dict[str, Any]:
    """Milliseconds of CPU time per decode step for each number of running sequences, and allocations per second."""
    return {
        "page_size": PAGE_SIZE,
        "prompt_tokens": PROMPT_TOKENS,
        "num_steps": num_steps,
        "steps": [decode_steps(count, num_steps) for count in rows],
        "allocator_ops_per_second": allocator_ops(),
    }


def decode_steps(rows: int, num_steps: int) -> dict[str, float | int]:
    """Milliseconds per step while `rows` sequences decode: schedule with its accounts, update, and both."""
    # The first sequences decode while the last ones are still in their prompts.
    length = PROMPT_TOKENS + num_steps + 2 + rows * PROMPT_TOKENS // BUDGET
    engine = Engine(
        SchedulerConfig(max_num_seqs=rows, max_num_batched_tokens=max(BUDGET, rows), max_model_len=length),
        CacheConfig(
            num_pages=rows * pages_for(length, PAGE_SIZE) + 64, page_size=PAGE_SIZE, enable_prefix_caching=False
        ),
        SimExecutor(LinearCostModel(name="free"), VirtualClock(), page_size=PAGE_SIZE),
        vocab_size=VOCAB_SIZE,
    )
    for request in decoding_requests(rows, PROMPT_TOKENS, length, VOCAB_SIZE):
        engine.add(request)
    scheduler, executor = engine.scheduler, engine.executor
    while scheduler.waiting or any(g.sequences[0].num_outputs == 0 for g in scheduler.running):
        engine.step()
    schedule: list[float] = []
    update: list[float] = []
    for _ in range(num_steps):
        start = time.thread_time()
        plan = scheduler.schedule(0.0)
        engine.stats.after_schedule(plan, scheduler)
        schedule.append(time.thread_time() - start)
        result = executor.collect(executor.submit(plan))
        start = time.thread_time()
        scheduler.update(plan, result, 0.0)
        update.append(time.thread_time() - start)
    total = [a + b for a, b in zip(schedule, update, strict=True)]
    return {
        "rows": rows,
        "schedule_ms": 1e3 * median(schedule),
        "update_ms": 1e3 * median(update),
        "total_ms": 1e3 * median(total),
        "total_p99_ms": 1e3 * quantiles(total, n=100)[98],
        "us_per_row": 1e6 * median(total) / rows,
    }


def decoding_requests(rows: int, prompt_tokens: int, length: int, vocab_size: int) -> list[Request]:
    """Greedy requests that run to `length` tokens; prompts differ in their first token, so that no page is shared."""
    params = SamplingParams(temperature=0.0, max_tokens=length - prompt_tokens, ignore_eos=True)
    prompts = (tuple((i * 131 + j) % vocab_size for j in range(prompt_tokens)) for i in range(rows))
    return [Request(request_id=str(i), prompt_token_ids=ids, params=params) for i, ids in enumerate(prompts)]


def allocator_ops(num_pages: int = 10_000, rounds: int = 10) -> float:
    """Pages allocated or freed per second, the pool emptied and filled again; the best of some rounds."""
    best = 0.0
    for _ in range(rounds):
        pool = PagePool(num_pages)
        start = time.thread_time()
        pages = [pool.allocate() for _ in range(num_pages)]
        for page in pages:
            pool.drop(page)
            pool.free(page)
        best = max(best, 2 * num_pages / (time.thread_time() - start))
    return best
