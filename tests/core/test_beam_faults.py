"""Faults of groups A and G that beams bring: shared pages that divide, seats that change hands, hypotheses kept."""

from itertools import product
from typing import Any

import pytest
from rig import Rig

from jpaged.core.plan import MoveKind, SchedulerOutput, moves_of
from jpaged.core.requests.request import FinishReason
from jpaged.core.requests.sampling_params import BeamSearchParams

X = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3]
Y = [2, 7, 1, 8, 2, 8, 1, 8, 2, 8, 4, 5, 9, 0, 4, 5]
PRESSURES: dict[str, dict[str, Any]] = {
    "ample": {"num_pages": 64},
    "recompute": {"num_pages": 14, "preemption_mode": "recompute"},
    "swap": {"num_pages": 14, "preemption_mode": "swap", "num_host_pages": 16},
    "auto": {"num_pages": 14, "preemption_mode": "auto", "num_host_pages": 16},
    "no cache": {"num_pages": 14, "preemption_mode": "recompute", "prefix_caching": False},
    "chunks": {"num_pages": 64, "threshold": 3, "budget": 10},
    "overlap": {"num_pages": 14, "overlap": True, "preemption_mode": "swap", "num_host_pages": 16},
}


def search(width: int, max_tokens: int, **options: Any) -> BeamSearchParams:
    return BeamSearchParams(beam_width=width, max_tokens=max_tokens, **options)


def test_a1_two_beams_give_each_page_back_once_after_twenty_steps() -> None:
    rig = Rig(16, 4)
    rig.add(X[:6], beam=search(2, 20))
    rig.run()  # compared with the oracle, ref counts after every step
    assert len(rig.ids("r0")) == 20 and rig.stats["num_page_copies"] > 3
    rig.check_reset()


def test_a9_two_beams_that_part_in_the_middle_of_a_page_do_not_write_into_one_slot() -> None:
    rig = Rig(32, 4)
    rig.add(X[:2], beam=search(2, 6))
    forked = 0

    def watch(plan: SchedulerOutput) -> None:
        nonlocal forked
        live = {s.lane: s for group in rig.scheduler.running for s in group.live}
        for slot, start, _ in plan.rows:
            page = live[slot].pages[start // 4]
            assert rig.cache.pool.ref_count(page) == 1 or start < 2, "a shared page is written"
        forked += len(moves_of(plan.moves, MoveKind.COPY))

    rig.executor.before_execute = watch
    rig.run()
    assert forked > 0


def test_a15_the_end_of_a_cached_chain_goes_before_its_beginning() -> None:
    rig = Rig(7, 4)
    rig.add(X[:13], 1)
    rig.run()
    assert rig.cache.prefix_cache is not None and rig.cache.prefix_cache.num_idle == 3
    before = rig.cache.prefix_cache.idle_pages
    names = [rig.add([*X[:4], *Y[i : i + 5 + i]], 8) for i in range(3)]
    rig.run()
    assert rig.stats["num_evictions"] > 0
    assert all(rig.metrics[name].num_cached_tokens >= 4 for name in names[:2]), "the shared page outlives its leaves"
    assert before[-1] in rig.cache.prefix_cache


@pytest.mark.parametrize("pressure", PRESSURES)
def test_g16_two_searches_and_others_under_pressure_find_what_a_search_alone_finds(pressure: str) -> None:
    options = {"max_num_seqs": 10, "max_model_len": 56, "budget": 24} | PRESSURES[pressure]
    rig = Rig(page_size=4, **options)
    rig.add(Y[:9], 16)
    rig.add(X[:7], beam=search(3, 9), eos=(3, 5))
    rig.add(X[:9], beam=search(4, 7, early_stopping=True), eos=(3,))
    rig.add(Y[:5], 8, n=2)
    rig.run()  # each compared with the oracle
    assert rig.stats["num_page_copies"] > 5
    tight = options["num_pages"] == 14
    assert (rig.stats["num_preemptions_recompute"] + rig.stats["num_preemptions_swap"] > 0) == tight
    assert (rig.stats["num_pages_swapped_in"] > 0) == ("num_host_pages" in options)
    rig.check_reset()


@pytest.mark.parametrize("width", [2, 4, 5])
def test_g16_with_six_ids_finished_hypotheses_are_kept_and_none_comes_twice(width: int) -> None:
    rig = Rig(64, 2, vocab_size=6, max_num_seqs=2 * width)
    for i, (penalty, stopping) in enumerate(product((0.0, 1.0, 2.0), (False, True, "never"))):
        for prompt in (X[:3], [1, 2, 3, i % 6]):
            ids = [token % 6 for token in prompt]
            rig.add(ids, eos=(4,), beam=search(width, 9, length_penalty=penalty, early_stopping=stopping))
    rig.run()  # compared with the oracle, which also asserts that none comes twice
    stopped = sum(track.finish_reason is FinishReason.STOP for track in rig.tracks.values())
    early = {len(track.token_ids) for track in rig.tracks.values()}
    assert stopped >= 9 * width and len(early) > 1, "some ended in the middle of their search"
    rig.check_reset()


def test_g16_a_vocabulary_too_small_to_go_on_with_is_refused() -> None:
    rig = Rig(64, 2, vocab_size=6)
    with pytest.raises(ValueError, match=r"beam_width=6: a vocabulary of 6 ids has too few"):
        rig.add([1, 2], eos=(4,), beam=search(6, 4))
    rig.add([1, 2], eos=(4,), beam=search(6, 4, ignore_eos=True))
    rig.run()


def test_beams_that_can_never_be_in_the_pool_together_are_refused() -> None:
    rig = Rig(6, 4)
    with pytest.raises(ValueError, match=r"beam_width=3, up to 15 tokens each: needs 10 pages, the pool has 6"):
        rig.add(X[:7], beam=search(3, 8))
    with pytest.raises(ValueError, match=r"beam_width=9: at most max_num_seqs=8"):
        rig.add(X[:7], beam=search(9, 1))
    assert not rig.engine.has_unfinished


def test_one_beam_ends_with_all_of_its_search() -> None:
    rig = Rig(32, 4)
    rig.add(X[:7], beam=search(3, 8))
    rig.step(4)
    rig.end("r0", 1)
    assert all(track.finish_reason is FinishReason.ABORT for track in rig.tracks.values())
    rig.check_reset()


@pytest.mark.parametrize("mode", ["swap", "recompute"])
@pytest.mark.parametrize("overlap", [False, True])
def test_a_search_preempted_at_any_of_its_steps_finds_the_same(mode: str, overlap: bool) -> None:
    """The victim is forced: at step k the newest group goes, whatever the room."""
    for moment in range(1, 12):
        rig = Rig(40, 4, preemption_mode=mode, num_host_pages=30, overlap=overlap, threshold=3, budget=9)
        rig.add(Y[:14], 6)
        name = rig.add(X[:7], beam=search(3, 5), eos=(3, 7))
        rig.step(moment)
        if len(rig.scheduler.running) < 2:
            continue
        rig.preempt_in_next_step()
        rig.run()
        assert rig.metrics[name].num_preemptions == 1
        rig.check_reset()


def test_beams_that_wait_for_one_another_under_a_small_budget_find_the_same() -> None:
    for seed in range(6):
        rig = Rig(40, 4, max_num_seqs=6, budget=6, preemption_mode="swap", num_host_pages=12, overlap=True)
        rig.add(X[seed : seed + 9], 12)
        rig.add(X[:7], beam=search(4, 7), eos=(3, 7))
        rig.step(5)
        rig.add(Y[seed:], 3)
        rig.step(2)
        rig.preempt_in_next_step()
        rig.run()
        rig.check_reset()


def test_a_search_that_never_stops_early_goes_on_where_others_stop() -> None:
    rig, differing = Rig(64, 4), 0
    for i in range(60):
        prompt = [i % 16, i // 16, 5]
        names = []
        for stopping in (False, "never"):
            beam = search(2, 12, length_penalty=2.0, early_stopping=stopping)
            names.append(rig.add(prompt, beam=beam, eos=(3, 9, 12)))
        rig.run()  # compared with the oracle
        differing += rig.ids(names[0]) != rig.ids(names[1])
    assert differing > 5
