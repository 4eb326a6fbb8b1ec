"""From the name of a model to an engine that can run: weights, tokenizer, pool size, programs.

Every choice made for the user is logged; nothing is allocated before the configuration is known to be right.
"""

import dataclasses
import logging
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from jpaged.config.declaration import parse_bytes
from jpaged.config.engine import EngineConfig, resolve
from jpaged.config.options import EngineOptions
from jpaged.core.engine import Engine
from jpaged.core.executor import Clock, Executor
from jpaged.runtime.multi_process.processes import find_processes

if TYPE_CHECKING:
    from jpaged.runtime.model_runner import ModelRunner
    from jpaged.text.tokenizer import Tokenizer

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


def load_engine(
    options: EngineOptions,
    *,
    clock: Clock | None = None,
    observed: "Callable[[ModelRunner], Executor] | None" = None,
) -> LoadedEngine:
    """Load the model and build the engine. Raises ValueError with the remedy for anything a user can mend.

    `observed` may wrap the runner in an executor that watches it.
    """
    from models import load_config, resolve_source

    group = find_processes(options.coordinator, options.num_processes, options.process_id, os.environ)
    source = resolve_source(str(options.model), revision=options.revision, load_format=options.load_format)
    config = resolve(options, load_config(source), group.num_processes if group else None)
    start = time.perf_counter()
    import jax.numpy as jnp

    from jpaged.runtime.mesh import DeviceMesh
    from jpaged.runtime.multi_process.driver import Driver
    from jpaged.runtime.multi_process.follower import Follower
    from jpaged.runtime.multi_process.join import join
    from jpaged.runtime.programs import use_persistent_cache
    from models.catalog import cache_dir
    from models.partition import check_shards

    check_shards(config.model, config.parallel.tensor_parallel_size)
    part = join(group, config) if group else None
    use_persistent_cache(cache_dir() / "xla")
    mesh = DeviceMesh(config.parallel)
    implementation = _resolve_attention(config.attention_implementation, mesh.device.platform)
    _check_weights_fit(config, mesh)
    tokenizer = _load_tokenizer(options, source)
    params = mesh.load_params(source, config.model, jnp.dtype(config.dtype), seed=config.seed)
    sized = partial(_size_pool, options, config, mesh)
    config = part.agree(sized) if part else sized()
    runner = _build_runner(config, params, implementation, mesh, part if isinstance(part, Driver) else None)
    if isinstance(part, Follower):
        part.follow(runner)
    _check_pool_is_readable(config, mesh.part_of(runner.kv_pages), implementation)
    engine = Engine(
        config.scheduler,
        config.cache,
        observed(runner) if observed else runner,
        vocab_size=config.model.vocab_size,
        clock=clock,
        max_num_waiting=config.runtime.max_num_waiting,
        record_steps=config.runtime.record_steps,
        overlap=config.runtime.async_scheduling,
    )
    if config.runtime.warmup == "full":
        runner.warm_up()
        logger.info("warm-up: %s", runner.describe_programs())
    return LoadedEngine(engine, runner, tokenizer, config, implementation, time.perf_counter() - start)


def _build_runner(config: EngineConfig, params: Any, implementation: str, mesh: Any, driver: Any) -> "ModelRunner":
    import jax.numpy as jnp

    from jpaged.runtime.model_runner import ModelRunner

    unroll = config.scan_unroll
    if unroll is None:
        # A rolled scan copies every layer's weights on a GPU; an unrolled one copies them on a CPU.
        unroll = 1 if mesh.device.platform == "cpu" else "full"
    model = mesh.build_model(
        config.model,
        dtype=jnp.dtype(config.dtype),
        max_model_len=config.scheduler.max_model_len,
        attention_implementation=implementation,
        scan_unroll=unroll,
    )
    return ModelRunner(
        model,
        config.model,
        params,
        config.cache,
        config.scheduler,
        dtype=config.dtype,
        attention_implementation=implementation,
        mesh=mesh,
        driver=driver,
    )


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
        return load_tokenizer(os.fspath(options.tokenizer))
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
        num_pages=config.cache.num_pages,
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
    num_host_pages = config.cache.num_host_pages
    if options.swap_space is not None:
        num_host_pages = parse_bytes("swap_space", options.swap_space) // page_bytes
    cache = dataclasses.replace(config.cache, num_pages=size.num_pages, num_host_pages=num_host_pages)
    return dataclasses.replace(config, cache=cache, scheduler=scheduler)
