"""The memory policies by name: PagedAttention, the paper's own version of it, and its rivals.

A policy is nothing but options of CacheConfig and SchedulerConfig; all run in the one scheduler.
"""

from dataclasses import replace
from typing import Any

from jpaged.config.declaration import options_of, require_choice
from jpaged.config.options import CacheConfig, SchedulerConfig

# The step of vLLM as published: whole prompts, at most 2,560 tokens and 2,048 sequences.
_STEP_2023: dict[str, Any] = {
    "max_num_seqs": 2048,
    "max_num_batched_tokens": 2560,
    "max_model_len": 2048,
    "chunked_prefill": False,
}
_ORCA: dict[str, Any] = {"enable_prefix_caching": False, "num_host_pages": 0, "watermark": 0.0}

POLICIES: dict[str, dict[str, Any]] = {
    # With chunked prefill and a prefix cache.
    "paged": {},
    "vllm-2023": {
        **_STEP_2023,
        "reservation": "none",
        "enable_prefix_caching": False,
        "watermark": 0.01,
        "append_headroom": True,
        "admit_while_swapped": False,
        "preemption_mode": "auto",
    },
    "orca-oracle": {**_STEP_2023, **_ORCA, "reservation": "oracle"},
    "orca-pow2": {**_STEP_2023, **_ORCA, "reservation": "pow2"},
    "orca-max": {**_STEP_2023, **_ORCA, "reservation": "max"},
    # FasterTransformer, which pads prompts and runs them at once, so no token budget is in the way of a batch.
    "static": {
        **_ORCA,
        "reservation": "batch",
        "max_num_batched_tokens": 2**20,
        "max_model_len": 2048,
        "max_static_batch_len": 2040,
        "batching": "static",
    },
}


def with_policy(
    name: str, cache: CacheConfig, scheduler: SchedulerConfig, **overrides: Any
) -> tuple[CacheConfig, SchedulerConfig]:
    """Both configs with the options of the policy `name`, then those of `overrides`, set.

    Raises ValueError if there is no such policy, or no such option.
    """
    require_choice("policy", name, tuple(POLICIES))
    given = {**POLICIES[name], **overrides}
    of_cache, of_scheduler = ({each.name for each in options_of(kind)} for kind in (CacheConfig, SchedulerConfig))
    if unknown := set(given) - of_cache - of_scheduler:
        raise ValueError(f"{', '.join(sorted(unknown))}: no field of CacheConfig or SchedulerConfig")
    return (
        replace(cache, **{key: value for key, value in given.items() if key in of_cache}),
        replace(scheduler, **{key: value for key, value in given.items() if key in of_scheduler}),
    )
