"""From the name of a model to an engine that can run: weights, tokenizer, pool size, programs.

Lives here: `load_engine` and what it gives.
Promises: every choice made for the user is logged; nothing is allocated before the configuration is known to be right.
Must not know: prompts, outputs.
"""

import dataclasses
import logging
import os
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from jpaged.config.engine import CacheConfig, EngineConfig, ParallelConfig, SchedulerConfig
from jpaged.config.options import DEFAULT_MODEL, EngineOptions
from jpaged.core.engine import Engine
from jpaged.runtime.multi_process.processes import find_processes

if TYPE_CHECKING:
    from jpaged.runtime.model_runner import ModelRunner
    from jpaged.text.tokenizer import Tokenizer

__all__ = ["DEFAULT_MODEL", "EngineOptions", "LoadedEngine", "load_engine"]

logger = logging.getLogger("jpaged")

_GPU_KERNELS = ("triton", "mosaic_gpu")


@dataclass(frozen=True, slots=True)
class LoadedEngine:
    """An engine with a model behind it."""

    engine: Engine
    runner: "ModelRunner"
    tokenizer: "Tokenizer | None"
    config: EngineConfig
    attention_implementation: str
    load_seconds: float


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
    group = find_processes(options.coordinator, options.num_processes, options.process_id, os.environ)
    parallel = ParallelConfig(
        tensor_parallel_size=options.tensor_parallel_size,
        parallel_style=options.parallel_style,
        num_processes=1 if group is None else group.num_processes,
    )
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
    return build_engine(options, config, source)


def _explicit_room(cache: CacheConfig) -> int:
    return 2**62 if cache.num_pages is None else cache.num_pages * cache.page_size


def build_engine(options: EngineOptions, config: EngineConfig, source: Any) -> LoadedEngine:
    """The engine of a config, with the weights of `source`; of `options` what no config has. Raises ValueError."""
    start = time.perf_counter()
    import jax.numpy as jnp

    from jpaged.runtime.mesh import DeviceMesh
    from jpaged.runtime.model_runner import ModelRunner
    from jpaged.runtime.multi_process.driver import Driver
    from jpaged.runtime.multi_process.follower import Follower
    from jpaged.runtime.multi_process.join import join
    from jpaged.runtime.programs import use_persistent_cache
    from models.catalog import cache_dir
    from models.partition import check_shards

    check_shards(config.model, config.parallel.tensor_parallel_size)
    group = find_processes(options.coordinator, options.num_processes, options.process_id, os.environ)
    part = None if group is None else join(group, config)
    use_persistent_cache(cache_dir() / "xla")
    mesh = DeviceMesh(config.parallel)
    device = mesh.device
    implementation = _resolve_attention(options.attention_implementation, device.platform)
    _check_weights_fit(config, mesh)
    tokenizer = _load_tokenizer(options, source)
    params = mesh.load_params(source, config.model, jnp.dtype(config.dtype), seed=config.seed)
    unsized = config

    def sized() -> EngineConfig:
        return _size_pool(options, unsized, mesh)

    config = sized() if part is None else part.agree(sized)
    unroll = options.scan_unroll
    if unroll is None:
        # A rolled scan copies every layer's weights on a GPU; an unrolled one copies them on a CPU.
        unroll = 1 if device.platform == "cpu" else "full"
    model = mesh.build_model(
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
        mesh=mesh,
        driver=part if isinstance(part, Driver) else None,
    )
    if isinstance(part, Follower):
        part.follow(runner)
    _check_pool_is_readable(config, mesh.part_of(runner.kv_pages), implementation)
    engine = Engine(
        config.scheduler,
        config.cache,
        runner,
        vocab_size=config.model.vocab_size,
        record_steps=options.record_steps,
        overlap=options.async_scheduling,
    )
    if options.warmup == "full":
        runner.warm_up()
        logger.info("warm-up: %s", runner.describe_programs())
    return LoadedEngine(engine, runner, tokenizer, config, implementation, time.perf_counter() - start)


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


def _check_weights_fit(config: EngineConfig, mesh: Any) -> None:
    """Raise ValueError if the weights are more than the free memory: loading them would end the process, or others."""
    import jax.numpy as jnp

    from jpaged.runtime.memory import free_memory

    need = mesh.bytes_here(config.model, jnp.dtype(config.dtype))
    free, where, _ = free_memory(mesh.device)
    if free is not None and need > free:
        raise ValueError(
            f"model={config.model_name!r}: its weights take {need / 2**30:.1f} GiB in {config.dtype}, "
            f"{free / 2**30:.1f} GiB are free on the {where}; use a smaller model or dtype"
        )


def _load_tokenizer(options: EngineOptions, source: Any) -> "Tokenizer | None":
    from jpaged.text.tokenizer import has_tokenizer, load_tokenizer

    if options.tokenizer is not None:
        return load_tokenizer(options.tokenizer)
    if source.path is None or not has_tokenizer(source.path):
        logger.info("no tokenizer: prompts are token ids, outputs have no text")
        return None
    return load_tokenizer(source.path)


def _size_pool(options: EngineOptions, config: EngineConfig, mesh: Any) -> EngineConfig:
    """The config with the number of pages, and with a length that they hold."""
    from jpaged.runtime.memory import bytes_of_page, pool_dtype, size_pool

    dtype = pool_dtype(config.cache.kv_cache_dtype, config.dtype)
    page_bytes = mesh.pool_bytes_here(bytes_of_page(mesh.pool_config(config.model), config.cache.page_size, dtype))
    scheduler = config.scheduler
    size = size_pool(
        page_bytes=page_bytes,
        page_size=config.cache.page_size,
        num_pages=options.num_pages,
        kv_memory=options.kv_memory,
        want_tokens=scheduler.max_num_seqs * scheduler.max_model_len,
        device=mesh.device,
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
    from jpaged.config.engine import parse_bytes

    if options.swap_space is None:
        return options.num_host_pages or 0
    if options.num_host_pages is not None:
        raise ValueError("num_host_pages and swap_space both size the host pool; give one of them")
    return parse_bytes(options.swap_space, "swap_space") // page_bytes
