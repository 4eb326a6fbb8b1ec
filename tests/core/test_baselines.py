"""The rivals' rules, each on a case small enough to follow by hand."""

import pytest
from rig import Rig

from jpaged.config.options import CacheConfig, SchedulerConfig
from jpaged.core.requests.sampling_params import BeamSearchParams
from jpaged.core.scheduling.presets import POLICIES, with_policy
from jpaged.core.scheduling.scheduler import Scheduler

ORCA = {"prefix_caching": False, "watermark": 0.0}


def orca(reservation: str, num_pages: int = 16, page_size: int = 4, **options: object) -> Rig:
    return Rig(num_pages, page_size, reservation=reservation, **ORCA, **options)


def static(num_pages: int = 16, page_size: int = 4, **options: object) -> Rig:
    return Rig(num_pages, page_size, reservation="batch", batching="static", **ORCA, **options)


@pytest.mark.parametrize(("reservation", "pages"), [("oracle", 4), ("pow2", 4), ("max", 8)])
def test_a_run_is_the_estimate_rounded_up_to_a_power_of_two_of_pages(reservation: str, pages: int) -> None:
    # 5 + 6 tokens are 3 pages; the next power of two of 6 is 8: 13 tokens are 4 pages; the longest are 32 tokens.
    rig = orca(reservation, max_model_len=32)
    rig.add([1, 2, 3, 4, 5], max_tokens=6)
    rig.step()
    assert rig.cache.num_used == pages
    rig.run()
    rig.check_reset()


def test_orca_admits_in_order_and_stops_at_the_first_that_finds_no_room() -> None:
    rig = orca("oracle", num_pages=8)
    first = rig.add([1] * 9, max_tokens=7)  # 4 pages
    large = rig.add([2] * 17, max_tokens=8)  # 8 pages: waits for the first
    small = rig.add([3], max_tokens=2)  # 1 page: would fit, and waits behind it
    rig.step()
    assert rig.scheduler.num_running == 1
    rig.run()
    finished = [rig.metrics[name].finished for name in (first, large, small)]
    assert rig.metrics[large].first_scheduled > rig.metrics[first].finished
    assert rig.metrics[small].first_scheduled > rig.metrics[first].finished
    assert all(finished)
    assert rig.stats["num_preemptions_recompute"] == 0


def test_samples_of_a_request_compute_their_prompts_apart_and_share_nothing() -> None:
    rig = orca("oracle")
    rig.add([1, 2, 3, 4, 5], max_tokens=3, n=3)
    rig.step()
    assert rig.stats["num_tokens_computed"] == 15
    assert rig.stats["pages_saved_peak"] == 0
    rig.run()


def test_a_beam_that_takes_a_seat_gets_a_copy_of_every_page() -> None:
    rig = orca("oracle")
    rig.add([1, 2, 3, 4, 5], beam=BeamSearchParams(beam_width=2, max_tokens=4, ignore_eos=True))
    rig.run()
    paged = Rig(16, 4, prefix_caching=False)
    paged.add([1, 2, 3, 4, 5], beam=BeamSearchParams(beam_width=2, max_tokens=4, ignore_eos=True))
    paged.run()
    # The first step alone gives one seat away, and copies both pages of 9 tokens, and the third.
    assert rig.stats["num_page_copies"] >= 3
    assert rig.stats["num_page_copies"] % 3 == 0
    assert rig.stats["num_page_copies"] > paged.stats["num_page_copies"]


def test_a_static_batch_starts_together_and_ends_together() -> None:
    rig = static(max_num_seqs=2)
    names = [rig.add([i] * (3 + i), max_tokens=2 + 3 * i) for i in range(3)]
    rig.run()
    first, second, third = (rig.metrics[name] for name in names)
    assert first.first_scheduled == second.first_scheduled
    assert first.finished == second.finished
    assert third.first_scheduled > first.finished
    # The longest output is 5 tokens: both rows run for five steps, the first one's last three for nobody.
    assert rig.stats["num_steps"] == 5 + 8
    assert [len(rig.ids(name)) for name in names] == [2, 5, 8]


def test_a_static_batch_is_padded_to_its_longest_prompt_and_its_longest_output() -> None:
    rig = static(max_num_seqs=2)
    rig.add([1], max_tokens=9)
    rig.add([2] * 8, max_tokens=2)
    rig.step()
    assert rig.cache.num_used == 2 * 5  # 8 + 9 tokens each


def test_who_does_not_fit_the_padded_batch_waits_and_so_do_those_behind() -> None:
    rig = static(max_num_seqs=4, max_static_batch_len=12, max_model_len=40)
    rig.add([1] * 4, max_tokens=4)
    rig.add([2] * 10, max_tokens=2)  # 10 + 4 tokens are too many
    rig.add([3] * 4, max_tokens=4)
    rig.step()
    assert rig.scheduler.num_running == 1
    rig.run()


def test_a_request_too_large_for_any_batch_runs_alone() -> None:
    rig = static(max_num_seqs=4, max_static_batch_len=12, max_model_len=40)
    rig.add([1] * 20, max_tokens=4)
    rig.add([2] * 4, max_tokens=2)
    rig.step()
    assert rig.scheduler.num_running == 1
    rig.run()


def test_a_request_that_no_reservation_can_hold_is_refused_with_the_remedy() -> None:
    rig = orca("oracle", num_pages=10, max_model_len=40)
    with pytest.raises(ValueError, match=r"room for 0 reservations of that size; lower max_tokens or n"):
        rig.add([1] * 20, max_tokens=14)  # 34 tokens, 9 pages, a run of 16
    rig.add([1] * 20, max_tokens=10)
    rig.run()


def test_whole_prompts_wait_for_a_step_with_room_for_all_their_tokens() -> None:
    rig = Rig(32, 4, prefix_caching=False, budget=16, chunked_prefill=False)
    rig.add([1] * 10, max_tokens=4)
    second = rig.add([2] * 8, max_tokens=2)
    rig.step()
    assert rig.stats["num_tokens_computed"] == 10
    rig.step()
    assert rig.stats["num_tokens_computed"] == 10 + 1 + 8
    rig.run()
    assert rig.reason(second) is not None


def test_with_headroom_a_group_goes_on_only_while_a_page_is_free() -> None:
    rigs = [
        Rig(4, 4, prefix_caching=False, append_headroom=flag, preemption_mode="recompute") for flag in (False, True)
    ]
    for rig in rigs:
        rig.add([1] * 6, max_tokens=3)
        rig.add([2] * 6, max_tokens=3)  # four pages are held, and no more are needed for a token or two
        rig.run()
    assert [rig.stats["num_preemptions_recompute"] for rig in rigs] == [0, 1]


@pytest.mark.parametrize("name", POLICIES)
def test_every_preset_is_a_pair_of_valid_configs(name: str) -> None:
    extra = {"num_host_pages": 8} if name == "vllm-2023" else {}
    cache, scheduler = with_policy(name, CacheConfig(), SchedulerConfig(), num_pages=984, **extra)
    assert cache.num_pages == 984
    assert (cache.reservation == "batch") == (scheduler.batching == "static")


def test_an_unknown_policy_or_field_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="policy='orca': choose one of paged, vllm-2023"):
        with_policy("orca", CacheConfig(), SchedulerConfig())
    with pytest.raises(ValueError, match="page_sise: no field"):
        with_policy("paged", CacheConfig(), SchedulerConfig(), page_sise=3)


@pytest.mark.parametrize(
    ("cache", "scheduler", "message"),
    [
        ({"reservation": "most"}, {}, "choose one of none, oracle"),
        ({"reservation": "max"}, {}, "enable_prefix_caching=True: reservation='max' shares"),
        ({"reservation": "max", "enable_prefix_caching": False, "num_host_pages": 3}, {}, "num_host_pages=3"),
        ({"reservation": "batch", "enable_prefix_caching": False}, {}, "'batch' and 'static' go together"),
        ({}, {"batching": "static"}, "'batch' and 'static' go together"),
        ({}, {"max_static_batch_len": 9}, "only with batching='static'"),
        ({}, {"batching": "static", "scheduling_policy": "priority"}, "first come, first served"),
        (
            {"reservation": "max", "enable_prefix_caching": False},
            {"append_headroom": True},
            "append_headroom=True with reservation='max'",
        ),
    ],
)
def test_policies_that_contradict_are_refused(cache: dict, scheduler: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Scheduler(SchedulerConfig(**scheduler), CacheConfig(num_pages=200, **cache))
