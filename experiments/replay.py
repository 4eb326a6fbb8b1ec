"""A recorded run, run again: what is recorded is not changed, and every difference is said."""

import json
import tempfile
from pathlib import Path

from experiments.config import Config, ExperimentConfig
from experiments.files import from_plain, read_yaml
from experiments.launchers import Job, attempt
from experiments.point import Point
from experiments.record import check_run, compare_runs, record
from experiments.serving import FACT_FILES, OUTPUTS_FILE, TIME_FILES, outcome_of
from jpaged.workloads.column_files import read_integers


def read_config(folder: Path) -> Config:
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

    A run must have the same files, except what it measures. A device's run must have the same plans and tokens where
    all requests came at once. Where they came in time, plans depend on the device's speed: then the simulated executor
    repeats the run in the recorded times of its steps, and must decide the same. Raises ValueError if it cannot be run
    again.
    """
    config = read_config(folder)
    with tempfile.TemporaryDirectory() as scratch:
        again = Path(scratch) / folder.resolve().name
        names = None
        if isinstance(config, ExperimentConfig) and config.on_device:
            if config.workload.arrivals != "all_at_once":
                record(again, config, outcome_of(_followed(folder, config)), {})
                return compare_runs(folder, again, (*FACT_FILES, *TIME_FILES))
            names = (*FACT_FILES, OUTPUTS_FILE)
        error = attempt(Job(config, again)).error
        if error is not None:
            raise ValueError(f"{folder}: failed when it was run again: {error}")
        return compare_runs(folder, again, names, config.measured)


def _followed(folder: Path, config: ExperimentConfig) -> Point:
    from experiments.device_point import follow

    facts = json.loads((folder / "provenance.json").read_text())["executor"]
    return follow(config, read_integers(folder / "step_times.csv.gz"), facts)
