"""Questions that ask for points in rounds, so that all figures share one pool of processes.

Each round runs the points that all plans wait for at once; what comes out does not depend on the company.
"""

from collections.abc import Callable, Generator, Sequence

from experiments.config import ExperimentConfig
from experiments.kinds import Summary

# Asks for the summaries of configs, and is sent them in the same order; returns what it found.
type Plan[T] = Generator[list[ExperimentConfig], list[Summary], T]
Runner = Callable[[list[ExperimentConfig]], list[Summary]]


def together[T](plans: Sequence[Plan[T]]) -> Plan[list[T]]:
    """All plans side by side: one round asks for what each of them waits for. Returns what they found, in order."""
    found: dict[int, T] = {}
    wanted: dict[int, list[ExperimentConfig]] = {}
    for i, plan in enumerate(plans):
        _step(i, plan, None, wanted, found)
    while wanted:
        asked, wanted = wanted, {}
        summaries = yield [config for configs in asked.values() for config in configs]
        at = 0
        for i, configs in asked.items():
            _step(i, plans[i], summaries[at : at + len(configs)], wanted, found)
            at += len(configs)
    return [found[i] for i in range(len(plans))]


def _step[T](
    i: int,
    plan: Plan[T],
    summaries: list[Summary] | None,
    wanted: dict[int, list[ExperimentConfig]],
    found: dict[int, T],
) -> None:
    """Let a plan go on until it asks again or has ended."""
    try:
        wanted[i] = next(plan) if summaries is None else plan.send(summaries)
    except StopIteration as end:
        found[i] = end.value


def run_plan[T](plan: Plan[T], runner: Runner) -> T:
    """What a plan finds, with its points run by `runner`."""
    try:
        wanted = next(plan)
        while True:
            wanted = plan.send(runner(wanted) if wanted else [])
    except StopIteration as end:
        return end.value
