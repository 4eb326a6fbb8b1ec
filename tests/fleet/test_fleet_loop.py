"""Many simulated engines on one line of time: exact times, no knowledge of the future, no request lost."""

import random
from typing import Any

import numpy as np
import pytest

from jpaged.config.options import CacheConfig, SchedulerConfig
from jpaged.core.engine import Engine
from jpaged.core.engine_loop import EngineLoop
from jpaged.core.open_loop import OpenLoop
from jpaged.core.requests.request import Request, RequestMetrics
from jpaged.core.requests.sampling_params import BeamSearchParams, SamplingParams
from jpaged.fleet.router import ROUTING, Router
from jpaged.sim.clock import VirtualClock
from jpaged.sim.cost_model import LinearCostModel
from jpaged.sim.executor import SimExecutor
from jpaged.sim.fleet import DecodePool, FleetLoop, Outage, SimReplica
from jpaged.sim.links import LINKS, Link, link_named

COST = LinearCostModel(name="flat", launch_ns=1_000_000.0, token_ns=10_000.0, context_ns=50.0, sequence_ns=10_000.0)
LINK = Link(name="slow", rate=1e9, latency_ns=100_000.0)
PAGE_BYTES = 1_000_000


def replica(num_pages: int = 60, *, strides: bool = True, cost: LinearCostModel = COST, **options: Any) -> SimReplica:
    config = {"max_num_seqs": 8, "max_num_batched_tokens": 64, "max_model_len": 120, **options}
    cache = CacheConfig(num_pages=num_pages, page_size=4, enable_prefix_caching=config.pop("prefix_caching", False))
    return SimReplica(SchedulerConfig(**config), cache, cost, vocab_size=50_000, strides=strides)


def traffic(count: int, mean_gap_ns: int, *, seed: int = 0, longest: int = 60) -> tuple[list[Request], list[int]]:
    rng = random.Random(seed)
    requests, arrivals, now = list[Request](), list[int](), 0
    for i in range(count):
        now += rng.randrange(2 * mean_gap_ns)
        arrivals.append(now)
        params = SamplingParams(max_tokens=rng.randint(1, longest), ignore_eos=True, temperature=0.0)
        prompt = tuple(rng.randrange(100) for _ in range(rng.randint(1, 50)))
        requests.append(Request(request_id=str(i), prompt_token_ids=prompt, params=params, arrival=now / 1e9))
    return requests, arrivals


def times(metrics: list[RequestMetrics | None]) -> list[Any]:
    return [m and (m.first_scheduled, m.first_token, m.finished, tuple(m.itl), m.num_preemptions) for m in metrics]


def pool(replicas: list[SimReplica], link: Link = LINK) -> DecodePool:
    return DecodePool(replicas=replicas, router=Router(len(replicas)), link=link, page_bytes=PAGE_BYTES)


@pytest.mark.parametrize("strides", [True, False])
def test_a_fleet_of_one_does_what_the_open_loop_does(strides: bool) -> None:
    requests, arrivals = traffic(60, 20_000_000)
    loop = FleetLoop([replica(strides=strides)], Router(1), requests, arrivals)
    loop.run()
    clock = VirtualClock()
    engine = Engine(
        SchedulerConfig(max_num_seqs=8, max_num_batched_tokens=64, max_model_len=120),
        CacheConfig(num_pages=60, page_size=4, enable_prefix_caching=False),
        SimExecutor(COST, clock, page_size=4),
        vocab_size=50_000,
        clock=clock,
    )
    alone = OpenLoop(EngineLoop(engine), clock, requests, arrivals)
    alone.run()
    assert times(loop.metrics) == times(alone.metrics)
    assert any(m and m.num_preemptions for m in loop.metrics)


@pytest.mark.parametrize("policy", ROUTING)
def test_strides_change_no_time_of_a_fleet(policy: str) -> None:
    requests, arrivals = traffic(80, 8_000_000, seed=1)
    seen: list[Any] = []
    for strides in (True, False):
        loop = FleetLoop([replica(strides=strides) for _ in range(3)], Router(3, policy), requests, arrivals)
        loop.run()
        seen.append((times(loop.metrics), loop.placed))
    assert seen[0] == seen[1]
    assert set(seen[0][1]) == {0, 1, 2}


def disaggregated(num_pages: int = 60, *, strides: bool = True, count: int = 80, gap: int = 12_000_000) -> FleetLoop:
    requests, arrivals = traffic(count, gap, seed=2)
    prefill = [replica(strides=strides) for _ in range(2)]
    decode = [replica(num_pages, strides=strides) for _ in range(2)]
    loop = FleetLoop(prefill, Router(2), requests, arrivals, decode=pool(decode))
    loop.run()
    for one in (*prefill, *decode):
        one.engine.scheduler.check()
        assert one.engine.scheduler.cache.num_available == one.engine.scheduler.cache.pool.num_pages
    return loop


@pytest.mark.parametrize("num_pages", [30, 60, 400])
def test_strides_change_no_time_of_a_disaggregated_fleet(num_pages: int) -> None:
    quick, slow = disaggregated(num_pages), disaggregated(num_pages, strides=False)
    assert times(quick.metrics) == times(slow.metrics)
    assert (quick.bytes_moved, quick.transfer_ns) == (slow.bytes_moved, slow.transfer_ns)
    assert all(m is not None and m.finished is not None for m in quick.metrics)


def test_decode_pools_with_room_for_little_more_than_one_request_finish_all_of_them() -> None:
    assert all(m is not None and m.finished is not None for m in disaggregated(30, gap=1_000_000).metrics)


def test_one_request_takes_prefill_then_transfer_then_decode_to_the_nanosecond() -> None:
    params = SamplingParams(max_tokens=3, ignore_eos=True, temperature=0.0)
    request = Request(request_id="0", prompt_token_ids=(5,) * 10, params=params, arrival=0.001)
    loop = FleetLoop([replica()], Router(1), [request], [1_000_000], decode=pool([replica()]))
    loop.run()
    (metrics,) = loop.metrics
    assert metrics is not None
    first = 1_000_000 + 1_000_000 + 10 * 10_000
    # Three pages of four tokens hold ten; then each step reads 11 and 12 tokens.
    landed = first + 100_000 + 3 * 1_000_000
    second = landed + 1_000_000 + 20_000 + 11 * 50
    third = second + 1_000_000 + 20_000 + 12 * 50
    assert metrics.first_token == first / 1e9
    assert metrics.itl == pytest.approx([(second - first) / 1e9, (third - second) / 1e9])
    assert metrics.finished == third / 1e9
    assert (loop.bytes_moved, loop.transfer_ns) == (3_000_000, 3_100_000)


def test_transfers_into_one_engine_follow_one_another() -> None:
    params = SamplingParams(max_tokens=2, ignore_eos=True, temperature=0.0)
    requests = [Request(request_id=f"{i}", prompt_token_ids=(5,) * 8, params=params) for i in range(2)]
    decode = [replica()]
    loop = FleetLoop([replica(), replica()], Router(2, "round_robin"), requests, [0, 0], decode=pool(decode))
    loop.run()
    gaps = [m.itl[0] for m in loop.metrics if m is not None]
    # The first is decoding when the second lands, which waits for that step's end.
    assert gaps[0] == pytest.approx((2_100_000 + 1_020_000 + 9 * 50) / 1e9)
    assert gaps[1] == pytest.approx((4_200_000 + 1_020_000 + 9 * 50) / 1e9)


@pytest.mark.slow
@pytest.mark.parametrize("load", [0.3, 0.6])
def test_a_prefill_engine_that_computes_one_prompt_at_a_time_is_an_m_d_1_queue(load: float) -> None:
    """TTFT = D + R D^2 / (2 (1 - R D)) with D the time of a prompt and R the rate (DistServe)."""
    prompt, cost = 50, LinearCostModel(name="flat", launch_ns=2_000_000.0, token_ns=100_000.0)
    d = (2_000_000 + prompt * 100_000) / 1e9
    rate, count = load / d, 8_000
    gaps = np.random.default_rng(0).exponential(1e9 / rate, count)
    arrivals = [int(t) for t in np.cumsum(gaps)]
    params = SamplingParams(max_tokens=2, ignore_eos=True, temperature=0.0)
    requests = [
        Request(request_id=f"{i}", prompt_token_ids=(5,) * prompt, params=params, arrival=t / 1e9)
        for i, t in enumerate(arrivals)
    ]
    one_at_a_time = {"max_num_seqs": 1, "max_num_batched_tokens": prompt}
    decode = replica(2000, cost=LinearCostModel(name="quick", launch_ns=1000.0))
    swift = Link(name="swift", rate=1e15, latency_ns=0.0)
    loop = FleetLoop(
        [replica(200, cost=cost, **one_at_a_time)], Router(1), requests, arrivals, decode=pool([decode], swift)
    )
    loop.run()
    ttft = np.array([m.ttft for m in loop.metrics if m is not None])
    free, waits = 0, list[int]()
    for at in arrivals:
        free = max(free, at) + round(d * 1e9)
        waits.append(free - at)
    assert ttft == pytest.approx(np.array(waits) / 1e9, abs=2e-9)
    assert np.mean(ttft) == pytest.approx(d + rate * d**2 / (2 * (1 - rate * d)), rel=0.05)


@pytest.mark.parametrize("strides", [True, False])
def test_after_an_outage_everyone_is_served_by_those_who_are_left(strides: bool) -> None:
    requests, arrivals = traffic(60, 8_000_000, seed=3)
    outage = Outage(200_000_000, 1)
    replicas = [replica(strides=strides) for _ in range(3)]
    loop = FleetLoop(replicas, Router(3, "round_robin"), requests, arrivals, outages=[outage])
    loop.run()
    assert all(m is not None and m.finished is not None for m in loop.metrics)
    assert loop.router.loads[1].life == 1
    again = [i for i, at in enumerate(arrivals) if at < outage.time_ns and i % 3 == 1 and loop.placed[i] != 1]
    assert again, "the outage hit nobody"
    for i in again:
        metrics = loop.metrics[i]
        assert metrics is not None and metrics.first_scheduled is not None and metrics.ttft is not None
        assert metrics.first_scheduled >= 0.2 and metrics.ttft > (outage.time_ns - arrivals[i]) / 1e9
    for i, at in enumerate(arrivals):
        metrics = loop.metrics[i]
        assert metrics is not None and metrics.finished is not None
        assert loop.placed[i] != 1 or (at < outage.time_ns and metrics.finished <= 0.2)


def test_with_nobody_left_the_requests_are_reported_as_lost() -> None:
    requests, arrivals = traffic(10, 1_000_000)
    loop = FleetLoop([replica()], Router(1), requests, arrivals, outages=[Outage(5_000_000, 0)])
    loop.run()
    assert set(loop.lost) | set(loop.refused) == {i for i, m in enumerate(loop.metrics) if m is None}
    assert loop.lost and loop.refused and loop.router.num_in_flight == 0


def test_what_cannot_be_served_is_refused_and_the_rest_goes_on() -> None:
    requests, arrivals = traffic(6, 1_000_000)
    beam = BeamSearchParams(beam_width=2, max_tokens=4)
    bad = [
        Request(request_id="long", prompt_token_ids=(1,) * 300),
        Request(request_id="beam", prompt_token_ids=(1,), beam=beam),
    ]
    loop = FleetLoop([replica()], Router(1), bad + requests, [0, 0, *arrivals], decode=pool([replica()]))
    loop.run()
    assert set(loop.refused) == {0, 1}
    assert "a beam search stays" in loop.refused[1]
    assert all(m is not None and m.finished is not None for m in loop.metrics[2:])


def test_affinity_finds_more_of_the_prefixes_than_routing_in_turn() -> None:
    rng = random.Random(0)
    prefixes = [tuple(rng.randrange(100) for _ in range(40)) for _ in range(12)]
    params = SamplingParams(max_tokens=4, ignore_eos=True, temperature=0.0)
    requests = [
        Request(request_id=f"{i}", prompt_token_ids=(*rng.choice(prefixes), i), params=params) for i in range(200)
    ]
    arrivals = [i * 10_000_000 for i in range(200)]
    hits: dict[str, int] = {}
    for policy in ("round_robin", "prefix_affinity"):
        replicas = [replica(60, prefix_caching=True) for _ in range(3)]
        loop = FleetLoop(replicas, Router(3, policy, page_size=4), requests, arrivals)
        loop.run()
        hits[policy] = sum(one.engine.scheduler.prefix_hit_tokens for one in replicas)
    assert hits["prefix_affinity"] > 1.5 * hits["round_robin"] > 0


def test_links_are_what_their_names_say() -> None:
    assert link_named("25Gb/s").transfer_ns(2_500_000_000) == 1_000_050_000
    assert {name: link.name for name, link in LINKS.items()} == {name: name for name in LINKS}
    with pytest.raises(ValueError, match="link='string' is not known; choose one of nvlink3"):
        link_named("string")
    with pytest.raises(ValueError, match="rate=0 must be above 0"):
        Link(name="none", rate=0, latency_ns=0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"arrivals_ns": [0]}, "2 requests and 1 arrivals"),
        ({"arrivals_ns": [5, 4]}, "arrivals_ns must not fall"),
        ({"router": Router(2)}, "1 replicas, and a router of 2"),
        ({"outages": [Outage(0, 3)]}, "outage of replica 3: there are 1"),
        ({"decode": pool([replica(max_model_len=100)])}, "max_model_len=120 of the prefill engine is 100"),
        ({"decode": pool([replica()]), "outages": [Outage(0, 0)]}, "outages are of colocated replicas"),
    ],
)
def test_parts_that_do_not_fit_together_are_refused(change: dict[str, Any], message: str) -> None:
    requests, arrivals = traffic(2, 100)
    parts: dict[str, Any] = {
        "replicas": [replica()],
        "router": Router(1),
        "requests": requests,
        "arrivals_ns": arrivals,
    }
    with pytest.raises(ValueError, match=message):
        FleetLoop(**{**parts, **change})
