"""A workload served by the real scheduler, and all that came of it in columns; whole under the simulated executor.

The same config gives the same simulated Point.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from experiments.config import ExperimentConfig
from experiments.resolve import cost_model, engine_configs, preset
from experiments.traces import TRACES
from jpaged.config.options import CacheConfig, SchedulerConfig
from jpaged.core.engine import Engine
from jpaged.core.engine_loop import EngineLoop
from jpaged.core.open_loop import OpenLoop, TimedClock
from jpaged.core.requests.request import Request, RequestMetrics, beam_params
from jpaged.core.requests.sampling_params import BeamSearchParams, SamplingParams
from jpaged.sim.clock import VirtualClock
from jpaged.sim.cost_model import CostModel, TableCostModel
from jpaged.sim.executor import SimExecutor
from jpaged.sim.run_log import ObservedExecutor, RunLog
from jpaged.sim.stride import Stride
from jpaged.workloads import Workload, build_workload

# Of a request: what its workload says, when things happened to it (0: never), and how often.
_GIVEN = ("arrival_ns", "prompt_tokens", "output_tokens")
REQUEST_TIMES = ("first_scheduled_ns", "first_token_ns", "finished_ns")
_COUNTS = ("num_preemptions", "num_preemptions_swap", "num_cached_tokens")
REQUEST_COLUMNS = (*_GIVEN, *REQUEST_TIMES, *_COUNTS)


class RunClock(TimedClock, Protocol):
    """A clock for a run after some preparation."""

    def restart(self) -> None:
        """Begin at 0 now."""
        ...


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


def simulated_point(config: ExperimentConfig) -> Point:
    """Run a config on the simulated executor. Raises ValueError, with the remedy, for what cannot be run."""
    model = preset(config.model.name)
    cache, scheduler = engine_configs(config, model)
    return simulate(config, cache, scheduler, cost_model(config, model), model.vocab_size)


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
    config: ExperimentConfig, cache: CacheConfig, scheduler: SchedulerConfig, costs: CostModel, vocab_size: int
) -> Point:
    """What the scheduler makes of the workload in the times of `costs`."""
    workload, clock = workload_of(config), VirtualClock()
    # A table says what steps took, whatever was padded in them.
    padded = scheduler.batching == "static" and not isinstance(costs, TableCostModel)
    executor = SimExecutor(costs, clock, config.seed, page_size=cache.page_size, padded=padded)
    engine = Engine(scheduler, cache, ObservedExecutor(executor, clock), vocab_size=vocab_size, clock=clock)
    strided = executor if config.executor.strides else None
    return serve(config, workload, engine, clock, vocab_size, ids_matter=cache.enable_prefix_caching, strided=strided)


def serve(
    config: ExperimentConfig,
    workload: Workload,
    engine: Engine,
    clock: RunClock,
    vocab_size: int,
    *,
    ids_matter: bool,
    strided: SimExecutor | None = None,
    facts: dict[str, Any] | None = None,
) -> Point:
    """All that comes of the workload in an engine over an ObservedExecutor.

    `strided`: a simulated executor that may run several decode steps at once. `facts`: of a real executor, whose
    tokens are kept too.
    """
    observed = engine.executor
    assert isinstance(observed, ObservedExecutor)
    if config.decoding.pin_prefix:
        pin_prefix(engine, workload, vocab_size)
    log = RunLog(engine, digest=True)
    observed.observer = log.add
    requests = requests_of(config, workload, vocab_size, ids_matter=ids_matter)
    leap = None if strided is None else Stride(engine, strided, log)
    real = facts is not None
    loop = OpenLoop(EngineLoop(engine), clock, requests, workload.arrival_ns, leap=leap, outputs=real)
    clock.restart()
    loop.run(None if config.stop_at_s is None else round(config.stop_at_s * 1e9))
    assert log.digest is not None
    metrics = [m or RequestMetrics(arrival=0.0) for m in loop.metrics]
    return Point(
        config=config,
        workload=workload,
        requests=_columns(_request_columns(workload, metrics)),
        steps=_columns(log.columns()),
        itl_ns=np.rint(np.array([gap for m in metrics for gap in m.itl]) * 1e9).astype(np.int64),
        stats=dict(engine.stats_dict()),
        plan_digest=log.digest.hexdigest(),
        num_pages=engine.scheduler.cache.pool.num_pages,
        end_ns=clock.now_ns,
        refused=loop.refused,
        outputs=_outputs(loop) if real else None,
        executor_facts=facts or {},
    )


def _columns(columns: Mapping[str, Sequence[int]]) -> dict[str, np.ndarray]:
    return {name: np.array(column, np.int64) for name, column in columns.items()}


def _request_columns(workload: Workload, seen: list[RequestMetrics]) -> dict[str, Sequence[int]]:
    """REQUEST_COLUMNS, a number for each request; of those that never came zeros."""
    metrics = seen + [RequestMetrics(arrival=0.0)] * (len(workload) - len(seen))
    return {
        **{name: getattr(workload, name) for name in _GIVEN},
        **{
            name: [round((getattr(m, name.removesuffix("_ns")) or 0.0) * 1e9) for m in metrics]
            for name in REQUEST_TIMES
        },
        **{name: [getattr(m, name) for m in metrics] for name in _COUNTS},
    }


def _outputs(loop: OpenLoop) -> dict[tuple[int, int], list[int]]:
    return {
        (number, output.index): output.token_ids
        for number, response in loop.responses.items()
        for output in response.outputs
        if output.token_ids
    }


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
