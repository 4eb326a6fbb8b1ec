"""The memory policies by name: PagedAttention, the paper's own version of it, and its rivals.

Lives here: PRESETS, Preset, and with_policy, which sets a policy's fields in two configs.
Promises: a preset is nothing but fields of CacheConfig and SchedulerConfig; all run in the one scheduler.
Must not know: models, workloads.
"""

from dataclasses import dataclass, field, replace
from typing import Any

from jpaged.config.engine import CacheConfig, SchedulerConfig, require_choice


@dataclass(frozen=True, slots=True)
class Preset:
    """What a policy sets, and what it is, in words."""

    title: str
    cache: dict[str, Any] = field(default_factory=dict[str, Any])
    scheduler: dict[str, Any] = field(default_factory=dict[str, Any])


# The step of vLLM as published: whole prompts, at most 2,560 tokens and 2,048 sequences.
_STEP_2023: dict[str, Any] = {
    "max_num_seqs": 2048,
    "max_num_batched_tokens": 2560,
    "max_model_len": 2048,
    "chunked_prefill": False,
}
_ORCA: dict[str, Any] = {"enable_prefix_caching": False, "num_host_pages": 0, "watermark": 0.0}

PRESETS: dict[str, Preset] = {
    "paged": Preset("PagedAttention, with chunked prefill and a prefix cache"),
    "vllm-2023": Preset(
        "vLLM",
        {"reservation": "none", "enable_prefix_caching": False, "watermark": 0.01},
        {**_STEP_2023, "append_headroom": True, "admit_while_swapped": False, "preemption_mode": "auto"},
    ),
    "orca-oracle": Preset("Orca (Oracle)", {**_ORCA, "reservation": "oracle"}, _STEP_2023),
    "orca-pow2": Preset("Orca (Pow2)", {**_ORCA, "reservation": "pow2"}, _STEP_2023),
    "orca-max": Preset("Orca (Max)", {**_ORCA, "reservation": "max"}, _STEP_2023),
    "static": Preset(
        "FasterTransformer",
        {**_ORCA, "reservation": "batch"},
        # FasterTransformer pads prompts and runs them at once, so no token budget is in the way of a batch.
        {"max_num_batched_tokens": 2**20, "max_model_len": 2048, "max_static_batch_len": 2040, "batching": "static"},
    ),
}


def with_policy(
    name: str, cache: CacheConfig, scheduler: SchedulerConfig, **overrides: Any
) -> tuple[CacheConfig, SchedulerConfig]:
    """Both configs with the fields of the policy `name`, then those of `overrides`, set.

    Raises ValueError if there is no such policy, or no such field.
    """
    require_choice("policy", name, tuple(PRESETS))
    preset = PRESETS[name]
    cache_fields = set(CacheConfig.__dataclass_fields__)
    unknown = set(overrides) - cache_fields - set(SchedulerConfig.__dataclass_fields__)
    if unknown:
        raise ValueError(f"{', '.join(sorted(unknown))}: no field of CacheConfig or SchedulerConfig")
    for_cache = {name: value for name, value in overrides.items() if name in cache_fields}
    for_scheduler = {name: value for name, value in overrides.items() if name not in cache_fields}
    return (
        replace(cache, **{**preset.cache, **for_cache}),
        replace(scheduler, **{**preset.scheduler, **for_scheduler}),
    )
