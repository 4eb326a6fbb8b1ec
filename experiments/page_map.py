"""The example picture of docs/page-maps.md: `python -m experiments.page_map docs/images/page-map.png`.

Lives here: a run on a small pool in which pages are shared, copied, evicted and swapped.
Promises: the same picture every time; no device and no weights.
Must not know: how a map is drawn.
"""

import sys
from pathlib import Path

from jpaged.config.engine import CacheConfig, SchedulerConfig
from jpaged.core.engine import Engine
from jpaged.core.observe.step_records import StepRecord
from jpaged.core.requests.request import Request
from jpaged.core.requests.sampling_params import SamplingParams
from jpaged.sim.clock import VirtualClock
from jpaged.sim.cost_model import LinearCostModel
from jpaged.sim.executor import SimExecutor

SYSTEM_PROMPT = tuple(range(1, 14))
# Own prompt tokens, samples, output tokens of each request. The first has the system prompt alone, and comes before.
REQUESTS = ((0, 1, 5), (5, 2, 20), (4, 1, 16), (6, 3, 14), (3, 2, 16))


def records() -> list[StepRecord]:
    """What each step of the run did to the pages."""
    # Steps take no time, so the clock stands still: a map counts steps.
    clock = VirtualClock()
    engine = Engine(
        SchedulerConfig(max_num_seqs=8, max_num_batched_tokens=64, max_model_len=64),
        CacheConfig(num_pages=26, page_size=4, num_host_pages=64),
        SimExecutor(LinearCostModel(name="free"), clock, page_size=4),
        vocab_size=1000,
        clock=clock,
        record_steps=True,
    )
    for i, (own, samples, outputs) in enumerate(REQUESTS):
        prompt = (*SYSTEM_PROMPT, *(100 * i + j for j in range(own)))
        params = SamplingParams(n=samples, max_tokens=outputs)
        engine.add(Request(request_id=str(i), prompt_token_ids=prompt, params=params))
        while i == 0 and engine.has_unfinished:
            engine.step()
    while engine.has_unfinished:
        engine.step()
    assert engine.recorder is not None
    return engine.recorder.records


if __name__ == "__main__":
    from jpaged.observing.page_map import page_map

    if len(sys.argv) != 2:
        sys.exit("usage: python -m experiments.page_map FILE.png")
    page_map(records(), Path(sys.argv[1]))
