"""What an engine is given, as roles: who runs its plans and who tells the time. Nobody has to inherit from anything."""

import time
from typing import Any, Protocol

from jpaged.core.plan import SchedulerOutput, StepResult


class Executor(Protocol):
    """Runs plans, on a device or in a simulation. Results are collected in the order in which plans were submitted."""

    @property
    def overlaps(self) -> bool:
        """Whether it may be given a plan while the one before still runs. It then knows the ids of its own samples."""
        ...

    def submit(self, plan: SchedulerOutput) -> Any:
        """Start the plan, and return what `collect` wants."""
        ...

    def collect(self, step: Any) -> StepResult:
        """What the step gave. Returns when the host has the ids."""
        ...


class SyncExecutor:
    """The Executor whose steps are over when they have been submitted: a subclass says what `execute` does."""

    overlaps = False

    def execute(self, plan: SchedulerOutput) -> StepResult:
        """What the plan's samples gave."""
        raise NotImplementedError

    def submit(self, plan: SchedulerOutput) -> StepResult:
        """Run the plan."""
        return self.execute(plan)

    def collect(self, step: StepResult) -> StepResult:
        """What `submit` returned."""
        return step


class Clock(Protocol):
    """Tells the time, in seconds."""

    def now(self) -> float:
        """Seconds since some fixed moment; never falls."""
        ...


class WallClock:
    """The machine's monotonic clock."""

    def now(self) -> float:
        """Seconds since some fixed moment."""
        return time.perf_counter()
