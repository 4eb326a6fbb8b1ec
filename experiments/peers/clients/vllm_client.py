"""vLLM's CPU build: its offline LLM class, the engine in this process.

Usage: vllm_client.py FOLDER WORKLOAD.csv DTYPE THREADS
"""

import os
import sys

from protocol import Job, serve


def main(folder: str, workload: str, dtype: str, threads: str) -> None:
    """Serve. Eager: torch.compile would need a compiler, and was no faster on this model."""
    import vllm

    llm = vllm.LLM(
        folder,
        dtype=dtype,
        max_num_seqs=16,
        max_num_batched_tokens=2048,
        max_model_len=1024,
        enforce_eager=True,
        enable_prefix_caching=False,
    )

    def run(jobs: list[Job]) -> list[list[int]]:
        params = [
            vllm.SamplingParams(temperature=0, ignore_eos=True, max_tokens=n, min_tokens=n, detokenize=False)
            for _, n in jobs
        ]
        outputs = llm.generate([{"prompt_token_ids": prompt} for prompt, _ in jobs], params, use_tqdm=False)
        return [list(output.outputs[0].token_ids) for output in outputs]

    serve(run, workload, version=vllm.__version__, threads=int(threads))


if __name__ == "__main__":
    if "LD_PRELOAD" not in os.environ:
        # Its thread binding needs one OpenMP runtime, loaded before torch's.
        os.environ["LD_PRELOAD"] = os.path.join(sys.prefix, "lib", "libiomp5.so")
        os.execv(sys.executable, [sys.executable, *sys.argv])
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "2")
    os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", f"0-{int(sys.argv[4]) - 1}")
    os.environ.update(VLLM_ENABLE_V1_MULTIPROCESSING="0", VLLM_NO_USAGE_STATS="1", HF_HUB_OFFLINE="1")
    main(*sys.argv[1:])
