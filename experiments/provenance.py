"""Where a run is from: code, versions, machine, inputs.

These facts explain a difference between two runs of one config; none decides what a simulation gives.
"""

import functools
import hashlib
import importlib.metadata
import os
import platform
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from experiments.config import Config

# Raised whenever a file of a run folder changes its columns or keys.
SCHEMA_VERSION = 2
_PACKAGES = ("jaxlib", "jax", "flax", "numpy", "msgspec")


def provenance(config: Config, facts: Mapping[str, Any]) -> dict[str, Any]:
    """All that is known of where a run's numbers are from; `facts` are what its kind knows."""
    return {
        "schema_version": SCHEMA_VERSION,
        "question": config.question,
        "digest": config.digest(),
        **_code(),
        "hostname": platform.node(),
        "machine": platform.machine(),
        "xla_flags": os.environ.get("XLA_FLAGS", ""),
        **facts,
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


def sha256_of(path: Path) -> str | None:
    """Of the bytes of a file; None if it is not there."""
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.exists() else None
