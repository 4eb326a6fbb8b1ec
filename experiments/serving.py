"""A point of a served workload as the files of its run folder.

The files of one config have the same bytes whenever it is simulated on one machine; what is measured, and so differs,
has files of its own.
"""

import gzip
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from experiments.config import ExperimentConfig
from experiments.kinds import Outcome
from experiments.point import REQUEST_TIMES, Point, simulated_point
from experiments.provenance import sha256_of
from experiments.summary import summarize
from jpaged.core.observe.plan_digest import ENCODING_VERSION
from jpaged.sim.work import LOG_COLUMNS
from jpaged.workloads.column_files import csv_bytes

# Decided by the config alone, on any executor, where all requests come at once.
FACT_FILES = ("config.yaml", "requests.csv.gz", "steps.csv.gz")
# Decided by the config alone if the executor is simulated.
TIME_FILES = ("summary.json", "request_times.csv.gz", "step_times.csv.gz")
# The tokens of a real executor.
OUTPUTS_FILE = "outputs.jsonl.gz"
Columns = dict[str, Sequence[int] | np.ndarray]


def run(config: ExperimentConfig) -> Outcome:
    """Run a config to its end. Raises ValueError as `run_point` does."""
    return outcome_of(run_point(config))


def run_point(config: ExperimentConfig) -> Point:
    """Run a config to its end.

    Raises ValueError, with the remedy, for what cannot be run as it says, and where every request is refused.
    """
    if config.executor.kind == "jax":
        from experiments.device_point import run_device_point

        point = run_device_point(config)
    else:
        point = simulated_point(config)
    count = len(point.workload)
    if len(point.refused) == count:
        raise ValueError(f"{count} of {count} requests were refused: {point.refused[min(point.refused)]}")
    return point


def outcome_of(point: Point) -> Outcome:
    """All that is kept of a point."""
    files = {
        "requests.csv.gz": _table(_request_facts(point)),
        "request_times.csv.gz": _table(
            {"request": range(len(point.finished)), **{name: point.requests[name] for name in REQUEST_TIMES}}
        ),
        "steps.csv.gz": _table({k: v for k, v in point.steps.items() if k not in ("start_ns", "end_ns")}),
        "step_times.csv.gz": _table(step_log(point)),
    }
    if point.refused:
        reasons = {str(number): reason for number, reason in point.refused.items()}
        files["refused.json"] = (json.dumps(reasons, indent=1) + "\n").encode()
    if point.outputs is not None:
        files[OUTPUTS_FILE] = _outputs(point.outputs)
    return Outcome(summarize(point), files, _facts(point))


def _facts(point: Point) -> dict[str, object]:
    config, workload = point.config, point.workload
    simulated = config.executor.kind == "sim"
    _, _, path = config.executor.cost_profile.partition(":")
    return {
        "plan_digest_encoding": ENCODING_VERSION,
        "backend": config.executor.kind,
        "cost_profile": config.executor.cost_profile if simulated else None,
        "cost_profile_sha256": sha256_of(Path(path)) if simulated and path else None,
        "workload": workload.name,
        "workload_source": workload.source,
        "workload_sha256": workload.digest(),
        "workload_notes": list(workload.notes),
        "num_dropped": workload.num_dropped,
        "seeds": {"engine": config.seed, "workload": config.workload.seed},
        "executor": point.executor_facts,
    }


def _request_facts(point: Point) -> Columns:
    facts = {name: column for name, column in point.requests.items() if name not in REQUEST_TIMES}
    refused = [int(number in point.refused) for number in range(len(point.finished))]
    return {"request": range(len(refused)), **facts, "finished": point.finished.astype(int), "refused": refused}


def step_log(point: Point) -> Columns:
    """Steps with the LOG_COLUMNS, so that a run is a cost profile for `table:` and `measured:`."""
    steps = point.steps
    span = steps["end_ns"] - steps["start_ns"]
    columns = {**steps, "device_ns": span, "host_ns": np.zeros_like(span)}
    return {name: columns[name] for name in LOG_COLUMNS}


def _table(columns: Columns) -> bytes:
    plain = {name: np.asarray(column).tolist() for name, column in columns.items()}
    # Level 6 takes a third of the time of the default 9 for a few per cent more bytes.
    return gzip.compress(csv_bytes(plain), compresslevel=6, mtime=0)


def _outputs(outputs: Mapping[tuple[int, int], Sequence[int]]) -> bytes:
    """A line for each sequence: which request's, its index among the request's, its token ids."""
    lines = (
        json.dumps({"request": request, "index": index, "token_ids": list(ids)}) + "\n"
        for (request, index), ids in sorted(outputs.items())
    )
    return gzip.compress("".join(lines).encode(), mtime=0)
