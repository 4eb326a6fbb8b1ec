"""What every client of a peer does: load, say so, then run what it is told, a JSON line each.

Every engine gets the same token ids; a client that does not make the tokens asked for fails.
"""

import csv
import json
import os
import random
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

Job = tuple[list[int], int]
Run = Callable[[list[Job]], list[list[int]]]

# Every id of this range is an ordinary piece of a word in SmolLM2's vocabulary.
FIRST_ID, LAST_ID = 1000, 45000
TTFT_PROMPT_TOKENS, TTFT_RUNS = 128, 5


def jobs_of(path: str, seed: int = 0) -> list[Job]:
    """(prompt ids, output tokens) for each row of a CSV of prompt_tokens, output_tokens."""
    rng = random.Random(seed)
    with open(path, newline="") as file:
        rows = [(int(row["prompt_tokens"]), int(row["output_tokens"])) for row in csv.DictReader(file)]
    return [(_ids(rng, prompt), output) for prompt, output in rows]


def serve(run: Run, workload: str, **facts: Any) -> None:
    """Warm up, print a line of facts, then answer `throughput` and `ttft` lines on stdin until it ends."""
    jobs = jobs_of(workload)
    run([(prompt, 4) for prompt, _ in jobs[:8]])
    run(jobs)
    _say({"ready": True, "pid": os.getpid(), **facts})
    rng = random.Random(12345)
    for line in sys.stdin:
        _say(_throughput(run, jobs) if line.strip() == "throughput" else _ttft(run, rng))


def _throughput(run: Run, jobs: list[Job]) -> dict[str, Any]:
    cpu, start = _cpu_seconds(), time.perf_counter()
    outputs = run(jobs)
    wall = time.perf_counter() - start
    wanted, made = [count for _, count in jobs], [len(ids) for ids in outputs]
    if made != wanted:
        raise SystemExit(f"made {made} tokens, wanted {wanted}")
    return {
        "wall_s": wall,
        "cpu_s": _cpu_seconds() - cpu,
        "output_tokens_per_second": sum(made) / wall,
        "requests_per_second": len(jobs) / wall,
        "load_average": os.getloadavg()[0],
        "first_ids": [int(token) for token in outputs[0][:8]],
    }


def _ttft(run: Run, rng: random.Random) -> dict[str, Any]:
    times: list[float] = []
    for _ in range(TTFT_RUNS):
        prompt = _ids(rng, TTFT_PROMPT_TOKENS)
        start = time.perf_counter()
        run([(prompt, 1)])
        times.append(time.perf_counter() - start)
    return {"ttft_s": statistics.median(times), "load_average": os.getloadavg()[0]}


def _ids(rng: random.Random, count: int) -> list[int]:
    return [rng.randrange(FIRST_ID, LAST_ID) for _ in range(count)]


def _cpu_seconds() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def _say(facts: dict[str, Any]) -> None:
    # Engines print what they like; the parent takes the lines that begin so.
    print("JSON " + json.dumps(facts), flush=True)
