"""A tiny model on several emulated devices, against the same requests on one.

Emulated devices share the cores of this machine, so a step's time says nothing about GPUs.
"""

import hashlib
import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

from experiments.kinds import EmulatedShardingConfig, Outcome
from experiments.sharding.collectives import collectives_of, named

MODEL: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "vocab_size": 4099, "hidden_size": 256, "num_hidden_layers": 4,
    "num_attention_heads": 16, "num_key_value_heads": 4, "head_dim": 16, "intermediate_size": 704,
    "max_position_embeddings": 256, "tie_word_embeddings": False, "eos_token_id": 2, "bos_token_id": 1,
}  # fmt: skip
ROWS, PROMPT, OUTPUT = 8, 24, 24


def run(config: EmulatedShardingConfig) -> Outcome:
    """What an engine on this many devices answers, and what a decode step of it exchanges."""
    os.environ["JAX_PLATFORMS"] = "cpu"
    os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={config.shards}"
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(MODEL))
        alone = _answers(folder, 1, "shard_map")
        found = alone if config.shards == 1 else _answers(folder, config.shards, config.style)
    return Outcome({"tokens": found["tokens"], "same_tokens": found["tokens"] == alone["tokens"], **found})


def _answers(folder: str, shards: int, style: str) -> dict[str, Any]:
    from jpaged import LLM, SamplingParams

    llm = LLM(
        folder, load_format="dummy", tensor_parallel_size=shards, parallel_style=style, max_num_seqs=ROWS,
        max_num_batched_tokens=64, max_model_len=128, num_pages=18, preemption_mode="recompute", scan_unroll="full",
    )  # fmt: skip
    prompts = [[(7 * i + 13 * j) % 4000 + 3 for j in range(PROMPT)] for i in range(ROWS)]
    params = SamplingParams(temperature=0.0, max_tokens=OUTPUT, ignore_eos=True)
    llm.generate(prompts, params, use_tqdm=False)
    steps, start = llm.stats()["num_steps"], time.perf_counter()
    outputs = llm.generate(prompts, params, use_tqdm=False)
    seconds, stats = time.perf_counter() - start, llm.stats()
    ids = [output.outputs[0].token_ids for output in outputs]
    texts = llm.runner.programs.read(lambda program: program.as_text())
    (decode,) = (text for name, text in texts.items() if name.startswith(f"decode[T={ROWS},"))
    found = collectives_of(decode)
    return {
        "tokens": hashlib.sha256(json.dumps(ids).encode()).hexdigest()[:12],
        "collectives": named(found),
        "bytes_per_step": sum(c.num_bytes for c in found),
        "pool_bytes_per_device": llm.runner.kv_pages.nbytes // shards,
        "preemptions": stats["num_preemptions_recompute"],
        "ms_per_step": 1e3 * seconds / (stats["num_steps"] - steps),
    }
