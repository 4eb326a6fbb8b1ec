"""llama.cpp's server with continuous batching, out of the package xllamacpp, over HTTP.

Usage: llamacpp_client.py MODEL.gguf WORKLOAD.csv DTYPE THREADS
"""

import json
import sys
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import xllamacpp
from protocol import Job, serve

SEQUENCES, CONTEXT = 16, 512
# ggml's numbers of the KV cache's types.
KV_TYPES = {"float32": 0, "bfloat16": 30}


def main(model: str, workload: str, dtype: str, threads: str) -> None:
    """Serve."""
    params = xllamacpp.CommonParams()
    params.model.path, params.n_ctx, params.n_parallel = model, SEQUENCES * CONTEXT, SEQUENCES
    params.cache_ram_mib = params.verbosity = 0
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = int(threads)
    params.cache_type_k = params.cache_type_v = KV_TYPES[dtype]
    server = xllamacpp.Server(params)
    url = server.listening_address
    wait_until_healthy(url)

    def complete(job: Job) -> list[int]:
        prompt, count = job
        body = {"prompt": prompt, "n_predict": count, "ignore_eos": True, "temperature": 0}
        body |= {"cache_prompt": False, "return_tokens": True}
        request = urllib.request.Request(
            url + "/completion", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request) as reply:
            return json.load(reply)["tokens"]

    def run(jobs: list[Job]) -> list[list[int]]:
        with ThreadPoolExecutor(len(jobs)) as pool:
            return list(pool.map(complete, jobs))

    serve(run, workload, version=xllamacpp.__version__, threads=int(threads))


def wait_until_healthy(url: str) -> None:
    """Return when the server answers; a minute at most."""
    for _ in range(600):
        try:
            if b"ok" in urllib.request.urlopen(url + "/health").read():
                return
        except OSError:
            pass
        time.sleep(0.1)
    raise SystemExit("llama.cpp's server does not answer")


if __name__ == "__main__":
    main(*sys.argv[1:])
