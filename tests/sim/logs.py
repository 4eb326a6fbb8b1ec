"""Step logs: of an executor, and in files of each kind."""

import gzip
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jpaged.sim.clock import VirtualClock
from jpaged.sim.cost_model import CostModel
from jpaged.sim.executor import SimExecutor
from jpaged.sim.work import LOG_COLUMNS, StepWork
from jpaged.workloads.column_files import write_csv


def write_log(path: Path, columns: Mapping[str, Sequence[int]]) -> None:
    """Write columns as the ending of `path` says."""
    if ".csv" in path.suffixes:
        return write_csv(path, columns)
    rows = zip(*columns.values(), strict=True)
    data = "".join(json.dumps(dict(zip(columns, row, strict=True))) + "\n" for row in rows).encode()
    path.write_bytes(gzip.compress(data, mtime=0) if path.suffix == ".gz" else data)


class LoggedExecutor(SimExecutor):
    """A SimExecutor that keeps what each step cost."""

    def __init__(self, cost_model: CostModel, clock: VirtualClock, seed: int = 0, **options: Any) -> None:
        super().__init__(cost_model, clock, seed, **options)
        self.rows: list[tuple[int, ...]] = []

    def charge(self, work: StepWork) -> None:
        start_ns, device_ns, host_ns = self.clock.now_ns, self.device_ns, self.host_ns
        super().charge(work)
        self.rows.append((len(self.rows), start_ns, self.device_ns - device_ns, self.host_ns - host_ns, *work))

    def columns(self) -> dict[str, list[int]]:
        return {name: list(column) for name, column in zip(LOG_COLUMNS, zip(*self.rows, strict=True), strict=True)}
