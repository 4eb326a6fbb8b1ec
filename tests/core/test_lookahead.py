"""The next step is planned while one still runs: what users get is the same, and so are the plans."""

import random
from collections import deque
from typing import Any

import pytest

from jpaged.config.options import CacheConfig, SchedulerConfig
from jpaged.core.engine import Engine
from jpaged.core.plan import SchedulerOutput, SequenceDelta, StepResult
from jpaged.core.requests.request import Request, beam_params
from jpaged.core.requests.sampling_params import BeamSearchParams, SamplingParams
from tests.core.oracle_executor import OracleExecutor

PAGE_SIZE = 4


class AsyncOracle(OracleExecutor):
    """An oracle that gives its results later, and counts the steps that were submitted while one was in flight."""

    overlaps = True

    def __init__(self, num_pages: int, page_size: int) -> None:
        super().__init__(num_pages, page_size)
        self.running: deque[StepResult] = deque()
        self.num_ahead = 0
        self.fails_in: int | None = None

    def submit(self, plan: SchedulerOutput) -> StepResult:
        """Start the plan."""
        assert plan.rows, "a step computes nothing"
        for admitted in plan.admitted:
            assert min(admitted.token_ids) >= 0
        self.num_ahead += bool(self.running)
        assert len(self.running) < 2
        self.running.append(self.execute(plan))
        return self.running[-1]

    def collect(self, step: StepResult) -> StepResult:
        """What the earliest step gave."""
        if self.fails_in is not None:
            self.fails_in -= 1
            if self.fails_in < 0:
                self.running.clear()
                raise RuntimeError("the device is gone")
        first = self.running.popleft()
        assert first is step, "results are collected in the order of their plans"
        return first


def engine(overlap: bool = True, num_pages: int = 64, **options: Any) -> Engine:
    scheduler = SchedulerConfig(
        **{"max_num_seqs": 4, "max_num_batched_tokens": 16, "max_model_len": 48, **options}  # pyright: ignore
    )
    cache = CacheConfig(num_pages=num_pages, page_size=PAGE_SIZE, watermark=0.0)
    return Engine(scheduler, cache, AsyncOracle(num_pages, PAGE_SIZE), vocab_size=16, overlap=overlap)


def request(name: str, prompt: tuple[int, ...], *, eos: tuple[int, ...] = (), **params: Any) -> Request:
    sampling = SamplingParams(**{"temperature": 0.0, "max_tokens": 12, **params})  # pyright: ignore
    return Request(request_id=name, prompt_token_ids=prompt, params=sampling, eos_token_ids=eos)


def run(made: Engine, requests: list[Request]) -> dict[tuple[str, int], list[SequenceDelta]]:
    """The deltas of each sequence; afterwards nothing is held."""
    got: dict[tuple[str, int], list[SequenceDelta]] = {}
    for one in requests:
        made.add(one)
    for _ in range(500):
        if not made.has_unfinished:
            break
        for delta in made.step():
            got.setdefault((delta.request_id, delta.index), []).append(delta)
    assert not made.has_unfinished
    made.scheduler.check()
    return got


def mixed(count: int, eos: tuple[int, ...]) -> list[Request]:
    rng = random.Random(count)
    return [
        request(
            f"r{i}",
            tuple(rng.randrange(16) for _ in range(rng.randint(2, 20))),
            eos=eos,
            n=1 + i % 3 if i % 4 == 0 else 1,
            temperature=1.0 if i % 4 == 0 else 0.0,
            max_tokens=rng.randint(1, 20),
        )
        for i in range(count)
    ]


@pytest.mark.parametrize("eos", [(), (3, 5)])
@pytest.mark.parametrize("num_pages", [64, 20])
def test_what_users_get_is_the_same(eos, num_pages):
    ahead, after = engine(num_pages=num_pages), engine(False, num_pages=num_pages)
    assert run(ahead, mixed(12, eos)) == run(after, mixed(12, eos))
    assert ahead.executor.num_ahead > 10  # pyright: ignore
    assert after.executor.num_ahead == 0  # pyright: ignore


def test_plans_are_the_same_where_only_lengths_end_sequences():
    ahead, after = engine(), engine(False)
    for made in (ahead, after):
        run(made, mixed(12, ()))
    assert ahead.executor.plans == after.executor.plans  # pyright: ignore
    assert ahead.stats_dict().items() - after.stats_dict().items() <= {
        item for item in ahead.stats_dict().items() if item[0].endswith("_ms") or item[0] == "host_ms_per_step"
    }


def test_a_sequence_that_stops_leaves_a_row_without_a_result():
    # The oracle's greedy id after this prompt is known from a run of its own, and then made the stop token.
    first = run(engine(False), [request("a", (1, 2, 3))])["a", 0][4].token_id
    assert first is not None
    prompts = [request("a", (1, 2, 3), eos=(first,)), request("b", (4, 5, 6), max_tokens=20)]
    ahead = engine()
    got = run(ahead, prompts)
    assert got == run(engine(False), prompts)
    assert got["a", 0][-1].finish_reason == "stop"


def test_nothing_is_planned_ahead_for_beams():
    made = engine()
    params = BeamSearchParams(beam_width=3, max_tokens=6)
    made.add(Request(request_id="b", prompt_token_ids=(1, 2, 3), params=beam_params(params, 0), beam=params))
    while made.has_unfinished:
        made.step()
    assert made.executor.num_ahead == 0  # pyright: ignore


def test_a_request_that_is_aborted_while_its_next_step_runs_is_gone():
    made = engine()
    made.add(request("a", (1, 2, 3), max_tokens=20))
    made.add(request("b", (4, 5, 6), max_tokens=20))
    for _ in range(4):
        made.step()
    assert len(made.executor.running) == 1  # pyright: ignore
    made.abort("a")
    got = run(made, [request("c", (7, 8), max_tokens=8)])
    assert {name for name, _ in got} == {"b", "c"}
    alone = run(engine(False), [request("c", (7, 8), max_tokens=8)])
    assert got["c", 0] == alone["c", 0]


def test_after_a_failure_nothing_is_left_in_flight():
    made = engine()
    made.add(request("a", (1, 2, 3), max_tokens=20))
    made.executor.fails_in = 3  # pyright: ignore
    for _ in range(3):
        made.step()
    with pytest.raises(RuntimeError, match="the device is gone"):
        made.step()
    assert not made.has_unfinished
    made.executor.fails_in = None  # pyright: ignore
    assert run(made, [request("b", (4, 5))]) == run(engine(False), [request("b", (4, 5))])
