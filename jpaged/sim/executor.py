"""An executor that takes its time on a virtual clock.

A plan moves the clock by what the cost model says, and nothing else does; answers depend on the seed and the request
alone.
"""

from jpaged.core.executor import SyncExecutor
from jpaged.core.plan import SchedulerOutput, StepResult
from jpaged.sim.clock import VirtualClock
from jpaged.sim.cost_model import CostModel
from jpaged.sim.scripted import SimulatedSampler
from jpaged.sim.work import StepWork, padded_work_of, work_of


class SimExecutor(SyncExecutor):
    """Runs plans on paper (the Executor role of core/executor.py).

    `page_size`: tokens of a page, as in the engine's cache config. `padded`: every row costs as much as the longest
    of its kind, as in static batching. `device_ns`, `host_ns`: the sums so far.
    """

    def __init__(
        self,
        cost_model: CostModel,
        clock: VirtualClock,
        seed: int = 0,
        *,
        page_size: int,
        padded: bool = False,
    ) -> None:
        self.cost_model = cost_model
        self.clock = clock
        self.device_ns = 0
        self.host_ns = 0
        self._page_size = page_size
        self._work_of = padded_work_of if padded else work_of
        self._sampler = SimulatedSampler(seed)

    def execute(self, plan: SchedulerOutput) -> StepResult:
        """What the plan's samples gave; the clock shows the step's end."""
        self.charge(self._work_of(plan, self._page_size))
        return self._sampler.answer(plan)

    def decode(self, contexts: list[int], max_steps: int, until_ns: int | None) -> list[int]:
        """Let the time of up to `max_steps` decode steps pass, each started before `until_ns`: their start and ends.

        `contexts`: the tokens that each row reads in the first of them; in each later one it is one more.
        """
        rows, times_ns = len(contexts), [self.clock.now_ns]
        context = rows * max(contexts) if self._work_of is padded_work_of else sum(contexts)
        while len(times_ns) <= max_steps and (until_ns is None or times_ns[-1] < until_ns):
            self.charge(StepWork(self._page_size, rows, context, samples=rows))
            context += rows
            times_ns.append(self.clock.now_ns)
        return times_ns

    def charge(self, work: StepWork) -> None:
        """Let the time of a step with this work pass: first the host's, then the device's."""
        device_ns, host_ns = self.cost_model.step_ns(work), self.cost_model.host_ns(work)
        self.clock.advance(host_ns + device_ns)
        self.device_ns += device_ns
        self.host_ns += host_ns
