"""Functions run in a process of their own, with as many emulated CPU devices as a test wants.

JAX is told the number of devices before it starts, so a test names a function "module:name" and its arguments, and gets
back what it returned, as JSON.
"""

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


def run_emulated(function: str, *, devices: int, timeout: float = 300, **arguments: Any) -> Any:
    """What `function` returns in a new process with so many devices; its failure is this one's, with its output."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.sharding.emulated", function, json.dumps(arguments)],
        env=emulated_env(devices), cwd=ROOT, capture_output=True, text=True, timeout=timeout, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def emulated_env(devices: int) -> dict[str, str]:
    """The environment of a process with that many emulated devices.

    Its programs go through every pass of XLA but are not optimised by LLVM, which would take most of the time.
    """
    return os.environ | {
        "JAX_PLATFORMS": "cpu",
        "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}",
        "PYTHONPATH": str(ROOT),
    }


def main() -> None:
    """Run the function that the command line names, and print what it returns."""
    module, _, name = sys.argv[1].partition(":")
    print(json.dumps(getattr(importlib.import_module(module), name)(**json.loads(sys.argv[2]))))


if __name__ == "__main__":
    main()
