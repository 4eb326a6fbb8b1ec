"""Faults of groups C and H with a host pool: pages that go out, come back, or never do."""

from itertools import pairwise
from typing import Any

import pytest
from rig import Rig

from jpaged.core.plan import MoveKind, SchedulerOutput, moves_of
from jpaged.core.requests.request import FinishReason

X = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3]
Y = [2, 7, 1, 8, 2, 8, 1, 8, 2, 8, 4, 5, 9, 0, 4, 5]


def swapping(num_pages: int = 6, num_host_pages: int = 8, **options: Any) -> Rig:
    """An engine that swaps whatever it preempts."""
    return Rig(num_pages, 4, num_host_pages=num_host_pages, **{"preemption_mode": "swap", **options})


@pytest.mark.parametrize("overlap", [False, True])
def test_c1_a_swap_computes_nothing_again_and_changes_nothing(overlap: bool) -> None:
    rig = swapping(threshold=4, overlap=overlap)
    late = [rig.add(Y[:9], 12), rig.add(X[:3], 12)][1]
    rig.run()  # compared with the oracle
    assert rig.metrics[late].num_preemptions > 0 and rig.stats["num_preemptions_recompute"] == 0
    assert rig.stats["num_pages_swapped_out"] == rig.stats["num_pages_swapped_in"] > 0
    if not overlap:  # a plan that is in flight at a preemption draws one token that is drawn again
        assert rig.stats["num_tokens_computed"] == 9 + 3 + 11 + 11
    rig.check_reset()


@pytest.mark.parametrize("moment", ["at once", "after a step", "half of it"])
def test_c6_the_end_of_a_swapped_request_gives_its_host_pages_back(moment: str) -> None:
    rig = swapping(num_pages=8, num_host_pages=4)
    for _ in range(5):
        old = rig.add(Y[:9], 20)
        late = rig.add(X[:3], 12, n=2)
        rig.run_until_preempted(late)
        assert rig.stats["host_pages_free"] < 4
        if moment == "after a step":
            rig.step()
        if moment == "half of it":
            rig.end(late, 1)
            assert 0 < rig.stats["host_pages_free"] < 4, "the other half still waits"
        rig.end(late)
        assert rig.stats["host_pages_free"] == 4
        rig.end(old)
        rig.check_reset()


def test_c7_a_page_goes_out_before_its_next_owner_writes_it_and_comes_back_as_it_was() -> None:
    rig = swapping(prefix_caching=False)
    rig.add(Y[:9], 12)
    late = rig.add(X[:6], 12)
    snapshots: dict[int, list[Any]] = {}
    reused = 0

    def watch(plan: SchedulerOutput) -> None:
        nonlocal reused
        out = moves_of(plan.moves, MoveKind.SWAP_OUT)
        for _, device, host in out:
            snapshots[host] = rig.executor.page(device)
        given = {page for grant in plan.grants for page in grant.pages}
        reused += len(given & {move.source for move in out})

    rig.executor.before_execute = watch
    rig.run_until_preempted(late)
    assert reused > 0, "the page went to another in the same plan"
    assert {host: rig.executor.host_memory[host] for host in snapshots} == snapshots
    rig.step(2)
    assert {host: rig.executor.host_memory[host] for host in snapshots} == snapshots, "it waits unchanged"
    rig.run()
    assert rig.stats["num_pages_swapped_in"] == len(snapshots) > 0


def test_siblings_share_their_pages_on_the_host_and_again_when_they_are_back() -> None:
    rig = swapping(num_pages=9, max_num_seqs=4)
    rig.add(Y[:8], 24)
    pair = rig.add(X[:8], 8, n=2)
    rig.run_until_preempted(pair)
    (out,) = [out for plan in rig.executor.plans if (out := moves_of(plan.moves, MoveKind.SWAP_OUT))]
    group = rig.engine._groups[pair]
    first, second = (sequence.host_pages for sequence in group.sequences)
    assert first[:2] == second[:2] and len(out) == len({*first, *second})
    while not moves_of(rig.executor.plans[-1].moves, MoveKind.SWAP_IN):
        rig.step()
    tables = [sequence.pages for sequence in group.sequences]
    assert tables[0][:2] == tables[1][:2] and rig.cache.pool.ref_count(tables[0][0]) == 2
    rig.run()


@pytest.mark.parametrize("mode", ["swap", "auto"])
@pytest.mark.parametrize("num_host_pages", [0, 1])
def test_where_the_host_pool_has_no_room_a_preemption_recomputes_and_is_counted_so(
    mode: str, num_host_pages: int
) -> None:
    rig = swapping(9, num_host_pages, preemption_mode=mode)
    rig.add(Y[:8], 24)
    pair = rig.add(X[:8], 8, n=2)
    rig.run()
    assert rig.metrics[pair].num_preemptions == rig.stats["num_preemptions_recompute"] > 0
    assert rig.stats["num_preemptions_swap"] == rig.stats["num_pages_swapped_out"] == 0


@pytest.mark.parametrize(("n", "swaps"), [(1, False), (2, True)])
def test_auto_recomputes_one_sequence_and_swaps_several(n: int, swaps: bool) -> None:
    rig = swapping(10, 16, preemption_mode="auto")
    rig.add(Y[:8], 24)
    late = rig.add(X[:12], 12, n=n)
    rig.run()
    assert rig.metrics[late].num_preemptions > 0
    assert (rig.stats["num_preemptions_swap"] > 0) == swaps == (rig.stats["num_preemptions_recompute"] == 0)


def test_a_group_swapped_in_the_middle_of_its_prompt_goes_on_there() -> None:
    rig = swapping(8, 8, budget=8, threshold=3, max_num_seqs=4)
    rig.add(Y[:3], 24)
    rig.add(Y[3:6], 20)
    late = rig.add(X[:14], 4, n=2)
    rig.run_until_preempted(late)
    group = rig.engine._groups[late]
    assert group.status == "swapped"
    rig.run()
    assert len(rig.ids(late, 1)) == 4


@pytest.mark.parametrize("overlap", [False, True])
def test_h11_whatever_the_moment_an_abort_gives_pages_rows_and_host_pages_back_within_two_steps(overlap: bool) -> None:
    for moment in range(40):
        rig = swapping(7, 6, max_num_seqs=3, budget=8, threshold=4, overlap=overlap)
        names = [rig.add(Y[:9], 8), rig.add(X[:5], 9, n=2), rig.add(X[2:11], 8), rig.add(X[4:9], 4)]
        rig.step(min(moment, 20))
        for name in names[moment % 2 :: 2]:
            group = rig.engine._groups.get(name)
            rig.end(name)
            assert group is None or not any(s.pages or s.host_pages for s in group.sequences)
        rig.step(2)
        left = {group.request.request_id for group in (*rig.scheduler.running, *rig.scheduler.waiting)}
        assert not left & set(names[moment % 2 :: 2])
        for name in names:
            rig.end(name)
        rig.run()
        rig.check_reset()
        assert {track.finish_reason for track in rig.tracks.values()} <= set(FinishReason)


def test_h13_a_step_that_fails_while_pages_move_frees_everything_once() -> None:
    rig = swapping(6, 8)

    def fail(plan: SchedulerOutput) -> None:
        if moves_of(plan.moves, MoveKind.SWAP_OUT):
            raise RuntimeError("the copy failed")

    rig.executor.before_execute = fail
    rig.add(Y[:9], 12)
    rig.add(X[:3], 12)
    with pytest.raises(RuntimeError, match="copy failed"):
        rig.run()
    assert rig.stats["num_preemptions_swap"] == 1
    rig.forget_unfinished()
    rig.check_reset()
    rig.executor.before_execute = None
    rig.add(X[:5], 8, request_id="next")
    rig.run()


@pytest.mark.parametrize("n", [2, 3])
def test_a_group_is_not_brought_back_only_to_go_out_again_at_once(n: int) -> None:
    rig = swapping(12, 16)
    for i in range(4):
        rig.add(X[i : i + 6], 10, n=n)
    rig.run()
    plans = rig.executor.plans
    assert any(moves_of(plan.moves, MoveKind.SWAP_IN) for plan in plans)
    for plan, following in pairwise(plans):
        back = {move.target for move in moves_of(plan.moves, MoveKind.SWAP_IN)}
        assert not back & {move.source for move in moves_of(following.moves, MoveKind.SWAP_OUT)}
