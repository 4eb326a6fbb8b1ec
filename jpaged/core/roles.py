"""What an engine is given, as roles: who runs its plans and who tells the time.

Lives here: Executor, AsyncExecutor, BatchingExecutor, Clock, and the clock of the machine.
Promises: nobody has to inherit from anything here.
Must not know: engines, devices, simulations.
"""

import time
from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

from jpaged.core.output import SchedulerOutput, StepResult


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


@runtime_checkable
class BatchingExecutor(AsyncExecutor, Protocol):
    """One that can take several decode steps in one dispatch."""

    def submit_together(self, plans: Sequence[SchedulerOutput]) -> Sequence[Any]:
        """Start the plans one after another, and return for each what `collect` wants.

        All but the last are decode steps (`is_decode`); each may read ids that those before it draw.
        """
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
