"""One point of an experiment, run.

Lives here: run_point, and Point, all that came of it in columns.
Promises: the real scheduler under either executor; the same config gives the same simulated Point.
Must not know: files, sweeps, figures.
"""

from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import numpy as np

from experiments.config import ExperimentConfig
from experiments.traces import TRACES
from jpaged.config import CacheConfig, SchedulerConfig, check_pool
from jpaged.core.baselines.presets import with_policy
from jpaged.core.engine import Engine
from jpaged.core.open_loop import OpenLoop
from jpaged.core.request import Request, RequestMetrics, beam_params
from jpaged.core.sampling_params import BeamSearchParams, SamplingParams
from jpaged.sim.capacity import pages_that_fit, swap_pages
from jpaged.sim.clock import VirtualClock
from jpaged.sim.cost_model import CostModel, TableCostModel, scaled
from jpaged.sim.executor import SimExecutor
from jpaged.sim.hardware import hardware_named
from jpaged.sim.profiles import load_profile
from jpaged.sim.run_log import ObservedExecutor, RunLog
from jpaged.sim.stride import Stride
from jpaged.workloads import Workload, build_workload
from models.config import PRESETS, ModelConfig

REQUEST_COLUMNS = (
    "arrival_ns",
    "prompt_tokens",
    "output_tokens",
    "first_scheduled_ns",
    "first_token_ns",
    "finished_ns",
    "num_preemptions",
    "num_preemptions_swap",
    "num_cached_tokens",
)


@dataclass(frozen=True)
class Point:
    """What came of a config: a row a request (finished_ns 0: it did not finish), a row a step, totals.

    `stats` are the engine's own counters, `itl_ns` the gaps between tokens of all requests, `plan_digest` names all
    decisions. `refused` has the reasons by request number. `num_pages` is the pool's size, as it was resolved.
    `outputs`: token ids by request number and index of the sequence, of a real executor; `executor_facts`: what else
    there is to say of it.
    """

    config: ExperimentConfig
    workload: Workload
    requests: dict[str, np.ndarray]
    steps: dict[str, np.ndarray]
    itl_ns: np.ndarray
    stats: dict[str, Any]
    plan_digest: str
    num_pages: int
    end_ns: int
    refused: dict[int, str] = field(default_factory=dict)
    outputs: dict[tuple[int, int], list[int]] | None = None
    executor_facts: dict[str, Any] = field(default_factory=dict)

    @property
    def finished(self) -> np.ndarray:
        """Which requests have finished."""
        return self.requests["finished_ns"] > 0

    @property
    def normalized_latency_s(self) -> float:
        """The paper's metric: the mean over finished requests of seconds from arrival to end, an output token."""
        done, r = self.finished, self.requests
        if not done.any():
            return float("nan")
        spans = (r["finished_ns"] - r["arrival_ns"])[done] / 1e9
        return float(np.mean(spans / r["output_tokens"][done]))

    def window(self) -> np.ndarray:
        """Which steps start within the metrics' window."""
        end = np.inf if self.config.metrics.end_s is None else self.config.metrics.end_s
        starts = self.steps["start_ns"] / 1e9
        return (starts >= self.config.metrics.start_s) & (starts < end)


def run_point(config: ExperimentConfig) -> Point:
    """Run a config to its end. Raises ValueError, with the remedy, for what cannot be run as it says."""
    if config.executor.kind == "jax":
        from experiments.device_point import run_device_point

        return run_device_point(config)
    workload = build_workload(config.workload, traces=TRACES)
    model = preset(config.model.name)
    cache, scheduler = engine_configs(config, model)
    return simulate(config, workload, cache, scheduler, cost_model(config, model), model.vocab_size)


def check_point(config: ExperimentConfig) -> None:
    """Raise the ValueError that `run_point` would, as far as it can be told without building the workload."""
    if config.executor.kind == "sim":
        model = preset(config.model.name)
        check_pool(*engine_configs(config, model))
        cost_model(config, model)


def simulate(
    config: ExperimentConfig,
    workload: Workload,
    cache: CacheConfig,
    scheduler: SchedulerConfig,
    costs: CostModel,
    vocab_size: int,
) -> Point:
    """What the scheduler makes of the workload in the times of `costs`."""
    clock = VirtualClock()
    # A table says what steps took, whatever was padded in them.
    padded = scheduler.batching == "static" and not isinstance(costs, TableCostModel)
    executor = SimExecutor(costs, clock, config.seed, page_size=cache.page_size, padded=padded)
    observed = ObservedExecutor(executor, clock)
    engine = Engine(scheduler, cache, observed, vocab_size=vocab_size, clock=clock)
    if config.decoding.pin_prefix:
        pin_prefix(engine, workload, vocab_size)
        clock.restart()
    log = RunLog(engine, digest=True)
    observed.observer = log.add
    requests = requests_of(config, workload, vocab_size, ids_matter=cache.enable_prefix_caching)
    leap = Stride(engine, executor, log) if config.executor.strides else None
    loop = OpenLoop(engine, clock, requests, workload.arrival_ns, leap=leap)
    loop.run(None if config.stop_at_s is None else round(config.stop_at_s * 1e9))
    return collect(config, workload, engine, loop, log, clock.now_ns)


def cost_model(config: ExperimentConfig, model: ModelConfig) -> CostModel:
    """The times of the simulated steps. Raises ValueError for a profile that does not hold for the model."""
    profile = load_profile(
        config.executor.cost_profile,
        model,
        config.hardware.device,
        config.hardware.tensor_parallel_size,
        dtype=config.model.dtype,
        kv_cache_dtype=config.cache.kv_cache_dtype,
    )
    factors = config.executor
    if (factors.bandwidth, factors.flops, factors.host) == (1.0, 1.0, 1.0):
        return profile
    return scaled(profile, bandwidth=factors.bandwidth, flops=factors.flops, host_time=factors.host)


def preset(name: str) -> ModelConfig:
    """The shape of a model that the simulation knows. Raises ValueError naming those."""
    if name not in PRESETS:
        raise ValueError(f"model.name={name!r}: the simulation knows {', '.join(PRESETS)}; choose one of them")
    return PRESETS[name]


def engine_configs(config: ExperimentConfig, model: ModelConfig) -> tuple[CacheConfig, SchedulerConfig]:
    """The engine's two configs: the policy's fields, then those that the experiment gives."""
    section, overrides = config.cache, policy_overrides(config)
    num_pages, num_host_pages = section.num_pages, section.num_host_pages
    if num_pages is None or num_host_pages is None:
        fitting, swapped = _pool_sizes(config, model)
        num_pages = fitting if num_pages is None else num_pages
        if num_host_pages is None:
            num_host_pages = swapped if config.policy.name in ("paged", "vllm-2023") else 0
    overrides |= {"num_pages": num_pages, "num_host_pages": num_host_pages}
    if "max_model_len" not in overrides and config.policy.name == "paged":
        overrides["max_model_len"] = min(model.max_length, num_pages * section.page_size)
    return with_policy(config.policy.name, CacheConfig(), SchedulerConfig(), **overrides)


def _pool_sizes(config: ExperimentConfig, model: ModelConfig) -> tuple[int, int]:
    """Pages that the device and the host have room for, with weights in the model's dtype."""
    section, weight = config.cache, 4 if config.model.dtype == "float32" else 2
    fits = {
        "tensor_parallel_size": config.hardware.tensor_parallel_size,
        "page_size": section.page_size,
        "itemsize": weight,
    }
    dtype = config.model.dtype if section.kv_cache_dtype == "auto" else section.kv_cache_dtype
    element = {"float32": 4, "float16": 2, "bfloat16": 2}.get(dtype)
    # A quantised element takes a byte, and each token and head a float32 scale.
    head_bytes = model.head_dim + 4 if element is None else model.head_dim * element
    factor = Fraction(model.head_dim * weight, head_bytes)
    device = pages_that_fit(model, hardware_named(config.hardware.device), **fits)
    return int(device * factor), int(swap_pages(model, **fits) * factor)


def policy_overrides(config: ExperimentConfig) -> dict[str, Any]:
    """The fields of both engine configs that the experiment gives, but for the sizes of the pools."""
    section = config.cache
    overrides: dict[str, Any] = {"page_size": section.page_size, "kv_cache_dtype": section.kv_cache_dtype}
    overrides |= config.policy.overrides()
    for name in ("enable_prefix_caching", "watermark"):
        if getattr(section, name) is not None:
            overrides[name] = getattr(section, name)
    return overrides


def requests_of(config: ExperimentConfig, workload: Workload, vocab_size: int, *, ids_matter: bool) -> list[Request]:
    """The workload's requests, as the engine takes them. Their ids are their numbers.

    Where no page is found again by its contents, the ids of prompts do not matter, and equal ones cost nothing.
    """
    beam = config.decoding.method == "beam"
    made: list[Request] = []
    blank = (1,) * (0 if ids_matter else max(workload.prompt_tokens, default=0))
    for i, (arrival, prompt, output) in enumerate(
        zip(workload.arrival_ns, workload.prompt_tokens, workload.output_tokens, strict=True)
    ):
        search = BeamSearchParams(beam_width=config.decoding.n, max_tokens=output, ignore_eos=True) if beam else None
        made.append(
            Request(
                request_id=str(i),
                prompt_token_ids=workload.token_ids(i, vocab_size) if ids_matter else blank[:prompt],
                params=beam_params(search, 0) if search else _sampling(config, output),
                beam=search,
                seed=config.seed + i,
                arrival=arrival / 1e9,
            )
        )
    return made


def collect(
    config: ExperimentConfig, workload: Workload, engine: Engine, loop: OpenLoop, log: RunLog, end_ns: int
) -> Point:
    """All that came of a run, in columns."""
    assert log.digest is not None
    seen = len(loop.metrics)
    rows = [_request_row(m) for m in loop.metrics] + [(0,) * 6] * (len(workload) - seen)
    columns = zip(*rows, strict=True) if rows else [()] * 6
    made = (np.array(column, np.int64) for column in columns)
    requests: dict[str, np.ndarray] = dict(zip(REQUEST_COLUMNS[3:], made, strict=True))
    for name in REQUEST_COLUMNS[:3]:
        requests[name] = np.array(getattr(workload, name), np.int64)
    itl = [gap for m in loop.metrics if m is not None for gap in m.itl]
    return Point(
        config=config,
        workload=workload,
        requests={name: requests[name] for name in REQUEST_COLUMNS},
        steps={name: np.array(column, np.int64) for name, column in log.columns().items()},
        itl_ns=np.rint(np.array(itl) * 1e9).astype(np.int64),
        stats=dict(engine.stats_dict()),
        plan_digest=log.digest.hexdigest(),
        num_pages=engine.scheduler.cache.pool.num_pages,
        end_ns=end_ns,
        refused=loop.refused,
    )


def _request_row(metrics: RequestMetrics | None) -> tuple[int, ...]:
    if metrics is None:
        return (0,) * 6
    times = (metrics.first_scheduled, metrics.first_token, metrics.finished)
    return (
        *(0 if time is None else round(time * 1e9) for time in times),
        metrics.num_preemptions,
        metrics.num_preemptions_swap,
        metrics.num_cached_tokens,
    )


def _sampling(config: ExperimentConfig, output: int) -> SamplingParams:
    decoding = config.decoding
    return SamplingParams(
        n=decoding.n,
        temperature=0.0 if decoding.method == "greedy" else decoding.temperature,
        top_p=1.0 if decoding.method == "greedy" else decoding.top_p,
        max_tokens=output,
        ignore_eos=True,
        detokenize=False,
    )


def pin_prefix(engine: Engine, workload: Workload, vocab_size: int) -> None:
    """Compute the shared prefix and hold it. A page is indexed when it is full, so the rest of the last is not held."""
    prefix = workload.token_ids(0, vocab_size)[: workload.shared_prefix_tokens]
    engine.add(
        Request(
            request_id="prefix",
            prompt_token_ids=prefix,
            params=SamplingParams(max_tokens=1, temperature=0.0, ignore_eos=True),
        )
    )
    while engine.has_unfinished:
        engine.step()
    engine.pin("prefix", prefix)
