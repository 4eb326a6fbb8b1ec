"""Questions that ask for points in rounds, so that all figures share one pool of processes.

Each round runs the points that all plans wait for at once; what comes out does not depend on the company.
"""

from collections.abc import Callable, Generator, Mapping, Sequence
from itertools import islice
from typing import NamedTuple

from experiments.config import ExperimentConfig
from experiments.kinds import Summary

# Asks for the summaries of configs, and is sent them in the same order; returns what it found.
type Plan[T] = Generator[list[ExperimentConfig], list[Summary], T]
Runner = Callable[[list[ExperimentConfig]], list[Summary]]


class Run(NamedTuple):
    """A point that has run: its digest and its summary."""

    digest: str
    summary: Summary

    def number(self, key: str) -> float:
        """A number of the summary. Raises ValueError if the run has none."""
        value = self.summary[key]
        if not isinstance(value, int | float):
            raise ValueError(f"{key}={value!r}: the run has no such number; lengthen duration_s")
        return float(value)


def runs_of[K](configs: Mapping[K, ExperimentConfig]) -> Plan[dict[K, Run]]:
    """The runs of the configs, under the same names."""
    summaries = yield list(configs.values())
    runs = (Run(config.digest(), summary) for config, summary in zip(configs.values(), summaries, strict=True))
    return dict(zip(configs, runs, strict=True))


def together[T](plans: Sequence[Plan[T]]) -> Plan[list[T]]:
    """All plans side by side: one round asks for what each of them waits for. Returns what they found, in order."""
    found: dict[int, T] = {}
    wanted: dict[int, list[ExperimentConfig]] = {}

    def go_on(i: int, summaries: list[Summary] | None = None) -> None:
        """Let a plan go on until it asks again or has ended."""
        try:
            wanted[i] = next(plans[i]) if summaries is None else plans[i].send(summaries)
        except StopIteration as end:
            found[i] = end.value

    for i in range(len(plans)):
        go_on(i)
    while wanted:
        asked, wanted = wanted, {}
        summaries = iter((yield [config for configs in asked.values() for config in configs]))
        for i, configs in asked.items():
            go_on(i, list(islice(summaries, len(configs))))
    return [found[i] for i in range(len(plans))]


def run_plan[T](plan: Plan[T], runner: Runner) -> T:
    """What a plan finds, with its points run by `runner`."""
    try:
        wanted = next(plan)
        while True:
            wanted = plan.send(runner(wanted) if wanted else [])
    except StopIteration as end:
        return end.value
