"""The least time that a workload needs on a machine, whatever the schedule.

Each token is computed once, and weights are read once per step, in as few steps as the rows allow.
"""

from typing import Any

from jpaged.bench.roofline import Rates, Work, parts_work, total_of
from jpaged.serving.llm import LLM
from jpaged.workloads.workload import Workload


def workload_work(llm: LLM, requests: Workload) -> tuple[Work, int]:
    """What the requests have to do in this engine, and in how many steps at the least.

    Without shared prefixes, preemptions and padding. A request's last token is sampled and not computed. Each of its
    tokens takes a row of another step, so there are at least as many steps as the longest output has tokens, and as
    rows are needed over the rows there are.
    """
    outputs = requests.output_tokens
    num_steps = max(max(outputs), -(-sum(outputs) // llm.config.scheduler.max_num_seqs))
    window = llm.config.model.sliding_window or llm.config.scheduler.max_model_len
    tokens = pairs = read = 0
    for prompt, output in zip(requests.prompt_tokens, outputs, strict=True):
        last = prompt + output - 1
        tokens += last
        pairs += _seen(last, window)
        read += _seen(last, window) - _seen(prompt, window)
    parts = parts_work(
        llm, tokens=tokens, pairs=pairs, kv_tokens=tokens + read, samples=sum(outputs), num_steps=num_steps
    )
    # The logits are written by the head; whether the sampler reads them from memory is left open.
    return total_of(parts[name] for name in ("layers", "attention", "head")), num_steps


def workload_bound(llm: LLM, requests: Workload, rates: Rates, share_of: float | None = None) -> dict[str, Any]:
    """Seconds that the requests need at least at these rates, and the total tokens per second that follow from it.

    `share_of`: total tokens per second that a run of them reached; `share` is its part of that bound.
    """
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


def _seen(tokens: int, window: int) -> int:
    """How many tokens the first `tokens` of a sequence see in all, each itself and those before it in its window."""
    full = min(tokens, window)
    return full * (full + 1) // 2 + (tokens - full) * window
