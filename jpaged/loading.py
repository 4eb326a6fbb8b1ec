"""From the name of a model to an engine that can run: weights, tokenizer, pool size, programs.

Lives here: `load_engine` and what it gives.
Promises: every choice made for the user is logged; nothing is allocated before the configuration is known to be right.
Must not know: prompts, outputs.
"""

import dataclasses
import logging
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from jpaged.config import (
    DTYPES,
    CacheConfig,
    EngineConfig,
    ParallelConfig,
    SchedulerConfig,
    require_bool,
    require_choice,
    require_int,
    require_text,
)
from jpaged.core.engine import Engine

if TYPE_CHECKING:
    from jpaged.runtime.model_runner import ModelRunner
    from jpaged.tokenizer import Tokenizer

logger = logging.getLogger("jpaged")

DEFAULT_MODEL = "smollm2-135m"
_GPU_KERNELS = ("triton", "mosaic_gpu")


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """What a user may say about an engine; the fields are the keyword arguments of `LLM`.

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
    seed: int = 0
    attention_implementation: str | None = None
    scan_unroll: int | Literal["full"] | None = None
    load_format: str = "auto"
    record_steps: bool = False

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
        if self.scan_unroll is not None and self.scan_unroll != "full":
            require_int("scan_unroll", self.scan_unroll, 1, None)
        if self.kv_memory is not None:
            from jpaged.runtime.memory import parse_bytes

            parse_bytes(self.kv_memory)
            if self.num_pages is not None:
                raise ValueError(
                    f"num_pages={self.num_pages!r} and kv_memory={self.kv_memory!r} both size the pool; give one"
                )


@dataclass(frozen=True, slots=True)
class LoadedEngine:
    """An engine with a model behind it."""

    engine: Engine
    runner: "ModelRunner"
    tokenizer: "Tokenizer | None"
    config: EngineConfig
    attention_implementation: str


def load_engine(options: EngineOptions) -> LoadedEngine:
    """Load the model and build the engine. Raises ValueError with the remedy for anything a user can mend."""
    # Checked first, since reading weights takes longest: everything that does not depend on the model.
    cache = CacheConfig(
        page_size=options.page_size,
        num_pages=options.num_pages,
        kv_cache_dtype=options.kv_cache_dtype,
        enable_prefix_caching=options.enable_prefix_caching,
        num_host_pages=options.num_host_pages or 0,
        watermark=options.watermark,
    )
    scheduler = SchedulerConfig(
        max_num_seqs=options.max_num_seqs,
        max_num_batched_tokens=options.max_num_batched_tokens,
        long_prefill_token_threshold=options.long_prefill_token_threshold,
        scheduling_policy=options.scheduling_policy,
        preemption_mode=options.preemption_mode,
        admission_policy=options.admission_policy,
        victim_policy=options.victim_policy,
        eviction_policy=options.eviction_policy,
        max_overtakes=options.max_overtakes,
    )
    if options.max_model_len is not None:
        scheduler = dataclasses.replace(scheduler, max_model_len=options.max_model_len)
    parallel = ParallelConfig(tensor_parallel_size=options.tensor_parallel_size)
    from models import load_config, resolve_source

    source = resolve_source(options.model, revision=options.revision, load_format=options.load_format)
    model_config = load_config(source)
    if options.max_model_len is None:
        # Two tokens at least, so that a pool that holds less is refused by its own name.
        length = max(2, min(model_config.max_length, _explicit_room(cache)))
        scheduler = dataclasses.replace(scheduler, max_model_len=length)
    config = EngineConfig(
        model_name=options.model,
        model=model_config,
        dtype=options.dtype,
        seed=options.seed,
        load_format=options.load_format,
        attention_implementation=options.attention_implementation,
        cache=cache,
        scheduler=scheduler,
        parallel=parallel,
    )
    return _build(options, config, source)


def _explicit_room(cache: CacheConfig) -> int:
    return 2**62 if cache.num_pages is None else cache.num_pages * cache.page_size


def _build(options: EngineOptions, config: EngineConfig, source: Any) -> LoadedEngine:
    import jax
    import jax.numpy as jnp

    from jpaged.runtime.model_runner import ModelRunner
    from jpaged.runtime.programs import use_persistent_cache
    from models import build_model, load_params

    use_persistent_cache()
    device = jax.devices()[0]
    implementation = _resolve_attention(options.attention_implementation, device.platform)
    _check_weights_fit(config, device)
    tokenizer = _load_tokenizer(options, source)
    params = jax.device_put(load_params(source, config.model, jnp.dtype(config.dtype), seed=config.seed))
    config = _size_pool(options, config, device)
    unroll = options.scan_unroll
    if unroll is None:
        # A rolled scan copies every layer's weights on a GPU; an unrolled one copies them on a CPU.
        unroll = 1 if device.platform == "cpu" else "full"
    model = build_model(
        config.model,
        dtype=jnp.dtype(config.dtype),
        max_model_len=config.scheduler.max_model_len,
        attention_implementation=implementation,
        scan_unroll=unroll,
    )
    runner = ModelRunner(
        model,
        config.model,
        params,
        config.cache,
        config.scheduler,
        dtype=config.dtype,
        attention_implementation=implementation,
    )
    _check_pool_is_readable(config, runner.kv_pages, implementation)
    engine = Engine(
        config.scheduler,
        config.cache,
        runner,
        vocab_size=config.model.vocab_size,
        record_steps=options.record_steps,
    )
    return LoadedEngine(engine, runner, tokenizer, config, implementation)


def _check_pool_is_readable(config: EngineConfig, kv_pages: Any, implementation: str) -> None:
    """Raise ValueError here, not in the first step, for a pool whose dtype or size the GPU's kernels cannot read."""
    from pallas_kernels.triton_call import check_pool

    try:
        if implementation == "triton":
            check_pool(kv_pages)
    except NotImplementedError as error:
        raise ValueError(f"kv_cache_dtype={config.cache.kv_cache_dtype!r}: {error}") from None


def _resolve_attention(wanted: str | None, platform: str) -> str:
    """The implementation that will run. A GPU kernel is refused here, not by the compiler in the first step."""
    from pallas_kernels import resolve

    try:
        name = resolve("paged_attention", wanted, platform)
    except (ValueError, NotImplementedError) as error:
        raise ValueError(f"attention_implementation={wanted!r}: {error}") from None
    if name in _GPU_KERNELS and platform == "cpu":
        raise ValueError(
            f"attention_implementation={name!r} is a GPU kernel, and JAX runs on the {platform} here; leave it out, "
            "or use xla or reference"
        )
    return name


def _check_weights_fit(config: EngineConfig, device: Any) -> None:
    """Raise ValueError if the weights are more than the free memory: loading them would end the process, or others."""
    import jax.numpy as jnp

    from jpaged.runtime.memory import free_memory

    need = config.model.num_params * jnp.dtype(config.dtype).itemsize
    free, where, _ = free_memory(device)
    if free is not None and need > free:
        raise ValueError(
            f"model={config.model_name!r}: its weights take {need / 2**30:.1f} GiB in {config.dtype}, "
            f"{free / 2**30:.1f} GiB are free on the {where}; use a smaller model or dtype"
        )


def _load_tokenizer(options: EngineOptions, source: Any) -> "Tokenizer | None":
    from jpaged.tokenizer import has_tokenizer, load_tokenizer

    if options.tokenizer is not None:
        return load_tokenizer(options.tokenizer)
    if source.path is None or not has_tokenizer(source.path):
        logger.info("no tokenizer: prompts are token ids, outputs have no text")
        return None
    return load_tokenizer(source.path)


def _size_pool(options: EngineOptions, config: EngineConfig, device: Any) -> EngineConfig:
    """The config with the number of pages, and with a length that they hold."""
    from jpaged.runtime.memory import bytes_of_page, pool_dtype, size_pool

    dtype = pool_dtype(config.cache.kv_cache_dtype, config.dtype)
    page_bytes = bytes_of_page(config.model, config.cache.page_size, dtype)
    scheduler = config.scheduler
    size = size_pool(
        page_bytes=page_bytes,
        page_size=config.cache.page_size,
        num_pages=options.num_pages,
        kv_memory=options.kv_memory,
        want_tokens=scheduler.max_num_seqs * scheduler.max_model_len,
        device=device,
    )
    room = size.num_pages * config.cache.page_size
    if room < (options.max_model_len or 2):
        raise ValueError(
            f"the pool ({size.reason}) holds {room} tokens, less than one sequence of max_model_len="
            f"{options.max_model_len or 2}; give it more memory or lower max_model_len"
        )
    if room < scheduler.max_model_len:
        logger.info("max_model_len is %d, all that the pool holds (the model's own is longer)", room)
        scheduler = dataclasses.replace(scheduler, max_model_len=room)
    logger.info(
        "pool: %d pages of %d tokens, %.0f MiB (%s)",
        size.num_pages, config.cache.page_size, (size.num_pages + 1) * page_bytes / 2**20, size.reason,
    )  # fmt: skip
    cache = dataclasses.replace(
        config.cache, num_pages=size.num_pages, num_host_pages=_num_host_pages(options, page_bytes)
    )
    return dataclasses.replace(config, cache=cache, scheduler=scheduler)


def _num_host_pages(options: EngineOptions, page_bytes: int) -> int:
    """Pages of the host pool, from a count or from bytes; none unless asked for. Raises ValueError."""
    from jpaged.runtime.memory import parse_bytes

    if options.swap_space is None:
        return options.num_host_pages or 0
    if options.num_host_pages is not None:
        raise ValueError("num_host_pages and swap_space both size the host pool; give one of them")
    return parse_bytes(options.swap_space, "swap_space") // page_bytes
