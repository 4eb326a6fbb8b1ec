"""Decode steps by the dozen on a virtual clock: the same decisions, times and statistics as step by step."""

from jpaged.core.engine import Engine
from jpaged.core.observe.memory_use import memory_use
from jpaged.core.scheduling.decode_ahead import decode_ahead
from jpaged.sim.executor import SimExecutor
from jpaged.sim.run_log import RunLog
from jpaged.sim.scripted import TOKEN_ID


class Stride:
    """Runs decode steps of an engine over a SimExecutor at once, where it can; a Leap of an OpenLoop."""

    def __init__(self, engine: Engine, executor: SimExecutor, log: RunLog | None = None) -> None:
        self._engine = engine
        self._executor = executor
        self._log = log

    def __call__(self, next_arrival_ns: int | None, until_ns: int | None) -> int:
        """Run as many steps at once as nothing happens in, perhaps none; how many.

        Each starts before `until_ns`, and before the next arrival unless that could only wait.
        """
        scheduler = self._engine.scheduler
        ahead = decode_ahead(scheduler, TOKEN_ID)
        if ahead is None:
            return 0
        bounds = [until_ns, None if scheduler.waiting else next_arrival_ns]
        until_ns = min((bound for bound in bounds if bound is not None), default=None)
        times_ns = self._executor.decode(ahead.contexts, ahead.max_steps, until_ns)
        before = memory_use(scheduler, 0) if self._log is not None else None
        steps = self._engine.apply_ahead(ahead, [time_ns / 1e9 for time_ns in times_ns], TOKEN_ID)
        if self._log is not None and before is not None:
            self._log.add_decode_steps(ahead, steps, times_ns, before)
        return len(steps)
