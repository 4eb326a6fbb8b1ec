"""`python -m experiments.paper`: run what the figures need, then write the report.

A run that was stopped goes on where it was; exit status 1 names what was wrong in one line.
"""

import json
import sys
import time
from pathlib import Path

import click

from experiments.config import ExperimentConfig
from experiments.kinds import Summary
from experiments.paper.figures import FIGURES, plans_of
from experiments.paper.plans import run_plan, together
from experiments.paper.report import counted, write_report
from experiments.paper.rows import MISS
from experiments.paper.systems import VLLM, Setting, config_for
from experiments.serving import run_point
from experiments.sweep import PointsFailed, run_points

# DistServe's simulator on 1,000 requests with ShareGPT's lengths, OPT-13B: 10.1 to 14.9 s on one core.
_DISTSERVE = "70 to 100"


@click.command()
@click.option(
    "--figures",
    default=",".join(FIGURES),
    help=f"Separated by commas: {', '.join(FIGURES)}, or single panels such as 12a.  [default: all]",
)
@click.option("--full", is_flag=True, help="Traces of the paper's lengths everywhere; takes hours.")
@click.option(
    "--output", type=click.Path(path_type=Path), default=Path("runs/paper"), show_default=True, help="Folder."
)
@click.option("--workers", type=int, help="Processes; default: one for each CPU.")
def main(figures: str, full: bool, output: Path, workers: int | None) -> None:
    """The figures of the PagedAttention paper from the simulator that runs the real scheduler."""
    try:
        _make([name.strip() for name in figures.split(",")], full, output, workers)
    except (ValueError, PointsFailed) as error:
        sys.exit(f"error: {error}")


def _make(figures: list[str], full: bool, output: Path, workers: int | None) -> None:
    start = time.perf_counter()
    plans = plans_of(figures, full)
    ran: list[Summary] = []

    def runner(configs: list[ExperimentConfig]) -> list[Summary]:
        found = run_points(configs, output / "points", workers=workers, progress=sys.stderr.isatty())
        ran.extend(found)
        return found

    results = run_plan(together(plans), runner)
    write_report(results, output, full=full)
    seconds = time.perf_counter() - start
    speed = _speed()
    timing = {"wall_s": round(seconds, 1), "points": len(ran), "requests_per_second": round(speed, 1)}
    (output / "timing.json").write_text(json.dumps(timing, indent=1) + "\n")
    for row in (row for r in results for row in r.rows if row.verdict == MISS):
        print(f"miss: {row.figure}, {row.quantity}: paper {row.paper}, ours {row.ours}. {row.reason}")
    print(counted(results))
    print(f"{len(ran)} points in {seconds:.0f} s (those that had run before took none)")
    print(
        f"1,000 ShareGPT requests of OPT-13B at 2 per second: {speed:.0f} simulated requests per second on one core; "
        f"DistServe's simulator, which has no page pool: {_DISTSERVE}"
    )
    print(f"report: {output / 'report.html'}")


def _speed() -> float:
    """Requests of the standard run that are simulated in a second, by one process."""
    config = config_for(Setting(duration_s=500), VLLM, 2.0)
    start = time.perf_counter()
    point = run_point(config)
    return len(point.workload) / (time.perf_counter() - start)


if __name__ == "__main__":
    main()
