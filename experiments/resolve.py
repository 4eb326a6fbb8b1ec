"""What a config leaves to its model, policy and device, resolved from the config and the model's shape alone.

Every error names the field, the value and the remedy.
"""

from fractions import Fraction
from typing import Any

from experiments.config import CacheSection, ExperimentConfig, HardwareSection, ModelSection, PolicySection
from experiments.kinds import FleetConfig
from jpaged.config.declaration import given
from jpaged.config.options import CacheConfig, EngineOptions, SchedulerConfig
from jpaged.core.scheduling.presets import POLICIES, with_policy
from jpaged.sim.capacity import pages_that_fit, swap_pages
from jpaged.sim.cost_model import CostModel, scaled
from jpaged.sim.hardware import hardware_named
from jpaged.sim.ideal import ITEMSIZES
from jpaged.sim.profiles import load_profile
from models.config import ModelConfig
from models.families import PRESETS


def cost_model(config: ExperimentConfig, model: ModelConfig) -> CostModel:
    """The times of the simulated steps. Raises ValueError for a profile that does not hold for the model."""
    profile = load_profile(
        config.executor.cost_profile,
        model,
        config.hardware.device,
        config.hardware.tensor_parallel_size,
        dtype=config.model.dtype,
        kv_cache_dtype=config.cache.kv_cache_dtype,
    )
    factors = config.executor
    if (factors.bandwidth, factors.flops, factors.host) == (1.0, 1.0, 1.0):
        return profile
    return scaled(profile, bandwidth=factors.bandwidth, flops=factors.flops, host_time=factors.host)


def preset(name: str) -> ModelConfig:
    """The shape of a model that the simulation knows. Raises ValueError naming those."""
    if name not in PRESETS:
        raise ValueError(f"model.name={name!r}: the simulation knows {', '.join(PRESETS)}; choose one of them")
    return PRESETS[name]


def engine_configs(config: ExperimentConfig, model: ModelConfig) -> tuple[CacheConfig, SchedulerConfig]:
    """The simulated engine's two configs: the policy's options, then those that the experiment gives."""
    overrides = given(config.cache) | given(config.policy)
    if not {"num_pages", "num_host_pages"} <= overrides.keys():
        fitting, swapped = _pool_sizes(config, model)
        host = swapped if config.policy.name in ("paged", "vllm-2023") else 0
        overrides = {"num_pages": fitting, "num_host_pages": host} | overrides
    if "max_model_len" not in overrides and config.policy.name == "paged":
        overrides["max_model_len"] = min(model.max_length, overrides["num_pages"] * config.cache.page_size)
    return with_policy(config.policy.name, CacheConfig(), SchedulerConfig(), **overrides)


def fleet_engine_configs(config: FleetConfig) -> tuple[CacheConfig, SchedulerConfig]:
    """The same two for the engines of a fleet, all alike."""
    fleet = config.fleet
    engine = ExperimentConfig(
        model=ModelSection(name=config.model),
        hardware=HardwareSection(device=config.device),
        policy=PolicySection(
            max_num_seqs=256,
            max_num_batched_tokens=fleet.max_num_batched_tokens,
            chunked_prefill=fleet.chunked_prefill,
        ),
        cache=CacheSection(enable_prefix_caching=fleet.enable_prefix_caching),
    )
    return engine_configs(engine, preset(config.model))


def device_options(config: ExperimentConfig) -> EngineOptions:
    """What the experiment asks of an engine on a device; what it leaves open is the model's or the memory's to say."""
    asked: dict[str, Any] = {"max_model_len": None, **given(config.cache), **given(config.policy)}
    options = {"dtype": config.model.dtype, "load_format": config.model.load_format, "seed": config.seed}
    return EngineOptions(config.model.name, **{**options, **POLICIES[config.policy.name], **asked})


def _pool_sizes(config: ExperimentConfig, model: ModelConfig) -> tuple[int, int]:
    """Pages that the device and the host have room for, with weights in the model's dtype."""
    section, weight = config.cache, ITEMSIZES.get(config.model.dtype, 2)
    fits = {
        "tensor_parallel_size": config.hardware.tensor_parallel_size,
        "page_size": section.page_size,
        "itemsize": weight,
    }
    dtype = config.model.dtype if section.kv_cache_dtype == "auto" else section.kv_cache_dtype
    # A quantised element takes a byte, and each token and head a float32 scale.
    sizes = (ITEMSIZES[dtype], 0) if dtype in ITEMSIZES else (1, 4)
    factor = Fraction(model.kv_bytes_per_token(weight), model.kv_bytes_per_token(*sizes))
    device = pages_that_fit(model, hardware_named(config.hardware.device), **fits)
    return int(device * factor), int(swap_pages(model, **fits) * factor)
