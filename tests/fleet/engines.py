"""Engines that a process of its own can make: over the oracle executor, sound or doomed, and what they should say."""

import os
import threading
import time
from typing import Any

from letters import Letters
from oracle_executor import OracleExecutor, oracle

from jpaged.config.options import CacheConfig, SchedulerConfig
from jpaged.core.engine import Engine
from jpaged.core.engine_loop import EngineLoop
from jpaged.core.requests.request import Request
from jpaged.core.requests.sampling_params import SamplingParams

VOCAB_SIZE = 16
MAX_LEN = 40


def sound(replica: int) -> EngineLoop:
    """An engine with room for a few requests, which writes letters."""
    engine = Engine(
        SchedulerConfig(max_num_seqs=4, max_num_batched_tokens=16, max_model_len=MAX_LEN),
        CacheConfig(num_pages=20, page_size=2),
        OracleExecutor(20, 2, VOCAB_SIZE),
        vocab_size=VOCAB_SIZE,
    )
    return EngineLoop(engine, Letters())


def slow(replica: int) -> EngineLoop:
    """Its steps take long enough for another request to come meanwhile."""
    loop: Any = sound(replica)
    loop.engine.executor.before_execute = lambda plan: time.sleep(0.01)
    return loop


def failing(replica: int) -> EngineLoop:
    """Replica 0 fails in its sixth step."""
    return _doomed(replica, 6, _raise)


def dying(replica: int) -> EngineLoop:
    """The process of replica 0 ends in its sixth step, without a word."""
    return _doomed(replica, 6, lambda: os._exit(1))


def all_failing(replica: int) -> EngineLoop:
    """Each fails in its third step or one after that."""
    return _doomed(0, 3 + replica, _raise)


def _doomed(replica: int, step: int, end: Any) -> EngineLoop:
    loop: Any = sound(replica)

    def count(plan: Any) -> None:
        if replica == 0 and plan.step + 1 == step:
            end()

    loop.engine.executor.before_execute = count
    return loop


def _raise() -> None:
    raise RuntimeError(f"the device is on fire, in {threading.current_thread().name}")


def requests(count: int, max_tokens: int = 12, **params: Any) -> list[Request]:
    """Requests with prompts of which some begin alike."""
    return [
        Request(
            request_id=f"r{i}",
            prompt_token_ids=(i % 3, 1, 4, 1, 5, i % 16)[: 3 + i % 4],
            params=SamplingParams(max_tokens=max_tokens, **{"temperature": 1.0, **params}),
            seed=i,
        )
        for i in range(count)
    ]


def right(request: Request) -> dict[int, list[int]]:
    """The ids that the request should give."""
    max_len = min(MAX_LEN, len(request.prompt_token_ids) + (request.params.max_tokens or MAX_LEN))
    return {i: oracle(request, i, max_len, VOCAB_SIZE).token_ids for i in range(request.width)}
