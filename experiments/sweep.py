"""Many points, each run once.

Lives here: `run_points`, and PointsFailed, which it raises when all others have run.
Promises: a point that has a whole run folder is read back and never rerun, so a sweep that was killed goes on.
Must not know: what is swept, where points run.
"""

from collections.abc import Sequence
from pathlib import Path

from tqdm import tqdm

from experiments.config import ExperimentConfig
from experiments.launchers import LAUNCHERS, Job
from experiments.record import is_done, read_summary
from experiments.summary import Summary
from jpaged.config import require_choice, require_int


class _Bar(tqdm):
    """A progress bar without a thread of its own: workers are forked beside it."""

    monitor_interval = 0


class PointsFailed(Exception):
    """Some points failed, all others have run. `errors`: the reasons by digest; `summaries`: None for a failed one."""

    def __init__(self, errors: dict[str, str], summaries: list[Summary | None]) -> None:
        super().__init__("; ".join(f"point {digest}: {text}" for digest, text in errors.items()))
        self.errors, self.summaries = errors, summaries


def run_points(
    configs: Sequence[ExperimentConfig],
    root: Path,
    *,
    launcher: str = "local",
    workers: int | None = None,
    progress: bool = True,
) -> list[Summary]:
    """The summaries of the configs, in their order; each config's run is in `root/<digest>/`.

    `workers`: how many run at once (None: one for each CPU). Equal configs run once. Raises PointsFailed if some
    failed, after all others have run; they run again the next time.
    """
    require_choice("launcher", launcher, tuple(LAUNCHERS))
    if workers is not None:
        require_int("workers", workers, 1, None)
    root = Path(root).resolve()
    root.mkdir(parents=True, exist_ok=True)
    jobs = {config.digest(): Job(config, root / config.digest()) for config in configs}
    left = [job for job in jobs.values() if not is_done(job.folder)]
    errors: dict[str, str] = {}
    with _Bar(total=len(jobs), initial=len(jobs) - len(left), unit="point", disable=not progress) as bar:
        for job, error in LAUNCHERS[launcher](left, workers) if left else ():
            if error is not None:
                errors[job.folder.name] = error
            bar.update()
    found = {digest: read_summary(job.folder) for digest, job in jobs.items() if digest not in errors}
    if errors:
        raise PointsFailed(errors, [found.get(config.digest()) for config in configs])
    return [found[config.digest()] for config in configs]
