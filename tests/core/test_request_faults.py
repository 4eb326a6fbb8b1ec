"""Faults of groups E, G, H and J that the host decides: chunks, limits, ids, names, counters."""

import random
from typing import Any

import pytest
from rig import Rig

from jpaged.core.requests.request import FinishReason

X = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3, 2, 3]


def test_e1_only_the_last_chunk_of_what_is_known_samples() -> None:
    rig = Rig(8, 4, budget=8, threshold=4)
    short, long = rig.add(X[:3], 6), rig.add(X[:13], 3)
    got = [[delta.request_id for delta in rig.step()] for _ in range(4)]
    assert got == [[short], [short], [short], [short, long]]
    assert [len(plan.samples) for plan in rig.executor.plans] == [1, 1, 1, 2]
    rig.run()


@pytest.mark.parametrize("n", [1, 3])
def test_e2_the_first_event_comes_with_the_last_chunk_and_prompt_logprobs_span_all_chunks(n: int) -> None:
    rig = Rig(16, 4, budget=8, threshold=4)
    request_id = rig.add(X[:13], 2, n=n, prompt_logprobs=2)
    assert [len(rig.step()) for _ in range(4)] == [0, 0, 0, n]
    assert len(rig.prompt_logprobs[request_id]) == 12
    rig.run()


@pytest.mark.parametrize("budget", [1, 2, 3, 5, 13, 64])
def test_e3_the_size_of_chunks_changes_no_token(budget: int) -> None:
    rig = Rig(16, 4, max_num_seqs=1, budget=budget)
    rig.add(X[:13], 4)
    rig.run()


def test_g12_a_stop_id_ends_a_sequence_only_after_min_tokens() -> None:
    rig = Rig(16, 4)
    every_id = tuple(range(15))
    rig.add(X[:10], 32, eos=every_id, min_tokens=4)
    rig.add(X[:10], 32, eos=every_id, min_tokens=4, ignore_eos=True)
    rig.add(X[:10], 4, eos=every_id, min_tokens=4)
    rig.add(X[:10], 9, eos=every_id, ignore_eos=True, stop_token_ids=[*range(16)])
    rig.run()
    assert rig.ids("r0")[:4] == [15] * 4 and len(rig.ids("r0")) >= 5 and rig.reason("r0") is FinishReason.STOP
    assert len(rig.ids("r1")) == 32 and rig.reason("r1") is FinishReason.LENGTH
    assert len(rig.ids("r2")) == 4 and rig.reason("r2") is FinishReason.LENGTH
    assert rig.tracks["r3", 0].stop_reason == rig.ids("r3")[0], "an asked stop id is named, the model's own is not"
    assert rig.tracks["r0", 0].stop_reason is None


@pytest.mark.parametrize("token", [16, 10**6, 10**7, 2**40])
@pytest.mark.parametrize("field", ["logit_bias", "stop_token_ids"])
def test_g13_an_id_that_the_model_lacks_is_refused_by_name(field: str, token: int) -> None:
    rig = Rig(8, 4)
    with pytest.raises(ValueError, match=rf"{field} has the id {token}: the model's ids are 0 to 15"):
        rig.add(X[:3], 2, **{field: {token: 1.0} if field == "logit_bias" else [token]})
    rig.add(X[:3], 2)
    rig.run()


def test_h7_one_token_is_one_token_and_none_is_refused() -> None:
    rig = Rig(8, 4)
    with pytest.raises(ValueError, match=r"max_tokens=0: must be at least 1"):
        rig.add(X[:3], 0)
    request_id = rig.add(X[:3], 1, prompt_logprobs=1)
    rig.run()
    assert len(rig.ids(request_id)) == 1 and len(rig.prompt_logprobs[request_id]) == 2
    rig.check_reset()


@pytest.mark.parametrize("max_tokens", [1, 5, None])
def test_h8_a_prompt_one_short_of_the_model_length_gives_one_token_and_longer_ones_are_refused(
    max_tokens: int | None,
) -> None:
    rig = Rig(4, 4, max_model_len=16)
    request_id = rig.add(X[:15], max_tokens)
    rig.run()
    assert len(rig.ids(request_id)) == 1 and rig.reason(request_id) is FinishReason.LENGTH
    for length in (16, 17):
        with pytest.raises(ValueError, match=rf"the prompt has {length} tokens.*max_model_len=16 at most 15"):
            rig.add(X[:length], max_tokens)
    assert rig.stats["pages_used_peak"] == 4
    rig.check_reset()


@pytest.mark.parametrize("prompt", ["", [], [[]], [16], [-1], [2**40], [1, [2, 3]], [1.0], [True], [None], "abc"])
def test_h9_a_prompt_that_is_empty_or_has_no_ids_of_the_model_is_refused(prompt: Any) -> None:
    rig = Rig(8, 4)
    with pytest.raises(ValueError, match=r"prompt"):
        rig.add(prompt, 2)
    rig.add(X[:3], 2)
    rig.run()


def test_h10_a_name_in_use_is_refused_and_the_first_request_unharmed() -> None:
    rig = Rig(8, 4)
    rig.add(X[:5], 4, request_id="id")
    rig.step()
    with pytest.raises(ValueError, match=r"request_id='id'.*still running"):
        rig.engine.add(rig.tracks["id", 0].request)
    rig.run()
    assert len(rig.ids("id")) == 4


@pytest.mark.parametrize("overlap", [False, True])
def test_h10_what_is_left_of_an_aborted_request_does_not_reach_its_namesake(overlap: bool) -> None:
    rig = Rig(8, 4, overlap=overlap)
    rig.add(X[:5], 4, request_id="id")
    rig.step()
    rig.end("id")
    assert rig.reason("id") is FinishReason.ABORT and not rig.engine.has_unfinished
    rig.add(X[2:8], 4, request_id="id")
    rig.run()
    assert len(rig.ids("id")) == 4 and rig.reason("id") is FinishReason.LENGTH
    assert rig.engine.abort("id") == [] and rig.engine.abort("never seen") == []


def test_h10_a_name_is_free_again_after_the_end() -> None:
    rig = Rig(8, 4)
    for _ in range(3):
        rig.add(X[:5], 4, request_id="id")
        rig.run()


def test_h11_an_abort_gives_pages_and_rows_back_at_once_wherever_the_request_stands() -> None:
    rig = Rig(7, 4, max_num_seqs=2, budget=8, threshold=4)
    for i in range(3):
        rig.add(X[i : i + 9], 8)
    rig.step()
    rig.end("r2")  # waits
    rig.end("r1")  # in the middle of its prompt
    assert rig.scheduler.num_running == 1 and rig.cache.num_used == 3
    rig.add(X[4:13], 8)
    rig.run_until_preempted("r3")
    rig.end("r3")  # preempted
    assert not rig.scheduler.waiting
    rig.end("r0")  # decodes
    rig.check_reset()


def test_j1_the_first_token_is_timed_once_for_each_request_that_has_one() -> None:
    rig = Rig(6, 4, threshold=4)
    names = [rig.add(X[:9], 12), rig.add(X[3:6], 12), rig.add(X[5:8], 12), rig.add(X[6:9], 12)]
    rig.step()
    rig.end(names[3])
    first: dict[str, float] = {}
    while rig.engine.has_unfinished:
        rig.step()
        if len(rig.ids(names[1])) == 2:
            rig.end(names[2])
        for name, metrics in rig.metrics.items():
            if metrics.first_token is not None:
                assert first.setdefault(name, metrics.first_token) == metrics.first_token
    assert rig.stats["num_preemptions_recompute"] > 0
    assert set(first) == {name for name in names if rig.ids(name)}
    for metrics in rig.metrics.values():
        times = [metrics.arrival, metrics.first_scheduled, metrics.first_token, metrics.finished]
        known = [time for time in times if time is not None]
        assert known == sorted(known)
        assert metrics.ttft is None or (metrics.queue_time is not None and metrics.ttft >= metrics.queue_time)


def test_j3_counters_never_fall_under_random_aborts_and_preemptions() -> None:
    for seed in range(10):
        draw, rig = random.Random(seed), Rig(6, 2, max_num_seqs=3, budget=5)
        for i in range(12):
            rig.add(X[i : i + 1 + draw.randrange(5)], 1 + draw.randrange(6))
            rig.step(draw.randrange(3))  # the rig compares every counter with its last value
            rig.end(f"r{draw.randrange(i + 1)}")
        rig.run()
        rig.check_reset()


def test_the_stats_have_every_key_from_the_start() -> None:
    rig = Rig(8, 4)
    before = set(rig.stats)
    rig.add(X[:5], 4)
    rig.run()
    assert set(rig.stats) == before
    assert {"num_steps", "num_preemptions_swap", "tail_waste_mean", "host_ms_per_step", "pages_total"} <= before
    assert 0 <= rig.stats["tail_waste_mean"] < 1
