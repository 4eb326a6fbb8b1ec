"""A recorded run, run again.

Lives here: `replay`.
Promises: what is recorded is not changed; every difference is said.
Must not know: command lines, sweeps.
"""

import json
import tempfile
from pathlib import Path

from experiments.config import ExperimentConfig
from experiments.files import from_plain, read_yaml
from experiments.launchers import Job, attempt
from experiments.point import Point
from experiments.record import FACT_FILES, OUTPUTS_FILE, TIME_FILES, check_run, compare_runs, record_point
from jpaged.workloads.column_files import read_integers


def read_config(folder: Path) -> ExperimentConfig:
    """The config of a run folder. Raises ValueError, naming the file, if there is no whole run or a damaged one."""
    check_run(folder)
    path = folder / "config.yaml"
    facts = read_yaml(path)
    if not isinstance(facts, dict):
        raise ValueError(f"{path}: holds no fields of a config; run its config again")
    try:
        return from_plain(facts)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def replay(folder: Path) -> list[str]:
    """How a second run of a folder's config differs from it, in lines for people; none if the two agree.

    A simulated run must have the same files. A device's run must have the same plans and tokens where all requests came
    at once. Where they came in time, plans depend on the device's speed: then the simulated executor repeats the run
    in the recorded times of its steps, and must decide the same. Raises ValueError if it cannot be run again.
    """
    config = read_config(folder)
    with tempfile.TemporaryDirectory() as scratch:
        again = Path(scratch) / folder.resolve().name
        if config.executor.kind == "jax" and config.workload.arrivals != "all_at_once":
            record_point(again, _followed(folder, config), {})
            return compare_runs(folder, again, (*FACT_FILES, *TIME_FILES))
        error = attempt(Job(config, again)).error
        if error is not None:
            raise ValueError(f"{folder}: failed when it was run again: {error}")
        measured = config.executor.kind == "jax"
        return compare_runs(folder, again, (*FACT_FILES, OUTPUTS_FILE) if measured else (*FACT_FILES, *TIME_FILES))


def _followed(folder: Path, config: ExperimentConfig) -> Point:
    from experiments.device_point import follow

    facts = json.loads((folder / "provenance.json").read_text())["executor"]
    return follow(config, read_integers(folder / "step_times.csv.gz"), facts)
