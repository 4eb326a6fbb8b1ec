"""Decode steps of large models for 1 to 8 H100, compiled for the GPU itself by XLA's CUDA plugin.

Nothing runs, so no time is measured; the simulator's prediction stands beside it, from the profile `ideal`.
"""

import os
from dataclasses import replace

from experiments.kinds import CompiledShardingConfig, Outcome
from experiments.sharding.collectives import named
from jpaged.sim.hardware import hardware_named
from jpaged.sim.ideal import ideal_cost_model
from jpaged.sim.work import StepWork
from models.families import PRESETS

TARGET, HARDWARE = "NVIDIA_H100_80GB_HBM3", "H100"
ROWS, CONTEXT, PAGE_SIZE, NUM_PAGES = 32, 512, 16, 1024


def run(config: CompiledShardingConfig) -> Outcome:
    """What one program says of itself, and what the simulator says of the whole model."""
    os.environ["JAX_PLATFORMS"] = "cpu"
    import jax.numpy as jnp

    from experiments.sharding.decode_step import compile_decode_step, topology_devices
    from models.sharded_weights import bytes_of_shard

    whole, shards = PRESETS[config.model], config.shards
    model = whole if config.layers is None else replace(whole, num_layers=config.layers)
    facts = compile_decode_step(
        model,
        shards,
        devices=topology_devices(TARGET, shards),
        style=config.style,
        rows=ROWS,
        num_pages=NUM_PAGES,
        implementation="triton",
    )
    reduces = [c for c in facts.collectives if c.kind == "all-reduce"]
    others = [c for c in facts.collectives if c.kind != "all-reduce"]
    weights = bytes_of_shard(whole, jnp.bfloat16, shards)
    room = hardware_named(HARDWARE).memory_bytes - weights - facts.temp
    kv_bytes_per_token = facts.pool * whole.num_layers // (model.num_layers * NUM_PAGES * PAGE_SIZE)
    predicted = predicted_ms(config.model, shards)
    return Outcome(
        {
            "all_reduces_per_layer": len(reduces) / model.num_layers,
            "other_collectives": named(others),
            "bytes_per_layer": sum(c.num_bytes for c in reduces) // model.num_layers,
            "bytes_of_logits": sum(c.num_bytes for c in others),
            "weights": weights,
            "temp": facts.temp,
            "pool": facts.pool,
            "aliased": facts.aliased,
            "num_tokens": max(0, room // kv_bytes_per_token),
            "predicted_step_ms": predicted,
            "predicted_speedup": predicted_ms(config.model, 1) / predicted,
            "compile_seconds": round(facts.compile_seconds, 1),
        }
    )


def predicted_ms(model: str, shards: int) -> float:
    """Milliseconds of the step on the device, as the profile `ideal` has it: 32 rows, 512 tokens of context each."""
    cost = ideal_cost_model(PRESETS[model], hardware_named(HARDWARE), tensor_parallel_size=shards, dtype="bfloat16")
    work = StepWork(PAGE_SIZE, decode_rows=ROWS, context_tokens=ROWS * CONTEXT, samples=ROWS)
    return round(cost.step_ns(work) / 1e6, 2)
