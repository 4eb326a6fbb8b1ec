"""Whoever comes and goes beside it, a request gives what it gives alone; failures and refusals have their types."""

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from letters import Letters
from rig import Rig

from jpaged.core.engine_loop import EngineLoop
from jpaged.core.errors import EngineFailed, QueueFull, RequestRefused
from jpaged.core.open_loop import OpenLoop
from jpaged.core.requests.request import Request
from jpaged.core.requests.response import CompletionDelta, Response
from jpaged.core.requests.sampling_params import SamplingParams
from tests.fleet.pair import Pair

MAX_LEN = 48


def one_engine() -> tuple[Any, list[Rig]]:
    rig = Rig(24, 4, max_model_len=MAX_LEN)
    return rig.engine, [rig]


def two_engines() -> tuple[Any, list[Rig]]:
    pair = Pair(24, 24, 4, max_model_len=MAX_LEN)
    # What moves in is told of like a newcomer, but has had its pages before.
    pair.decode._is_seat_of = lambda slot, name: True
    return pair.disaggregated(), [pair.prefill, pair.decode]


def request_of(rng: random.Random, name: str) -> Request:
    params = SamplingParams(
        n=rng.choice([1, 1, 2, 3]),
        temperature=1.0,
        max_tokens=rng.randint(1, 16),
        stop=rng.sample(["a", "bc", "hello", "m", "no", "pop"], rng.randrange(4)),
        include_stop_str_in_output=rng.random() < 0.3,
        logprobs=rng.choice([None, 2]),
        min_tokens=0,
    )
    prompt = tuple(rng.randrange(16) for _ in range(rng.randint(1, 20)))
    return Request(request_id=name, prompt_token_ids=prompt, params=params, seed=rng.randrange(100), eos_token_ids=(7,))


def run(loop: EngineLoop) -> None:
    for _ in range(500):
        if not loop.has_unfinished:
            assert not loop._responses
            return
        loop.step()
    raise AssertionError("the loop does not come to an end")


def answer(response: Response) -> list[tuple[Any, ...]]:
    outputs = response.result().outputs
    return [(o.token_ids, o.text, o.finish_reason, o.stop_reason, o.logprobs, o.cumulative_logprob) for o in outputs]


def alone(make: Callable[[], Any], request: Request) -> list[tuple[Any, ...]]:
    loop = EngineLoop(make()[0], Letters())
    response = loop.add(request)
    run(loop)
    return answer(response)


def check_deltas(response: Response, deltas: list[CompletionDelta]) -> None:
    """The deltas that were read join to the outputs, and an end comes once."""
    for output in response.outputs:
        own = [delta for delta in deltas if delta.index == output.index]
        assert "".join(delta.text for delta in own) == output.text
        assert [token for delta in own for token in delta.token_ids] == output.token_ids
        assert [delta.finish_reason for delta in own if delta.finish_reason] == [output.finish_reason]
        if output.logprobs is not None:
            assert [entry for delta in own for entry in delta.logprobs or ()] == output.logprobs


@pytest.mark.parametrize("make", [one_engine, two_engines])
@pytest.mark.parametrize("seed", range(12))
def test_a_request_gives_what_it_gives_alone_whoever_comes_and_goes(make: Callable[[], Any], seed: int) -> None:
    rng = random.Random(seed)
    engine, rigs = make()
    loop = EngineLoop(engine, Letters())
    responses: dict[str, Response] = {}
    deltas: dict[str, list[CompletionDelta]] = {}
    aborted: set[str] = set()
    for step in range(60):
        if step < 40 and rng.random() < 0.4:
            added = loop.add_all([request_of(rng, f"{step}-{i}") for i in range(rng.randint(1, 2))])
            responses |= {response.request.request_id: response for response in added}
        if responses and rng.random() < 0.15:
            name = rng.choice([*responses, *4 * list(loop._responses)])
            was_finished = responses[name].finished
            if not was_finished:
                aborted.add(name)
            assert loop.abort(name) is (None if was_finished else responses[name])
            assert responses[name].finished
        for response in loop.step():
            deltas.setdefault(response.request.request_id, []).extend(response.read())
        for rig in rigs:
            rig.scheduler.check()
    run(loop)
    for name, response in responses.items():
        check_deltas(response, deltas.get(name, []) + response.read())
        want, got = alone(make, response.request), answer(response)
        if name not in aborted:
            assert got == want
            continue
        for (ids, text, reason, *_), (all_ids, all_text, *_) in zip(got, want, strict=True):
            assert all_ids[: len(ids)] == ids
            # What was held back comes with the abort; it may have become a stop string that hides it.
            assert reason == "abort" or text == all_text
    assert {o.finish_reason for r in responses.values() for o in r.outputs} >= {"stop", "length"}
    assert aborted
    for rig in rigs:
        assert rig.stats["pages_free"] == rig.stats["pages_total"]


def test_a_request_that_comes_late_joins_the_next_step() -> None:
    loop = EngineLoop(one_engine()[0], Letters())
    long, short = (
        Request(request_id=name, prompt_token_ids=(1, 2), params=SamplingParams(max_tokens=count, temperature=0.0))
        for name, count in (("long", 20), ("short", 2))
    )
    first = loop.add(long)
    loop.step()
    second = loop.add(short)
    assert [response.request.request_id for response in loop.step()] == ["long", "short"]
    loop.step()
    assert second.finished and not first.finished


class Ticks:
    """A clock that goes on a little whenever it is read. The TimedClock role."""

    def __init__(self) -> None:
        self.time_ns = 0

    @property
    def now_ns(self) -> int:
        self.time_ns += 200_000
        return self.time_ns

    def now(self) -> float:
        return self.now_ns / 1e9

    def advance_to(self, time_ns: int) -> None:
        self.time_ns = max(self.time_ns, time_ns)


def test_the_open_loop_gives_outputs_that_end_at_stop_strings() -> None:
    rng = random.Random(1)
    requests = [request_of(rng, str(i)) for i in range(12)]
    clock = Ticks()
    loop = OpenLoop(
        EngineLoop(one_engine()[0], Letters()), clock, requests, [i * 1_000_000 for i in range(12)], outputs=True
    )
    loop.run()
    got = [answer(loop.responses[i]) for i in range(12)]
    assert got == [alone(one_engine, request) for request in requests]
    assert any(stop for output in got for *_, stop, _, _ in output)
    assert all(metrics is not None and metrics.finished is not None for metrics in loop.metrics)


@pytest.mark.parametrize("make", [one_engine, two_engines])
@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_a_failed_step_ends_every_request_and_says_so(make: Callable[[], Any], error: type[BaseException]) -> None:
    engine, rigs = make()
    loop = EngineLoop(engine, Letters())
    rng = random.Random(3)
    responses = loop.add_all([request_of(rng, str(i)) for i in range(3)])
    loop.step()
    whole = {response.request.request_id: response.finished for response in responses}

    def fail(plan: Any) -> None:
        raise error("the device is gone")

    for rig in rigs:
        rig.executor.before_execute = fail
    with pytest.raises(EngineFailed if error is RuntimeError else error, match="the device is gone") as caught:
        loop.step()
    assert error is KeyboardInterrupt or isinstance(caught.value.__cause__, RuntimeError)
    for response in responses:
        assert response.finished
        if not whole[response.request.request_id]:
            assert isinstance(response.error, EngineFailed) and isinstance(response.error.__cause__, error)
            assert "abort" in {output.finish_reason for output in response.outputs}
    assert not loop.has_unfinished and not loop._responses
    for rig in rigs:
        rig.executor.before_execute = None
    again = request_of(rng, "again")
    response = loop.add(again)
    run(loop)
    assert answer(response) == alone(make, again)


def test_all_requests_of_a_call_are_added_or_none() -> None:
    loop = EngineLoop(Rig(24, 4, max_num_waiting=4).engine)
    good = [Request(request_id=str(i), prompt_token_ids=(1, 2)) for i in range(5)]
    with pytest.raises(RequestRefused, match=r"prompts\[4\]: 5 sequences in one call: at most max_num_waiting=4"):
        loop.add_all(good)
    with pytest.raises(RequestRefused, match=r"prompts\[1\]: prompt_token_ids has the id 99"):
        loop.add_all([good[0], replace(good[1], prompt_token_ids=(99,))])
    assert not loop.has_unfinished and not loop._responses
    loop.add_all(good[:3])
    with pytest.raises(QueueFull, match=r"prompts\[1\]: 3 sequences wait already.*try again later"):
        loop.add_all(good[3:])
    with pytest.raises(RequestRefused, match="request_id='0': a request with this id is still running"):
        loop.add(good[0])
    loop.step()
    loop.add_all(good[3:])
    run(loop)


def test_stop_strings_are_refused_where_there_is_no_text() -> None:
    loop = EngineLoop(one_engine()[0])
    with pytest.raises(RequestRefused, match="stop strings need text"):
        loop.add(Request(request_id="a", prompt_token_ids=(1,), params=SamplingParams(stop=["a"])))


def test_what_nobody_reads_is_run_without_a_response() -> None:
    loop = EngineLoop(one_engine()[0], Letters())
    metrics = loop.add_unread(Request(request_id="a", prompt_token_ids=(1, 2)))
    while loop.has_unfinished:
        assert loop.step() == []
    assert metrics.finished is not None
