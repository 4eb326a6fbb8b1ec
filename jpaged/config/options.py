"""What a user may say about an engine.

Lives here: EngineOptions.
Promises: what is wrong without knowing the model is said at once, before anything is fetched or read.
Must not know: models, devices, how an option is carried out.
"""

import os
from dataclasses import dataclass
from typing import Literal

from jpaged.config.engine import DTYPES, require_bool, require_choice, require_int, require_text

DEFAULT_MODEL = "smollm2-135m"
WARMUPS = ("lazy", "full")


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """What a user may say about an engine; the fields are the keyword arguments of `LLM`.

    `warmup` "full" compiles every program that the engine can need before the first request, "lazy" each when it pays.
    `async_scheduling` plans a step while the one before it runs, wherever no answer depends on it.
    `tensor_parallel_size` devices share each layer, in the style `parallel_style` (see ParallelConfig); `coordinator`,
    `num_processes` and `process_id` say that they are those of several processes (docs/sharding.md).
    `kv_memory` "auto" is None: as many pages as are wanted, within the memory that is free.

    Raises ValueError, before anything is fetched or read, for what can be told without the model.
    """

    model: str = DEFAULT_MODEL
    tokenizer: str | None = None
    revision: str | None = None
    dtype: str = "float32"
    kv_cache_dtype: str = "auto"
    page_size: int = 16
    num_pages: int | None = None
    kv_memory: int | str | None = None
    max_num_seqs: int = 16
    max_num_batched_tokens: int = 512
    max_model_len: int | None = None
    long_prefill_token_threshold: int | None = None
    enable_prefix_caching: bool = True
    watermark: float = 0.01
    num_host_pages: int | None = None
    swap_space: int | str | None = None
    scheduling_policy: str = "fcfs"
    preemption_mode: str = "auto"
    admission_policy: str = "in_order"
    victim_policy: str = "last"
    eviction_policy: str = "lru"
    max_overtakes: int = 16
    tensor_parallel_size: int = 1
    parallel_style: str = "shard_map"
    coordinator: str | None = None
    num_processes: int | None = None
    process_id: int | None = None
    seed: int = 0
    attention_implementation: str | None = None
    scan_unroll: int | Literal["full"] | None = None
    load_format: str = "auto"
    record_steps: bool = False
    async_scheduling: bool = True
    warmup: str = "lazy"

    def __post_init__(self) -> None:
        for name in ("model", "tokenizer"):
            value = getattr(self, name)
            if isinstance(value, os.PathLike):
                object.__setattr__(self, name, os.fspath(value))
        require_text("model", self.model)
        for name in ("tokenizer", "revision", "attention_implementation"):
            if getattr(self, name) is not None:
                require_text(name, getattr(self, name))
        require_choice("dtype", self.dtype, DTYPES)
        require_int("seed", self.seed, 0, 2**63 - 1)
        require_bool("record_steps", self.record_steps)
        require_bool("async_scheduling", self.async_scheduling)
        require_choice("warmup", self.warmup, WARMUPS)
        if self.scan_unroll is not None and self.scan_unroll != "full":
            require_int("scan_unroll", self.scan_unroll, 1, None)
        if self.kv_memory == "auto":
            object.__setattr__(self, "kv_memory", None)
        if self.kv_memory is not None:
            from jpaged.config.engine import parse_bytes

            parse_bytes(self.kv_memory)
            if self.num_pages is not None:
                raise ValueError(
                    f"num_pages={self.num_pages!r} and kv_memory={self.kv_memory!r} both size the pool; give one"
                )
