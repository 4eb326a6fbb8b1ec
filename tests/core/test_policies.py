"""Order, admission, victims and evictions: the built-in rules, a user's own, and what holds whatever they choose."""

from typing import Any

import pytest
from rig import Rig

X = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3]
Y = [2, 7, 1, 8, 2, 8, 1, 8, 2, 8, 4, 5, 9, 0, 4, 5]
Z = [1, 4, 1, 4, 2, 1, 3, 5, 6, 2, 3, 7, 3, 0, 9, 5]
WILD = "wild_policies:"
VICTIMS = ["last", WILD + "any_victim", WILD + "first"]


@pytest.mark.parametrize("victim", VICTIMS)
@pytest.mark.parametrize("mode", ["recompute", "swap"])
@pytest.mark.parametrize("n", [1, 2])
def test_the_oldest_advances_in_every_step_whoever_is_preempted(victim: str, mode: str, n: int) -> None:
    rig = Rig(7, 4, victim_policy=victim, preemption_mode=mode, num_host_pages=9)
    names = [rig.add(X[i : i + 6], 8, n=n) for i in range(5)]
    preempting = 0
    for name in names:
        while rig.metrics[name].finished is None:
            before = len(rig.ids(name)) + (rig.metrics[name].first_token is None)
            rig.step()
            preempting += bool(rig.executor.plans[-1].preempted)
            if name == names[0]:
                assert len(rig.ids(name)) >= before, "the oldest did not advance"
    rig.run()
    assert rig.metrics[names[0]].num_preemptions == 0 and preempting > 0
    assert rig.stats["num_preemptions_swap" if mode == "swap" else "num_preemptions_recompute"] > 0
    rig.check_reset()


@pytest.mark.parametrize("victim", VICTIMS)
def test_the_most_important_advances_in_every_step_under_priorities(victim: str) -> None:
    rig = Rig(7, 4, scheduling_policy="priority", victim_policy=victim)
    names = [rig.add(X[i : i + 6], 12, priority=-i) for i in range(5)]
    rig.run()
    assert rig.metrics[names[-1]].num_preemptions == 0
    assert rig.stats["num_preemptions_recompute"] > 0


def test_the_lowest_priority_number_goes_first_and_equals_in_the_order_of_arrival() -> None:
    rig = Rig(16, 4, max_num_seqs=1, scheduling_policy="priority")
    priorities = [3, 1, 2, 1, -5, 3]
    names = [rig.add(X[i : i + 4], 2, priority=p) for i, p in enumerate(priorities)]
    rig.run()
    order = sorted(names, key=lambda name: rig.metrics[name].first_token or 0)
    assert order == [names[i] for i in (4, 1, 3, 2, 0, 5)]
    plain = Rig(16, 4, max_num_seqs=1)
    names = [plain.add(X[i : i + 4], 2, priority=p) for i, p in enumerate(priorities)]
    plain.run()
    assert sorted(names, key=lambda name: plain.metrics[name].first_token or 0) == names, "fcfs does not look at it"


@pytest.mark.parametrize("bound", [0, 2, 5])
@pytest.mark.parametrize("policy", ["longest_prefix", WILD + "newest"])
def test_a_waiting_request_is_overtaken_no_more_often_than_the_bound(policy: str, bound: int) -> None:
    rig = Rig(24, 4, max_num_seqs=1, admission_policy=policy, max_overtakes=bound)
    rig.add(X[:8], 1)
    rig.run()
    slow = rig.add(Y[:8], 2)
    others = [rig.add([*X[:8], i], 2) for i in range(8)]
    rig.run()
    first = [rig.metrics[name].first_token or 0 for name in (slow, *others)]
    assert sum(time < first[0] for time in first) == bound
    assert policy != "longest_prefix" or rig.stats["prefix_hit_tokens"] > 0


def test_the_longest_cached_prefix_goes_first_and_among_equals_the_oldest() -> None:
    rig = Rig(24, 4, max_num_seqs=1, admission_policy="longest_prefix")
    rig.add(X[:12], 1)
    rig.run()
    names = [rig.add(prompt, 1) for prompt in ([*X[:4], 1], Y[:9], [*X[:8], 1], Z[:9], [*X[:12], 1])]
    rig.run()
    order = sorted(names, key=lambda name: rig.metrics[name].first_token or 0)
    assert order == [names[i] for i in (4, 2, 0, 1, 3)]


BAD = [
    ("admission_policy", "past_the_end", r"admission_policy chose 1002 among 2 groups"),
    ("admission_policy", "before_the_start", r"admission_policy chose -1 among 2 groups"),
    ("admission_policy", "no_index", r"admission_policy chose True"),
    ("victim_policy", "past_the_end", r"victim_policy chose 100\d among \d groups"),
    ("victim_policy", "before_the_start", r"victim_policy chose -1"),
    ("victim_policy", "no_index", r"victim_policy chose True"),
    ("eviction_policy", "past_the_end", r"eviction_policy chose the page 100\d, which is not one of the idle pages"),
    ("eviction_policy", "before_the_start", r"eviction_policy chose the page -1"),
]


@pytest.mark.parametrize(("field", "name", "said"), BAD)
def test_a_choice_out_of_what_was_offered_is_refused_and_the_engine_stays_whole(
    field: str, name: str, said: str
) -> None:
    check_broken_policy(field, name, ValueError, said)


@pytest.mark.parametrize("field", ["admission_policy", "victim_policy", "eviction_policy"])
def test_a_policy_that_fails_ends_the_step_and_the_engine_stays_whole(field: str) -> None:
    check_broken_policy(field, "failing", RuntimeError, "a policy of mine is broken")


def check_broken_policy(field: str, name: str, error: type[Exception], said: str) -> None:
    rig = Rig(8, 4, num_host_pages=4, **{field: WILD + name})
    if field == "eviction_policy":
        rig.add(Z[:13], 4)
        rig.run()
        rig.add(X[:12], 1)
        rig.run()
        assert rig.cache.pool.num_free == 1 and rig.stats["num_evictions"] == 0
        rig.add([*Z[:8], *Y[:8]], 4)  # takes hold of two hits first, then wants an eviction
    else:
        for prompt in (X, Y) if field == "admission_policy" else (X, Y, Z):
            rig.add(prompt[:9], 9)
    with pytest.raises(error, match=said):
        rig.run()
    rig.forget_unfinished()
    rig.check_reset()
    assert rig.stats["host_pages_free"] == 4
    rig.add(X[:3], 1, request_id="next")
    if field != "admission_policy":
        rig.run()


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("nonsense", r"'nonsense': use one of .* or an import path 'package.module:name'"),
        ("no_such_module:x", r"'no_such_module:x'"),
        ("wild_policies:absent", r"'wild_policies:absent'"),
        ("wild_policies:not_callable", r"'wild_policies:not_callable' is not callable"),
        (":", r"use one of"),
    ],
)
@pytest.mark.parametrize("field", ["admission_policy", "victim_policy", "eviction_policy"])
def test_a_path_that_leads_to_no_policy_is_refused_by_name(field: str, path: str, said: str) -> None:
    with pytest.raises(ValueError, match=rf"{field}=.*{said}|{field}={said}"):
        Rig(8, 4, **{field: path})


@pytest.mark.parametrize("policy", ["lru", WILD + "any_page", WILD + "latest_page"])
def test_pinned_pages_outlive_any_pressure_and_are_hit(policy: str) -> None:
    rig = Rig(8, 4, eviction_policy=policy)
    rig.add(X[:9], 1)
    rig.run()
    assert rig.engine.pin("x", tuple(X[:9])) == 8
    for i in range(6):
        rig.add([*Y[i:], *Z[: 1 + i]][:16], 4)
    rig.run()
    assert rig.stats["num_evictions"] > 0 and rig.cache.num_used == 2
    again = rig.add(X[:9], 2)
    rig.run()
    assert rig.metrics[again].num_cached_tokens == 8
    rig.engine.unpin("x")
    assert rig.cache.num_used == 0
    for i in range(6):
        rig.add([*Z[i:], *Y[: 1 + i]][:16], 4)
    rig.run()
    late = rig.add(X[:9], 2)
    rig.run()
    assert policy != "lru" or rig.metrics[late].num_cached_tokens == 0
    rig.check_reset()


def test_pins_that_overlap_hold_their_common_pages_once_and_give_them_back_with_the_last() -> None:
    rig = Rig(8, 4)
    rig.add(X[:13], 1)
    rig.run()
    assert rig.engine.pin("short", tuple(X[:8])) == 8 and rig.engine.pin("long", tuple(X[:12])) == 12
    assert rig.cache.num_pinned == 3
    rig.engine.unpin("short")
    assert rig.cache.num_pinned == rig.cache.num_used == 3
    rig.engine.unpin("long")
    rig.check_reset()


def test_a_pin_that_cannot_be_is_refused() -> None:
    rig = Rig(8, 4)
    rig.add(X[:9], 1)
    rig.run()
    rig.engine.pin("x", tuple(X[:8]))
    with pytest.raises(ValueError, match=r"'x' is pinned already"):
        rig.engine.pin("x", tuple(X[:8]))
    with pytest.raises(ValueError, match=r"'y' is not pinned; pinned are: x"):
        rig.engine.unpin("y")
    with pytest.raises(ValueError, match="enable_prefix_caching=True"):
        Rig(8, 4, prefix_caching=False).engine.pin("x", (1,))
    with pytest.raises(ValueError, match=r"needs 7 pages, the pool has 8, 2 of them pinned"):
        rig.add(Y[:9], 18)
    rig.add(Y[:9], 14)
    rig.run()


def test_a_pin_that_would_leave_a_running_request_too_little_is_refused_and_holds_nothing() -> None:
    rig = Rig(8, 4)
    rig.add(X[:9], 1)
    rig.run()
    running = rig.add(Y[:9], 20)
    rig.step()
    with pytest.raises(ValueError, match=rf"would leave 6 pages.*'{running}'.*may need 7"):
        rig.engine.pin("x", tuple(X[:8]))
    assert rig.cache.num_pinned == 0
    rig.run()
    assert len(rig.ids(running)) == 20
    rig.check_reset()


def test_a_salted_prefix_is_pinned_apart() -> None:
    rig = Rig(8, 4)
    rig.add(X[:9], 1, salt="a")
    rig.run()
    options: dict[str, Any] = {"token_ids": tuple(X[:9])}
    assert rig.engine.pin("plain", **options) == 0
    assert rig.engine.pin("salted", **options, cache_salt="a") == 8
