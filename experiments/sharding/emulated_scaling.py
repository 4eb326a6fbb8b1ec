"""One model on 1, 2, 4, 8 emulated devices, in both styles: `python -m experiments.sharding.emulated_scaling`.

Lives here: the model, the requests, and the table of what each number of devices answered, exchanged and held.
Promises: the same requests everywhere; tokens are compared with those of one device. Emulated devices share the cores
of this machine, so a step's time says what sharding costs there, and nothing about GPUs.
Must not know: how a step is compiled.
"""

import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

MODEL: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "vocab_size": 4099, "hidden_size": 256, "num_hidden_layers": 4,
    "num_attention_heads": 16, "num_key_value_heads": 4, "head_dim": 16, "intermediate_size": 704,
    "max_position_embeddings": 256, "tie_word_embeddings": False, "eos_token_id": 2, "bos_token_id": 1,
}  # fmt: skip
GRID = [(1, "shard_map"), *((n, style) for style in ("shard_map", "pjit") for n in (2, 4, 8))]
ROWS, PROMPT, OUTPUT = 8, 24, 24


def point(folder: str, shards: int, style: str) -> dict[str, Any]:
    """What an engine on so many devices answers, and what a decode step of it exchanges."""
    from experiments.sharding.collectives import collectives_of, count
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
        "shards": shards, "style": style, "tokens": hashlib.sha256(json.dumps(ids).encode()).hexdigest()[:12],
        "collectives": count(found), "bytes": sum(c.num_bytes for c in found),
        "pool_bytes_a_device": llm.runner.kv_pages.nbytes // max(shards, 1),
        "preemptions": stats["num_preemptions_recompute"], "ms_a_step": 1e3 * seconds / (stats["num_steps"] - steps),
    }  # fmt: skip


def main() -> None:
    """Run the grid, a process a point, and print a Markdown table; exit 1 if any answered other tokens."""
    points = []
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(MODEL))
        for shards, style in GRID:
            env = os.environ | {
                "JAX_PLATFORMS": "cpu",
                "XLA_FLAGS": f"--xla_force_host_platform_device_count={shards}",
            }
            command = [sys.executable, "-m", "experiments.sharding.emulated_scaling", folder, str(shards), style]
            done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
            if done.returncode:
                sys.exit(done.stderr)
            points.append(json.loads(done.stdout.splitlines()[-1]))
    print("| devices | style | tokens | collectives | KB a step | pool KB a device | preemptions | ms a step |")
    print("|---|---|---|---|---|---|---|---|")
    for p in points:
        same = "same" if p["tokens"] == points[0]["tokens"] else "OTHER"
        kinds = ", ".join(f"{n} {kind}" for kind, n in sorted(p["collectives"].items())) or "none"
        print(
            f"| {p['shards']} | {p['style']} | {same} | {kinds} | {p['bytes'] / 1e3:.1f} | "
            f"{p['pool_bytes_a_device'] / 1e3:.0f} | {p['preemptions']} | {p['ms_a_step']:.1f} |"
        )
    sys.exit(any(p["tokens"] != points[0]["tokens"] for p in points))


if __name__ == "__main__":
    if len(sys.argv) == 4:
        print(json.dumps(point(sys.argv[1], int(sys.argv[2]), sys.argv[3])))
    else:
        main()
