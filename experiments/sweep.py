"""Many points, each run once.

A point that has a whole run folder is read back and never rerun, so a sweep that was killed goes on.
"""

import os
from collections.abc import Sequence
from pathlib import Path

from tqdm import tqdm

from experiments.config import Config
from experiments.kinds import Summary
from experiments.launchers import LAUNCHERS, Job
from experiments.record import is_done, read_summary
from jpaged.config.declaration import require_choice, require_int


class _Bar(tqdm):
    """A progress bar without a thread of its own: workers are forked beside it."""

    monitor_interval = 0


class PointsFailed(Exception):
    """Some points failed, all others have run. `errors`: the reasons by digest; `summaries`: None for a failed one."""

    def __init__(self, errors: dict[str, str], summaries: list[Summary | None]) -> None:
        super().__init__("; ".join(f"point {digest}: {text}" for digest, text in errors.items()))
        self.errors, self.summaries = errors, summaries


def run_points(
    configs: Sequence[Config],
    root: Path,
    *,
    launcher: str = "local",
    workers: int | None = None,
    progress: bool = True,
) -> list[Summary]:
    """The summaries of the configs, in their order; each config's run is in `root/<digest>/`.

    `workers`: how many run at once (None: one for each CPU). Equal configs run once. Raises PointsFailed if some
    failed, after all others have run; they run again the next time. Raises ValueError, before any runs, if `root`
    cannot be written to or what an earlier run left is damaged.
    """
    require_choice("launcher", launcher, tuple(LAUNCHERS))
    if workers is not None:
        require_int("workers", workers, 1, None)
    root = _made(Path(root))
    jobs = {config.digest(): Job(config, root / config.digest()) for config in configs}
    # Damage is told before anything runs.
    found = {digest: read_summary(job.folder) for digest, job in jobs.items() if is_done(job.folder)}
    left = [job for digest, job in jobs.items() if digest not in found]
    errors: dict[str, str] = {}
    with _Bar(total=len(jobs), initial=len(jobs) - len(left), unit="point", disable=not progress) as bar:
        for job, error in LAUNCHERS[launcher](left, workers) if left else ():
            if error is not None:
                errors[job.folder.name] = error
            bar.update()
    ran = [job.folder for job in left if job.folder.name not in errors]
    found |= {folder.name: read_summary(folder) for folder in ran}
    if errors:
        raise PointsFailed(errors, [found.get(config.digest()) for config in configs])
    return [found[config.digest()] for config in configs]


def _made(root: Path) -> Path:
    """The folder, which is there and can be written to. Raises ValueError if it cannot be made so."""
    try:
        root = root.resolve()
        root.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:
        raise ValueError(f"output {root}: cannot be made ({error}); give a folder that can be written to") from None
    if not os.access(root, os.W_OK | os.X_OK):
        raise ValueError(f"output {root}: cannot be written to; give another folder")
    return root
