"""Decode steps of large models for 1 to 8 H100: `python -m experiments.sharding.compiled_scaling OUT.jsonl [LAYERS]`.

Lives here: the grid of models, device counts and styles, one JSON line for each, and the table of a file of them.
Promises: every program is compiled for the GPU itself, by XLA's CUDA plugin; nothing runs, so no time is measured.
LAYERS, 4 unless it is given ("all" for every one), is how many are compiled; weights are counted for all of them, and
collectives are the same in each. The simulator's prediction stands beside it, from the profile `ideal`.
Must not know: how a step is compiled.
"""

import json
import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from experiments.sharding.collectives import count
from jpaged.sim.hardware import hardware_named
from jpaged.sim.ideal import ideal_cost_model
from jpaged.sim.work import StepWork
from models.families import PRESETS

MODELS = ("opt-13b", "opt-66b", "llama-3-70b")
SHARDS = (1, 2, 4, 8)
STYLES = ("shard_map", "pjit")
TARGET, HARDWARE = "NVIDIA_H100_80GB_HBM3", "H100"
ROWS, CONTEXT, PAGE_SIZE, NUM_PAGES = 32, 512, 16, 1024


def point(model: str, shards: int, style: str, layers: int | None) -> dict[str, Any]:
    """What one program says of itself, and what the simulator says of the whole model. `layers` None: all."""
    import jax.numpy as jnp

    from experiments.sharding.decode_step import compile_decode_step, topology_devices
    from models.sharded_weights import bytes_of_shard

    whole = PRESETS[model]
    config = whole if layers is None else replace(whole, num_layers=layers)
    devices = topology_devices(TARGET, shards)
    facts = compile_decode_step(
        config, shards, devices=devices, style=style, rows=ROWS, num_pages=NUM_PAGES, implementation="triton"
    )
    of_layers = [c.num_bytes for c in facts.collectives if c.kind == "all-reduce"]
    others = [c.num_bytes for c in facts.collectives if c.kind != "all-reduce"]
    weights = bytes_of_shard(whole, jnp.bfloat16, shards)
    return {
        "model": model, "layers": whole.num_layers, "compiled_layers": config.num_layers, "shards": shards,
        "style": style, "rows": ROWS, "collectives": count(facts.collectives),
        "bytes_a_layer": sum(of_layers) // config.num_layers, "bytes_of_logits": sum(others),
        "pool": facts.pool, "aliased": facts.aliased, "temp": facts.temp, "weights": weights,
        "room": hardware_named(HARDWARE).memory_bytes - weights - facts.temp,
        "kv_bytes_a_token": facts.pool * whole.num_layers // (config.num_layers * NUM_PAGES * PAGE_SIZE),
        "compile_seconds": round(facts.compile_seconds, 1), "predicted_step_ms": predicted_ms(model, shards),
    }  # fmt: skip


def predicted_ms(model: str, shards: int) -> float:
    """Milliseconds of the step on the device, as the profile `ideal` has it: 32 rows, 512 tokens of context each."""
    cost = ideal_cost_model(PRESETS[model], hardware_named(HARDWARE), tensor_parallel_size=shards, dtype="bfloat16")
    work = StepWork(PAGE_SIZE, decode_rows=ROWS, context_tokens=ROWS * CONTEXT, samples=ROWS)
    return round(cost.step_ns(work) / 1e6, 2)


def table(points: list[dict[str, Any]]) -> Iterator[str]:
    """Lines of a Markdown table."""
    yield "| model | GPUs | style | a layer | rest | KB a layer | MB logits | weights GB | temp MB | tokens | ms | x |"
    yield "|---|---|---|---|---|---|---|---|---|---|---|---|"
    alone = {p["model"]: p["predicted_step_ms"] for p in points if p["shards"] == 1}
    for p in points:
        reduces = p["collectives"].get("all-reduce", 0) / p["compiled_layers"]
        rest = ", ".join(f"{n} {kind}" for kind, n in sorted(p["collectives"].items()) if kind != "all-reduce") or "-"
        tokens = max(0, p["room"] // p["kv_bytes_a_token"])
        speedup = alone[p["model"]] / p["predicted_step_ms"] if p["model"] in alone else float("nan")
        yield (
            f"| {p['model']} | {p['shards']} | {p['style']} | {reduces:g} all-reduce | {rest} | "
            f"{p['bytes_a_layer'] / 1e3:.0f} | {p['bytes_of_logits'] / 1e6:.1f} | {p['weights'] / 1e9:.1f} | "
            f"{p['temp'] / 1e6:.0f} | {tokens or 'does not fit'} | {p['predicted_step_ms']:.1f} | {speedup:.2f} |"
        )


def main() -> None:
    """Compile every point that the file does not hold yet, then print the table."""
    os.environ["JAX_PLATFORMS"] = "cpu"
    out = Path(sys.argv[1])
    asked = sys.argv[2] if len(sys.argv) > 2 else "4"
    layers = None if asked == "all" else int(asked)
    done = [json.loads(line) for line in out.read_text().splitlines()] if out.exists() else []
    seen = {(p["model"], p["shards"], p["style"]) for p in done}
    for key in ((m, n, s) for s in STYLES for m in MODELS for n in SHARDS if n > 1 or s == "shard_map"):
        if key not in seen:
            done.append(point(*key, layers))
            with out.open("a") as file:
                file.write(json.dumps(done[-1]) + "\n")
            print(json.dumps(done[-1]), file=sys.stderr)
    print("\n".join(table(done)))


if __name__ == "__main__":
    main()
