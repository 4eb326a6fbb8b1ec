"""Several simulated engines: does it pay to compute prompts apart, and who should get a request?

The real scheduler, router and handoff run on one virtual line of time, so the numbers are the same on every run.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from experiments.config import ExperimentConfig, MetricsSection
from experiments.kinds import FleetConfig, Outcome
from experiments.point import requests_of
from experiments.resolve import fleet_engine_configs, preset
from experiments.traces import TRACES
from jpaged.core.requests.request import RequestMetrics
from jpaged.fleet.router import Router
from jpaged.sim.fleet import DecodePool, FleetLoop, SimReplica
from jpaged.sim.links import link_named
from jpaged.sim.profiles import load_profile
from jpaged.workloads import Workload, build_workload

GOOD = 0.90
"""The share of requests that must keep both limits (DistServe's goodput)."""


def run(config: FleetConfig) -> Outcome:
    """Serve the workload of a config with its fleet, to its end; or search for the rate that it can serve."""
    if config.search:
        return Outcome(dict.fromkeys(config.results) | {"goodput_per_gpu": goodput_of(config)})
    workload = build_workload(config.workload, TRACES)
    if config.turn_rate is not None:
        workload = conversations(workload, config.turn_rate, think_s=config.think_s, seed=config.workload.seed)
    loop = run_fleet(config, workload)
    served = [m for m in loop.metrics if m is not None]
    ttft = 1e3 * np.array([m.ttft for m in served])
    tpot = 1e3 * np.array([sum(m.itl) / len(m.itl) for m in served if m.itl])
    given = np.bincount([place or 0 for place in loop.placed], workload.prompt_tokens, len(loop.router.loads))
    return Outcome(
        {
            "goodput_per_gpu": None,
            "good_share": share_good(loop.metrics, config.metrics),
            "num_requests": len(workload),
            "completed": len(served),
            "failed": len(loop.refused),
            "mean_ttft_ms": float(ttft.mean()),
            "p99_ttft_ms": float(np.percentile(ttft, 99)),
            "p99_tpot_ms": float(np.percentile(tpot, 99)) if len(tpot) else None,
            "prefix_hit_rate": sum(m.num_cached_tokens for m in served) / sum(workload.prompt_tokens),
            "prompt_imbalance": float(given.max() / given.min()) if given.min() else None,
            "bytes_moved": loop.bytes_moved,
        },
        facts={"workload_sha256": workload.digest(), "workload_source": workload.source},
    )


def run_fleet(config: FleetConfig, workload: Workload) -> FleetLoop:
    """Serve the workload with the fleet, to its end."""
    fleet, shape = config.fleet, preset(config.model)
    cache, scheduler = fleet_engine_configs(config)
    profile = load_profile("ideal", shape, config.device)

    def engines(count: int, budget: int) -> list[SimReplica]:
        its = replace(scheduler, max_num_batched_tokens=budget)
        return [SimReplica(its, cache, profile, vocab_size=shape.vocab_size) for _ in range(count)]

    decode = None
    if fleet.num_decode:
        decode = DecodePool(
            replicas=engines(fleet.num_decode, 2048),
            router=Router(fleet.num_decode),
            link=link_named(fleet.link),
            page_bytes=cache.page_size * shape.kv_bytes_per_token(2),
        )
    first = engines(fleet.num_colocated or fleet.num_prefill, fleet.max_num_batched_tokens)
    # A prefill engine is done with a request at its first token, so the output weighs nothing there.
    router = Router(len(first), fleet.routing, page_size=cache.page_size, expected_output_tokens=0 if decode else 256)
    caching = fleet.enable_prefix_caching
    requests = requests_of(ExperimentConfig(), workload, shape.vocab_size, ids_matter=caching)
    loop = FleetLoop(first, router, requests, workload.arrival_ns, decode=decode)
    loop.run()
    return loop


def share_good(metrics: Sequence[RequestMetrics | None], limits: MetricsSection) -> float:
    """The share of all requests that kept the limits that are given; one that was refused did not."""
    return sum(m is not None and _is_good(m, limits) for m in metrics) / len(metrics)


def _is_good(metrics: RequestMetrics, limits: MetricsSection) -> bool:
    gaps = metrics.itl
    assert metrics.ttft is not None, "a run ends when every request has"
    if limits.slo_ttft_ms is not None and metrics.ttft > limits.slo_ttft_ms / 1e3:
        return False
    return limits.slo_tpot_ms is None or not gaps or sum(gaps) / len(gaps) <= limits.slo_tpot_ms / 1e3


def largest_rate(is_good: Callable[[float], bool], *, start: float = 1.0, precision: float = 0.05) -> float:
    """The largest rate that is good, to `precision` of itself, by doubling and then halving the interval."""
    low, high = 0.0, start
    while is_good(high):
        low, high = high, 2 * high
    while high - low > precision * high:
        middle = (low + high) / 2
        low, high = (middle, high) if is_good(middle) else (low, middle)
        if high < precision * start:
            return 0.0
    return low


def goodput_of(config: FleetConfig) -> float:
    """The largest rate, in requests per second and GPU, at which enough requests keep the limits.

    Those of the first third of the time find a fleet that is not yet full, and are not counted.
    """
    start = config.workload.rate
    assert start is not None, "a config that searches has a rate to start from"

    def is_good(rate_per_gpu: float) -> bool:
        workload = build_workload(replace(config.workload, rate=rate_per_gpu * config.fleet.num_gpus), TRACES)
        metrics = run_fleet(config, workload).metrics
        return share_good(metrics[len(metrics) // 3 :], config.metrics) >= GOOD

    return largest_rate(is_good, start=start)


def conversations(rows: Workload, rate: float, *, think_s: float = 20.0, seed: int = 0) -> Workload:
    """The turns of sessions, `rate` requests per second on the whole; a turn comes `think_s` after the one before it,
    on average, plus 30 ms per token of the answer."""
    if rows.session is None:
        raise ValueError(f"turn_rate={rate}: workload {rows.name!r} has no sessions; take lengths that have")
    rng = np.random.Generator(np.random.PCG64(seed))
    gaps = rng.exponential(1.0, len(rows))
    mean_turns = len(rows) / len(set(rows.session))
    start, times = 0.0, dict[int, float]()
    at: list[float] = []
    for i, session in enumerate(rows.session):
        if session not in times:
            start += float(gaps[i]) * mean_turns / rate
            times[session] = start
        else:
            times[session] += 0.03 * rows.output_tokens[i - 1] + think_s * float(gaps[i])
        at.append(times[session])
    order = [i for _, i in sorted((time, i) for i, time in enumerate(at))]
    return replace(rows.rows(order), arrival_ns=tuple(round(1e9 * at[i]) for i in order))
