"""Where a run is from: code, versions, machine, inputs.

Lives here: `provenance`.
Promises: facts that explain a difference between two runs of one config; none that decides what a simulation gives.
Must not know: how a point is run.
"""

import functools
import hashlib
import importlib.metadata
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

from experiments.config import ExperimentConfig
from experiments.point import Point
from jpaged.core.observe.plan_digest import ENCODING_VERSION

# Raised whenever a file of a run folder changes its columns or keys.
SCHEMA_VERSION = 2
_PACKAGES = ("jaxlib", "jax", "flax", "numpy", "msgspec")


def provenance(point: Point) -> dict[str, Any]:
    """All that is known of where the point's numbers are from."""
    config, workload = point.config, point.workload
    return {
        "schema_version": SCHEMA_VERSION,
        "plan_digest_encoding": ENCODING_VERSION,
        "question": config.question,
        "digest": config.digest(),
        "backend": config.executor.kind,
        **_code(),
        "hostname": platform.node(),
        "machine": platform.machine(),
        "xla_flags": os.environ.get("XLA_FLAGS", ""),
        "cost_profile": config.executor.cost_profile if config.executor.kind == "sim" else None,
        "cost_profile_sha256": _profile_sha256(config),
        "workload": workload.name,
        "workload_source": workload.source,
        "workload_sha256": workload.digest(),
        "workload_notes": list(workload.notes),
        "num_dropped": workload.num_dropped,
        "seeds": {"engine": config.seed, "workload": config.workload.seed},
        "executor": point.executor_facts,
    }


@functools.cache
def _code() -> dict[str, Any]:
    """Commit and versions, found out once a process."""
    diff = _git("diff", "HEAD")
    return {
        "git_sha": _git("rev-parse", "HEAD"),
        "git_dirty": None if diff is None else bool(diff),
        "git_diff_sha256": hashlib.sha256(diff.encode()).hexdigest() if diff else None,
        "python": platform.python_version(),
        "versions": {name: importlib.metadata.version(name) for name in _PACKAGES},
    }


def _git(*arguments: str) -> str | None:
    """What git says of the folder of this code; None where it is no checkout."""
    command = ["git", "-C", str(Path(__file__).parent), *arguments]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=20).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None


def _profile_sha256(config: ExperimentConfig) -> str | None:
    """Of the file of a cost profile that is one."""
    _, _, path = config.executor.cost_profile.partition(":")
    if config.executor.kind != "sim" or not path or not Path(path).exists():
        return None
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()
