"""One point of an experiment, run on this machine's device; and `follow`, which lets the simulation decide it again.

Any memory policy over real tensors. Programs are compiled before the clock starts; time moves between steps only, so
that a simulation of the same times makes the same plans.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from experiments.config import ExperimentConfig
from experiments.point import Point, serve, simulate, workload_of
from experiments.resolve import device_options
from jpaged.config.options import CacheConfig, SchedulerConfig
from jpaged.core.executor import Executor, SyncExecutor
from jpaged.core.plan import SchedulerOutput, StepResult
from jpaged.serving.loading import LoadedEngine, load_engine
from jpaged.sim.cost_model import TableCostModel
from jpaged.sim.run_log import ObservedExecutor
from jpaged.sim.work import StepWork


class StepClock:
    """A clock (the TimedClock role) that shows the machine's time as it was when a step ended or a wait was over.

    What the host does between two steps is shown as a part of the later one. So who is told the steps' times alone
    knows what every decision knew.
    """

    def __init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """Let the run's time begin now."""
        self._origin_ns = time.perf_counter_ns()
        self._now_ns = 0

    @property
    def now_ns(self) -> int:
        """Nanoseconds from the start to the end of the last step, or of the last wait."""
        return self._now_ns

    def now(self) -> float:
        """The same in seconds."""
        return self._now_ns / 1e9

    def look(self) -> None:
        """Show the machine's time."""
        self._now_ns = time.perf_counter_ns() - self._origin_ns

    def advance_to(self, time_ns: int) -> None:
        """Sleep until it is that late, and show that time: being late is the next step's."""
        while (left := self._origin_ns + time_ns - time.perf_counter_ns()) > 0:
            time.sleep(left / 1e9)
        self._now_ns = max(self._now_ns, time_ns)


class _TimedExecutor(SyncExecutor):
    """An executor whose steps move a StepClock."""

    def __init__(self, executor: Executor, clock: StepClock) -> None:
        self._executor, self._clock = executor, clock

    def execute(self, plan: SchedulerOutput) -> StepResult:
        result = self._executor.collect(self._executor.submit(plan))
        self._clock.look()
        return result


def run_device_point(config: ExperimentConfig) -> Point:
    """Run a config on the device that JAX finds. Raises ValueError, with the remedy, for what cannot be run."""
    workload = workload_of(config)
    clock = StepClock()
    loaded = load_engine(
        device_options(config),
        clock=clock,
        observed=lambda runner: ObservedExecutor(_TimedExecutor(runner, clock), clock),
    )
    loaded.runner.warm_up()
    vocab_size = loaded.config.model.vocab_size
    # The prompts' ids reach the model, so they are never left out.
    point = serve(config, workload, loaded.engine, clock, vocab_size, ids_matter=True, facts={})
    return replace(point, executor_facts=_facts(loaded))


def follow(config: ExperimentConfig, log: Mapping[str, Sequence[int]], facts: Mapping[str, Any]) -> Point:
    """What the scheduler decides, on the simulated executor, in the times that a device was measured to take.

    `log` is the step log of the device's run of `config`, `facts` its Point's `executor_facts`. It is the device's
    Point again, but for the tokens. Raises ValueError where a step is another one than the device's, or for a beam
    search, in which the model decides what is done next.
    """
    if config.decoding.method == "beam":
        raise ValueError("decoding.method=beam: which beams live on is the model's to say; follow greedy or sample")
    expected = {name: log[name] for name in StepWork._fields}
    costs = TableCostModel("measured steps", log["device_ns"], log["host_ns"], expected)
    cache, scheduler = CacheConfig(**facts["cache"]), SchedulerConfig(**facts["scheduler"])
    return simulate(config, cache, scheduler, costs, facts["vocab_size"])


def _facts(loaded: LoadedEngine) -> dict[str, Any]:
    """What the run depends on beside its config: the device, the kernels, and the engine's configs as resolved."""
    import jax

    device = jax.devices()[0]
    return {
        "device": device.device_kind,
        "platform": device.platform,
        "num_devices": len(jax.devices()),
        "attention_implementation": loaded.attention_implementation,
        "programs": loaded.runner.describe_programs(),
        "vocab_size": loaded.config.model.vocab_size,
        "cache": asdict(loaded.config.cache),
        "scheduler": asdict(loaded.config.scheduler),
    }
