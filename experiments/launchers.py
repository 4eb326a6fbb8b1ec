"""Where the points of a sweep run: processes of this machine, a Ray cluster, a SLURM queue.

A job leaves its run folder or an ERROR.txt, and never stops another; the folders are all that is shared.
"""

import multiprocessing
import multiprocessing.connection
import os
import shutil
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from experiments.config import Config
from experiments.kinds import run
from experiments.record import record, record_error


class Job(NamedTuple):
    """A config and the folder that its run goes to."""

    config: Config
    folder: Path


class Ended(NamedTuple):
    """A job that has ended; `error` says in one line why it failed, None if it did not."""

    job: Job
    error: str | None


Launcher = Callable[[Sequence[Job], int | None], Iterator[Ended]]


def attempt(job: Job) -> Ended:
    """Run a job and leave its folder, or an ERROR.txt with the reason."""
    started, start = datetime.now(UTC), time.perf_counter()
    try:
        outcome = run(job.config)
        wall_s = time.perf_counter() - start
        timing: dict[str, Any] = {"started": started.isoformat(timespec="seconds"), "wall_s": wall_s}
        completed = outcome.summary.get("completed")
        if isinstance(completed, int):
            timing["requests_per_wall_second"] = completed / wall_s
        record(job.folder, job.config, outcome, timing)
    except Exception as error:
        record_error(job.folder, traceback.format_exc())
        # What a user can mend is said in one line; anything else needs the traceback.
        text = str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
        return Ended(job, " ".join(text.split()))
    return Ended(job, None)


def local(jobs: Sequence[Job], workers: int | None) -> Iterator[Ended]:
    """Processes of this machine, by default one for each CPU; runs on a device go one after the other."""
    simulated = [job for job in jobs if not job.config.on_device]
    real = [job for job in jobs if job.config.on_device]
    workers = min(workers or os.cpu_count() or 1, len(simulated))
    yield from _pool(simulated, workers) if workers > 1 else map(attempt, simulated)
    # One process each: what a run leaves on the device goes with it.
    for job in real:
        yield from _pool([job], 1)


def _pool(jobs: Sequence[Job], workers: int) -> Iterator[Ended]:
    # A process with threads must not be forked, and jax has some.
    safe = sys.platform == "linux" and threading.active_count() == 1 and "jax" not in sys.modules
    context = multiprocessing.get_context("fork" if safe else "spawn")
    with ProcessPoolExecutor(workers, mp_context=context, initializer=_end_with_parent) as pool:
        futures = {pool.submit(attempt, job): job for job in jobs}
        for future in as_completed(futures):
            yield _result(futures[future], future.result)


def _end_with_parent() -> None:
    """End this process when the one that started it is killed, which would leave it waiting for ever."""
    parent = multiprocessing.parent_process()
    assert parent is not None, "a worker has a parent"

    def watch() -> None:
        multiprocessing.connection.wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def ray(jobs: Sequence[Job], workers: int | None) -> Iterator[Ended]:
    """Tasks of a Ray cluster: the one that RAY_ADDRESS names, else one on this machine with `workers` CPUs.

    All machines must see the output folder, and this code at the same path. Raises ValueError if Ray is not installed.
    """
    module = _optional("ray")
    environment = {"env_vars": {"PYTHONPATH": str(Path(__file__).parent.parent)}}
    given: dict[str, Any] = {} if os.environ.get("RAY_ADDRESS") else {"num_cpus": workers or os.cpu_count()}
    module.init(runtime_env=environment, include_dashboard=False, log_to_driver=False, logging_level="error", **given)
    try:
        gpus = 1 if module.cluster_resources().get("GPU") else 0
        task = module.remote(attempt)
        waiting = {
            task.options(num_gpus=gpus if job.config.on_device else 0, max_retries=1).remote(job): job for job in jobs
        }
        while waiting:
            (done, *_), _ = module.wait(list(waiting), num_returns=1)
            yield _result(waiting.pop(done), lambda done=done: module.get(done))
    finally:
        module.shutdown()


def slurm(jobs: Sequence[Job], workers: int | None) -> Iterator[Ended]:
    """Jobs of a SLURM queue through submitit, at most `workers` at once; where there is no sbatch, of this machine.

    Options of sbatch come from the environment (SBATCH_PARTITION, SBATCH_ACCOUNT, ...). Logs lie in `slurm` beside
    the run folders. Raises ValueError if submitit is not installed.
    """
    module = _optional("submitit")
    cluster = "slurm" if shutil.which("sbatch") else "local"
    executor = module.AutoExecutor(folder=jobs[0].folder.parent / "slurm", cluster=cluster)
    executor.update_parameters(name="jpaged", timeout_min=24 * 60, cpus_per_task=1)
    most = workers or (256 if cluster == "slurm" else os.cpu_count() or 1)
    left, running = list(jobs), dict[Any, Job]()
    while left or running:
        while left and len(running) < most:
            job = left.pop(0)
            gpus = 1 if job.config.on_device and cluster == "slurm" else 0
            executor.update_parameters(gpus_per_node=gpus)
            running[executor.submit(attempt, job)] = job
        ended = [submitted for submitted in running if submitted.done()]
        for submitted in ended:
            yield _result(running.pop(submitted), submitted.result)
        if not ended:
            time.sleep(0.2)


LAUNCHERS: dict[str, Launcher] = {"local": local, "ray": ray, "slurm": slurm}


def _result(job: Job, result: Callable[[], Ended]) -> Ended:
    """How a job ended; one whose process died has failed like any other."""
    try:
        return result()
    except Exception as error:
        text = f"its process died: {type(error).__name__}: {error}"
        record_error(job.folder, text)
        return Ended(job, " ".join(text.split()))


def _optional(name: str) -> Any:
    try:
        return __import__(name)
    except ImportError:
        raise ValueError(
            f"launcher needs {name}, which is not installed; `pip install {name}`, or use the launcher local"
        ) from None
