"""A workload served by the real scheduler, under either executor, and all that came of it in columns.

The same config gives the same simulated Point.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from experiments.config import ExperimentConfig
from experiments.resolve import cost_model, engine_configs, preset
from experiments.traces import TRACES
from jpaged.config.options import CacheConfig, SchedulerConfig
from jpaged.core.engine import Engine
from jpaged.core.engine_loop import EngineLoop
from jpaged.core.open_loop import OpenLoop
from jpaged.core.requests.request import Request, RequestMetrics, beam_params
from jpaged.core.requests.sampling_params import BeamSearchParams, SamplingParams
from jpaged.sim.clock import VirtualClock
from jpaged.sim.cost_model import CostModel, TableCostModel
from jpaged.sim.executor import SimExecutor
from jpaged.sim.run_log import ObservedExecutor, RunLog
from jpaged.sim.stride import Stride
from jpaged.workloads import Workload, build_workload

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
    """What came of a config: a row per request (finished_ns 0: it did not finish), a row per step, totals.

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

    def window(self) -> np.ndarray:
        """Which steps start within the metrics' window."""
        end = np.inf if self.config.metrics.end_s is None else self.config.metrics.end_s
        starts = self.steps["start_ns"] / 1e9
        return (starts >= self.config.metrics.start_s) & (starts < end)


def run_point(config: ExperimentConfig) -> Point:
    """Run a config to its end.

    Raises ValueError, with the remedy, for what cannot be run as it says, and where every request is refused.
    """
    if config.executor.kind == "jax":
        from experiments.device_point import run_device_point

        point = run_device_point(config)
    else:
        model = preset(config.model.name)
        cache, scheduler = engine_configs(config, model)
        costs = cost_model(config, model)
        point = simulate(config, workload_of(config), cache, scheduler, costs, model.vocab_size)
    count = len(point.workload)
    if len(point.refused) == count:
        raise ValueError(f"{count} of {count} requests were refused: {point.refused[min(point.refused)]}")
    return point


def workload_of(config: ExperimentConfig) -> Workload:
    """The config's workload. Raises ValueError if it cannot be built or has no request."""
    workload, spec = build_workload(config.workload, traces=TRACES), config.workload
    if len(workload):
        return workload
    if workload.num_dropped:
        why = f"all {workload.num_dropped} are longer than max_model_len={spec.max_model_len}; raise it"
    else:
        why = f"num_requests={spec.num_requests}, duration_s={spec.duration_s}, rate={spec.rate}; ask for more"
    raise ValueError(f"workload: has no requests: {why}")


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
    loop = OpenLoop(EngineLoop(engine), clock, requests, workload.arrival_ns, leap=leap)
    loop.run(None if config.stop_at_s is None else round(config.stop_at_s * 1e9))
    return collect(config, workload, engine, loop, log, clock.now_ns)


def requests_of(config: ExperimentConfig, workload: Workload, vocab_size: int, *, ids_matter: bool) -> list[Request]:
    """The workload's requests, as the engine takes them. Their ids are their numbers.

    Where no page is found again by its contents, the ids of prompts do not matter, and equal ones cost nothing.
    """
    made: list[Request] = []
    blank = (1,) * (0 if ids_matter else max(workload.prompt_tokens, default=0))
    for i, (arrival, prompt, output) in enumerate(
        zip(workload.arrival_ns, workload.prompt_tokens, workload.output_tokens, strict=True)
    ):
        params, search = decoding_params(config, output)
        made.append(
            Request(
                request_id=str(i),
                prompt_token_ids=workload.token_ids(i, vocab_size) if ids_matter else blank[:prompt],
                params=params,
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


def decoding_params(config: ExperimentConfig, output: int) -> tuple[SamplingParams, BeamSearchParams | None]:
    """How a request of `output` tokens is decoded; the second for a beam search alone. Raises ValueError."""
    decoding = config.decoding
    if decoding.method == "beam":
        search = BeamSearchParams(beam_width=decoding.n, max_tokens=output, ignore_eos=True)
        return beam_params(search, 0), search
    params = SamplingParams(
        n=decoding.n,
        temperature=0.0 if decoding.method == "greedy" else decoding.temperature,
        top_p=1.0 if decoding.method == "greedy" else decoding.top_p,
        max_tokens=output,
        ignore_eos=True,
        detokenize=False,
    )
    return params, None


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
