"""What a run did, step by step, in one schema of integers for simulated and real ones. A log changes no decision."""

from collections.abc import Callable

from jpaged.core.engine import Engine
from jpaged.core.executor import Executor, SyncExecutor
from jpaged.core.observe.memory_use import MemoryUse, memory_use, paged_memory
from jpaged.core.observe.plan_digest import PlanDigest
from jpaged.core.open_loop import TimedClock
from jpaged.core.plan import SchedulerOutput, StepResult
from jpaged.core.scheduling.decode_ahead import DecodeAhead, DecodeStep
from jpaged.sim.work import StepWork, work_of

# A step starts at start_ns and its ids are there at end_ns. Slots are in the categories of MemoryUse.
STEP_COLUMNS = (
    "step",
    "start_ns",
    "end_ns",
    *StepWork._fields,
    "num_groups",
    "num_sequences",
    "num_preempted",
    "pages_used",
    "logical_pages",
    *(f"{name}_slots" for name in MemoryUse._fields),
)


class ObservedExecutor(SyncExecutor):
    """An executor whose steps are told to `observer` when they have run: plan, start and end in nanoseconds."""

    def __init__(self, executor: Executor, clock: TimedClock) -> None:
        self.executor = executor
        self.observer: Callable[[SchedulerOutput, int, int], None] | None = None
        self._clock = clock

    def execute(self, plan: SchedulerOutput) -> StepResult:
        """What the plan's samples gave."""
        start_ns = self._clock.now_ns
        result = self.executor.collect(self.executor.submit(plan))
        if self.observer is not None:
            self.observer(plan, start_ns, self._clock.now_ns)
        return result


class RunLog:
    """One row of STEP_COLUMNS for each step of an engine, and the digest of its plans if `digest` is asked for."""

    def __init__(self, engine: Engine, *, digest: bool = False) -> None:
        self.rows: list[tuple[int, ...]] = []
        self.digest = PlanDigest() if digest else None
        self._engine = engine
        self._page_size = engine.scheduler.cache.page_size

    def add(self, plan: SchedulerOutput, start_ns: int, end_ns: int) -> None:
        """Take in a plan while the state behind it stands."""
        if self.digest is not None:
            self.digest.add(plan)
        scheduler, stats = self._engine.scheduler, self._engine.stats
        memory = memory_use(scheduler, stats.tail_slots)
        self._append(
            plan.step,
            (start_ns, end_ns),
            work_of(plan, self._page_size),
            (len(scheduler.running), scheduler.num_running, len(plan.preempted)),
            (scheduler.cache.num_used, stats.logical_pages),
            memory,
        )

    def add_decode_steps(
        self, ahead: DecodeAhead, steps: list[DecodeStep], times_ns: list[int], before: MemoryUse
    ) -> None:
        """Take in steps that were applied at once, each between two neighbours of `times_ns`.

        `before`: the use of the memory before them.
        """
        cache, rows = self._engine.scheduler.cache, len(ahead.lanes)
        context = sum(ahead.contexts)
        for i, step in enumerate(steps):
            if self.digest is not None:
                self.digest.add_decode_step(step.step, ahead.lanes, step.grants)
            # The executor may have charged for padded rows: this is what the plan would say.
            work = StepWork(self._page_size, rows, context + i * rows, samples=rows)
            if cache.supply is None:
                memory = before.after_tokens(i * ahead.num_growing)
            else:
                memory = paged_memory(before.total, step.num_used * self._page_size, step.tail_slots)
            pages = step.num_used, step.logical_pages
            self._append(step.step, (times_ns[i], times_ns[i + 1]), work, (rows, rows, 0), pages, memory)

    def columns(self) -> dict[str, list[int]]:
        """STEP_COLUMNS, a number for each step."""
        if not self.rows:
            return {name: [] for name in STEP_COLUMNS}
        return {name: list(column) for name, column in zip(STEP_COLUMNS, zip(*self.rows, strict=True), strict=True)}

    def _append(
        self,
        step: int,
        times_ns: tuple[int, int],
        work: StepWork,
        counts: tuple[int, int, int],
        pages: tuple[int, int],
        memory: MemoryUse,
    ) -> None:
        self.rows.append((step, *times_ns, *work, *counts, *pages, *memory))
