"""Facts of compiled programs, for tests that run in a process with emulated devices."""

from typing import Any

import jax

from experiments.sharding.collectives import collectives_of
from experiments.sharding.decode_step import compile_decode_step
from models import load_config, resolve_source
from tests.engine.tiny import random_prompts
from tests.sharding.workload import ENGINE, PARAMS, sharded_llm


def decode_step(model: str, shards: int, style: str, num_pages: int, scan_unroll: Any = "full") -> dict[str, Any]:
    """The collectives of the decode step of eight rows, and its memory."""
    config = load_config(resolve_source(model))
    facts = compile_decode_step(
        config,
        shards,
        style=style,
        rows=8,
        num_pages=num_pages,
        dtype=jax.numpy.float32,
        implementation="xla",
        scan_unroll=scan_unroll,
    )
    return {
        "collectives": [(c.kind, c.shapes) for c in facts.collectives],
        "layers": config.num_layers, "width": config.hidden_size, "pool": facts.pool, "temp": facts.temp,
        "aliased": facts.aliased, "weights": facts.weights,
    }  # fmt: skip


def engine_programs(model: str, shards: int) -> dict[str, Any]:
    """The collectives of every program of an engine that has served, by the program's name, and where things lie."""
    llm = sharded_llm(model, tensor_parallel_size=shards, preemption_mode="swap")
    pool = llm.runner.kv_pages
    llm.warm_up()
    with jax.transfer_guard_host_to_device("disallow"):
        llm.generate(random_prompts(5, 4, 20), PARAMS, use_tqdm=False)
    return {
        "collectives": {
            name: [c.kind for c in collectives_of(text)]
            for name, text in llm.runner.programs.read(lambda p: p.as_text()).items()
        },
        "swaps": llm.stats()["num_preemptions_swap"],
        "pool_of_a_device": [shard.data.shape for shard in llm.runner.kv_pages.k.addressable_shards],
        "pages": ENGINE["num_pages"] + 1,
        "donated": pool.k.is_deleted(),
    }
