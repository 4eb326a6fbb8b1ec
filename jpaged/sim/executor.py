"""An executor that takes its time on a virtual clock.

Lives here: SimExecutor.
Promises: a plan moves the clock by what the cost model says, and nothing else does; answers depend on the seed and the
request alone.
Must not know: schedulers, where the cost model comes from.
"""

from jpaged.core.executor import SyncExecutor
from jpaged.core.scheduling.plan import SchedulerOutput, StepResult
from jpaged.sim.clock import VirtualClock
from jpaged.sim.cost_model import CostModel
from jpaged.sim.scripted import SimulatedSampler
from jpaged.sim.step_log import StepLog
from jpaged.sim.work import StepWork, padded_work_of, work_of


class SimExecutor(SyncExecutor):
    """Runs plans on paper (the Executor role of core/executor.py).

    `page_size`: tokens of a page, as in the engine's cache config. `padded`: every row costs as much as the longest
    of its kind, as in static batching. `record`: keep each step in `log`. `device_ns`, `host_ns`: the sums so far.
    """

    def __init__(
        self,
        cost_model: CostModel,
        clock: VirtualClock,
        seed: int = 0,
        *,
        page_size: int,
        padded: bool = False,
        record: bool = False,
    ) -> None:
        self.cost_model = cost_model
        self.clock = clock
        self.log = StepLog() if record else None
        self.device_ns = 0
        self.host_ns = 0
        self._page_size = page_size
        self._work_of = padded_work_of if padded else work_of
        self._sampler = SimulatedSampler(seed)

    def execute(self, plan: SchedulerOutput) -> StepResult:
        """What the plan's samples gave; the clock shows the step's end."""
        self.charge(plan.step, self._work_of(plan, self._page_size))
        return self._sampler.answer(plan)

    def decode_work(self, contexts: list[int]) -> StepWork:
        """The work of a step that decodes one row for each of `contexts`, the tokens that it reads."""
        rows = len(contexts)
        context = rows * max(contexts) if self._work_of is padded_work_of else sum(contexts)
        return StepWork(self._page_size, rows, context, samples=rows)

    def charge(self, step: int, work: StepWork) -> None:
        """Let the time of a step with this work pass: first the host's, then the device's."""
        device_ns, host_ns = self.cost_model.step_ns(work), self.cost_model.host_ns(work)
        start_ns = self.clock.now_ns
        self.clock.advance(host_ns + device_ns)
        self.device_ns += device_ns
        self.host_ns += host_ns
        if self.log is not None:
            self.log.add(step, start_ns, device_ns, host_ns, work)
