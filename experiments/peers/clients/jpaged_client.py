"""jpaged, as its users run it: LLM.generate, all requests at once.

Usage: jpaged_client.py MODEL WORKLOAD.csv DTYPE THREADS
"""

import sys

import jax
from protocol import Job, serve

import jpaged
from jpaged import LLM, SamplingParams


def main(model: str, workload: str, dtype: str, threads: str) -> None:
    """Serve. XLA's CPU backend takes the cores that the process may use; the parent has set those."""
    llm = LLM(
        model=model,
        dtype=dtype,
        max_num_seqs=16,
        max_model_len=1024,
        enable_prefix_caching=False,
        max_num_batched_tokens=512,
    )
    llm.warm_up()

    def run(jobs: list[Job]) -> list[list[int]]:
        params = [SamplingParams(temperature=0.0, max_tokens=n, ignore_eos=True, detokenize=False) for _, n in jobs]
        outputs = llm.generate([prompt for prompt, _ in jobs], params, use_tqdm=False)
        return [output.outputs[0].token_ids for output in outputs]

    serve(run, workload, version=f"{jpaged.__version__} (JAX {jax.__version__})", threads=int(threads))


if __name__ == "__main__":
    main(*sys.argv[1:])
