"""One engine of a simulated fleet, with a clock of its own.

Lives here: SimReplica.
Promises: it acts only while it has something to do; between two acts its clock shows when it is free again.
Must not know: routing, other replicas.
"""

from jpaged.config.engine import CacheConfig, SchedulerConfig
from jpaged.core.engine import Engine
from jpaged.core.scheduling.plan import SequenceDelta
from jpaged.sim.clock import VirtualClock
from jpaged.sim.cost_model import CostModel
from jpaged.sim.executor import SimExecutor
from jpaged.sim.stride import Stride


class SimReplica:
    """An Engine over a SimExecutor. `strides`: let it run several decode steps at once; it changes no result."""

    def __init__(
        self,
        scheduler: SchedulerConfig,
        cache: CacheConfig,
        cost_model: CostModel,
        *,
        vocab_size: int,
        seed: int = 0,
        strides: bool = True,
    ) -> None:
        self.clock = VirtualClock()
        self.executor = SimExecutor(cost_model, self.clock, seed, page_size=cache.page_size)
        self.engine = Engine(scheduler, cache, self.executor, vocab_size=vocab_size, clock=self.clock)
        self._stride = Stride(self.engine, self.executor) if strides else None

    @property
    def now_ns(self) -> int:
        """When it is free to act, or when it acted last."""
        return self.clock.now_ns

    @property
    def can_act(self) -> bool:
        """Whether a step would compute something."""
        return self.engine.has_unfinished and not self.engine.scheduler.must_wait

    @property
    def busy_share(self) -> float:
        """The share of its time so far in which its device was at work."""
        return self.executor.device_ns / self.clock.now_ns if self.clock.now_ns else 0.0

    def act(self, until_ns: int | None) -> list[SequenceDelta]:
        """Run a step, or several, each begun before `until_ns`, in which nobody ends; what they gave that is news."""
        if self._stride is not None and self._stride(None, until_ns):
            return []
        return self.engine.step()
