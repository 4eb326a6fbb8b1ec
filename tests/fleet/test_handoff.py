"""Requests that change engines: the same tokens, no page lost on either side, no deadlock in the smallest pools."""

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jpaged.core.plan import SequenceDelta
from jpaged.core.requests.request import FinishReason
from jpaged.core.requests.sampling_params import BeamSearchParams
from tests.fleet.pair import Pair

totals: dict[str, int] = {}

PREFIX = [3, 1, 4, 1, 5, 9, 2, 6]


@st.composite
def pairs(draw: st.DrawFn) -> dict[str, Any]:
    """Two engines with pools of a few pages."""
    slots = draw(st.sampled_from([2, 4, 8]))
    return {
        "prefill_pages": draw(st.integers(4, 9)),
        "decode_pages": draw(st.integers(4, 8)),
        "page_size": draw(st.sampled_from([2, 2, 4])),
        "prefix_caching": draw(st.booleans()),
        "budget": draw(st.sampled_from([8, 16, 64])),
        "max_num_seqs": slots,
        "max_model_len": 4 * draw(st.sampled_from([2, 4])) - draw(st.integers(0, 1)),
        "num_host_pages": draw(st.sampled_from([12, 0, 4])),
        "preemption_mode": draw(st.sampled_from(["swap", "auto", "recompute"])),
        "watermark": draw(st.sampled_from([0.0, 0.2])),
        "append_headroom": draw(st.booleans()),
        "admit_while_swapped": draw(st.booleans()),
    }


@st.composite
def asked(draw: st.DrawFn) -> dict[str, Any]:
    """A prompt, often one that begins like others, and what is asked of it."""
    return {
        "prompt": PREFIX[: draw(st.integers(0, 4))] + draw(st.lists(st.integers(0, 15), min_size=1, max_size=3)),
        "max_tokens": draw(st.integers(5, 10) | st.integers(1, 4)),
        "n": draw(st.sampled_from([1, 1, 2])),
        "eos": draw(st.sampled_from([(), (3, 4)])),
        "logprobs": draw(st.sampled_from([None, 2])),
        "prompt_logprobs": draw(st.sampled_from([None, None, 1])),
        "seed": draw(st.integers(0, 3)),
    }


@settings(max_examples=500, derandomize=True, database=None)
@given(setting=pairs(), wanted=st.lists(asked(), min_size=3, max_size=8), seed=st.integers(0, 2**16))
def drive(setting: dict[str, Any], wanted: list[dict[str, Any]], seed: int) -> None:
    rng = random.Random(seed)
    pages = min(setting["prefill_pages"], setting["decode_pages"])
    setting["max_model_len"] = min(setting["max_model_len"], pages * setting["page_size"])
    pair = Pair(**setting)
    for request in wanted:
        try:
            pair.add(**request)
        except ValueError:
            count("refused")
        for _ in range(rng.randrange(4)):
            rng.choice((pair.step_prefill, pair.step_decode, pair.pull, pair.land))()
            pair.check()
    pair.run(rng)
    count("moved", pair.num_moved)
    count("waits", pair.num_waits)
    for name in ("num_preemptions_recompute", "num_preemptions_swap", "prefix_hit_tokens", "num_page_copies"):
        count(name, sum(rig.stats[name] for rig in pair.rigs))


def count(name: str, times: int = 1) -> None:
    totals[name] = totals.get(name, 0) + times


def test_in_any_order_of_steps_and_moves_everyone_gets_the_oracles_answer_and_no_page_is_lost() -> None:
    totals.clear()
    drive()
    names = ("moved", "waits", "num_preemptions_recompute", "num_preemptions_swap", "prefix_hit_tokens")
    rare = {name: totals.get(name, 0) for name in (*names, "num_page_copies") if totals.get(name, 0) < 20}
    assert not rare, f"too rare to trust: {totals}"


def test_the_two_as_one_give_the_oracles_answers_with_a_decode_pool_for_one_request_at_a_time() -> None:
    pair = Pair(24, 4, 2)
    both = pair.disaggregated()
    for i in range(8):
        pair.take(pair.request([1, 2, 3, i], 4), both.add)
    most_held = 0
    while both.has_unfinished:
        pair.clients.take(both.step())
        pair.check()
        most_held = max(most_held, len(pair.prefill.scheduler.kv_transfer.outgoing))
    pair.check_idle()
    assert both.num_pages_moved == pair.num_moved == 16
    assert most_held > 1, "nobody had to wait for room on the decode side"


def test_a_request_ends_on_the_prefill_side_if_its_first_token_is_its_last() -> None:
    pair = Pair(8, 8, 2)
    both = pair.disaggregated()
    pair.take(pair.request([1, 2, 3], 1), both.add)
    (delta,) = deltas = both.step()
    pair.clients.take(deltas)
    assert delta.finish_reason is FinishReason.LENGTH and not both.has_unfinished
    assert both.num_pages_moved == 0
    pair.check_idle()


def test_a_prompt_that_is_known_on_the_prefill_side_is_hit_there_after_its_pages_have_left() -> None:
    pair = Pair(12, 12, 2)
    both = pair.disaggregated()
    for _ in range(2):
        pair.take(pair.request([1, 2, 3, 4, 5], 3), both.add)
        while both.has_unfinished:
            pair.clients.take(both.step())
    assert pair.prefill.stats["prefix_hit_tokens"] == 4
    pair.check_idle()


def test_times_go_on_over_the_move() -> None:
    pair = Pair(8, 8, 2)
    both = pair.disaggregated()
    request = pair.request([1, 2, 3], 4)
    pair.take(request, both.add)
    metrics = both.metrics(request.request_id)
    assert metrics is not None
    while both.has_unfinished:
        both.step()
    assert metrics.first_token is not None and metrics.finished is not None
    assert len(metrics.itl) == 3
    assert metrics.first_token + sum(metrics.itl) == pytest.approx(metrics.finished)


@pytest.mark.parametrize("where", ["prefill", "between", "decode"])
def test_an_aborted_request_leaves_no_trace_wherever_it_stands(where: str) -> None:
    pair = Pair(8, 4, 2, max_model_len=8, budget=8)
    both = pair.disaggregated()
    names = [f"r{i}" for i in (1, 2)]
    for _ in names:
        pair.take(pair.request([1, 2, 3, 4, 5], 3), both.add)
    for _ in range({"prefill": 0, "decode": 1, "between": 2}[where]):
        pair.clients.take(both.step())
    victim = {"prefill": names[0], "between": names[1], "decode": names[0]}[where]
    places = {"between": pair.prefill.scheduler.kv_transfer.outgoing, "decode": pair.decode.engine._groups}
    assert victim in places.get(where, pair.prefill.engine._groups)
    ended = both.abort(victim)
    assert [(d.request_id, d.finish_reason) for d in ended] == [(victim, FinishReason.ABORT)]
    pair.clients.take(ended)
    pair.check()
    while both.has_unfinished:
        pair.clients.take(both.step())
        pair.check()
    pair.check_idle()


def test_a_request_that_is_aborted_while_its_pages_are_on_their_way_gives_back_rows_and_pages() -> None:
    pair = Pair(8, 8, 2)
    name = pair.add([1, 2, 3], 4)
    pair.step_prefill()
    pair.pull()
    assert pair.decode.scheduler.kv_transfer.arriving and pair.decode.scheduler.num_running == 1
    pair.clients.take(pair.decode.engine.abort(name))
    pair.decode.engine.received(name)
    pair.prefill.engine.sent(name)
    pair.check_idle()


def test_a_step_that_fails_ends_everything_on_both_sides() -> None:
    pair = Pair(8, 4, 2, max_model_len=8)
    both = pair.disaggregated()
    for _ in range(3):
        pair.take(pair.request([1, 2, 3, 4, 5], 3), both.add)
    pair.clients.take(both.step())

    def fail(plan: object) -> None:
        raise RuntimeError("the device is on fire")

    pair.decode.executor.before_execute = fail
    with pytest.raises(RuntimeError, match="on fire"):
        both.step()
    assert not both.has_unfinished and not pair.prefill.scheduler.kv_transfer.outgoing
    for rig in pair.rigs:
        rig.forget_unfinished()
        rig.check_reset()


def test_what_cannot_move_is_refused_before_it_starts() -> None:
    pair = Pair(8, 4, 2, max_model_len=8)
    both = pair.disaggregated()
    request = pair.request([1, 2, 3], 4, n=3)
    with pytest.raises(ValueError, match=r"the decode engine's pool holds \d of its 3 sequences"):
        both.add(request)
    beam = BeamSearchParams(beam_width=2, max_tokens=3)
    with pytest.raises(ValueError, match="a beam search stays"):
        both.add(type(request)(request_id="b", prompt_token_ids=(1,), beam=beam))
    with pytest.raises(ValueError, match="no such request"):
        pair.prefill.engine.send("nobody")
    assert not both.has_unfinished


def test_a_request_is_sent_only_once_it_has_its_newest_token() -> None:
    pair = Pair(8, 8, 2, budget=8)
    name = pair.add([1] * 11, 3)
    pair.step_prefill()
    with pytest.raises(ValueError, match="has not got its newest tokens"):
        pair.prefill.engine.send(name)
    pair.check()


def test_engines_that_do_not_fit_together_are_refused() -> None:
    pair = Pair(8, 8, 2, decode={"max_model_len": 10})
    with pytest.raises(ValueError, match="max_model_len=16 of the prefill engine is 10"):
        pair.disaggregated()
    reserving = Pair(8, 8, 2, prefix_caching=False, decode={"reservation": "max"})
    with pytest.raises(ValueError, match="the decode engine reserves pages"):
        reserving.disaggregated()


def tokens_of(deltas: list[SequenceDelta]) -> list[int]:
    return [delta.token_id for delta in deltas if delta.token_id is not None]


def test_a_request_can_leave_in_the_middle_of_its_output() -> None:
    pair = Pair(8, 8, 2)
    name = pair.add([1, 2, 3], 6)
    for _ in range(3):
        deltas = pair.prefill.engine.step()
        pair.clients.take(deltas)
        assert len(tokens_of(deltas)) == 1
    pair.pending.append(pair.prefill.engine.send(name))
    pair.pull()
    pair.land()
    while pair.busy:
        pair.step_decode()
        pair.check()
    assert len(pair.clients.tracks[name, 0].token_ids) == 6
