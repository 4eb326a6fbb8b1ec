"""What an engine is given, as roles: who runs its plans and who tells the time.

Lives here: Executor, AsyncExecutor, Clock, and the clock of the machine.
Promises: nobody has to inherit from anything here.
Must not know: engines, devices, simulations.
"""

import time
from typing import Any, Protocol, runtime_checkable

from jpaged.core.scheduling.plan import SchedulerOutput, StepResult


class Executor(Protocol):
    """Runs a plan: on a device, or in a simulation."""

    def execute(self, plan: SchedulerOutput) -> StepResult:
        """What the plan's samples gave. Returns when the host has the ids."""
        ...


@runtime_checkable
class AsyncExecutor(Executor, Protocol):
    """An executor that can take a plan while the one before it still runs. Results are collected in order."""

    def submit(self, plan: SchedulerOutput) -> Any:
        """Start the plan, and return what `collect` wants. Ids that the host does not know yet are its own."""
        ...

    def collect(self, step: Any) -> StepResult:
        """What the step gave. Returns when the host has the ids."""
        ...


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
