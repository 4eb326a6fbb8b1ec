"""Faults of group B: admission, progress, bounds."""

import pytest
from rig import Rig

from jpaged.core.errors import QueueFull
from jpaged.core.executor import SyncExecutor
from jpaged.core.plan import SchedulerOutput, StepResult
from jpaged.core.requests.request import FinishReason
from jpaged.core.requests.sampling_params import BeamSearchParams

X = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3] * 4
Y = [2, 7, 1, 8, 2, 8, 1, 8, 2, 8, 4, 5, 9, 0, 4, 5] * 4


def test_b1_a_model_length_beyond_the_pool_is_refused_at_startup() -> None:
    with pytest.raises(ValueError, match=r"num_pages=8.*max_model_len=64.*at least 16.*at most 32"):
        Rig(8, 4, max_model_len=64)


def test_b1_a_request_that_can_never_fit_is_refused_and_the_next_one_served() -> None:
    rig = Rig(8, 4)
    with pytest.raises(ValueError, match=r"40 tokens.*max_model_len=32"):
        rig.add(X[:40], 4)
    with pytest.raises(ValueError, match=r"needs 11 pages, the pool has 8; lower max_tokens or beam_width"):
        rig.add(X[:8], beam=BeamSearchParams(beam_width=3, max_tokens=13))
    assert not rig.engine.has_unfinished
    rig.add(X[:5], 4)
    rig.run()


def test_b2_a_request_that_cannot_have_all_its_tokens_ends_with_the_model_length() -> None:
    rig = Rig(8, 4)
    request_id = rig.add(X[:31], 8)
    rig.run()
    assert len(rig.ids(request_id)) == 1 and rig.reason(request_id) is FinishReason.LENGTH
    rig.check_reset()


def test_b3_a_refused_request_leaves_no_trace() -> None:
    rig = Rig(8, 4, max_model_len=16)
    with pytest.raises(ValueError, match="17 tokens"):
        rig.add(X[:17], 4, request_id="same")
    rig.add(X[:5], 4, request_id="same")
    rig.run()
    assert rig.stats["num_requests_refused"] == 1


def test_b4_two_full_requests_that_both_need_a_page_both_finish() -> None:
    rig = Rig(7, 4)
    rig.add(X[:16], 4)
    rig.add(Y[:12], 4)
    rig.run()
    assert rig.stats["num_preemptions_recompute"] > 0
    rig.check_reset()


def test_b5_every_step_computes_something_while_anyone_waits() -> None:
    rig = Rig(5, 2, max_num_seqs=2, budget=3, watermark=0.3)
    for i in range(12):
        rig.add(X[i : i + 1 + i % 5], 1 + i % 4)
    rig.run(limit=200)  # the rig fails on a plan without rows
    assert all(plan.rows for plan in rig.executor.plans)


def test_b7_the_watermark_binds_only_while_others_run() -> None:
    idle = Rig(8, 4, watermark=0.25)
    idle.add(X[:28], 4)
    idle.step()
    assert idle.scheduler.num_running == 1
    idle.run()
    busy = Rig(12, 4, watermark=0.25)
    busy.add(Y[:4], 6)
    busy.step()
    late = busy.add(X[:32], 4)
    busy.step()
    assert busy.cache.num_available >= 8 and not busy.ids(late), "8 pages would leave less than 3"
    busy.run()


def test_b8_an_undersized_pool_ends_with_a_bounded_number_of_preemptions() -> None:
    rig = Rig(6, 4)
    names = [rig.add(X[i : i + 6], 12) for i in range(5)]
    rig.run(limit=5 * (12 + 5))
    assert rig.metrics[names[0]].num_preemptions == 0, "the oldest always advances"
    assert 0 < rig.stats["num_preemptions_recompute"] <= 5 * 12
    rig.check_reset()


def test_b10_removing_victims_skips_no_survivor() -> None:
    rig = Rig(8, 2, prefix_caching=False)
    for i in range(4):
        rig.add(X[i : i + 4], 6)
    preempting = 0
    while rig.engine.has_unfinished:
        rig.step()
        plan = rig.executor.plans[-1]
        if plan.preempted:
            preempting += 1
            ran = {rig.executor.rows[row.lane].admitted.request_id for row in plan.rows}
            alive = {group.request.request_id for group in rig.scheduler.running}
            ended = {delta.request_id for delta in rig.events[-1] if delta.finish_reason}
            assert ran == alive | ended
    assert preempting > 0


def test_b12_decodes_and_a_chunk_share_the_budget() -> None:
    rig = Rig(16, 4, budget=8)
    rig.add([*X[:8], 1], 1)
    rig.run()
    for i in range(3):
        rig.add(Y[i : i + 2], 8)
    rig.step()
    late = rig.add(Y[5:14], 4)
    rig.step()
    assert [row.num_tokens for row in rig.executor.plans[-1].rows] == [1, 1, 1, 5]
    hit = rig.add([*X[:8], *Y[:8]], 4)
    rig.run()
    assert rig.metrics[hit].num_cached_tokens == 8 and len(rig.ids(late)) == 4
    assert max(plan.num_tokens for plan in rig.executor.plans) <= 8


class Broken(SyncExecutor):
    """An executor whose result has an id too few."""

    def execute(self, plan: SchedulerOutput) -> StepResult:
        return StepResult(())


def test_b12_a_failing_step_ends_every_request_and_the_engine_goes_on() -> None:
    rig = Rig(16, 4, max_num_seqs=2)
    for i in range(3):
        rig.add(X[i : i + 5], 4, n=1 + i % 2)
    rig.step()
    good, rig.engine.executor = rig.engine.executor, Broken()
    with pytest.raises(AssertionError, match="one id per sample"):
        rig.engine.step()
    assert not rig.engine.has_unfinished and rig.cache.num_used == 0
    assert all(metrics.finished is not None for metrics in rig.metrics.values())
    rig.tracks.clear()
    rig.engine.executor = good
    rig.add(X[:5], 4, request_id="next")
    rig.run()
    rig.check_reset()


def test_b13_the_queue_has_a_bound_and_refusals_are_counted() -> None:
    rig = Rig(16, 4, max_num_waiting=4)
    accepted, refused = [], 0
    for i in range(20):
        try:
            accepted.append(rig.add(X[:3], 2, n=2, request_id=str(i)))
        except QueueFull:
            refused += 1
    assert (len(accepted), refused) == (2, 18) and rig.stats["num_requests_refused"] == 18
    with pytest.raises(QueueFull, match=r"4 sequences wait already.*max_num_waiting=4.*try again later"):
        rig.add(X[:3], 2, n=2)
    rig.run()
    rig.add(X[:3], 2, n=2, request_id="later")
    rig.run()


def test_b13_a_request_larger_than_the_whole_queue_is_told_so() -> None:
    with pytest.raises(ValueError, match=r"n=5.*max_num_waiting=4.*lower n"):
        Rig(16, 4, max_num_waiting=4).add(X[:3], 1, n=5)


def test_more_sequences_than_rows_are_refused_and_a_group_waits_for_rows_for_all() -> None:
    rig = Rig(16, 4, max_num_seqs=3)
    with pytest.raises(ValueError, match=r"n=4.*max_num_seqs=3.*lower n"):
        rig.add(X[:3], 2, n=4)
    rig.add(X[:3], 4)
    rig.add(Y[:3], 4, n=3)
    rig.step()
    assert rig.scheduler.num_running == 1
    rig.run()
