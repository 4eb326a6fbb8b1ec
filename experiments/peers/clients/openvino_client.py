"""OpenVINO GenAI's paged-attention ContinuousBatchingPipeline on the CPU.

Usage: openvino_client.py FOLDER WORKLOAD.csv DTYPE THREADS
"""

import sys

import numpy as np
import openvino as ov
import openvino_genai as genai
from protocol import Job, serve


def main(folder: str, workload: str, dtype: str, threads: str) -> None:
    """Serve. Both precisions are given: left alone, the plugin takes bfloat16 where the CPU has it."""
    precision = {"float32": "f32", "bfloat16": "bf16"}[dtype]
    scheduler = genai.SchedulerConfig()
    scheduler.cache_size = 2
    scheduler.max_num_seqs = 16
    scheduler.max_num_batched_tokens = 2048
    scheduler.dynamic_split_fuse = True
    scheduler.enable_prefix_caching = False
    options = {
        "INFERENCE_NUM_THREADS": int(threads),
        "INFERENCE_PRECISION_HINT": precision,
        "KV_CACHE_PRECISION": precision,
    }
    pipeline = genai.ContinuousBatchingPipeline(folder, scheduler, "CPU", options)

    def run(jobs: list[Job]) -> list[list[int]]:
        configs = [
            genai.GenerationConfig(max_new_tokens=n, min_new_tokens=n, do_sample=False, ignore_eos=True)
            for _, n in jobs
        ]
        prompts = [ov.Tensor(np.array([prompt], dtype=np.int64)) for prompt, _ in jobs]
        return [list(output.m_generation_ids[0]) for output in pipeline.generate(prompts, configs)]

    serve(run, workload, version=genai.__version__, threads=int(threads))


if __name__ == "__main__":
    main(*sys.argv[1:])
