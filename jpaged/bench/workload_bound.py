"""The least time that a workload needs on a machine, whatever the schedule.

Each token is computed once, and weights are read once per step, in as few steps as the rows allow.
"""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jpaged.bench.measure import check_fits
from jpaged.bench.roofline import Rates, Work
from jpaged.serving.llm import LLM
from jpaged.workloads.workload import Workload


class WorkloadWork(NamedTuple):
    """Operations and bytes of all requests, in at least this many steps."""

    work: Work
    num_steps: int


def workload_work(llm: LLM, requests: Workload) -> WorkloadWork:
    """What the requests have to do in this engine, without shared prefixes, preemptions and padding.

    A request's last token is sampled and not computed. Each of its tokens takes a row of another step, so there are at
    least as many steps as the longest output has tokens, and as rows are needed over the rows there are.
    """
    model, itemsize = llm.config.model, jnp.dtype(llm.config.dtype).itemsize
    outputs = requests.output_tokens
    num_steps = max(max(outputs), -(-sum(outputs) // llm.config.scheduler.max_num_seqs))
    layers = sum(leaf.size for leaf in jax.tree.leaves(llm.runner.params["layers"]))
    head = model.vocab_size * model.embedding_dim
    pool = llm.runner.kv_pages
    window = model.sliding_window or llm.config.scheduler.max_model_len
    tokens = pairs = read = 0
    for prompt, output in zip(requests.prompt_tokens, outputs, strict=True):
        last = prompt + output - 1
        tokens += last
        pairs += _seen(last, window)
        read += _seen(last, window) - _seen(prompt, window)
    operations = (
        2 * layers * tokens + 4 * model.num_layers * model.num_heads * model.head_dim * pairs + 2 * head * sum(outputs)
    )
    moved = (
        num_steps * (layers + head) * itemsize
        + (tokens + read) * pool.nbytes / pool.num_slots
        + 4 * model.vocab_size * sum(outputs)
    )
    return WorkloadWork(Work(operations, moved), num_steps)


def workload_bound(llm: LLM, requests: Workload, rates: Rates, share_of: float | None = None) -> dict[str, Any]:
    """Seconds that the requests need at least at these rates, and the total tokens per second that follow from it.

    `share_of`: total tokens per second that a run of them reached; `share` is its part of that bound. Raises ValueError
    if that is no positive number.
    """
    check_share(share_of)
    check_fits(llm, requests)
    work, num_steps = workload_work(llm, requests)
    seconds = rates.least_seconds(work)
    total = sum(requests.prompt_tokens) + sum(requests.output_tokens)
    return {
        "num_requests": len(requests),
        "total_num_tokens": total,
        "num_steps_at_least": num_steps,
        "operations": work.operations,
        "bytes": work.bytes,
        "operations_seconds": work.operations / rates.operations,
        "bytes_seconds": work.bytes / rates.bytes,
        "least_seconds": seconds,
        "tokens_per_second_at_most": total / seconds,
        "share": None if share_of is None else share_of * seconds / total,
    }


def check_share(share_of: float | None) -> None:
    """Raise ValueError unless `share_of` is None or a rate."""
    if share_of is not None and not 0 < share_of < math.inf:
        raise ValueError(f"share_of={share_of}: give the total tokens per second of a run, a finite number above 0")


def _seen(tokens: int, window: int) -> int:
    """How many tokens the first `tokens` of a sequence see in all, each itself and those before it in its window."""
    full = min(tokens, window)
    return full * (full + 1) // 2 + (tokens - full) * window
