"""Every option of an engine, declared once: type, default, choices or bounds, and a line of help.

The sections hold options as the engine runs them, and a section that exists is consistent. EngineOptions has them all
as a user may give them, and as `LLM`, the flags and the docs show them.
"""

import os
from dataclasses import KW_ONLY, dataclass
from typing import Literal

from jpaged.config.declaration import check_options, option, parse_bytes, require_fraction, require_int
from models.config import LOAD_FORMATS

# Page ids are 32-bit integers on the device.
MAX_PAGES = 2**31 - 2
DTYPES = ("float32", "bfloat16", "float16")
KV_CACHE_DTYPES = ("auto", *DTYPES, "int8", "fp8_e4m3", "fp8_e5m2")
RESERVATIONS = ("none", "oracle", "pow2", "max", "batch")


@dataclass(frozen=True, kw_only=True)
class LoadOptions:
    """How the model is loaded and computed."""

    revision: str | None = option(None, "Branch, tag or commit on the hub.")
    load_format: str = option("auto", "File format; dummy: random weights of the model's shape.", choices=LOAD_FORMATS)
    dtype: str = option("float32", "Type of weights and activations.", choices=DTYPES)
    seed: int = option(0, "Seed of all sampling, and of dummy weights.", low=0, high=2**63 - 1)
    attention_implementation: str | None = option(
        None, "reference, xla, triton or mosaic_gpu; default: the platform's."
    )
    scan_unroll: int | Literal["full"] | None = option(
        None, "Layers per iteration of the layer loop; default: the platform's.", choices=("full",), low=1, flag=False
    )


@dataclass(frozen=True, kw_only=True)
class CacheConfig:
    """The page pool: `num_pages` usable pages of `page_size` tokens (None: sized later from memory).

    int8 and fp8 pages carry a float32 scale per token and kv head. `reservation`: "none" is PagedAttention, pages as
    they are needed; the others reserve a contiguous run per sequence when it is admitted, as earlier systems did:
    "oracle", "pow2" and "max" are Orca's (prompt and the true output length, that rounded up to a power of two, or
    max_model_len; max_tokens counts as the true length), "batch" is what a static batch is padded to.
    """

    page_size: int = option(16, "Tokens per page.", low=1, high=256)
    num_pages: int | None = option(None, "Usable pages of the pool; default: what memory allows.", low=1)
    num_host_pages: int = option(0, "Pages in host memory that preempted requests are swapped to.", low=0)
    kv_cache_dtype: str = option(
        "auto", "Type of the cached keys and values; auto: the dtype.", choices=KV_CACHE_DTYPES
    )
    enable_prefix_caching: bool = option(True, "Reuse the pages of equal prefixes.")
    watermark: float = option(
        0.01, "Fraction of the pool that an admission leaves free while others run.", check=require_fraction
    )
    reservation: str = option(
        "none", "none: pages as they are needed; the others are the paper's baselines.", choices=RESERVATIONS
    )

    def __post_init__(self) -> None:
        check_options(self)
        self.check_pages()

    def check_pages(self) -> None:
        """Raise ValueError for more pages than there are ids, or for what a reservation excludes."""
        for name, count in (("num_pages", self.num_pages or 0), ("num_host_pages", self.num_host_pages)):
            if count > MAX_PAGES:
                raise ValueError(f"{name}={count}: page ids are 32-bit integers; give at most {MAX_PAGES}")
        for name, off in (("enable_prefix_caching", False), ("num_host_pages", 0)):
            if self.reservation != "none" and getattr(self, name) != off:
                raise ValueError(
                    f"{name}={getattr(self, name)!r}: reservation={self.reservation!r} shares and swaps nothing; "
                    f"give {name}={off!r}, or reservation='none'"
                )


@dataclass(frozen=True, kw_only=True)
class SchedulerConfig:
    """What one step may hold, and who goes first.

    `preemption_mode` "auto" is the paper's rule: recompute a single sequence, swap several; where the host pool has no
    room, recompute. Whatever the admission policy chooses, the first waiting request is passed over at most
    `max_overtakes` times. `chunked_prefill=False`: a prompt is computed whole in one step (one that exceeds the budget
    by itself still in several). This, `append_headroom` and `admit_while_swapped=False` together are the rules of the
    paper's section 4. `batching="static"`: at most `max_num_seqs` sequences start together, padded to at most
    `max_static_batch_len` tokens, and end together.
    """

    max_num_seqs: int = option(16, "Sequences that run at once, at most.", low=1, high=4096)
    max_num_batched_tokens: int = option(512, "Tokens per step, at most.", low=1, high=2**20)
    max_model_len: int = option(2048, "Tokens per sequence, prompt and output together.", low=2)
    long_prefill_token_threshold: int | None = option(None, "Prompt tokens per step and request, at most.", low=1)
    scheduling_policy: str = option("fcfs", "Which request goes first.", choices=("fcfs", "priority"))
    preemption_mode: str = option(
        "auto", "auto: recompute one sequence, swap several.", choices=("recompute", "swap", "auto")
    )
    admission_policy: str = option("in_order", "in_order, longest_prefix, or an import path module:name.")
    victim_policy: str = option("last", "Which request is preempted: last, or module:name.")
    eviction_policy: str = option("lru", "Which idle page is evicted: lru, or module:name.")
    max_overtakes: int = option(16, "Times that later requests may pass a waiting one.", low=0)
    chunked_prefill: bool = option(True, "Split long prompts over several steps.")
    append_headroom: bool = option(False, "Run a request only while a page is free for each of its sequences.")
    admit_while_swapped: bool = option(True, "Admit new requests while others are swapped out.")
    batching: str = option("continuous", "static: batches start and end together.", choices=("continuous", "static"))
    max_static_batch_len: int | None = option(
        None, "Tokens that a static batch is padded to, at most; default: max_model_len.", low=2
    )

    def __post_init__(self) -> None:
        check_options(self)
        self.check_steps(self.max_model_len)

    def check_steps(self, max_model_len: int | None) -> None:
        """Raise ValueError for bounds that contradict each other; a length of None is not known yet."""
        if self.max_static_batch_len is not None:
            require_int("max_static_batch_len", self.max_static_batch_len, 2, max_model_len)
            if self.batching != "static":
                raise ValueError(f"max_static_batch_len={self.max_static_batch_len}: only with batching='static'")
        if self.batching == "static" and (self.admission_policy, self.scheduling_policy) != ("in_order", "fcfs"):
            raise ValueError(
                "batching='static' is first come, first served: leave admission and scheduling policy alone"
            )
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ValueError(
                f"max_num_batched_tokens={self.max_num_batched_tokens}: must be at least max_num_seqs="
                f"{self.max_num_seqs}, so that every running sequence can take a token each step; raise the one or "
                "lower the other"
            )


@dataclass(frozen=True, kw_only=True)
class ParallelConfig:
    """How many devices share each layer, and in how many processes.

    `parallel_style` "shard_map": the collectives are written down; "pjit": the compiler places them, from where weights
    and pool lie. `num_processes` processes have `tensor_parallel_size / num_processes` devices each.
    """

    tensor_parallel_size: int = option(1, "Devices that share each layer.", low=1)
    parallel_style: str = option(
        "shard_map", "Collectives written down, or placed by the compiler.", choices=("shard_map", "pjit")
    )
    num_processes: int = option(1, "Processes that share the devices.", low=1)

    def __post_init__(self) -> None:
        check_options(self)
        if self.tensor_parallel_size % self.num_processes:
            raise ValueError(
                f"num_processes={self.num_processes}: tensor_parallel_size={self.tensor_parallel_size} is shared out "
                "equally; give a multiple of num_processes as tensor_parallel_size"
            )


@dataclass(frozen=True, kw_only=True)
class RuntimeConfig:
    """How the engine goes about its work; nothing here changes an answer."""

    warmup: str = option(
        "lazy", "full: compile all programs before the first request; lazy: each when needed.", choices=("lazy", "full")
    )
    async_scheduling: bool = option(True, "Plan a step while the one before it runs.")
    max_num_waiting: int | None = option(None, "Sequences that may wait; more are refused.", low=1)
    record_steps: bool = option(False, "Keep a record of each step's pages in step_records.", flag=False)

    def __post_init__(self) -> None:
        check_options(self)


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


@dataclass(frozen=True)
class EngineOptions(RuntimeConfig, ParallelConfig, SchedulerConfig, CacheConfig, LoadOptions):
    """What a user may say about an engine: every section's options, and in its own lines what is resolved away.

    Without `num_pages` and `kv_memory` (or with "auto") the pool holds `max_num_seqs * max_model_len` tokens, at most
    an eighth of the free host memory (rounded down to a power of two, so that two runs agree) or 90 % of the free GPU
    memory. `coordinator`, `num_processes` and `process_id` make the engine one of several processes (docs/sharding.md).
    Raises ValueError, before anything is fetched or read, for what can be told without the model.
    """

    model: str | os.PathLike[str] = option("smollm2-135m", "Name, folder, .gguf file or hub id of the model.")
    _: KW_ONLY
    tokenizer: str | os.PathLike[str] | None = option(
        None, "Folder or .gguf file of another tokenizer; default: the model's own."
    )
    max_model_len: int | None = option(  # pyright: ignore[reportIncompatibleVariableOverride]
        None, "Tokens per sequence, prompt and output together; default: the model's, or the pool's.", low=2
    )
    kv_memory: int | str | None = option(
        None, 'Size of the pool in bytes, such as "512MiB", instead of num_pages.', choices=("auto",), check=parse_bytes
    )
    swap_space: int | str | None = option(
        None, 'Host memory for swapped requests in bytes, such as "1GiB", instead of num_host_pages.', check=parse_bytes
    )
    coordinator: str | None = option(None, "Where several processes meet: HOST:PORT, or auto (SLURM, MPI).")
    num_processes: int | None = option(  # pyright: ignore[reportIncompatibleVariableOverride]
        None, "Number of processes, with a coordinator."
    )
    process_id: int | None = option(None, "Number of this process, from 0; process 0 returns the answers.")

    def __post_init__(self) -> None:
        for name in ("model", "tokenizer"):
            if isinstance(getattr(self, name), os.PathLike):
                object.__setattr__(self, name, os.fspath(getattr(self, name)))
        check_options(self)
        self.check_pages()
        self.check_steps(self.max_model_len)
        if self.kv_memory == "auto":
            object.__setattr__(self, "kv_memory", None)
        if self.kv_memory is not None and self.num_pages is not None:
            raise ValueError(
                f"num_pages={self.num_pages!r} and kv_memory={self.kv_memory!r} both size the pool; give one"
            )
        if self.swap_space is not None and self.num_host_pages:
            raise ValueError("num_host_pages and swap_space both size the host pool; give one of them")
        if self.max_model_len is not None:
            check_pool(self, self)
