"""Every setting of an engine, checked once and then frozen.

Lives here: CacheConfig, SchedulerConfig, ParallelConfig, EngineConfig and the digest that names a run.
Promises: a config that exists is consistent; every error names the field, the value and what to do.
Must not know: jax, arrays, live state.
"""

import hashlib
import json
import re
from dataclasses import asdict, dataclass, field
from typing import Any

from models.config import ModelConfig

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}
# Page ids are 32-bit integers on the device.
MAX_PAGES = 2**31 - 2
DTYPES = ("float32", "bfloat16", "float16")
KV_CACHE_DTYPES = ("auto", *DTYPES, "int8", "fp8_e4m3", "fp8_e5m2")
SCHEDULING_POLICIES = ("fcfs", "priority")
PREEMPTION_MODES = ("recompute", "swap", "auto")
BATCHING = ("continuous", "static")
RESERVATIONS = ("none", "oracle", "pow2", "max", "batch")
PARALLEL_STYLES = ("shard_map", "pjit")
LOAD_FORMATS = ("auto", "safetensors", "gguf", "dummy")


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheConfig:
    """The page pool: `num_pages` usable pages of `page_size` tokens (None: sized later from memory).

    `kv_cache_dtype`: "auto" is the model's; int8 and fp8 pages carry a float32 scale a token and kv head.
    `num_host_pages`: pages of the host pool that preempted sequences are swapped to; 0 is none.
    `watermark`: the fraction of the pool that an admission leaves available while others run.
    `reservation`: "none" is PagedAttention, pages as they are needed; the others reserve a contiguous run a sequence
    when it is admitted, as the systems before did: "oracle", "pow2" and "max" are Orca's (prompt and the true output
    length, that rounded up to a power of two, or max_model_len; max_tokens is taken for the true length), "batch" is
    what a static batch is padded to.
    """

    page_size: int = 16
    num_pages: int | None = None
    num_host_pages: int = 0
    kv_cache_dtype: str = "auto"
    enable_prefix_caching: bool = True
    watermark: float = 0.01
    reservation: str = "none"

    def __post_init__(self) -> None:
        require_int("page_size", self.page_size, 1, 256)
        if self.num_pages is not None:
            require_int("num_pages", self.num_pages, 1, None)
        require_int("num_host_pages", self.num_host_pages, 0, None)
        for name, count in (("num_pages", self.num_pages or 0), ("num_host_pages", self.num_host_pages)):
            if count > MAX_PAGES:
                raise ValueError(f"{name}={count}: page ids are 32-bit integers; give at most {MAX_PAGES}")
        require_choice("kv_cache_dtype", self.kv_cache_dtype, KV_CACHE_DTYPES)
        require_bool("enable_prefix_caching", self.enable_prefix_caching)
        require_fraction("watermark", self.watermark)
        require_choice("reservation", self.reservation, RESERVATIONS)
        if self.reservation != "none":
            self._check_reservation()

    def _check_reservation(self) -> None:
        for name, off in (("enable_prefix_caching", False), ("num_host_pages", 0)):
            if getattr(self, name) != off:
                raise ValueError(
                    f"{name}={getattr(self, name)!r}: reservation={self.reservation!r} shares and swaps nothing; "
                    f"give {name}={off!r}, or reservation='none'"
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig:
    """What one step may hold.

    `max_num_seqs` sequences run at once; a step computes at most `max_num_batched_tokens` tokens, of one prompt at
    most `long_prefill_token_threshold` (None: no bound of its own). `max_model_len` bounds prompt + output.
    `scheduling_policy`: "fcfs" or "priority". `preemption_mode`: "recompute", "swap" or "auto", the paper's rule:
    recompute a single sequence, swap several; where the host pool has no room, recompute.
    `admission_policy` ("in_order", "longest_prefix"), `victim_policy` ("last") and `eviction_policy` ("lru") may also
    be the import path "package.module:name" of a user's own (see core/policy.py). Whatever the admission policy
    chooses, the first waiting group is times_skipped at most `max_overtakes` times.

    `chunked_prefill=False`: a prompt is computed whole in one step (one that exceeds the budget by itself still in
    several). `append_headroom`: a running group goes on only while a page is free for each of its sequences, needed
    or not. `admit_while_swapped=False`: nobody new comes in before all swapped groups are back. These three together
    are the rules of the paper's section 4. `batching="static"`: at most `max_num_seqs` sequences start together, padded
    to at most `max_static_batch_len` tokens (None: max_model_len), and end together.
    """

    max_num_seqs: int = 16
    max_num_batched_tokens: int = 512
    max_model_len: int = 2048
    long_prefill_token_threshold: int | None = None
    scheduling_policy: str = "fcfs"
    preemption_mode: str = "auto"
    admission_policy: str = "in_order"
    victim_policy: str = "last"
    eviction_policy: str = "lru"
    max_overtakes: int = 16
    chunked_prefill: bool = True
    append_headroom: bool = False
    admit_while_swapped: bool = True
    batching: str = "continuous"
    max_static_batch_len: int | None = None

    def __post_init__(self) -> None:
        require_int("max_num_seqs", self.max_num_seqs, 1, 4096)
        require_int("max_num_batched_tokens", self.max_num_batched_tokens, 1, 2**20)
        require_int("max_model_len", self.max_model_len, 2, None)
        if self.long_prefill_token_threshold is not None:
            require_int("long_prefill_token_threshold", self.long_prefill_token_threshold, 1, None)
        require_choice("scheduling_policy", self.scheduling_policy, SCHEDULING_POLICIES)
        require_choice("preemption_mode", self.preemption_mode, PREEMPTION_MODES)
        for name in ("admission_policy", "victim_policy", "eviction_policy"):
            require_text(name, getattr(self, name))
        require_int("max_overtakes", self.max_overtakes, 0, None)
        for name in ("chunked_prefill", "append_headroom", "admit_while_swapped"):
            require_bool(name, getattr(self, name))
        require_choice("batching", self.batching, BATCHING)
        self._check_static()
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ValueError(
                f"max_num_batched_tokens={self.max_num_batched_tokens}: must be at least max_num_seqs="
                f"{self.max_num_seqs}, so that every running sequence can take a token each step; raise the one or "
                "lower the other"
            )

    def _check_static(self) -> None:
        if self.max_static_batch_len is not None:
            require_int("max_static_batch_len", self.max_static_batch_len, 2, self.max_model_len)
            if self.batching != "static":
                raise ValueError(f"max_static_batch_len={self.max_static_batch_len}: only with batching='static'")
        if self.batching == "static" and (self.admission_policy, self.scheduling_policy) != ("in_order", "fcfs"):
            raise ValueError(
                "batching='static' is first come, first served: leave admission and scheduling policy alone"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelConfig:
    """How many devices share each layer, and in how many processes.

    `parallel_style` "shard_map": the collectives are written down; "pjit": the compiler places them, from where weights
    and pool lie. `num_processes` processes have `tensor_parallel_size / num_processes` devices each.
    """

    tensor_parallel_size: int = 1
    parallel_style: str = "shard_map"
    num_processes: int = 1

    def __post_init__(self) -> None:
        require_int("tensor_parallel_size", self.tensor_parallel_size, 1, None)
        require_choice("parallel_style", self.parallel_style, PARALLEL_STYLES)
        require_int("num_processes", self.num_processes, 1, None)
        if self.tensor_parallel_size % self.num_processes:
            raise ValueError(
                f"num_processes={self.num_processes}: tensor_parallel_size={self.tensor_parallel_size} is shared out "
                "equally; give a multiple of num_processes as tensor_parallel_size"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """Everything that decides what an engine answers; `digest` names it."""

    model_name: str
    model: ModelConfig
    dtype: str = "float32"
    seed: int = 0
    load_format: str = "auto"
    attention_implementation: str | None = None
    cache: CacheConfig = field(default_factory=CacheConfig)
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    parallel: ParallelConfig = field(default_factory=ParallelConfig)

    def __post_init__(self) -> None:
        require_text("model_name", self.model_name)
        require_choice("dtype", self.dtype, DTYPES)
        require_choice("load_format", self.load_format, LOAD_FORMATS)
        require_int("seed", self.seed, 0, 2**63 - 1)
        if self.attention_implementation is not None:
            require_text("attention_implementation", self.attention_implementation)
        limit = self.model.max_length
        if self.scheduler.max_model_len > limit:
            raise ValueError(
                f"max_model_len={self.scheduler.max_model_len}: {self.model_name} has positions for {limit} tokens; "
                f"give at most {limit}"
            )
        check_pool(self.cache, self.scheduler)

    def digest(self) -> str:
        """A hexadecimal name of this config: equal configs, and they alone, have equal digests."""
        # 1 and 1.0 are equal, so they are written alike.
        plain = json.loads(json.dumps(asdict(self)), parse_float=_int_if_whole)
        text = json.dumps(plain, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def check_pool(cache: CacheConfig, scheduler: SchedulerConfig) -> None:
    """Raise ValueError if one sequence of `max_model_len` tokens can never fit the pool, or the two contradict."""
    if (cache.reservation == "batch") != (scheduler.batching == "static"):
        raise ValueError(
            f"reservation={cache.reservation!r} with batching={scheduler.batching!r}: 'batch' and 'static' go together"
        )
    if scheduler.append_headroom and cache.reservation != "none":
        raise ValueError(
            f"append_headroom=True with reservation={cache.reservation!r}: who holds a reservation needs no free page "
            "to go on; give append_headroom=False"
        )
    if cache.num_pages is None:
        return
    room = cache.num_pages * cache.page_size
    if room < scheduler.max_model_len:
        raise ValueError(
            f"num_pages={cache.num_pages}: pages of {cache.page_size} tokens hold {room} tokens, less than one "
            f"sequence of max_model_len={scheduler.max_model_len}; give num_pages of at least "
            f"{-(-scheduler.max_model_len // cache.page_size)} or max_model_len of at most {room}"
        )


def require_int(name: str, value: Any, low: int, high: int | None) -> None:
    """Raise ValueError unless `value` is an int (not a bool) in [low, high]."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"{name}={value!r}: must be an integer")
    if value < low or (high is not None and value > high):
        bound = f"at least {low}" if high is None else f"between {low} and {high}"
        raise ValueError(f"{name}={value!r}: must be {bound}")


def require_fraction(name: str, value: Any) -> None:
    """Raise ValueError unless `value` is a number in [0, 1)."""
    if isinstance(value, bool) or not isinstance(value, float | int) or not 0 <= value < 1:
        raise ValueError(f"{name}={value!r}: must be a fraction in [0, 1)")


def require_bool(name: str, value: Any) -> None:
    """Raise ValueError unless `value` is True or False."""
    if not isinstance(value, bool):
        raise ValueError(f"{name}={value!r}: must be True or False")


def require_text(name: str, value: Any) -> None:
    """Raise ValueError unless `value` is a string that is not empty."""
    if not isinstance(value, str) or not value:
        raise ValueError(f"{name}={value!r}: must be a name")


def require_choice(name: str, value: Any, choices: tuple[str, ...]) -> None:
    """Raise ValueError unless `value` is one of `choices`."""
    if value not in choices:
        raise ValueError(f"{name}={value!r}: choose one of {', '.join(choices)}")


def parse_bytes(value: int | str, name: str = "kv_memory") -> int:
    """Bytes of a number or of a text such as "512MiB" or "2GB". Raises ValueError naming the remedy."""
    if isinstance(value, int) and not isinstance(value, bool):
        size = value
    else:
        match = re.fullmatch(r"\s*(\d{1,30}(?:\.\d+)?)\s*([kmgt]?i?)b?\s*", str(value).lower())
        if match is None or match[2] not in _UNITS:
            raise ValueError(f"{name}={value!r}: give bytes, or a text such as '512MiB' or '2GB'")
        size = int(float(match[1]) * _UNITS[match[2]])
    if size < 1:
        raise ValueError(f"{name}={value!r}: must be at least one byte")
    return size


def _int_if_whole(text: str) -> int | float:
    value = float(text)
    return int(value) if value.is_integer() else value
