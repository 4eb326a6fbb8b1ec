"""Questions about several engines: does it pay to compute prompts apart, and who should get a request?

Lives here: `goodput` and `routers`; `python -m experiments.fleet goodput` or `routers`.
Promises: the real scheduler, router and handoff on one virtual line of time; the same numbers on every run.
Must not know: devices.
"""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from experiments.config import CacheSection, ExperimentConfig, HardwareSection, ModelSection, PolicySection
from experiments.point import requests_of
from experiments.resolve import engine_configs, preset
from experiments.traces import TRACES
from jpaged.core.requests.request import RequestMetrics
from jpaged.fleet.router import Router
from jpaged.sim.fleet import DecodePool, FleetLoop, SimReplica
from jpaged.sim.links import link_named
from jpaged.sim.profiles import load_profile
from jpaged.workloads import Workload, WorkloadSpec, build_workload

GOOD = 0.90
"""The share of requests that must keep both limits (DistServe's goodput)."""


@dataclass(frozen=True, kw_only=True)
class Service:
    """Limits that a request is to keep, in seconds, and the lengths that it has."""

    model: str
    lengths: str
    ttft_s: float
    tpot_s: float


@dataclass(frozen=True, kw_only=True)
class Fleet:
    """Engines of one GPU each: `num_colocated` alike, or `num_prefill` and `num_decode` that share the work."""

    num_colocated: int = 0
    num_prefill: int = 0
    num_decode: int = 0
    link: str = "nvlink3"
    budget: int = 2048
    chunked: bool = True
    routing: str = "least_outstanding_tokens"
    prefix_caching: bool = False

    @property
    def num_gpus(self) -> int:
        """Devices in all."""
        return self.num_colocated + self.num_prefill + self.num_decode

    def __str__(self) -> str:
        if self.num_colocated:
            how = "chunks" if self.chunked else "whole prompts"
            return f"{self.num_colocated} colocated, {how}, {self.budget} tokens a step"
        return f"{self.num_prefill} prefill ({self.budget} tokens a step) + {self.num_decode} decode over {self.link}"


def run_fleet(fleet: Fleet, model: str, workload: Workload, device: str = "A100-80GB") -> FleetLoop:
    """Serve the workload with the fleet, to its end."""
    config = ExperimentConfig(
        model=ModelSection(name=model),
        hardware=HardwareSection(device=device),
        policy=PolicySection(
            name="paged", max_num_seqs=256, max_num_batched_tokens=fleet.budget, chunked_prefill=fleet.chunked
        ),
        cache=CacheSection(enable_prefix_caching=fleet.prefix_caching),
    )
    shape = preset(model)
    cache, scheduler = engine_configs(config, shape)
    profile = load_profile("ideal", shape, device)

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
    first = engines(fleet.num_colocated or fleet.num_prefill, fleet.budget)
    # A prefill engine is done with a request at its first token, so the output weighs nothing there.
    router = Router(len(first), fleet.routing, page_size=cache.page_size, expected_output_tokens=0 if decode else 256)
    requests = requests_of(config, workload, shape.vocab_size, ids_matter=fleet.prefix_caching)
    loop = FleetLoop(first, router, requests, workload.arrival_ns, decode=decode)
    loop.run()
    return loop


def share_good(metrics: Sequence[RequestMetrics | None], service: Service) -> float:
    """The share of all requests that kept both limits; one that was refused did not."""
    return sum(m is not None and _is_good(m, service) for m in metrics) / len(metrics)


def _is_good(metrics: RequestMetrics, service: Service) -> bool:
    gaps = metrics.itl
    assert metrics.ttft is not None, "a run ends when every request has"
    return metrics.ttft <= service.ttft_s and (not gaps or sum(gaps) / len(gaps) <= service.tpot_s)


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


def goodput_of(fleet: Fleet, service: Service, *, duration_s: float = 60.0, seed: int = 0) -> float:
    """The largest rate of Poisson arrivals, in requests a second and GPU, at which enough requests keep the limits.

    Those of the first third of the time find a fleet that is not yet full, and are not counted.
    """

    def is_good(rate_per_gpu: float) -> bool:
        spec = WorkloadSpec(
            lengths=service.lengths,
            rate=rate_per_gpu * fleet.num_gpus,
            duration_s=duration_s,
            seed=seed,
            max_model_len=preset(service.model).max_length,
            rows="sampled" if service.lengths in TRACES else "in_order",
        )
        metrics = run_fleet(fleet, service.model, build_workload(spec, TRACES)).metrics
        return share_good(metrics[len(metrics) // 3 :], service) >= GOOD

    return largest_rate(is_good)


SERVICES = (
    # DistServe's limits for a chatbot on OPT-13B; then the same with the time of a token cut.
    Service(model="opt-13b", lengths="sharegpt", ttft_s=0.25, tpot_s=0.1),
    Service(model="opt-13b", lengths="sharegpt", ttft_s=0.25, tpot_s=0.04),
    # Long prompts, short answers.
    Service(model="llama-3-8b", lengths="azure_code", ttft_s=1.5, tpot_s=0.03),
)
FLEETS = (
    Fleet(num_colocated=2, budget=512),
    Fleet(num_colocated=2, budget=2048),
    Fleet(num_prefill=1, num_decode=1, budget=1024, chunked=False),
    Fleet(num_prefill=1, num_decode=1, budget=1024, chunked=False, link="25Gb/s"),
    Fleet(num_prefill=1, num_decode=3, budget=1024, chunked=False),
)


def goodput() -> list[str]:
    """The goodput a GPU of each fleet for each service, on A100-80GB."""
    lines: list[str] = []
    for service in SERVICES:
        limits = f"TTFT {service.ttft_s * 1e3:.0f} ms, TPOT {service.tpot_s * 1e3:.0f} ms"
        lines.append(f"{service.model}, {service.lengths}, {limits}: requests a second and GPU")
        lines += (f"  {goodput_of(fleet, service):6.2f}  {fleet}" for fleet in FLEETS)
    return lines


def conversations(rate: float, *, think_s: float = 20.0, num_requests: int = 1200, seed: int = 0) -> Workload:
    """ShareGPT's conversations, `rate` requests a second on the whole; a turn comes `think_s` after the one before it,
    on average, plus 30 ms a token of the answer."""
    spec = WorkloadSpec(
        lengths="sharegpt_multiturn", arrivals="all_at_once", num_requests=num_requests, max_model_len=8192
    )
    rows = build_workload(spec, TRACES)
    assert rows.session is not None
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


def routers() -> list[str]:
    """Prefix hits and times of each routing policy: four LLaMA-3-8B engines, prompts that begin alike."""
    mooncake = WorkloadSpec(
        lengths="mooncake_conversation_blocks", arrivals="recorded", rate=3.0, max_model_len=8192, max_output_tokens=512
    )
    traces = {
        "conversations, 6 requests a second": conversations(6.0),
        "mooncake_conversation_blocks, 3 requests a second": build_workload(mooncake, TRACES),
    }
    lines: list[str] = []
    for name, workload in traces.items():
        lines.append(f"{name}, {len(workload)} requests of {workload.mean_prompt_tokens:.0f} prompt tokens")
        lines.append("  hit rate  mean TTFT  p99 TTFT  p99 TPOT  most/least prompt tokens of a replica")
        for routing in ("round_robin", "least_outstanding_tokens", "prefix_affinity"):
            lines.append(f"{_routed(workload, routing)}  {routing}")
    return lines


def _routed(workload: Workload, routing: str) -> str:
    fleet = Fleet(num_colocated=4, routing=routing, prefix_caching=True)
    loop = run_fleet(fleet, "llama-3-8b", workload)
    metrics = [m for m in loop.metrics if m is not None]
    hits = sum(m.num_cached_tokens for m in metrics) / sum(workload.prompt_tokens)
    ttft = 1e3 * np.array([m.ttft for m in metrics])
    tpot = 1e3 * np.array([sum(m.itl) / len(m.itl) for m in metrics if m.itl])
    given = np.bincount([place or 0 for place in loop.placed], workload.prompt_tokens, 4)
    return (
        f"  {hits:7.1%}  {ttft.mean():7.0f} ms {np.percentile(ttft, 99):6.0f} ms {np.percentile(tpot, 99):6.1f} ms"
        f"  {given.max() / given.min():5.2f}"
    )


QUESTIONS = {"goodput": goodput, "routers": routers}


def main(arguments: Sequence[str]) -> int:
    """Answer the questions that are named, or all."""
    unknown = [name for name in arguments if name not in QUESTIONS]
    if unknown:
        print(f"{unknown[0]!r} is no question; ask {', '.join(QUESTIONS)}", file=sys.stderr)
        return 2
    for name in arguments or QUESTIONS:
        print("\n".join(QUESTIONS[name]()), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
